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
from citegauge.tools.audit.report import AuditReport
from citegauge.tools.audit.stored import StoredRows
from citegauge.tools.audit.topic import Asked, Progress, audit_topic


class KafkaSide(NamedTuple):
    """What is asked of Kafka."""

    looking: Callable[[str], AbstractAsyncContextManager[AIOKafkaConsumer]]
    """A started consumer without a group, with every partition of a topic."""
    committed: Callable[[TopicPartition], Awaitable[Commit | None]]
    """The worker's commit with its metadata."""


async def run_audit(
    settings: Settings,
    decoders: Mapping[str, Decoder],
    reader: SqlReader,
    kafka: KafkaSide,
    asked: Asked,
    on_progress: Progress | None = None,
) -> AuditReport:
    """Audit the topics of `decoders`, which are those that the join reads. Raises `FatalError` or `RetryableError`."""
    report = AuditReport()
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
    return report
