"""Several workers of one group: partitions change hands under load, roles run in processes of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.worker import Feed, WorkerProcess, pairs, traffic
from support.worker_tables import assert_equal, expected, read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000


def owned(worker: WorkerProcess) -> set[str]:
    """Source partitions that a worker reads."""
    return {dict(labels)["partition"] for name, labels in worker.metrics() if name == "citegauge_commit_lag_records"}


def test_one_worker_then_two_then_one(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """Partitions go to a second worker and come back in mid-stream; in the end every row equals an offline pass."""
    site = make_site(partitions=4)
    batch = pairs(traffic(5, minutes=30, per_minute=200, end_ns=time.time_ns() - PAST_NS))
    first, second = WorkerProcess(site, tmp_path), WorkerProcess(site, tmp_path)
    with first, Feed(site.kafka, site.topic, batch, per_s=len(batch) // 120) as feed:
        first.until(lambda: first.value("citegauge_records_total") > 200, "the first reads")
        with second:

            def shared() -> bool:
                mine, theirs = owned(first), owned(second)
                return len(mine) == len(theirs) == 2 and mine | theirs == set("0123")

            first.until(shared, "both read")
            second.until_ready()
            assert not feed.done, "the second was to leave in mid-stream"
            assert second.end() == 0, second.log
        begun = time.monotonic()
        first.until(lambda: owned(first) == set("0123"), "the first has everything again", 30)
        took_s = time.monotonic() - begun
        assert not feed.done, "the first was to take over in mid-stream"
        feed.hurry()
        first.until(lambda: feed.done, "everything is sent", 60)
        log = read_topic(site.kafka, site.topic)
        assert_equal(database, site, expected(site, log), first)
        assert first.end() == 0
    for worker in (first, second):
        assert "Traceback" not in worker.log
        assert "without a last commit" not in worker.log, "a hand-over is drained, not timed out"
    print(f"taken over {took_s:.1f} s after the other's end")


def test_as_of_is_now_under_steady_traffic(make_site: MakeSite, tmp_path: Path) -> None:
    """A reader that keeps up says so, although there is always something new to read."""
    site = make_site(
        PUBLISH__INTERVAL_S="2"
    )  # a heartbeat is stale after three of them: a busy machine must not matter
    batch = pairs(traffic(7, minutes=4, per_minute=600, end_ns=time.time_ns(), late_ratio=0.0))
    with WorkerProcess(site, tmp_path) as worker, Feed(site.kafka, site.topic, batch, per_s=100) as feed:
        worker.until_ready()
        seen = []

        def sampled() -> bool:
            seen.append(worker.value("citegauge_as_of_caught_up"))
            return len(seen) == 60

        worker.until(lambda: worker.value("citegauge_as_of_caught_up"), "it catches up")
        worker.until(sampled, "it is looked at for a while")
        assert not feed.done
        worker.kill()
        feed.hurry()
    assert sum(seen) / len(seen) > 0.9, seen
