"""Real ClickHouse engines for tests: chDB in this process, chDB behind HTTP in a child process, or a user's own server.

Not fixtures of pytest but plain functions and one class, so that any test module can build what it needs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import citegauge
from citegauge.adapters.clickhouse import ClickHouse, EmbeddedTarget, HttpTarget, connect
from citegauge.adapters.migrations import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_SERVER = os.environ.get("CITEGAUGE_TEST_CLICKHOUSE", "")
"""Address of a user's own server; tests make databases of their own there and drop them again."""
START_TIMEOUT_S = 30


class ClickHouseFront:
    """A server substitute that can be stopped, killed, frozen and started again on the same port and data."""

    def __init__(self, path: Path, port: int = 0) -> None:
        self.path = path
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for `HttpTarget`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> ClickHouseFront:
        """Start and return when it answers."""
        assert self._process is None, "already running"
        script = Path(__file__).with_name("clickhouse_server.py")
        process = subprocess.Popen(
            [sys.executable, str(script), str(self.path), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == b"ready\n", f"the ClickHouse front did not start: {line!r}, exit status {process.poll()}"
        return self

    def stop(self) -> None:
        """Orderly end: what it has accepted is on disk."""
        if self._process is None:
            return
        self.resume()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is None:
            return
        self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._wait()

    def pause(self) -> None:
        """SIGSTOP: connections are accepted by the kernel, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _wait(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


@contextlib.contextmanager
def embedded(path: Path | None = None, database: str = "citegauge") -> Iterator[ClickHouse]:
    """A migrated, empty database on chDB in this process."""
    client = connect(EmbeddedTarget(path=path), database)
    try:
        yield from _migrated(client)
    finally:
        client.close()


@contextlib.contextmanager
def over_http(url: str, database: str = "") -> Iterator[ClickHouse]:
    """A migrated, empty database of its own on a server, which is dropped at the end."""
    client = connect(HttpTarget(url=url), database or f"citegauge_{uuid.uuid4().hex[:12]}")
    try:
        yield from _migrated(client)
    finally:
        client.close()


def _migrated(client: ClickHouse) -> Iterator[ClickHouse]:
    migrate(client, client.database)
    try:
        yield client
    finally:
        client.command(f"DROP DATABASE IF EXISTS `{client.database}` SYNC")


def child_environment() -> dict[str, str]:
    """Ours, with the sources of the package on the path."""
    return {**os.environ, "PYTHONPATH": str(Path(citegauge.__file__).parents[1])}


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetch(
    url: str, data: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a GET, or of a POST of `data`; errors of HTTP are answers too."""
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def recent_minute() -> int:
    """The current minute, unix seconds: rows older than a table's TTL may vanish under a test."""
    return int(time.time()) // 60 * 60
