"""Apache Kafka for tests: fetched once with Maven, one node in KRaft mode, on loopback. Not for production use.

Everything here is synchronous. From an async test call it through `asyncio.to_thread`, for instance
`await asyncio.to_thread(server.restart)`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from citegauge.adapters.embedded import HOST, free_port, spawn

POM = Path(__file__).parent.parent / "pom.xml"
JAVA_MIN = 17
FETCH_S_MAX = 600
READY_S_MAX = 90
STOP_S_MAX = 30

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{broker}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
log.cleaner.dedupe.buffer.size=4194304
log.segment.bytes=67108864
"""

_LOG4J = """\
<Configuration status="ERROR">
  <Appenders><Console name="out"><PatternLayout pattern="%d{{ISO8601}} %p %c{{1}}: %m%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
""".replace("{{", "{").replace("}}", "}")


class KafkaUnavailableError(Exception):
    """Apache Kafka cannot be had on this machine. The message says what is missing."""


def pinned_version() -> str:
    """The version of Apache Kafka that `tests/pom.xml` names."""
    version = ET.parse(POM).findtext(".//{*}kafka.version")
    assert version, f"{POM} has no <kafka.version>"
    return version


def java() -> str:
    """The path of a Java that is new enough. Raises `KafkaUnavailableError`."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin" if home else None)
    if path is None:
        raise KafkaUnavailableError(f"no java: install Java {JAVA_MIN} or newer")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_MIN:
        raise KafkaUnavailableError(
            f"{path} is too old for Kafka, which needs Java {JAVA_MIN}: {said.splitlines()[:1]}"
        )
    return path


def jars() -> Path:
    """The folder with Kafka's jars: fetched once, kept in the user's cache. Raises `KafkaUnavailableError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "citegauge"
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:8]
    folder = cache / f"kafka-{pinned_version()}-{digest}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError("no mvn: install Maven, which fetches Kafka's jars")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as fresh:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fresh}/jars"]
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(POM), *goal],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False,
        )  # fmt: skip
        if done.returncode:
            raise KafkaUnavailableError(f"mvn could not fetch Kafka: {(done.stdout + done.stderr).strip()[-500:]}")
        try:
            Path(fresh, "jars").rename(folder)
        except OSError:  # another run was faster
            if not folder.is_dir():
                raise
    return folder


class KafkaServer:
    """One Kafka process with its own data folder, whose ports and data stay the same over stops and starts."""

    def __init__(
        self,
        folder: Path,
        *,
        heap_mb: int = 512,
        java_options: tuple[str, ...] = (),
        properties: str = "",
        format_options: tuple[str, ...] = (),
    ) -> None:
        """`folder` is made and filled here. Raises `KafkaUnavailableError` where there is no Java or no Kafka.

        `properties`: further lines of server.properties, in which `{host}`, `{broker}` and `{controller}` are filled in.
        """
        self._folder = folder
        self._data = folder / "data"
        self._log = folder / "kafka.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.xml").write_text(_LOG4J)
        self._config = folder / "server.properties"
        ports = {"broker": self._port, "controller": free_port()}
        self._config.write_text((_PROPERTIES + properties).format(host=HOST, data=self._data, **ports))
        self._java = [
            java(), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", *java_options,
            f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}", "-cp", f"{jars()}/*",
        ]  # fmt: skip
        self._format(format_options)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, the same for the life of this object."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and return once a client gets metadata with the broker in it. Raises `AssertionError` with the log."""
        assert self._process is None, "already started"
        with self._log.open("ab") as output:
            environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}
            self._process = spawn([*self._java, "kafka.Kafka", str(self._config)], output, environment)
        deadline = time.monotonic() + READY_S_MAX
        while not asyncio.run(_has_a_broker(self._port)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"Kafka did not get ready: {self._log.read_text()[-3000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """A clean shutdown, killed after `STOP_S_MAX`. Does nothing when it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """`kill -9`: the broker has no time to write anything. Its data folder stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop it cleanly and start it on the same ports and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def _format(self, options: tuple[str, ...]) -> None:
        cluster = uuid.uuid4().hex[:22]
        done = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._config), *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"the storage cannot be formatted: {done.stdout}{done.stderr}"


async def _has_a_broker(port: int) -> bool:
    """Whether a client gets metadata with a broker in it. The bare connection first: aiokafka logs each refusal."""
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    admin = AIOKafkaAdminClient(bootstrap_servers=f"{HOST}:{port}", request_timeout_ms=5_000)
    try:
        await admin.start()
        return bool((await admin.describe_cluster())["brokers"])
    except KafkaError:
        return False
    finally:
        await admin.close()


def unique(prefix: str) -> str:
    """A topic or group name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def create_topic(bootstrap_servers: str, name: str, *, partitions: int = 1, **configs: Any) -> str:
    """Make a topic with LogAppendTime and wait until each partition has a leader. Returns `name`.

    Further topic settings are given with underscores: `cleanup_policy="delete"`. Raises `KafkaError`.
    """
    settings = {"message.timestamp.type": "LogAppendTime"}
    settings |= {key.replace("_", "."): str(value) for key, value in configs.items()}
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, topic_configs=settings)
        answer = await admin.create_topics([topic])
        for _, code, *detail in answer.topic_errors:
            if code:
                raise for_code(code)(*detail)
    finally:
        await admin.close()
    # A consumer's start asks for offsets, which only a leader answers.
    consumer = AIOKafkaConsumer(name, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        await consumer.end_offsets(consumer.assignment())
        assert len(consumer.assignment()) == partitions, f"{name} has {len(consumer.assignment())} partitions"
    finally:
        await consumer.stop()
    return name
