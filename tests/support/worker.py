"""The worker as a child process on real Kafka and ClickHouse, and traffic for it.

A `Site` is one installation: a group, a panes topic, a dead-letter topic and a database of its own over a source topic that
several sites may share.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from aiokafka import AIOKafkaProducer

from citegauge.settings import Settings
from citegauge.tools.simulate_output import records
from citegauge.tools.simulate_spec import SECOND_NS, TrafficSpec
from support.clickhouse import child_environment
from support.kafka import unique

START_S_MAX = 60.0
POLL_S = 0.05
SEND_TIMEOUT_MS = 400_000
Pairs = list[tuple[bytes | None, bytes | None]]
"""(key, value) of records to send."""
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """The first true value of `condition`. AssertionError with `what` past the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)


# ------------------------------------------------------------------------------------------------------- sites


@dataclass(frozen=True, kw_only=True)
class Site:
    """One installation of the service."""

    kafka: str
    clickhouse: str
    topic: str
    keyed: bool = True
    """The intake: a topic keyed by trace id, joined directly; else, as by default, the re-key stage before the join."""
    name: str = field(default_factory=lambda: unique("site"))
    options: Mapping[str, str] = field(default_factory=dict)
    """Further settings, as `{"JOIN__JOIN_WINDOW_S": "60"}`."""

    @property
    def database(self) -> str:
        """Its database."""
        return self.name.replace("-", "_")

    @property
    def rekey_group(self) -> str:
        """The group of its re-key stage."""
        return f"{self.name}-rekey"

    @property
    def joined_topic(self) -> str:
        """What its join reads: the source topic, or the topic of re-keyed spans."""
        return self.topic if self.keyed else f"{self.name}-spans"

    @property
    def environment(self) -> dict[str, str]:
        """Its settings."""
        own = {
            "KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "KAFKA__SOURCE_TOPIC": self.topic,
            "KAFKA__KEYED": str(self.keyed).lower(),
            "KAFKA__GROUP_ID": f"{self.name}-join",
            "KAFKA__PANES_TOPIC": f"{self.name}-panes",
            "KAFKA__PANES_PARTITIONS": "2",
            "KAFKA__DEAD_LETTER_TOPIC": f"{self.name}-dead",
            "KAFKA__SESSION_TIMEOUT_S": "6",
            "KAFKA__DRAIN_TIMEOUT_S": "8",
            "KAFKA__REBALANCE_TIMEOUT_S": "20",
            "CLICKHOUSE__URL": self.clickhouse,
            "CLICKHOUSE__DATABASE": self.database,
            "CLICKHOUSE__RETRY_WAIT_S_MAX": "1",
            "PUBLISH__INTERVAL_S": "0.5",
            "JOIN__JOIN_WINDOW_S": "60",
            "WEB__PORT": "0",
        }
        if not self.keyed:
            own |= {
                "REKEY__GROUP_ID": self.rekey_group,
                "REKEY__SPANS_TOPIC": self.joined_topic,
                "REKEY__SPANS_PARTITIONS": "3",
            }
        return {f"CITEGAUGE_{name}": value for name, value in (own | dict(self.options)).items()}

    def with_options(self, **options: str) -> Site:
        """The same installation with other settings."""
        return replace(self, options={**self.options, **options})

    def settings(self) -> Settings:
        """Its settings as the worker reads them."""
        saved = dict(os.environ)
        os.environ.update(self.environment)
        try:
            return Settings()
        finally:
            os.environ.clear()
            os.environ.update(saved)


class MakeSite(Protocol):
    """Makes a site; by default on a new source topic of 3 partitions."""

    def __call__(self, *, topic: str = "", partitions: int = 3, **options: str) -> Site:
        """`options`: further settings, such as `JOIN__JOIN_WINDOW_S="300"`."""


class WorkerProcess:
    """`citegauge run` in a process group of its own; use as a context manager, which kills what is left."""

    def __init__(self, site: Site, folder: Path, *arguments: str) -> None:
        self.site = site
        self.log_path = folder / f"{unique('worker')}.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The child, running or ended."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def log(self) -> str:
        """What it wrote on standard output and error, over all starts."""
        return self.log_path.read_text(errors="replace")

    @property
    def fresh_log(self) -> str:
        """What it wrote since its last start."""
        return self.log[self._started_at :]

    def start(self) -> Self:
        """Start it; returns at once."""
        environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
        with self.log_path.open("ab") as output:
            self._started_at = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "citegauge", "run", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | self.site.environment,
            )
        return self

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Send a signal and return the exit status."""
        self.send(number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = START_S_MAX) -> int:
        """Exit status of a process that is to end by itself."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {timeout_s:g} s:\n{self.log}") from None

    @property
    def url(self) -> str:
        """Where its endpoints are, once it has said so; empty before."""
        found = re.search(r"/readyz at (http://\S+?)/\s", self.fresh_log)
        return found[1] if found else ""

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one of its endpoints; (0, "") while nothing listens."""
        url = self.url
        if not url:
            return 0, ""
        try:
            with urllib.request.urlopen(url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """(name, sorted labels) to value; empty while nothing listens."""
        return parse_metrics(self.get("/metrics")[1])

    def value(self, name: str, **labels: str) -> float:
        """Sum over the series of one metric that have these labels."""
        wanted = set(labels.items())
        return sum(value for (own, found), value in self.metrics().items() if own == name and wanted <= set(found))

    def alive(self) -> bool:
        """Whether it runs. AssertionError with its log when it has ended."""
        assert self.process.poll() is None, f"the worker ended with {self.process.returncode}:\n{self.log}"
        return True

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """`wait_until`, that fails at once when the worker ends."""
        try:
            return wait_until(lambda: self.alive() and condition(), what, timeout_s)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.log}") from None

    def until_ready(self, timeout_s: float = START_S_MAX) -> None:
        """Wait for `/readyz`."""
        self.until(lambda: self.get("/readyz")[0] == 200, "the worker is ready", timeout_s)


def parse_metrics(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples of an exposition in text form."""
    found = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            found[match[1], tuple(sorted(_LABEL.findall(match[2] or "")))] = float(match[3])
    return found


