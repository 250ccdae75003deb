"""The audit of a topic: where each partition is read from and to, and its records into the audit, one partition at a time.

It reads up to what the worker says it has published (its commit), so that an audit beside a running worker judges nothing
that is still on its way; without a commit up to the end. The consumer is given, started and without a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, TopicPartition

from citegauge.domain.progress import Commit
from citegauge.errors import ConfigError
from citegauge.tools.audit.partition import PartitionAudit, Range
from citegauge.tools.audit.reading import Reader, as_records

KEPT_S = {"panes": 30 * 86_400, "traces": 14 * 86_400, "late": 30 * 86_400}
"""How long the tables keep rows (the TTL in `sql/`)."""

Begun = Callable[[TopicPartition, Range], PartitionAudit]
Committed = Callable[[TopicPartition], Awaitable[Commit | None]]
Progress = Callable[[str, int, int], None]
"""(source partition, records passed, records in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says."""

    starts: tuple[str, ...] = ()
    """`OFFSET|TIME` for every partition, or `TOPIC/PARTITION=OFFSET|TIME`; the last one that fits a partition counts."""
    empty_before: bool = False
    """The worker began at the start, too, with empty state: nothing before it counts."""
    forgotten: frozenset[str] = frozenset()
    """Trace ids whose rows were deleted on purpose."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a start that is neither an offset nor a time."""
        for given in self.starts:
            value = given.rpartition("=")[2]
            if not value.isdigit():
                _unix_ms(value)

    def start_of(self, partition: TopicPartition) -> str:
        """Where to begin, as given; empty: at the beginning."""
        found = ""
        for given in self.starts:
            name, separator, value = given.rpartition("=")
            if name == f"{partition.topic}/{partition.partition}" or not separator:
                found = value
        return found


async def audit_topic(
    consumer: AIOKafkaConsumer,
    asked: Asked,
    begin: Begun,
    committed: Committed,
    *,
    now_ns: int,
    on_progress: Progress | None = None,
) -> None:
    """Audit every partition that is assigned to `consumer`. Raises `FatalError`, and `KafkaError` for the caller to name."""
    for partition in sorted(consumer.assignment()):
        commit = await committed(partition)
        first = (await consumer.beginning_offsets([partition]))[partition]
        last = (await consumer.end_offsets([partition]))[partition]
        start = await start_of(consumer, partition, asked.start_of(partition), (first, last))
        end = last if commit is None else min(commit.position, last)
        extent = Range(
            start=start,
            end=max(start, end),
            # A log that begins at 0 has lost nothing to retention.
            whole=asked.empty_before or start == first == 0,
            kept_from_s={table: now_ns // 1_000_000_000 - kept_s for table, kept_s in KEPT_S.items()},
            forgotten=asked.forgotten,
        )
        audit = await asyncio.to_thread(begin, partition, extent)
        audit.report.behind = last - extent.end
        await _read(consumer, partition, extent, audit, on_progress)
        await asyncio.to_thread(audit.finish)


async def start_of(consumer: AIOKafkaConsumer, partition: TopicPartition, given: str, log: tuple[int, int]) -> int:
    """Where a start as given on the command line (empty: none) lies in `log`, its first and its next offset."""
    first, last = log
    if not given:
        return first
    if given.isdigit():
        return min(max(int(given), first), last)
    found = (await consumer.offsets_for_times({partition: _unix_ms(given)})).get(partition)
    return last if found is None else int(found.offset)


async def _read(
    consumer: AIOKafkaConsumer, partition: TopicPartition, extent: Range, audit: PartitionAudit, tell: Progress | None
) -> None:
    others = consumer.assignment() - {partition}
    consumer.pause(*others)
    consumer.resume(partition)
    reader = Reader(consumer, partition, extent.start, extent.end)
    while not reader.done:
        records = await reader.next()
        if records:
            await asyncio.to_thread(audit.feed, as_records(records))
        if tell is not None:
            tell(audit.report.source, min(reader.position, extent.end) - extent.start, extent.end - extent.start)


def _unix_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ConfigError(f"--from {text!r} is neither an offset nor an RFC 3339 time") from exc
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
