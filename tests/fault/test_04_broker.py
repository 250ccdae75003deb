"""Fault 4: the broker is stopped, killed, frozen and slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.faults import lasting
from support.kafka import KafkaServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fault.conftest import MakeTrial

pytestmark = pytest.mark.kafka


@pytest.fixture
def own_kafka(kafka_server: KafkaServer, tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker that this fault may break. (The shared one only says whether there can be one.)"""
    server = KafkaServer(tmp_path / "kafka")
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("cleanly", [pytest.param(True, marks=pytest.mark.full), False], ids=["stopped", "killed"])
def test_the_broker_goes_and_comes_back(trial: MakeTrial, own_kafka: KafkaServer, *, cleanly: bool) -> None:
    """The worker outlives the broker and goes on by itself; a killed broker has lost nothing that it acknowledged."""
    with trial(f"4 broker {'stopped' if cleanly else 'killed'}, started", kafka=own_kafka.bootstrap_servers) as t:
        worker = t.worker()
        with t.feed():
            worker.until(lambda: worker.value("citegauge_records_total") > 300, "it reads")
            own_kafka.stop() if cleanly else own_kafka.kill()
            worker.until(lambda: "aiokafka" in worker.log, "it notices")
            lasting(worker, 3 if t.short else 10)
            own_kafka.start()
            t.healed()
            t.until_recovered(worker)
        t.verify(worker)


@pytest.mark.full
def test_a_broker_that_hangs(trial: MakeTrial, own_kafka: KafkaServer) -> None:
    """The broker answers nothing for longer than a session, twice."""
    with trial("4 broker hangs", kafka=own_kafka.bootstrap_servers) as t:
        worker = t.worker()
        with t.feed():
            worker.until(lambda: worker.value("citegauge_records_total") > 300, "it reads")
            for _ in range(1 if t.short else 2):
                own_kafka.pause()
                lasting(worker, 8)
                own_kafka.resume()
                t.healed()
                t.until_recovered(worker)
        t.verify(worker)


@pytest.mark.short_in("default")
def test_a_broker_that_is_frozen_for_minutes(trial: MakeTrial, own_kafka: KafkaServer) -> None:
    """Three minutes (20 s in a short run) without an answer, under load: the worker lives, says so, and goes on."""
    with trial("4 broker frozen for 3 minutes", kafka=own_kafka.bootstrap_servers) as t:
        worker = t.worker()
        with t.feed(for_s=20):
            worker.until(lambda: worker.value("citegauge_records_total") > 300, "it reads")
            own_kafka.pause()
            lasting(worker, 20 if t.short else 180)
            assert worker.get("/metrics")[0] == 200, "what is known is told all the while"
            own_kafka.resume()
            t.healed()
            t.until_recovered(worker, 60)
        t.verify(worker)


@pytest.mark.full
def test_a_slow_broker(trial: MakeTrial, own_kafka: KafkaServer) -> None:
    """A broker that stutters (frozen nine tenths of the time) slows the worker down and does nothing else."""
    with trial("4 broker slow", kafka=own_kafka.bootstrap_servers) as t:
        worker = t.worker()
        with t.feed():
            worker.until(lambda: worker.value("citegauge_records_total") > 300, "it reads")
            for _ in range(8 if t.short else 25):
                own_kafka.pause()
                lasting(worker, 0.9)
                own_kafka.resume()
                lasting(worker, 0.1)
            t.healed()
            t.until_recovered(worker)
        t.verify(worker)
