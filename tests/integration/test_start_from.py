"""`start_from = latest` in the default intake: what was there before is passed over, and nothing else is."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewPartitions

from citegauge.tools.simulate import generate
from citegauge.tools.simulate_encode import encode_native, record_key
from support.fault_kafka import administer
from support.kafka import unique
from support.worker import WorkerProcess, produce, traffic

if TYPE_CHECKING:
    from pathlib import Path

    from support.worker import MakeSite

pytestmark = pytest.mark.kafka


async def _send(kafka: str, topic: str, values: list[bytes], partitions: tuple[int, ...]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka, metadata_max_age_ms=200) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=partitions[number % len(partitions)])
        await producer.flush()


def until_joined(worker: WorkerProcess, records: int) -> None:
    """Wait until so many are joined and nothing is left."""
    worker.until(lambda: worker.value("citegauge_records_total") >= records, f"{records} are joined")
    worker.until(lambda: worker.value("citegauge_as_of_caught_up") == 1, "it has caught up")


def test_a_partition_that_is_added_later_is_read_whole(kafka: str, make_site: MakeSite, tmp_path: Path) -> None:
    """`latest` is where the group begins, not where a new partition does, nor the topic of re-keyed spans."""
    name = unique("spans")
    site = make_site(
        KAFKA__KEYED="false",
        KAFKA__START_FROM="latest",
        REKEY__SPANS_TOPIC=name,
        REKEY__SPANS_PARTITIONS="2",
        REKEY__GROUP_ID=f"{name}-rekey",
    )
    spans = [encode_native(span) for span in generate(traffic(5, minutes=4, per_minute=50, end_ns=time.time_ns()))]
    old, live, new = spans[:90], spans[90:150], spans[150:210]
    asyncio.run(_send(site.kafka, site.topic, old, (0, 1, 2)))
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: worker.fresh_log.count("re-keying ") >= 3, "it has its places")
        asyncio.run(_send(site.kafka, site.topic, live, (0, 1)))
        administer(site.kafka, lambda admin: admin.create_partitions({site.topic: NewPartitions(5)}))
        asyncio.run(_send(site.kafka, site.topic, new, (3, 4)))
        expected = len(live) + len(new)
        worker.until(lambda: worker.value("citegauge_rekeyed_spans_total") >= expected, "the new ones are re-keyed")
        worker.until(lambda: worker.value("citegauge_records_total") >= expected, "all of them are joined")
        assert worker.value("citegauge_rekeyed_spans_total") == expected, worker.log
        assert worker.end() == 0
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: worker.fresh_log.count("re-keying ") >= 5, "it has its places again")
        places = [line for line in worker.fresh_log.splitlines() if "re-keying " in line]
        assert not any(line.endswith(" from offset 0") for line in places), places
        assert worker.end() == 0


@pytest.mark.parametrize("keyed_first", [False, True], ids=["keyed later", "keyed before"])
def test_a_topic_that_changes_its_intake_is_counted_once(
    kafka: str, make_site: MakeSite, tmp_path: Path, *, keyed_first: bool
) -> None:
    """`kafka.keyed` may change: the other stage goes on where the one before stopped, and reads nothing again."""
    name = unique("spans")
    site = make_site(REKEY__SPANS_TOPIC=name, REKEY__SPANS_PARTITIONS="2", REKEY__GROUP_ID=f"{name}-rekey")
    spec = traffic(6, minutes=4, per_minute=60, end_ns=time.time_ns(), duplicate_ratio=0.0, late_ratio=0.0)
    batch = [(record_key(span), encode_native(span)) for span in generate(spec)]
    middle = len(batch) // 2
    produce(kafka, site.topic, batch[:middle])
    for keyed, records in ((keyed_first, middle), (not keyed_first, len(batch) - middle)):
        with WorkerProcess(site.with_options(KAFKA__KEYED=str(keyed).lower()), tmp_path) as worker:
            if keyed != keyed_first:
                worker.until_ready()
                produce(kafka, site.topic, batch[middle:])
            until_joined(worker, records)
            assert worker.value("citegauge_records_total") == records, worker.log
            assert worker.end() == 0
