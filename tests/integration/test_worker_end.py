"""How the worker ends: cleanly on a signal, and with one line when something behind it fails for good."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import HttpTarget, connect
from support.worker import Feed, Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import assert_equal, commits, expected, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.clickhouse import ClickHouseFront
    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000
END_S_MAX = 12
"""Drain time-out of the sites, and what stopping the rest takes on a busy machine."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_stream_ends_it_cleanly(
    make_site: MakeSite, database: ClickHouse, tmp_path: Path, number: signal.Signals
) -> None:
    """Exit status 0 within the drain time-out; what was read is stored, and committed to the very position."""
    site = make_site(JOIN__JOIN_WINDOW_S="300")  # recent traffic and a long window: nothing closes, nothing is idle
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        batch = pairs(traffic(3, minutes=4, per_minute=400, end_ns=time.time_ns()))
        with Feed(site.kafka, site.topic, batch, per_s=200) as feed:
            worker.until(lambda: worker.value("citegauge_records_total") > 300, "it has read something")
            begun = time.monotonic()
            assert worker.end(number, END_S_MAX) == 0, worker.log
            took_s = time.monotonic() - begun
            assert not feed.done, "the signal was to come in mid-stream"
            feed.hurry()
    assert "Traceback" not in worker.log
    positions = {partition: commit.position for partition, commit in commits(site).items()}
    log = [record for record in read_topic(site.kafka, site.topic) if record.offset < positions[record.partition]]
    assert len(log) > 300
    assert stored(database, site.database).differences(expected(site, log, idle_wall_ns=None)) == []
    print(f"ended after {took_s:.1f} s, {len(log)} records read")


def test_a_database_that_refuses_for_good_stops_the_worker(
    make_site: MakeSite, database: ClickHouse, tmp_path: Path
) -> None:
    """A fatal error of the ClickHouse writer takes the process down: status 1, one line that says why, no traceback."""
    site = make_site()
    batch = pairs(traffic(3, minutes=10, per_minute=100, end_ns=time.time_ns()))
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        database.command(f"DROP TABLE `{site.database}`.traces SYNC")
        produce(site.kafka, site.topic, batch)
        assert worker.wait(30) == 1
    assert_one_line(worker, "UNKNOWN_TABLE")
    assert all(commit.position == 0 for commit in commits(site).values()), "what is not stored is not committed"


def test_a_frozen_database_does_not_hold_the_process(
    make_site: MakeSite, tmp_path: Path, own_front: ClickHouseFront
) -> None:
    """An insert that hangs is given up at the end of the drain time-out; what it held is read again, and nothing lost."""
    made = make_site()
    site = Site(kafka=made.kafka, clickhouse=own_front.url, topic=made.topic)
    batch = pairs(traffic(4, minutes=20, per_minute=60, end_ns=time.time_ns() - PAST_NS))
    database = connect(HttpTarget(url=own_front.url), "default")
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        own_front.pause()
        produce(site.kafka, site.topic, batch)
        worker.until(lambda: worker.value("citegauge_clickhouse_backlog_rows", tier="join") > 0, "rows wait")
        begun = time.monotonic()
        assert worker.end(signal.SIGTERM, 20) == 0, worker.log
        took_s = time.monotonic() - begun
        assert all(commit.position == 0 for commit in commits(site).values()), "what is not stored is not committed"
        own_front.resume()
        worker.start()
        assert_equal(database, site, expected(site, read_topic(site.kafka, site.topic)), worker)
    assert "Traceback" not in worker.log
    database.close()
    print(f"ended after {took_s:.1f} s")


def assert_one_line(worker: WorkerProcess, *words: str) -> None:
    """The log ends with one line for the user, which has these words, and holds no traceback."""
    log = worker.log
    assert "Traceback" not in log, log
    said = [line for line in log.splitlines() if line.startswith("citegauge: ")]
    assert len(said) == 1, log
    assert all(word in said[0] for word in words), said
