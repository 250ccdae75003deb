"""Where logs end, asked of the brokers: while nothing is fetched, no fetch tells, and a lag that grows must be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from citegauge.adapters.kafka.clients import timely
from citegauge.errors import RetryableError

ENDS_TIMEOUT_S = 5.0


class LogEnds:
    """The newest known end of each partition that a consumer reads."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._asked: dict[TopicPartition, int] = {}

    async def ask(self, partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
        """Ask for these, each on its own, since the leader of one may be away; returns those that answered."""
        wanted = list(partitions)
        answers = await asyncio.gather(*(self._ask_one(partition) for partition in wanted))
        found = {partition: end for partition, end in zip(wanted, answers, strict=True) if end >= 0}
        self._asked = {partition: self._asked[partition] for partition in wanted if partition in self._asked} | found
        return found.keys()

    async def _ask_one(self, partition: TopicPartition) -> int:
        try:
            ends = await timely(self._consumer.end_offsets([partition]), ENDS_TIMEOUT_S, "the end of the log")
        except (RetryableError, KafkaError):
            return -1
        return int(ends[partition])

    def of(self, partition: TopicPartition) -> int:
        """The end as far as known from fetches and from asking; -1 when nobody has said yet."""
        return max(self.fetched(partition), self._asked.get(partition, -1))

    def fetched(self, partition: TopicPartition) -> int:
        """The end that the last fetch told, without what no transaction has confirmed yet; -1 before the first."""
        try:
            stable = self._consumer.last_stable_offset(partition)
            end = self._consumer.highwater(partition) if stable is None or stable < 0 else stable
        except (IllegalStateError, AssertionError):
            return -1
        return -1 if end is None else int(end)
