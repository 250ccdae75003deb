"""Where a newly assigned partition begins: at its commit, at the settings' `start_from`, or anew. Reads nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from citegauge.adapters.kafka.clients import read_commit
from citegauge.domain.progress import Clock, Commit
from citegauge.errors import FatalError
from citegauge.settings import Settings

EPOCH_SHIFT = 48
"""A version is epoch << 48 | 2 × offset (+ 1)."""
Newest = Callable[[str], int]
"""The newest version that is stored of a source partition's panes, 0 for none. Blocking."""


class Starts:
    """Decides it for one worker."""

    def __init__(
        self, consumer: AIOKafkaConsumer, admin: AIOKafkaAdminClient, settings: Settings, newest: Newest
    ) -> None:
        self._consumer = consumer
        self._admin = admin
        self._settings = settings.kafka
        self._epoch_of = settings.epoch_of
        self._newest = newest
        self._rebuilt: set[TopicPartition] = set()
        """Partitions that this process began anew; when they come back later, the commit tells where they stand."""

    async def of(self, partition: TopicPartition) -> Commit:
        """The commit to resume from. Raises `FatalError` when it is not ours or the log no longer reaches back to it."""
        settings = self._settings
        beginning = (await self._consumer.beginning_offsets([partition]))[partition]
        end = (await self._consumer.end_offsets([partition]))[partition]
        if settings.rebuild_from and partition not in self._rebuilt:
            offset = await self._rebuild_offset(partition, beginning, end)
            self._rebuilt.add(partition)
            return Commit(offset, offset, Clock())
        commit = await read_commit(self._admin, settings, partition)
        if commit is None:
            await self._check_unread(partition, end)
            offset = beginning if settings.start_from == "earliest" else end
            return Commit(offset, offset, Clock())
        if not beginning <= commit.offset <= end or commit.position > end:
            raise FatalError(
                f"the commit of {partition.topic}/{partition.partition} (offsets {commit.offset} to {commit.position}) "
                f"lies outside the log ({beginning} to {end}): the topic was made anew or its retention is too short; "
                "start with --rebuild-from <offset|time> and raise kafka.epoch"
            )
        return commit

    async def _check_unread(self, partition: TopicPartition, end: int) -> None:
        """Kafka forgets the commits of a topic that is deleted; what is stored still tells that another log stood here.

        Its rows have higher versions than those to come, which would lose against them.
        """
        source = f"{partition.topic}/{partition.partition}"
        newest = await asyncio.to_thread(self._newest, source)
        epoch, offset = newest >> EPOCH_SHIFT, (newest & (1 << EPOCH_SHIFT) - 1) >> 1
        if newest and epoch >= self._epoch_of(partition.topic) and offset >= end:
            raise FatalError(
                f"{source} has no commit and ends at offset {end}, but ClickHouse holds minutes up to offset {offset} "
                f"of epoch {epoch}: the topic was made anew; start with --rebuild-from <offset|time> and raise kafka.epoch"
            )

    async def _rebuild_offset(self, partition: TopicPartition, beginning: int, end: int) -> int:
        wanted = self._settings.rebuild_from
        if wanted.isdigit():
            return min(max(int(wanted), beginning), end)
        found = await self._consumer.offsets_for_times({partition: rebuild_ms(wanted)})
        return found[partition].offset if found.get(partition) else end


def rebuild_ms(text: str) -> int:
    """Unix milliseconds of an RFC 3339 time. Raises `FatalError` when it is neither a time nor an offset."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise FatalError(f"--rebuild-from {text!r} is neither an offset nor an RFC 3339 time") from exc
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
