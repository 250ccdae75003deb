"""One protocol suite for both brokers: what the service relies on, and where the embedded one is known to differ."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from support.kafka import create_topic, unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.kafka import KafkaServer

READ_S_MAX = 20


@pytest.fixture(params=["embedded_broker", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> str:
    """Bootstrap address of each broker in turn."""
    address: str = request.getfixturevalue(request.param)
    return address


async def produce(broker: str, topic: str, values: Iterable[bytes], **options: object) -> None:
    """Send `values` to partition 0 in order."""
    async with AIOKafkaProducer(bootstrap_servers=broker, acks="all", **options) as producer:
        sent = [await producer.send(topic, value, key=b"k", partition=0) for value in values]
        await asyncio.gather(*sent)


async def read(broker: str, topic: str, count: int, offset: int = 0) -> list[ConsumerRecord]:
    """The `count` records of partition 0 from `offset` on, read the way the hot tier reads: assigned, in batches."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, enable_auto_commit=False, auto_offset_reset="none")
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        records: list[ConsumerRecord] = []
        deadline = time.monotonic() + READ_S_MAX
        while len(records) < count and time.monotonic() < deadline:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


async def test_records_come_back_in_order_with_key_and_headers(broker: str) -> None:
    """A partition is a log: same bytes, same order, offsets without gaps, keys and headers kept."""
    topic = await create_topic(broker, unique("order"))
    values = [b"%d" % n for n in range(500)]
    headers = [("origin", b"t/0/17")]
    async with AIOKafkaProducer(bootstrap_servers=broker, acks="all") as producer:
        for value in values:
            await producer.send(topic, value, key=b"trace", partition=0, headers=headers)
    records = await read(broker, topic, 500)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(500))
    assert {record.key for record in records} == {b"trace"}
    assert all(list(record.headers) == headers for record in records)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
async def test_every_compression_is_read(broker: str, codec: str) -> None:
    """A producer somewhere uses each of the four codecs; the lock carries what reading them needs."""
    topic = await create_topic(broker, unique(codec))
    values = [b"chunk " * 200 + b"%d" % n for n in range(50)]
    await produce(broker, topic, values, compression_type=codec)
    assert [record.value for record in await read(broker, topic, 50)] == values


async def test_a_record_near_the_limit_passes(broker: str) -> None:
    """Batches of a megabyte are usual for an OpenTelemetry collector."""
    topic = await create_topic(broker, unique("large"), max_message_bytes=4_000_000)
    value = bytes(range(256)) * 8_000
    await produce(broker, topic, [value], max_request_size=4_000_000)
    (record,) = await read(broker, topic, 1)
    assert record.value == value


async def test_reading_starts_where_it_is_told(broker: str) -> None:
    """A silent replay seeks to the committed offset, also in the middle of a batch."""
    topic = await create_topic(broker, unique("seek"))
    await produce(broker, topic, [b"%d" % n for n in range(20)])
    assert [record.value for record in await read(broker, topic, 5, offset=15)] == [b"15", b"16", b"17", b"18", b"19"]


async def ends(broker: str) -> tuple[int, int | None, int]:
    """Of a partition with 20 records: its beginning, the end that fetching says, and the end that asking says."""
    topic = await create_topic(broker, unique("ends"))
    await produce(broker, topic, [b"%d" % n for n in range(20)], linger_ms=50)
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=broker) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        await asyncio.wait_for(consumer.getone(), READ_S_MAX)
        beginning = (await consumer.beginning_offsets([partition]))[partition]
        return beginning, consumer.highwater(partition), (await consumer.end_offsets([partition]))[partition]


async def test_the_end_of_the_log_comes_with_each_fetch(broker: str) -> None:
    """Lag and `caught up` are taken from the high watermark of a fetch, which is right on both brokers."""
    assert (await ends(broker))[:2] == (0, 20)


async def test_kafka_answers_for_the_end_of_the_log(kafka: str) -> None:
    """Here asking and fetching agree."""
    assert await ends(kafka) == (0, 20, 20)


