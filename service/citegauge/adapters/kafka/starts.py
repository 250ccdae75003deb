"""Where a newly assigned partition begins: at its commit, at the settings' `start_from`, or anew. Reads nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from citegauge.adapters.kafka.clients import group_commit, read_commit
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
        self._settings = settings
        self._newest = newest
        self._rebuilt: set[TopicPartition] = set()
        """Partitions that this process began anew; when they come back later, the commit tells where they stand."""

    async def of(self, partition: TopicPartition) -> Commit:
        """The commit to resume from.

        Raises `FatalError` when it is not ours, when the log no longer reaches back to it, or for a rebuild whose rows would
        lose against those that are stored.
        """
        settings = self._settings.kafka
        beginning = (await self._consumer.beginning_offsets([partition]))[partition]
        end = (await self._consumer.end_offsets([partition]))[partition]
        if settings.rebuild_from and partition not in self._rebuilt:
            await self._check_raised(partition)
            offset = await self._rebuild_offset(partition, beginning, end)
            self._rebuilt.add(partition)
            return Commit(offset, offset, Clock())
        commit = await read_commit(self._admin, self._settings, partition)
        if commit is None:
            await self._check_unread(partition, end)
            rekeyed = await group_commit(self._admin, self._settings.rekey.group_id, partition)
            if rekeyed is not None:  # a source that is keyed from now on: what was re-keyed is joined already
                offset = min(max(rekeyed.offset, beginning), end)
                return Commit(offset, offset, Clock())
            # What is in the re-keyed topic was chosen by the re-key stage.
            all_of_it = settings.start_from == "earliest" or partition.topic == self._settings.rekey.spans_topic
            offset = beginning if all_of_it else end
            return Commit(offset, offset, Clock())
        if not beginning <= commit.offset <= end or commit.position > end:
            raise FatalError(
                f"the commit of {partition.topic}/{partition.partition} (offsets {commit.offset} to {commit.position}) "
                f"lies outside the log ({beginning} to {end}): the topic was made anew or its retention is too short; "
                f"start with --rebuild-from <offset|time> and {await self._raised(partition)}"
            )
        return commit

    async def _check_unread(self, partition: TopicPartition, end: int) -> None:
        """Kafka forgets the commits of a topic that is deleted; what is stored still tells that another log stood here.

        Its rows have higher versions than those to come, which would lose against them.
        """
        epoch, offset = await self._stored(partition)
        if epoch >= self._settings.epoch_of(partition.topic) and offset >= end:
            raise FatalError(
                f"{partition.topic}/{partition.partition} has no commit and ends at offset {end}, but ClickHouse holds "
                f"minutes up to offset {offset} of epoch {epoch}: the topic was made anew; "
                f"start with --rebuild-from <offset|time> and {await self._raised(partition)}"
            )

    async def _check_raised(self, partition: TopicPartition) -> None:
        """Rows of the same epoch have the higher versions where the log was longer, and would stay."""
        epoch, _ = await self._stored(partition)
        if epoch >= self._settings.epoch_of(partition.topic):
            raise FatalError(
                f"--rebuild-from: ClickHouse holds minutes of {partition.topic}/{partition.partition} of epoch {epoch}, "
                f"which would win over those that are read again: {await self._raised(partition)}, or start without "
                "--rebuild-from if it was rebuilt under that epoch already"
            )

    async def _raised(self, partition: TopicPartition) -> str:
        """What to set, and to which value."""
        topic, (epoch, _) = partition.topic, await self._stored(partition)
        now = self._settings.epoch_of(topic)
        return f"set {self._settings.epoch_setting(topic)} = {max(epoch + 1, now) if epoch >= 0 else now + 1}"

    async def _stored(self, partition: TopicPartition) -> tuple[int, int]:
        """Epoch and offset of the newest version that ClickHouse holds of it; -1 for nothing."""
        newest = await asyncio.to_thread(self._newest, f"{partition.topic}/{partition.partition}")
        return (newest >> EPOCH_SHIFT, (newest & (1 << EPOCH_SHIFT) - 1) >> 1) if newest else (-1, -1)

    async def _rebuild_offset(self, partition: TopicPartition, beginning: int, end: int) -> int:
        wanted = self._settings.kafka.rebuild_from
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
