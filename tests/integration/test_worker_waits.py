"""A start with ClickHouse or Kafka away: the worker waits, says so everywhere, and starts when they are there."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from support.clickhouse import ClickHouseFront, free_port
from support.kafka import KafkaServer, unique
from support.worker import Site, WorkerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
STOP_S_MAX = 10


def until_waiting(worker: WorkerProcess, what: str, where: str, cause: str) -> None:
    """Health, metrics and log say what it waits for."""
    worker.until(lambda: worker.get("/readyz")[0] == 503, "it listens, and is not ready")
    worker.until(lambda: what in worker.get("/readyz")[1], f"it says that it waits for {what}")
    assert worker.get("/readyz") == (503, f"waiting for {what} at {where}\n")
    assert worker.get("/healthz") == (200, f"waiting for {what} at {where}\n")
    assert worker.value("citegauge_waiting", **{"for": what.lower()}) == 1
    assert worker.value("citegauge_waiting") == 1
    worker.until(lambda: cause in worker.log, "the log names the cause and the setting")
    assert worker.value("citegauge_windows_ready") == 0


def test_without_clickhouse(make_site: MakeSite, own_front: ClickHouseFront, tmp_path: Path) -> None:
    """It waits past the two tries that may be luck, then starts by itself."""
    made = make_site()
    site = Site(kafka=made.kafka, clickhouse=own_front.url, topic=made.topic)
    own_front.stop()
    with WorkerProcess(site, tmp_path) as worker:
        where = f"127.0.0.1:{own_front.port}"
        until_waiting(worker, "ClickHouse", own_front.url, f"no ClickHouse answers at {where} (clickhouse.url); try ")
        own_front.start()
        worker.until_ready()
        assert worker.value("citegauge_waiting") == 0
        assert worker.end() == 0
    assert worker.log.count("no ClickHouse answers") <= 2, "once a while"
    assert "Traceback" not in worker.log


def test_without_kafka(front: ClickHouseFront, tmp_path: Path) -> None:
    """Nobody listens at the broker's port, then a broker does."""
    server = KafkaServer(tmp_path / "kafka")
    site = Site(kafka=server.bootstrap_servers, clickhouse=front.url, topic=unique("spans"))
    with WorkerProcess(site, tmp_path) as worker:
        cause = f"no Kafka broker answers at {server.bootstrap_servers} (kafka.bootstrap_servers"
        until_waiting(worker, "Kafka", server.bootstrap_servers, cause)
        server.start()
        try:
            worker.until_ready()
            assert worker.end() == 0
        finally:
            server.kill()
    assert "Traceback" not in worker.log


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield listening.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("away", ["ClickHouse", "silent ClickHouse", "Kafka", "silent Kafka"])
@pytest.mark.parametrize("role", ["all", "join"])
def test_a_signal_ends_the_wait(
    front: ClickHouseFront, silent: int, tmp_path: Path, away: str, role: str, number: signal.Signals
) -> None:
    """At once and cleanly, also while a call hangs."""
    port = silent if "silent" in away else free_port()
    site = Site(kafka=f"127.0.0.1:{port}", clickhouse=front.url, topic=unique("spans"))
    if "ClickHouse" in away:
        site = Site(kafka=f"127.0.0.1:{free_port()}", clickhouse=f"http://127.0.0.1:{port}", topic=unique("spans"))
    with WorkerProcess(site, tmp_path, "--role", role) as worker:
        worker.until(lambda: away.rsplit(maxsplit=1)[-1] in worker.get("/readyz")[1], "it waits")
        begun = time.monotonic()
        assert worker.end(number, STOP_S_MAX) == 0, worker.log
        print(f"ended after {time.monotonic() - begun:.1f} s")
    assert "Traceback" not in worker.log, worker.log
    wait_until(lambda: worker.process.poll() is not None, "it has ended")
