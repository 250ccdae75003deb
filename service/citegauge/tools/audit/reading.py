"""A part of one partition, read in order with the offsets that leave no record passed over. Knows nothing of audits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from citegauge.errors import FatalError
from citegauge.pipeline import Record

FETCH_RECORDS_MAX = 5_000
POLL_MS = 500
QUIET_S_MAX = 30.0
"""Without any record for so long, the broker is taken to be away."""
NS_PER_MS = 1_000_000


class Reader:
    """Reads [start, end). The consumer is given, started, without a group, and may have other partitions too."""

    def __init__(self, consumer: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> None:
        self.partition = partition
        self.position = start
        """Next offset to read."""
        self.end = end
        self.log_ns = 0
        """Timestamp of the newest record so far."""
        self._start = start
        self._consumer = consumer
        self._quiet_s = 0.0
        consumer.seek(partition, start)

    @property
    def done(self) -> bool:
        """Nothing is left."""
        return self.position >= self.end

    async def next(self) -> list[Any]:
        """Some records, perhaps none; ask until `done`. Raises `FatalError` when the broker falls silent."""
        batch = await self._consumer.getmany(self.partition, timeout_ms=POLL_MS, max_records=FETCH_RECORDS_MAX)
        records = [one for one in batch.get(self.partition, ()) if self._start <= one.offset < self.end]
        # Also passes what leaves no record: aborted transactions and compacted offsets.
        reached = await self._consumer.position(self.partition)
        self._quiet_s = 0.0 if reached > self.position else self._quiet_s + POLL_MS / 1_000
        self.position = reached
        if records:
            self.log_ns = max(self.log_ns, records[-1].timestamp * NS_PER_MS)
        if self._quiet_s > QUIET_S_MAX:
            at = f"{self.partition.topic}/{self.partition.partition}"
            raise FatalError(f"no record of {at} for {QUIET_S_MAX:g} s at offset {self.position}: is Kafka up?")
        return records

    async def first(self) -> Any | None:
        """The first record of what is left, None if it has none."""
        while not self.done:
            if records := await self.next():
                return records[0]
        return None


def as_records(records: Iterable[Any]) -> list[Record]:
    """As the pipeline knows them."""
    return [Record(one.offset, one.timestamp * NS_PER_MS, one.value) for one in records]
