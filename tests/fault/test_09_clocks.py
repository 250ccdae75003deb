"""Fault 9: clocks that are wrong: the producers', in both kinds of topic, and the worker's own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer

from citegauge.domain.policy import SECOND_NS
from support.fault_inputs import ClockSite, event
from support.faults import lasting, until_reading
from support.kafka import create_topic, unique
from support.worker_tables import expected, read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from aiokafka import ConsumerRecord

    from fault.conftest import MakeTrial
    from support.worker import Pairs

pytestmark = pytest.mark.kafka
HOUR_NS = 3_600 * SECOND_NS


ASTRAY = range(0xA000, 0xA000 + 1_000)
"""Numbers of traces with a wrong time."""


def astray(end_ns: int, traces: int = 30) -> Pairs:
    """Both halves of some traces that end at a wrong time."""
    return [
        (f"{ASTRAY[number] + 1:032x}".encode(), event(ASTRAY[number], kind, end_ns + number * SECOND_NS // 10))
        for number in range(traces)
        for kind in ("retrieval", "generation")
    ]


def mixed(batch: Pairs, stray: Pairs) -> Pairs:
    """The stray pairs evenly among the others, the first ones not before a tenth of them."""
    begin = len(batch) // 10
    step = (len(batch) - begin) // (len(stray) + 1)
    found = list(batch)
    for number in range(len(stray) - 1, -1, -1):
        found.insert(begin + number * step, stray[number])
    return found


def is_astray(record: ConsumerRecord) -> bool:
    """Whether a record has a wrong time."""
    return int(record.key, 16) - 1 in ASTRAY


@pytest.mark.parametrize("where", ["ahead", pytest.param("1970", marks=pytest.mark.full)])
def test_a_producer_with_a_wrong_clock(trial: MakeTrial, where: str) -> None:
    """In a LogAppendTime topic spans of a wrong time are counted `bad_time`, close nothing, and change no other trace."""
    with trial(f"9 producer {'1 h ahead' if where == 'ahead' else 'in 1970'}") as t:
        now_ns = time.time_ns()
        stray = astray(now_ns + HOUR_NS if where == "ahead" else 5 * SECOND_NS)
        worker = t.worker()
        with t.feed(mixed(t.batch(), stray)):
            pass
        t.healed()
        t.until_recovered(worker)
        assert worker.value("citegauge_spans_bad_time_total") >= len(stray)
        for (name, _), value in worker.metrics().items():
            if name == "citegauge_watermark_timestamp_seconds":
                assert value < now_ns / 1e9, "the watermark follows the right clocks"
        log = read_topic(t.site.kafka, t.site.joined_topic)
        alone = expected(t.site, [record for record in log if not is_astray(record)])
        t.verify(worker, idle_now=True)
        everything = expected(t.site, log)
        assert everything.late == alone.late, "no span comes late because of the wrong ones"
        for key, row in alone.traces.items():
            assert everything.traces[key] == row, "what is right counts as if it were alone"
        assert len(everything.traces) == len(alone.traces) + len(stray) // 2, "a wrong time is that of its record"


@pytest.mark.full
def test_a_producer_ahead_in_a_create_time_topic(trial: MakeTrial) -> None:
    """The documented limit: timestamps that a producer sets close minutes early. It is said and counted."""
    topic = unique("spans")

    async def send(kafka: str) -> None:
        ahead_ms = time.time_ns() // 1_000_000 + 3_600_000
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
            for partition in range(3):
                value = event(0xB000 + partition, "retrieval", ahead_ms * 1_000_000)
                await producer.send_and_wait(topic, value, b"ahead", partition=partition, timestamp_ms=ahead_ms)

    with trial("9 producer 1 h ahead, CreateTime", topic=topic) as t:
        asyncio.run(create_topic(t.site.kafka, topic, partitions=3, message_timestamp_type="CreateTime"))
        batch = t.batch()
        half = len(batch) // 2
        worker = t.worker()
        with t.feed(batch[:half], for_s=9):
            pass
        before = worker.value("citegauge_spans_late_total")
        asyncio.run(send(t.site.kafka))
        with t.feed(batch[half:], for_s=9):
            pass
        t.healed()
        t.until_recovered(worker)
        late = worker.value("citegauge_spans_late_total") - before
        if t.site.keyed:
            assert late >= len(batch) - half, "all that follows is late"
        else:  # a partition of re-keyed spans goes by its slowest source, and few of its sources are ahead
            assert late < len(batch) - half
        assert "set message.timestamp.type=LogAppendTime" in worker.log
        t.verify(worker, idle_now=True)
        t.measures.verdict = "as documented: late"


@pytest.mark.short_in("default")
def test_the_workers_own_clock_steps_back(trial: MakeTrial, tmp_path: Path) -> None:
    """Two hours back and forth again: reading, publishing and committing go on, and no row depends on it."""
    with trial("9 worker's clock steps back") as t:
        clock = ClockSite(**{name: getattr(t.site, name) for name in t.site.__dataclass_fields__}, folder=tmp_path)
        clock.step_ns(0)
        t.site = replace(clock)
        worker = t.worker()
        until_reading(worker)
        with t.feed(for_s=24):
            worker.until(lambda: worker.value("citegauge_records_total") > 300, "it reads")
            clock.step_ns(-2 * HOUR_NS)
            read = worker.value("citegauge_records_total")
            worker.until(lambda: worker.value("citegauge_records_total") > read + 300, "it reads on")
            lasting(worker, 3)
            assert worker.get("/healthz")[0] == 200
            clock.step_ns(0)
            t.healed()
            t.until_recovered(worker)
        t.verify(worker)
