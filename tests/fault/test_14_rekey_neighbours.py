"""Fault 14: sources that would starve each other, and what cannot be passed on. In the default intake alone."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from citegauge.domain.policy import SECOND_NS
from support.fault_inputs import LOG_RECORD, event
from support.fault_kafka import administer, log_ends, rekeyed
from support.faults import PAST_NS, until_reading
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


def set_topic(t: Trial, topic: str, **settings: str) -> None:
    """Set settings of a topic, with underscores for points."""
    configs = {name.replace("_", "."): value for name, value in settings.items()}
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
    administer(t.site.kafka, lambda admin: admin.alter_configs([resource]))


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
        assert not t.unaccounted()
        t.verify(worker)


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
            with t.feed(t.batch(minutes=5, ended_ago_ns=0), for_s=20):
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
        assert not t.unaccounted()
        assert worker.end() == 0, worker.log
        t.measures.verdict = "recovered"


def test_a_stage_that_cannot_move_is_seen(trial: MakeTrial) -> None:
    """The topic of spans takes nothing: lag, *caught up*, health and the log say so, until it takes spans again."""
    with trial("14 the topic of spans refuses", WEB__STALL_S="8") as t:
        worker = t.worker()
        worker.until_ready()
        with t.feed(for_s=12):
            worker.until(lambda: worker.value("citegauge_records_total") > 100, "it reads")
            set_topic(t, t.site.joined_topic, min_insync_replicas="2")
        ends = log_ends(t.site.kafka, t.site.topic)
        assert not rekeyed(t.site, ends), "the stage was to stand still"
        worker.until(
            lambda: worker.value("citegauge_position_lag_records", topic=t.site.topic) > 0, "the lag is seen", 20
        )
        worker.until(lambda: worker.value("citegauge_as_of_caught_up") == 0, "nobody says caught up", 20)
        worker.until(lambda: worker.get("/healthz")[0] == 503, "health fails", 30)
        assert "NotEnoughReplicas" in worker.log, "retries name their cause"
        set_topic(t, t.site.joined_topic, min_insync_replicas="1")
        t.healed()
        t.until_recovered(worker, RECOVERY_S_MAX)
        worker.until(lambda: worker.get("/healthz")[0] == 200, "health is well again", 30)
        worker.until(lambda: worker.value("citegauge_position_lag_records") == 0, "no lag", 30)
        assert not t.unaccounted()
        t.verify(worker)


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


def resident_mb(worker: WorkerProcess) -> int:
    """Resident memory now."""
    return int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1]) * 4 // 1024


@pytest.mark.full
def test_memory_stays_bounded_while_a_source_is_held_back(trial: MakeTrial) -> None:
    """One partition lies far ahead of a slow one and is held back; rebalances must not let it be read all the same."""
    topic = unique("spans")
    with trial("14 held back over rebalances", topic=topic, partitions=4) as t:
        asyncio.run(create_topic(t.site.kafka, topic, partitions=4, message_timestamp_type="CreateTime"))
        now_ns = time.time_ns()
        ids = [f"c{number:03d}-{'x' * 60}" for number in range(40)]

        def wide(number: int) -> bytes:
            made = json.loads(
                event(0xD000 + number, "retrieval", now_ns - 60 * SECOND_NS + number * SECOND_NS // 1_000)
            )
            made["attributes"] |= {"retrieval.retrieved_ids": ids, "retrieval.scores": [0.5] * len(ids)}
            return json.dumps(made).encode()

        slow: Pairs = [
            (None, event(0xE0000 + n, "generation", now_ns - 3_000 * SECOND_NS + n * SECOND_NS)) for n in range(600)
        ]
        with (
            Feed(t.site.kafka, topic, slow, 5, partitions=(1,), behind_s=3_000) as trickle,
            Feed(t.site.kafka, topic, [(None, wide(n)) for n in range(40_000)], 2_000, partitions=(0,)) as ahead,
        ):
            first = t.worker()
            until_reading(first)
            first.until(lambda: ahead.sent > 5_000, "there is much to read")
            before = resident_mb(first)
            for _ in range(3):
                second = t.worker()
                second.until_ready()
                assert second.end() == 0, second.log
            first.until(lambda: ahead.done, "all of it was sent", 120)
            assert first.value("citegauge_rekey_held_bytes") <= 64 * 2**20
            assert resident_mb(first) - before < 130, f"{before} → {resident_mb(first)} MB"
            trickle.hurry()
        t.healed()
        t.until_recovered(first)
        t.verify(first, idle_now=True)


@pytest.mark.full
def test_rubbish_trips_the_ceiling(trial: MakeTrial) -> None:
    """60,000 records that nobody can read end the worker with one line that says which setting is probably wrong."""
    with trial("14 60,000 rubbish records") as t:
        produce(t.site.kafka, t.site.topic, [(None, b"\x00\xff rubbish %d" % number) for number in range(60_000)])
        worker = t.worker()
        t.stopped(worker, "unreadable", t.site.topic, "encoding", timeout_s=120)
        t.measures.verdict = "stopped with a line"
