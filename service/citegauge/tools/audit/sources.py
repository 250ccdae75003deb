"""Reads the sources that are re-keyed and the spans topic in step, for the comparison. What is compared stands in `rekeyed`.

The spans topic leads, its partitions in the order of their timestamps: before a span of it is looked at, its source is read
up to the span's origin. So only what lies between the two is held, not the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from citegauge.domain import rekeyed
from citegauge.domain.rekeyed import Rekeyed
from citegauge.errors import DeadLetterError
from citegauge.pipeline import Decoder
from citegauge.settings import Settings
from citegauge.tools.audit.reading import NS_PER_MS, Reader, as_records
from citegauge.tools.audit.rekeyed import Bounds, RekeyedComparison
from citegauge.tools.audit.report import AuditReport, SourceReport
from citegauge.tools.audit.topic import Asked, Progress, start_of
from citegauge.tools.audit.unread import Looking, PositionOf


class _Source(NamedTuple):
    report: SourceReport
    reader: Reader
    decode: Decoder


async def audit_sources(
    settings: Settings,
    decoders: Mapping[str, Decoder],
    looking: Looking,
    position_of: PositionOf,
    asked: Asked,
    report: AuditReport,
    *,
    now_ns: int,
    on_progress: Progress | None = None,
) -> None:
    """Compare the topics of `decoders`, which are those that are re-keyed. Raises `FatalError` or `RetryableError`.

    `position_of`: where re-keying stands, says its commit.
    """
    async with AsyncExitStack() as stack:
        spans = await stack.enter_async_context(looking(settings.rekey.spans_topic))
        kept = await _kept_from(spans, now_ns)
        margin_ns = settings.join_policy().skew_ns
        kept_from_ns = {partition: at_ns + margin_ns for partition, at_ns in kept.items() if at_ns}
        sources: dict[TopicPartition, _Source] = {}
        for topic, decode in decoders.items():
            consumer = await stack.enter_async_context(looking(topic))
            for partition in sorted(consumer.assignment()):
                one = await _extent(consumer, partition, position_of, asked, min(kept.values()))
                report.sources.append(one)
                sources[partition] = _Source(one, Reader(consumer, partition, one.start, one.end), decode)
        comparison = RekeyedComparison(
            report,
            Bounds(
                partitions=settings.rekey.spans_partitions,
                kept_from_ns=kept_from_ns,
                from_first_found=settings.kafka.start_from == "latest",
                users=bool(settings.privacy.user_hmac_key.get_secret_value()),
            ),
        )
        step = _Step(sources, comparison, settings.join.record_bytes_max, on_progress)
        # Noted after the commits: what they cover stands before these ends.
        await step.compare(await _readers(spans))
    wanted = comparison.wanted_letters()
    if not wanted:
        return
    async with looking(settings.kafka.dead_letter_topic) as letters:
        oldest_ns = max((await _kept_from(letters, now_ns)).values())
        comparison.finish(await _letters(letters, wanted), oldest_ns + margin_ns if oldest_ns else 0)


async def _extent(
    consumer: AIOKafkaConsumer, partition: TopicPartition, position_of: PositionOf, asked: Asked, kept_from_ns: int
) -> SourceReport:
    """From where to where a source partition is compared."""
    first = (await consumer.beginning_offsets([partition]))[partition]
    last = (await consumer.end_offsets([partition]))[partition]
    committed = await position_of(partition)
    start = await start_of(consumer, partition, asked.start_of(partition), (first, last))
    if kept_from_ns:  # nothing that was written before is in any partition of the spans topic
        found = (await consumer.offsets_for_times({partition: kept_from_ns // NS_PER_MS})).get(partition)
        start = max(start, last if found is None else found.offset)
    end = min(first if committed is None else committed, last)
    one = SourceReport(partition.topic, partition.partition, min(start, max(first, end)), max(first, end))
    one.skipped = one.start - first
    one.removed = 0 if committed is None else max(0, first - committed)
    return one


class _Step:
    """Both sides, read in step."""

    def __init__(
        self,
        sources: Mapping[TopicPartition, _Source],
        comparison: RekeyedComparison,
        record_bytes_max: int,
        tell: Progress | None,
    ) -> None:
        self._sources = sources
        self._comparison = comparison
        self._record_bytes_max = record_bytes_max
        self._tell = tell

    async def compare(self, spans: Collection[Reader]) -> None:
        """The spans topic to its end, the sources to their commits."""
        while left := [reader for reader in spans if not reader.done]:
            reader = min(left, key=lambda one: one.log_ns)
            found = await asyncio.to_thread(_opened, await reader.next())
            needed: dict[TopicPartition, int] = {}
            for one in found:
                origin = TopicPartition(one.topic, one.partition)
                needed[origin] = max(needed.get(origin, 0), one.offset + 1)
            for partition, offset in needed.items():
                if partition in self._sources:
                    await self._advance(self._sources[partition], offset)
            for one in found:
                self._comparison.found(reader.partition.partition, one)
        for source in self._sources.values():
            await self._advance(source, source.report.end)

    async def _advance(self, source: _Source, offset: int) -> None:
        report, reader = source.report, source.reader
        while reader.position < min(offset, report.end):
            records = await reader.next()
            if records:
                await asyncio.to_thread(self._said, source, records)
            if self._tell is not None:
                self._tell(report.source, min(reader.position, report.end) - report.start, report.end - report.start)

    def _said(self, source: _Source, records: Sequence[Any]) -> None:
        for record in as_records(records):
            self._comparison.said(source.report, record, source.decode, self._record_bytes_max)


def _opened(records: Sequence[Any]) -> list[Rekeyed]:
    """What cannot be read is none of ours: the audit of the join counts it."""
    found: list[Rekeyed] = []
    for record in records:
        try:
            found += rekeyed.decode(record.value or b"")
        except DeadLetterError:
            continue
    return found


async def _readers(consumer: AIOKafkaConsumer) -> list[Reader]:
    """Every partition, as it stands now."""
    partitions = sorted(consumer.assignment())
    firsts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return [Reader(consumer, one, firsts[one], ends[one]) for one in partitions]


async def _kept_from(consumer: AIOKafkaConsumer, now_ns: int) -> dict[int, int]:
    """By partition: when the oldest record was written that is still there; 0 for one that has lost none."""
    found: dict[int, int] = {}
    for reader in await _readers(consumer):
        if reader.position == 0:
            found[reader.partition.partition] = 0
        else:
            oldest = await reader.first()
            found[reader.partition.partition] = now_ns if oldest is None else oldest.timestamp * NS_PER_MS
    return found


async def _letters(consumer: AIOKafkaConsumer, wanted: AbstractSet[str]) -> AbstractSet[str]:
    """Those of the wanted keys that the dead-letter topic has."""
    found: set[str] = set()
    for reader in await _readers(consumer):
        while not reader.done:
            keys = {(record.key or b"").decode(errors="replace") for record in await reader.next()}
            found |= keys & wanted
    return found