async def test_the_embedded_broker_is_wrong_about_the_end_of_the_log(embedded_broker: str) -> None:
    """Asked for end offsets it answers with the first record of the last batch plus 1: never build on that answer."""
    assert await ends(embedded_broker) == (0, 20, 1)


async def test_a_group_goes_on_where_it_committed(broker: str) -> None:
    """The second member of a group starts at the first one's commit."""
    topic, group = await create_topic(broker, unique("group")), unique("group")
    await produce(broker, topic, [b"%d" % n for n in range(10)])
    partition = TopicPartition(topic, 0)
    options: dict[str, Any] = {"bootstrap_servers": broker, "group_id": group, "auto_offset_reset": "earliest"}
    # The embedded broker lets a member wait for half of its session time-out; Kafka refuses less than 6 s.
    options |= {"enable_auto_commit": False, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
    async with AIOKafkaConsumer(topic, **options) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), READ_S_MAX)).value == b"0"
        await consumer.commit({partition: 4})
    async with AIOKafkaConsumer(topic, **options) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), READ_S_MAX)).value == b"4"


async def commit_with_metadata(broker: str, metadata: str) -> OffsetAndMetadata:
    """Commit offset 3 with `metadata`, and what the admin client then reads."""
    topic, group = await create_topic(broker, unique("meta")), unique("meta")
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=broker, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        await consumer.commit({partition: (3, metadata)})
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        return (await admin.list_consumer_group_offsets(group, partitions=[partition]))[partition]
    finally:
        await admin.close()


async def test_kafka_keeps_the_metadata_of_a_commit(kafka: str) -> None:
    """Recovery rests on this: position and clock are stored in the commit, up to 4,096 bytes of them."""
    metadata = "A" * 4_096
    assert await commit_with_metadata(kafka, metadata) == OffsetAndMetadata(3, metadata)


async def test_the_embedded_broker_drops_the_metadata_of_a_commit(embedded_broker: str) -> None:
    """So with it the service starts from nothing. Should this fail one day, that rule can go."""
    assert await commit_with_metadata(embedded_broker, "AAAA") == OffsetAndMetadata(3, "")


async def test_kafka_refuses_metadata_past_its_limit(kafka: str) -> None:
    """The limit that bounds how many sources one commit can carry."""
    with pytest.raises(KafkaError):
        await commit_with_metadata(kafka, "A" * 4_097)


async def test_kafka_stamps_records_with_its_own_time(kafka: str) -> None:
    """Topics that we create have LogAppendTime: a sender's clock does not reach the watermark's bound."""
    topic = await create_topic(kafka, unique("time"))
    before_ms = time.time_ns() // 1_000_000
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        await producer.send_and_wait(topic, b"x", partition=0, timestamp_ms=1_000)
    (record,) = await read(kafka, topic, 1)
    assert record.timestamp_type == 1
    assert record.timestamp >= before_ms - 1


async def test_kafka_takes_the_idempotent_producer(kafka: str) -> None:
    """Not needed by the service, but users' own producers have it switched on by default."""
    topic = await create_topic(kafka, unique("idempotent"))
    await produce(kafka, topic, [b"a", b"b"], enable_idempotence=True)
    assert [record.value for record in await read(kafka, topic, 2)] == [b"a", b"b"]


async def test_kafka_survives_kill_and_restart(kafka_server: KafkaServer) -> None:
    """The fault tests rely on it: acknowledged records and commits are there after `kill -9` on the same address."""
    broker = kafka_server.bootstrap_servers
    topic = await create_topic(broker, unique("kill"))
    await produce(broker, topic, [b"a", b"b", b"c"])
    await asyncio.to_thread(kafka_server.kill)
    await asyncio.to_thread(kafka_server.start)
    assert [record.value for record in await read(broker, topic, 3)] == [b"a", b"b", b"c"]
    await asyncio.to_thread(kafka_server.restart)
    assert [record.value for record in await read(broker, topic, 3)] == [b"a", b"b", b"c"]
