"""Where a newly assigned partition begins: at its commit, at the settings' `start_from`, or anew. Reads nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from citegauge.adapters.kafka.clients import read_commit
from citegauge.domain.progress import Clock, Commit
from citegauge.errors import FatalError
from citegauge.settings import KafkaSettings


class Starts:
    """Decides it for one worker."""

    def __init__(self, consumer: AIOKafkaConsumer, admin: AIOKafkaAdminClient, settings: KafkaSettings) -> None:
        self._consumer = consumer
        self._admin = admin
        self._settings = settings
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
            offset = beginning if settings.start_from == "earliest" else end
            return Commit(offset, offset, Clock())
        if not beginning <= commit.offset <= end or commit.position > end:
            raise FatalError(
                f"the commit of {partition.topic}/{partition.partition} (offsets {commit.offset} to {commit.position}) "
                f"lies outside the log ({beginning} to {end}): the topic was made anew or its retention is too short; "
                "start with --rebuild-from <offset|time> and raise kafka.epoch"
            )
        return commit

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
