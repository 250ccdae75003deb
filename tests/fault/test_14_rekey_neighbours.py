"""Fault 14: sources that would starve each other, and what cannot be passed on. In the default intake alone."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from citegauge.domain.policy import SECOND_NS
from support.fault_inputs import LOG_RECORD, event
from support.fault_kafka import administer, log_ends, rekeyed
from support.faults import PAST_NS, SETTLE_S_MAX
from support.kafka import create_topic, unique
from support.worker import Feed, produce, wait_until
from support.worker_tables import read_topic

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.faults import Trial
    from support.worker import Pairs, WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("intake", ["default"], indirect=True)]
RECOVERY_S_MAX = 60.0
HOUR_NS = 3_600 * SECOND_NS


def with_second_source(t: Trial, name: str) -> None:
    """The site reads that topic too."""
    t.site = t.site.with_options(SOURCES=json.dumps({topic: {} for topic in (t.site.topic, name)}))


def test_a_topic_without_spans_of_ours_holds_nothing_back(trial: MakeTrial) -> None:
    """20 log records a second flow beside the traces, which are re-keyed and joined as if they were alone."""
    with trial("14 a logs topic beside") as t:
        logs = asyncio.run(create_topic(t.site.kafka, unique("logs"), partitions=2))
        with_second_source(t, logs)
        worker = t.worker()
        with Feed(t.site.kafka, logs, [(None, LOG_RECORD)] * 3_000, 20) as flowing:
            wait_until(lambda: flowing.sent > 20, "logs flow")
            with t.feed(for_s=16):
                pass
            t.healed()
            t.until_recovered(worker, RECOVERY_S_MAX)
            assert not flowing.done, "the traces were to be re-keyed while logs flow"
            flowing.hurry()
        t.verify(worker)
        assert not t.unaccounted()


def test_clocks_that_are_hours_behind_starve_nobody(trial: MakeTrial) -> None:
    """A live topic beside one of CreateTime whose clocks are 6 h behind: both are re-keyed, and the second is told of."""
    with trial("14 a source 6 h behind") as t:
        behind = asyncio.run(
            create_topic(t.site.kafka, unique("behind"), partitions=2, message_timestamp_type="CreateTime")
        )
        with_second_source(t, behind)
        old: Pairs = [
            (None, event(0xC000 + number, kind, time.time_ns() - 6 * HOUR_NS + number * SECOND_NS // 10))
            for number in range(600)
            for kind in ("retrieval", "generation")
        ]
        worker = t.worker()
        with t.feed(old, for_s=120, topic=behind, behind_s=6 * 3_600) as flowing:
            worker.until(lambda: "LogAppendTime" in worker.log, "the topic's timestamps are warned of")
            assert behind in next(line for line in worker.log.splitlines() if "CreateTime" in line)
            with t.feed(for_s=20):
                pass
            ends = {topic: log_ends(t.site.kafka, topic) for topic in (t.site.topic, behind)}
            worker.until(
                lambda: all(rekeyed(t.site, at, topic) for topic, at in ends.items()),
                "both are re-keyed",
                RECOVERY_S_MAX,
            )
            assert not flowing.done, "both were to be re-keyed while both flow"
            flowing.hurry()
        t.healed()
        t.until_recovered(worker, RECOVERY_S_MAX)
        t.judged_min = 0  # time goes on with the slowest clock, so every minute is closed by the wall clock
        t.verify(worker)
        assert not t.unaccounted()


def test_a_stage_that_cannot_move_is_seen(trial: MakeTrial) -> None:
    """An unreadable record has no place to go: lag, *caught up*, health and the log say so, until there is one again."""
    with trial("14 the stage cannot move", WEB__STALL_S="8") as t:
        dead = f"{t.site.name}-dead"
        worker = t.worker()
        worker.until_ready()
        administer(t.site.kafka, lambda admin: admin.delete_topics([dead]))
        wait_until(lambda: dead not in administer(t.site.kafka, lambda admin: admin.list_topics()), "the topic is gone")
        batch = t.batch()
        middle = len(batch) // 2
        with t.feed([*batch[:middle], (None, b"no format at all"), *batch[middle:]], for_s=12):
            pass
        ends = log_ends(t.site.kafka, t.site.topic)
        worker.until(
            lambda: worker.value("citegauge_position_lag_records", topic=t.site.topic) > 0, "the lag is seen", 30
        )
        worker.until(lambda: worker.value("citegauge_as_of_caught_up") == 0, "nobody says caught up", 30)
        worker.until(lambda: worker.get("/healthz")[0] == 503, "health fails", 45)
        assert t.site.topic in worker.get("/healthz")[1], "it says of which topic"
        assert not rekeyed(t.site, ends), "the stage was to stand still"
        asyncio.run(create_topic(t.site.kafka, dead))
        t.healed()
        t.until_recovered(worker, RECOVERY_S_MAX)
        worker.until(lambda: worker.get("/healthz")[0] == 200, "health is well again", 30)
        worker.until(lambda: worker.value("citegauge_position_lag_records") == 0, "no lag", 30)
        t.verify(worker)
        assert not t.unaccounted()


def test_a_span_that_the_topic_cannot_take(trial: MakeTrial) -> None:
    """A legal record whose span becomes larger than a message may be is a dead letter with its origin, and nothing else."""
    topic = unique("spans")
    with trial("14 a span of 1.4 MB", topic=topic) as t:
        asyncio.run(create_topic(t.site.kafka, topic, partitions=3, max_message_bytes=4 << 20))
        batch = t.batch(minutes=15)
        middle = len(batch) // 2
        fat = json.loads(event(1, "retrieval", time.time_ns() - PAST_NS))
        ids = [f"c{number:05d}-{'x' * 100}" for number in range(12_000)]
        fat["attributes"] |= {"retrieval.retrieved_ids": ids, "retrieval.scores": [0.5] * len(ids)}
        worker = t.worker()
        with t.feed(batch[:middle], for_s=8):
            pass
        ((partition, offset),) = produce(t.site.kafka, topic, [(None, json.dumps(fat).encode())])
        with t.feed(batch[middle:], for_s=8):
            pass
        t.healed()
        t.until_recovered(worker, RECOVERY_S_MAX)
        origin = f"{topic}/{partition}/{offset}"
        letters = read_topic(t.site.kafka, f"{t.site.name}-dead")
        assert {letter.key.decode().rpartition("/")[0] for letter in letters} == {origin}
        assert t.dead_letters(worker) == len(letters)
        t.unsendable = {origin}
        t.verify(worker)


def joined(worker: WorkerProcess) -> bool:
    """Whether its re-key stage has partitions."""
    return "re-keying " in worker.log


def resident_mb(worker: WorkerProcess) -> int:
    """Resident memory now."""
    return int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]) * 4 // 1024


@pytest.mark.full
def test_memory_stays_bounded_while_a_source_is_held_back(trial: MakeTrial) -> None:
    """One partition lies far ahead of a slow one and is held back; rebalances must not let it be read all the same.

    The stage alone, since the join may hold whatever lies between the two.
    """
    topic = unique("spans")
    with trial("14 held back over rebalances", topic=topic, partitions=4) as t:
        asyncio.run(create_topic(t.site.kafka, topic, partitions=4, message_timestamp_type="CreateTime"))
        t.site = t.site.with_options(KAFKA__BATCH_RECORDS_MAX="200")  # so that the backlog lasts
        now_ns = time.time_ns()
        ids = [f"c{number:03d}-{'x' * 60}" for number in range(40)]

        def wide(number: int) -> bytes:
            made = json.loads(event(0xD0000 + number, "retrieval", now_ns - 60 * SECOND_NS))
            made["attributes"] |= {"retrieval.retrieved_ids": ids, "retrieval.scores": [0.5] * len(ids)}
            return json.dumps(made).encode()

        # Partitions 0 and 2 of four belong to the same one of two workers.
        slow: Pairs = [
            (None, event(n, "generation", now_ns - 3_000 * SECOND_NS + n * SECOND_NS // 50)) for n in range(100_000)
        ]
        with Feed(t.site.kafka, topic, slow, 1e6, partitions=(2,), behind_s=3_000):
            pass
        with Feed(t.site.kafka, topic, [(None, wide(n)) for n in range(40_000)], 1e6, partitions=(0,), behind_s=60):
            pass
        first = t.worker("--role", "rekey")
        first.until(lambda: first.value("citegauge_rekeyed_spans_total") > 0, "it re-keys")
        before = resident_mb(first)
        for _ in range(2):
            second = t.worker("--role", "rekey")
            wait_until(partial(joined, second), "the second has joined")
            assert second.end() == 0, second.log
        ends = log_ends(t.site.kafka, topic)
        most = 0.0

        def done() -> bool:
            nonlocal most
            most = max(most, first.value("citegauge_rekey_held_bytes"))
            return rekeyed(t.site, ends)

        first.until(done, "all is re-keyed", SETTLE_S_MAX)
        assert most <= 64 * 2**20
        peak = t.measures.rss_mb
        assert peak - before < 130, f"{before} → {peak} MB"
        assert first.end() == 0, first.log
        t.measures.verdict = "bounded"


@pytest.mark.full
def test_rubbish_trips_the_ceiling(trial: MakeTrial) -> None:
    """60,000 records that nobody can read end the worker with one line that says which setting is probably wrong."""
    with trial("14 60,000 rubbish records") as t:
        produce(t.site.kafka, t.site.topic, [(None, b"\x00\xff rubbish %d" % number) for number in range(60_000)])
        worker = t.worker()
        t.stopped(worker, "unreadable", t.site.topic, "encoding", timeout_s=120)
        t.measures.verdict = "stopped with a line"
