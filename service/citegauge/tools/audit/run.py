"""The audit of everything that the settings name: which topics, opened how, against which rows. No client is made here."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from citegauge.domain.progress import Commit
from citegauge.pipeline import Decoder, Source
from citegauge.ports import SqlReader
from citegauge.settings import Settings
from citegauge.tools.audit.partition import PartitionAudit, Range, opener
from citegauge.tools.audit.report import AuditReport, PartitionReport, SourceReport
from citegauge.tools.audit.sources import audit_sources
from citegauge.tools.audit.stored import StoredRows
from citegauge.tools.audit.topic import Asked, Progress, audit_topic
from citegauge.tools.audit.unread import PositionOf, ends_of, unread

UNREAD_WAIT_INTERVALS = 6
"""Publish intervals that a worker gets to read what stood in the logs when the audit began."""


class KafkaSide(NamedTuple):
    """What is asked of Kafka."""

    looking: Callable[[str], AbstractAsyncContextManager[AIOKafkaConsumer]]
    """A started consumer without a group, with every partition of a topic."""
    committed: Callable[[TopicPartition], Awaitable[Commit | None]]
    """The worker's commit with its metadata."""
    rekeyed_to: PositionOf
    """Where re-keying stands in a source partition, says its commit."""


async def run_audit(
    settings: Settings,
    decoders: Mapping[str, Decoder],
    reader: SqlReader,
    kafka: KafkaSide,
    asked: Asked,
    on_progress: Progress | None = None,
    *,
    unkeyed: Mapping[str, Decoder] | None = None,
) -> AuditReport:
    """Audit the topics of `decoders`, which are those that the join reads, and those that are re-keyed, `unkeyed`.

    Raises `FatalError` or `RetryableError`.
    """
    report = AuditReport()
    joined_ends, source_ends = await ends_of(kafka.looking, decoders), await ends_of(kafka.looking, unkeyed or ())
    policies = settings.join_policy(), settings.score_policy()
    rekey = settings.rekey
    for topic, decode in decoders.items():

        def begin(partition: TopicPartition, extent: Range, decode: Decoder = decode) -> PartitionAudit:
            source = Source(partition.topic, partition.partition, settings.epoch_of(partition.topic))
            return PartitionAudit(
                source,
                opener(source, decode, settings.join.record_bytes_max),
                policies,
                extent,
                StoredRows(reader, settings.clickhouse.database, *source[:2]),
                report,
                rekeyed_partitions=rekey.spans_partitions if source.topic == rekey.spans_topic else 0,
            )

        async with kafka.looking(topic) as consumer:
            await audit_topic(consumer, asked, begin, kafka.committed, on_progress=on_progress, now_ns=time.time_ns())
    if unkeyed:
        await audit_sources(
            settings,
            unkeyed,
            kafka.looking,
            kafka.rekeyed_to,
            asked,
            report,
            now_ns=time.time_ns(),
            on_progress=on_progress,
        )
    until_s = time.monotonic() + UNREAD_WAIT_INTERVALS * settings.publish.interval_s

    async def published_to(partition: TopicPartition) -> int | None:
        commit = await kafka.committed(partition)
        return None if commit is None else commit.position

    async def rekeyed_to(partition: TopicPartition) -> int | None:
        # Without a commit nothing is re-keyed yet; told to begin at the end, where that was cannot be known.
        unknown = None if settings.kafka.start_from == "latest" else 0
        committed = await kafka.rekeyed_to(partition)
        return unknown if committed is None else committed

    left = {
        **await unread(kafka.looking, source_ends, rekeyed_to, until_s),
        **await unread(kafka.looking, joined_ends, published_to, until_s),
    }
    read: list[PartitionReport | SourceReport] = [*report.partitions, *report.sources]
    for one in read:
        one.unread = left.get(TopicPartition(*one.place))
    return report
