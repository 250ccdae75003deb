"""Where the re-key stage begins in a source partition: at its group's commit, else at the settings' `start_from`."""

from __future__ import annotations

import asyncio
import logging
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from citegauge.adapters.kafka.clients import group_commit, timely
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
        self._group_id = settings.rekey.group_id
        self._earliest = settings.kafka.start_from == "earliest"
        self._since_ns: dict[TopicPartition, int] = {}

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
        name = f"the ends of {partition.topic}/{partition.partition}"
        beginning = await timely(self._consumer.beginning_offsets([partition]), LOOKUP_TIMEOUT_S, name)
        end = await timely(self._consumer.end_offsets([partition]), LOOKUP_TIMEOUT_S, name)
        found = await group_commit(self._admin, self._group_id, partition)
        if found is None:
            return int((beginning if self._earliest else end)[partition])
        if not beginning[partition] <= found.offset <= end[partition]:
            raise FatalError(
                self.overtaken(
                    f"{partition.topic}/{partition.partition} is to be read from offset {found.offset} and holds "
                    f"{beginning[partition]} to {end[partition]}"
                )
            )
        return int(found.offset)

    def overtaken(self, what: str) -> str:
        """The line for offsets that the log does not hold: what was deleted before it was re-keyed is lost."""
        return (
            f"a source topic does not hold the offset to re-key next ({what}): its retention is shorter than the lag, or it "
            "was made anew; to go on without what is gone, stop the workers and reset the offsets of group "
            f"{self._group_id} (kafka-consumer-groups.sh --group {self._group_id} --reset-offsets --to-earliest "
            "--all-topics --execute)"
        )
