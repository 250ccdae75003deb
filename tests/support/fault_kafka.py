"""What Kafka itself says of an installation: ends, commits, and which spans the re-key stage has passed on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from citegauge import bootstrap
from citegauge.domain.rekeyed import decode as decode_rekeyed
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError
from support.worker_tables import commits, group_offsets, read_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from aiokafka import ConsumerRecord

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import Site

Origin = tuple[str, int, int, int]
"""Topic, partition, offset and position of a span in its record."""


async def _ends(kafka: str, topic: str) -> dict[int, int]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka, enable_auto_commit=False)
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        return {at.partition: end for at, end in ends.items()}
    finally:
        await consumer.stop()


def log_ends(kafka: str, topic: str) -> dict[int, int]:
    """The end of each partition of a topic."""
    return asyncio.run(_ends(kafka, topic))


def administer(kafka: str, act: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Any:
    """What `act` returns of a started admin client."""

    async def run() -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await client.start()
        try:
            return await act(client)
        finally:
            await client.close()

    return asyncio.run(run())


def rekeyed(site: Site, ends: Mapping[int, int], topic: str = "") -> bool:
    """Whether the re-key stage has committed everything of the source up to these offsets."""
    try:
        found = group_offsets(site.kafka, site.rekey_group)
    except KafkaError:
        return False  # a broker that has just started has no coordinator yet
    committed = {at.partition: offset for at, (offset, _) in found.items() if at.topic == (topic or site.topic)}
    return all(committed.get(partition, 0) >= end for partition, end in ends.items())


class Published:
    """Whether the source up to these offsets is published, however often one asks; through the re-key stage where there
    is one: first it must have committed them, then the join what was in the topic of spans at that moment.
    """

    def __init__(self, site: Site, ends: Mapping[int, int]) -> None:
        self._site = site
        self._source_ends = ends
        self._ends = ends if site.keyed else None

    def __call__(self) -> bool:
        """Ask Kafka once."""
        try:
            if self._ends is None:
                if not rekeyed(self._site, self._source_ends):
                    return False
                self._ends = log_ends(self._site.kafka, self._site.joined_topic)
            standing = commits(self._site)
        except KafkaError:
            return False
        return all(at in standing and standing[at].position >= end for at, end in self._ends.items() if end)


def published(site: Site, ends: Mapping[int, int]) -> bool:
    """Whether everything of the source up to these offsets is published by now."""
    return Published(site, ends)()


def _source_records(site: Site) -> list[ConsumerRecord]:
    """Every record of every source topic."""
    return [record for topic in site.settings().source_topics() for record in read_topic(site.kafka, topic)]


def origins(site: Site, dead: Iterable[str] = ()) -> tuple[set[Origin], set[Origin]]:
    """Where the spans of the source stand, and which of them the topic of re-keyed spans holds. `dead`: left out."""
    decode = bootstrap.build_decoder(site.settings())
    wanted: set[Origin] = set()
    bytes_max = site.settings().join.record_bytes_max
    for record in _source_records(site):
        try:
            items = list(decode(record.value)) if record.value and len(record.value) <= bytes_max else []
        except DeadLetterError:
            continue
        wanted |= {
            (record.topic, record.partition, record.offset, index)
            for index, item in enumerate(items)
            if isinstance(item, Span)
        }
    dead = set(dead)
    wanted = {at for at in wanted if "/".join(map(str, at[:3])) not in dead}
    found = {
        (one.topic, one.partition, one.offset, one.index)
        for record in read_topic(site.kafka, site.joined_topic)
        for one in decode_rekeyed(record.value)
    }
    return wanted, found


def produced_traces(site: Site) -> dict[str, set[int]]:
    """Trace ids of all spans that the source topics hold, with the kinds of their spans."""
    decode = bootstrap.build_decoder(site.settings())
    produced: dict[str, set[int]] = {}
    bytes_max = site.settings().join.record_bytes_max
    for record in _source_records(site):
        try:
            items = list(decode(record.value)) if record.value and len(record.value) <= bytes_max else []
        except DeadLetterError:
            continue
        for item in items:
            if isinstance(item, Span):
                produced.setdefault(item.trace_id.hex(), set()).add(item.kind)
    return produced


def unaccounted(database: ClickHouse, site: Site) -> set[str]:
    """Trace ids of the source topics that stand neither in `traces` nor, by a span, in `late`."""
    found = database.query(
        f"SELECT trace_id FROM `{site.database}`.traces FINAL UNION DISTINCT SELECT trace_id FROM `{site.database}`.late"
    )
    return produced_traces(site).keys() - {row["trace_id"] for row in found}