# ------------------------------------------------------------------------------------------------ topics and logs


async def _produce(kafka: str, topic: str, batch: Iterable[tuple[bytes | None, bytes | None]]) -> list[tuple[int, int]]:
    async with AIOKafkaProducer(
        bootstrap_servers=kafka, linger_ms=20, max_batch_size=1 << 18, max_request_size=16 << 20
    ) as producer:
        sent = [await producer.send(topic, value, key) for key, value in batch]
        return [(at.partition, at.offset) for at in await asyncio.gather(*sent)]


def produce(kafka: str, topic: str, batch: Iterable[tuple[bytes | None, bytes | None]]) -> list[tuple[int, int]]:
    """Send (key, value) pairs and return partition and offset of each, all acknowledged."""
    return asyncio.run(_produce(kafka, topic, batch))


class Feed:
    """Sends pairs in the background, so that a worker can be disturbed in mid-stream: `per_s` a second, until `hurry`.

    `partitions`: to these alone, in turn. `behind_s`: timestamps (of a CreateTime topic) lie so far in the past.
    """

    def __init__(
        self,
        kafka: str,
        topic: str,
        batch: Pairs,
        per_s: float,
        *,
        partitions: Sequence[int] = (),
        behind_s: float = 0.0,
    ) -> None:
        self._arguments = (kafka, topic, batch, per_s)
        self._partitions = partitions
        self._behind_s = behind_s
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._in_a_hurry = False
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def done(self) -> bool:
        """Everything is acknowledged (or sending failed, which leaving the context raises)."""
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """Send what is left at once: what needed a stream is over."""
        self._in_a_hurry = True

    def _run(self) -> None:
        try:
            asyncio.run(self._send(*self._arguments))
        except BaseException as exc:  # noqa: BLE001 - raised in the test's own thread
            self._failure = exc

    async def _send(self, kafka: str, topic: str, batch: Pairs, per_s: float) -> None:
        # A broker may be frozen for minutes, which is no fault of who produces.
        async with AIOKafkaProducer(bootstrap_servers=kafka, request_timeout_ms=SEND_TIMEOUT_MS) as producer:
            begun = time.monotonic()
            while self.sent < len(batch):
                paced = int((time.monotonic() - begun) * per_s) + 1
                due = len(batch) if self._in_a_hurry else min(len(batch), paced)
                await asyncio.gather(
                    *[await self._send_one(producer, topic, at, batch[at]) for at in range(self.sent, due)]
                )
                self.sent = due
                await asyncio.sleep(POLL_S)

    async def _send_one(
        self, producer: AIOKafkaProducer, topic: str, at: int, pair: tuple[bytes | None, bytes | None]
    ) -> Any:
        partition = self._partitions[at % len(self._partitions)] if self._partitions else None
        stamp_ms = int((time.time() - self._behind_s) * 1_000) if self._behind_s else None
        return await producer.send(topic, pair[1], pair[0], partition=partition, timestamp_ms=stamp_ms)


def traffic(seed: int, *, minutes: int, per_minute: float, end_ns: int, **changes: Any) -> TrafficSpec:
    """Disorder, 5 % duplicates, 2 % late spans, 5 % missing halves; ends at `end_ns`."""
    return TrafficSpec(
        seed=seed,
        start_ns=end_ns - minutes * 60 * SECOND_NS,
        end_ns=end_ns,
        traces_per_minute=per_minute,
        **{
            "disorder_ns": 5 * SECOND_NS,
            "duplicate_ratio": 0.05,
            "late_ratio": 0.02,
            "missing_retrieval_ratio": 0.025,
            "missing_generation_ratio": 0.025,
        }
        | changes,
    )


def pairs(spec: TrafficSpec, encoding: Any = "native") -> Pairs:
    """The traffic as (key, value), in order of production."""
    return [(record.key, record.value) for record in records(spec, encoding)]
