"""Nothing is lost and nothing counted twice when the worker is killed, handed over or stopped in mid-stream."""

from __future__ import annotations

import os
import random
import re
import time
from typing import TYPE_CHECKING

import pytest

from support.worker import Feed, WorkerProcess, pairs, traffic
from support.worker_tables import assert_equal, expected, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite, Pairs

pytestmark = pytest.mark.kafka
KILLS = 25 if os.environ.get("CITEGAUGE_SLOW") == "1" else 4
FEED_S = 30 * KILLS
"""Longer than the kills take on a slow machine; what is left is sent when they are over."""
PAST_NS = 180 * 1_000_000_000
"""Traffic ends so long ago that the join window is over: in the end every pane is closed or idle."""
AGAIN = re.compile(r"\((\d+) records again in silence\)")


def disturbed_traffic(seed: int, minutes: int = 25) -> Pairs:
    """About 400 spans a minute with everything that a network does to them."""
    return pairs(traffic(seed, minutes=minutes, per_minute=200, end_ns=time.time_ns() - PAST_NS))


def until_reading(worker: WorkerProcess) -> None:
    """Wait until a worker that was just started has taken over its three partitions."""
    worker.until(lambda: worker.fresh_log.count("reading ") >= 3, "it reads")


def test_kill_9_at_random_moments_leaves_no_trace(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """After kills in mid-stream, tables and panes topic equal those of an uninterrupted run and of an offline pass."""
    seed = int(os.environ.get("CITEGAUGE_SEED", "0")) or random.randrange(1, 1 << 30)
    print(f"CITEGAUGE_SEED={seed}")
    chance = random.Random(seed)
    site = make_site()
    batch = disturbed_traffic(seed)
    worker = WorkerProcess(site, tmp_path)
    with worker, Feed(site.kafka, site.topic, batch, per_s=len(batch) // FEED_S) as feed:
        for _ in range(KILLS):
            until_reading(worker)
            time.sleep(chance.uniform(0.0, 2.5))  # the moment is the point
            assert not feed.done, "every kill was to come in mid-stream"
            worker.kill()
            worker.start()
        feed.hurry()
        worker.until(lambda: feed.done, "everything is sent")
        log = read_topic(site.kafka, site.topic)
        truth = expected(site, log)
        assert_equal(database, site, truth, worker)
        worker.until_ready()
        assert worker.end() == 0
    again = [int(n) for n in AGAIN.findall(worker.log)]
    assert sum(again) > 0, "no restart had anything to read again"

    undisturbed = make_site(topic=site.topic)
    with WorkerProcess(undisturbed, tmp_path) as other:
        assert_equal(database, undisturbed, truth, other)
    assert stored(database, site.database).differences(stored(database, undisturbed.database)) == []
    print(f"seed {seed}: {len(log)} records, {KILLS} kills, read again per start and partition: {again}")
