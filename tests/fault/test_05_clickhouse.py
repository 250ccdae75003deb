"""Fault 5: ClickHouse refuses, hangs, says that an insert failed which it has applied, and is gone for a long time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.faults import lasting, until_reading
from support.faulty_proxy import FaultyProxy
from support.worker_tables import commits

if TYPE_CHECKING:
    import random

    from fault.conftest import MakeTrial
    from support.clickhouse import ClickHouseFront
    from support.worker import WorkerProcess

pytestmark = pytest.mark.kafka


def counted(worker: WorkerProcess) -> float:
    """Traces in the windows that /metrics shows."""
    return worker.value("citegauge_window_traces", window="24h")


def test_clickhouse_refuses_while_metrics_go_on(trial: MakeTrial, own_front: ClickHouseFront) -> None:
    """For two minutes (10 s in a short run) nothing listens: /metrics goes on, no commit passes what is not stored."""
    with trial("5 ClickHouse gone, /metrics goes on", clickhouse=own_front.url) as t:
        worker = t.worker()
        until_reading(worker)
        with t.feed(for_s=40):
            worker.until(lambda: counted(worker) > 100, "windows show something")
            own_front.kill()
            worker.until(lambda: worker.value("citegauge_clickhouse_failing", tier="join"), "inserts fail")
            before, standing = counted(worker), commits(t.site)
            worker.until(lambda: counted(worker) > before, "windows go on without ClickHouse")
            lasting(worker, 10 if t.short else 125)
            assert commits(t.site) == standing, "offsets advance only behind acknowledged rows"
            assert worker.get("/healthz")[0] == 200, "waiting for ClickHouse is no fault of the worker"
            own_front.start()
            t.healed()
            t.until_recovered(worker)
        t.verify(worker)


@pytest.mark.full
def test_clickhouse_hangs(trial: MakeTrial, own_front: ClickHouseFront) -> None:
    """Connections stay open and nothing answers; what had been sent may or may not have been applied."""
    with trial("5 ClickHouse hangs", clickhouse=own_front.url) as t:
        worker = t.worker()
        with t.feed():
            worker.until(lambda: counted(worker) > 100, "windows show something")
            own_front.pause()
            lasting(worker, 4 if t.short else 70)  # the client gives up after 60 s
            own_front.resume()
            t.healed()
            t.until_recovered(worker)
        t.verify(worker)


@pytest.mark.short_in("default")
def test_an_insert_is_applied_and_reported_as_failed(
    trial: MakeTrial, own_front: ClickHouseFront, chance: random.Random
) -> None:
    """Of three inserts one is answered with 500 after it was applied: the same rows come again and count once."""
    with (
        FaultyProxy(own_front.url, lambda: chance.random() < 1 / 3) as proxy,
        trial("5 ClickHouse 500 after the insert", clickhouse=own_front.url) as t,
    ):
        t.site = replace(t.site, clickhouse=proxy.url)
        worker = t.worker()
        worker.until_ready()  # a start that fails is said and over; this is about what runs
        proxy.lying = True
        with t.feed(for_s=40):
            worker.until(lambda: proxy.lied >= (5 if t.short else 12), "the proxy lies", 120)
        proxy.lying = False
        t.healed()
        t.until_recovered(worker)
        assert worker.value("citegauge_clickhouse_retries_total", tier="join") > 0
        t.verify(worker)
