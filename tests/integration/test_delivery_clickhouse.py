"""ClickHouse goes away and comes back: numbers go on, reading pauses at the bound, offsets stand still, nothing is lost."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import HttpTarget, connect
from support.clickhouse import ClickHouseFront
from support.worker import Feed, Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import assert_equal, commits, expected, read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from support.worker import MakeSite, Pairs

pytestmark = pytest.mark.kafka
OUTAGE_S = 120 if os.environ.get("CITEGAUGE_SLOW") == "1" else 20
FREEZE_S = 30 if os.environ.get("CITEGAUGE_SLOW") == "1" else 8
PAST_NS = 180 * 1_000_000_000


def counted(worker: WorkerProcess) -> float:
    """Traces in the windows that /metrics shows."""
    return worker.value("citegauge_window_traces", window="24h")


def survive_outage(site: Site, worker: WorkerProcess, batch: Pairs, for_s: float) -> None:
    """What must hold while ClickHouse is away and traffic goes on."""
    before, begun = counted(worker), time.monotonic()
    with Feed(site.kafka, site.topic, batch, per_s=1_000):
        worker.until(lambda: worker.value("citegauge_clickhouse_failing", tier="join"), "inserts fail", 90)
        standing = commits(site)
        worker.until(lambda: counted(worker) > before, "windows go on without ClickHouse")
        worker.until(lambda: worker.value("citegauge_reading_paused"), "reading pauses at the bound")
    assert worker.value("citegauge_clickhouse_backlog_rows", tier="join") > 1_500
    records = worker.value("citegauge_records_total")
    worker.until(lambda: time.monotonic() > begun + for_s, "the outage lasts", for_s + 1)
    assert worker.value("citegauge_records_total") == records, "paused means that nothing is read"
    assert worker.value("citegauge_position_lag_records") > 0
    assert commits(site) == standing, "offsets advance only behind acknowledged rows"
    assert worker.get("/healthz")[0] == 200, "waiting for ClickHouse is no fault of the worker"
    assert worker.value("citegauge_clickhouse_backlog_rows", tier="join") < 2 * 2_000 + 1_000, "the buffer is bounded"


def test_an_outage_loses_nothing(make_site: MakeSite, own_front: ClickHouseFront, tmp_path: Path) -> None:
    """ClickHouse is killed, later frozen, under load; afterwards every row equals an offline pass."""
    topic_site = make_site(CLICKHOUSE__BUFFER_ROWS_MAX="2000", PUBLISH__FLUSH_ROWS_MAX="1000")
    site = Site(kafka=topic_site.kafka, clickhouse=own_front.url, topic=topic_site.topic, options=topic_site.options)
    batch = pairs(traffic(11, minutes=30, per_minute=300, end_ns=time.time_ns() - PAST_NS))
    third = len(batch) // 3
    database = connect(HttpTarget(url=own_front.url), "default")
    with WorkerProcess(site, tmp_path) as worker:
        produce(site.kafka, site.topic, batch[:third])
        worker.until_ready()
        worker.until(lambda: worker.value("citegauge_records_total") == third, "it has read the first third")
        worker.until(lambda: counted(worker) > 0, "windows show it")

        own_front.kill()
        survive_outage(site, worker, batch[third : 2 * third], OUTAGE_S)
        back_at = time.monotonic()
        own_front.start()
        worker.until(lambda: worker.value("citegauge_reading_paused") == 0, "reading goes on by itself")
        log = read_topic(site.kafka, site.topic)
        assert_equal(database, site, expected(site, log), worker)
        print(
            f"after {OUTAGE_S} s without ClickHouse: all rows right {time.monotonic() - back_at:.1f} s after its return"
        )

        # Frozen: connections stay open and nothing answers, so whether the last insert arrived is not known.
        own_front.pause()
        produce(site.kafka, site.topic, batch[2 * third :])
        worker.until(lambda: worker.value("citegauge_reading_paused"), "reading pauses at the bound")
        begun = time.monotonic()
        worker.until(lambda: time.monotonic() > begun + FREEZE_S, "the freeze lasts", FREEZE_S + 1)
        own_front.resume()
        log = read_topic(site.kafka, site.topic)
        assert len(log) == len(batch)
        assert_equal(database, site, expected(site, log), worker)
        standing = commits(site)
        assert sum(commit.position for commit in standing.values()) == len(log)
        assert worker.end() == 0
    database.close()
