"""Fault 8: a tenth of the traffic cannot be read; and the place for what cannot be read is broken itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from support.fault_kafka import administer, log_ends, published
from support.faults import lasting
from support.kafka import create_topic
from support.worker import wait_until
from support.worker_tables import read_topic

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.faults import Trial
    from support.worker import Pairs, WorkerProcess

pytestmark = pytest.mark.kafka
POISON = (
    b"\x00\xff no format at all",
    b'{"trace_id": "4bf9',
    b"",
    b'{"trace_id": "zz", "kind": "retrieval"}',
    b"\x0a\x07cut off",
)


def poisoned(batch: Pairs) -> Pairs:
    """With one unreadable record after each nine."""
    found: Pairs = []
    for number, pair in enumerate(batch):
        found.append(pair)
        if number % 9 == 8:
            found.append((pair[0], POISON[number // 9 % len(POISON)]))
    return found


def assert_dead_letters(t: Trial, batch: Pairs) -> None:
    """Exactly the unreadable records are in the dead-letter topic, some of them perhaps repeatedly."""
    values = {(record.partition, record.offset): record.value for record in read_topic(t.site.kafka, t.site.topic)}
    wanted = {f"{t.site.topic}/{at[0]}/{at[1]}" for at, value in values.items() if value in POISON}
    assert len(wanted) == sum(value in POISON for _, value in batch)
    letters = [record.key.decode().rpartition("/")[0] for record in read_topic(t.site.kafka, f"{t.site.name}-dead")]
    assert set(letters) == wanted
    t.measures.repeats += len(letters) - len(wanted)


def test_a_tenth_of_the_traffic_is_poison(trial: MakeTrial) -> None:
    """The rest counts as if it were alone, also over a kill; each unreadable record is set aside."""
    with trial("8 poison, a tenth") as t:
        batch = poisoned(t.batch())
        worker = t.worker()
        with t.feed(batch):
            worker.until(lambda: t.dead_letters(worker) > 50, "dead letters are counted")
            worker.kill()
            worker.start()
            t.healed()
            t.until_recovered(worker)
        t.verify(worker)
        assert_dead_letters(t, batch)


def retries(worker: WorkerProcess) -> float:
    """Batches that a worker has sent again, in any stage."""
    names = ("citegauge_publish_retries_total", "citegauge_rekey_retries_total")
    return sum(worker.value(name) for name in names)


@pytest.mark.full
def test_the_dead_letter_topic_is_gone(trial: MakeTrial) -> None:
    """Without it the commit waits and /metrics goes on; when it is back, all goes on and no dead letter is lost."""
    with trial("8 dead-letter topic gone") as t:
        batch = poisoned(t.batch())
        dead = f"{t.site.name}-dead"
        worker = t.worker()
        worker.until_ready()
        administer(t.site.kafka, lambda admin: admin.delete_topics([dead]))
        wait_until(lambda: dead not in administer(t.site.kafka, lambda admin: admin.list_topics()), "the topic is gone")
        with t.feed(batch):
            worker.until(lambda: t.dead_letters(worker) > 0, "there are dead letters")
            if t.site.keyed:  # the re-key stage sends nothing on before the dead letters before it are out
                worker.until(lambda: worker.value("citegauge_window_traces", window="24h") > 100, "windows go on")
            worker.until(lambda: retries(worker) > 0, "it tries again", 120)
            lasting(worker, 3 if t.short else 10)
        ends = log_ends(t.site.kafka, t.site.topic)
        assert not any(published(t.site, {number: end}) for number, end in ends.items()), "the commit waits"
        asyncio.run(create_topic(t.site.kafka, dead))
        t.healed()
        t.until_recovered(worker)
        t.verify(worker)
        assert_dead_letters(t, batch)


@pytest.mark.short_in("default")
def test_the_dead_letter_topic_refuses_for_good(trial: MakeTrial) -> None:
    """What no retry can mend stops the worker with one line; mended, it goes on at the commit and nothing is lost."""
    with trial("8 dead-letter topic refuses") as t:
        batch = poisoned(t.batch())
        dead = asyncio.run(create_topic(t.site.kafka, f"{t.site.name}-dead", max_message_bytes=60))
        worker = t.worker()
        with t.feed(batch, for_s=6):
            t.stopped(worker, "max.message.bytes")
        resource = ConfigResource(ConfigResourceType.TOPIC, dead, {"max.message.bytes": "1048588"})
        administer(t.site.kafka, lambda admin: admin.alter_configs([resource]))
        worker.start()
        t.healed()
        t.until_recovered(worker)
        t.verify(worker)
        t.measures.verdict = "stopped with a line, restarted"
        assert_dead_letters(t, batch)
