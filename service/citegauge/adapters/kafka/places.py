"""Where the re-key stage begins in a source partition: at its group's commit, else at the settings' `start_from`."""

from __future__ import annotations

import asyncio
import logging
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from citegauge.adapters.kafka.clients import group_commit, read_commit, timely
from citegauge.errors import FatalError, RetryableError
from citegauge.settings import Settings

logger = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S = 30.0
AGAIN_S = 2.0


class Places:
    """Decides it for one worker."""

    def __init__(self, consumer: AIOKafkaConsumer, admin: AIOKafkaAdminClient, settings: Settings) -> None:
        self._consumer = consumer
        self._admin = admin
        self._settings = settings
        self._group_id = settings.rekey.group_id
        self._earliest = settings.kafka.start_from == "earliest"
        self._since_ns: dict[TopicPartition, int] = {}
        self._first: dict[str, frozenset[int]] = {}
        self._looking = asyncio.Lock()

    async def find(self, partition: TopicPartition) -> int:
        """The offset to begin at, asked for until somebody answers. Raises `FatalError` when the log does not hold it."""
        self._since_ns[partition] = time.monotonic_ns()
        told = False
        while True:
            try:
                return await self._find(partition)
            except (RetryableError, KafkaError) as exc:
                if not told:
                    told = True
                    logger.warning(
                        "%s/%d cannot be re-keyed yet: %s", partition.topic, partition.partition, exc or repr(exc)
                    )
                await asyncio.sleep(AGAIN_S)

    def searched_ns(self, partition: TopicPartition) -> int:
        """For how long the place of a partition has been looked for."""
        return time.monotonic_ns() - self._since_ns.get(partition, time.monotonic_ns())

    async def _find(self, partition: TopicPartition) -> int:
        found = await group_commit(self._admin, self._group_id, partition)
        name = f"the ends of {partition.topic}/{partition.partition}"
        beginning = await timely(self._consumer.beginning_offsets([partition]), LOOKUP_TIMEOUT_S, name)
        end = await timely(self._consumer.end_offsets([partition]), LOOKUP_TIMEOUT_S, name)
        if found is None:
            joined = await read_commit(self._admin, self._settings, partition)
            if joined is not None:  # a source that was keyed until now: what is joined is not re-keyed
                return min(max(joined.position, int(beginning[partition])), int(end[partition]))
            at_beginning = self._earliest or partition.partition not in await self._first_partitions(partition.topic)
            return int((beginning if at_beginning else end)[partition])
        if not beginning[partition] <= found.offset <= end[partition]:
            raise FatalError(
                self.overtaken(
                    f"{partition.topic}/{partition.partition} is to be read from offset {found.offset} and holds "
                    f"{beginning[partition]} to {end[partition]}"
                )
            )
        return int(found.offset)

    async def _first_partitions(self, topic: str) -> frozenset[int]:
        """The partitions that the group begins with, to which alone `latest` applies: one that was added since, or whose
        neighbours have a commit, is new, and so is everything in it.
        """
        async with self._looking:
            if topic not in self._first:
                partitions = frozenset(self._consumer.partitions_for_topic(topic) or ())
                asked = (group_commit(self._admin, self._group_id, TopicPartition(topic, one)) for one in partitions)
                begun = any(await asyncio.gather(*asked))
                self._first[topic] = frozenset() if begun else partitions
        return self._first[topic]

    def overtaken(self, what: str) -> str:
        """The line for offsets that the log does not hold: what was deleted before it was re-keyed is lost."""
        return (
            f"a source topic does not hold the offset to re-key next ({what}): its retention is shorter than the lag, or it "
            "was made anew; to go on without what is gone, stop the workers and reset the offsets of group "
            f"{self._group_id} (kafka-consumer-groups.sh --group {self._group_id} --reset-offsets --to-earliest "
            "--all-topics --execute)"
        )
