"""How far an installation is, by Kafka's own offsets: sampled beside the workers, which are not asked.

A partition stands still while records wait in it and nothing of it is committed: of a source topic by the re-key group, of
the topic of spans by the join's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from citegauge.domain.progress import Commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.worker import Site

SAMPLE_S = 0.5
ANSWER_S_MAX = 5.0


@dataclass(kw_only=True)
class Stall:
    """A partition that stood still. Times are unix seconds."""

    partition: TopicPartition
    began: float
    ended: float

    @property
    def lasted_s(self) -> float:
        """For how long."""
        return self.ended - self.began


@dataclass
class _Place:
    done: int = -1
    end: int = 0
    since: float = 0.0
    stall: Stall | None = None


@dataclass
class Standing:
    """Samples in the background; use as a context manager."""

    site: Site
    topics: Sequence[str]
    """Source topics that the re-key stage reads."""
    longer_s: float = 10.0
    """What counts as a stall."""
    stalls: list[Stall] = field(default_factory=list)
    lag: int = 0
    """Records that wait, at the last sample."""
    sampled: float = 0.0
    """When that was."""

    def __enter__(self) -> Self:
        self._places: dict[TopicPartition, _Place] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def longest_s(self) -> float:
        """The longest stall so far."""
        return max((stall.lasted_s for stall in self.stalls), default=0.0)

    def moved_after(self, moment: float) -> bool:
        """Whether nothing waits, by a sample that was begun later."""
        return self.sampled > moment and self.lag == 0

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._watch(), None)
            except (KafkaError, OSError, TimeoutError):
                await asyncio.sleep(SAMPLE_S)  # a broker that is away; what stood still goes on doing so

    async def _watch(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.site.kafka, request_timeout_ms=5_000)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.site.kafka, request_timeout_ms=5_000)
        try:
            await asyncio.wait_for(admin.start(), ANSWER_S_MAX)
            await asyncio.wait_for(consumer.start(), ANSWER_S_MAX)
            while not self._stopping.is_set():
                await asyncio.wait_for(self._sample(admin, consumer), ANSWER_S_MAX)
                await asyncio.sleep(SAMPLE_S)
        finally:
            await admin.close()
            await consumer.stop()

    async def _sample(self, admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> None:
        begun = time.time()
        lag = 0
        for topics, group, joined in (
            (self.topics, self.site.rekey_group, False),
            ((self.site.joined_topic,), f"{self.site.name}-join", True),
        ):
            partitions = [
                TopicPartition(topic, number)
                for topic in topics
                for number in (consumer.partitions_for_topic(topic) or await self._partitions(consumer, topic))
            ]
            consumer.assign(partitions)
            committed = await admin.list_consumer_group_offsets(group)  # before the ends: what it says is never beyond
            ends = await consumer.end_offsets(partitions)
            for partition in partitions:
                at = committed.get(partition)
                done = 0 if at is None else at.offset
                if at is not None and joined:
                    done = Commit.from_metadata(at.offset, at.metadata or "").position
                lag += max(0, ends[partition] - done)
                self._note(partition, done, ends[partition])
        self.lag, self.sampled = lag, begun

    async def _partitions(self, consumer: AIOKafkaConsumer, topic: str) -> set[int]:
        await consumer.topics()
        return set(consumer.partitions_for_topic(topic) or ())

    def _note(self, partition: TopicPartition, done: int, end: int) -> None:
        now = time.time()
        place = self._places.setdefault(partition, _Place(since=now))
        if done != place.done or done >= end or place.done >= place.end:
            # It moved, or nothing waits, or nothing waited a moment ago.
            place.since, place.stall = now, None
        elif now - place.since > self.longer_s:
            if place.stall is None:
                place.stall = Stall(partition=partition, began=place.since, ended=now)
                self.stalls.append(place.stall)
            place.stall.ended = now
        place.done, place.end = done, end
