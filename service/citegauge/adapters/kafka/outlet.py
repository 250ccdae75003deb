"""What happens to a flush: publish, store, mark closed, commit. In order, and each flush behind the one before it.

Panes go to Kafka at once and rows to ClickHouse in parallel; once both and the dead letters are acknowledged, the closed
markers follow, and then the commit. A slow ClickHouse therefore holds back markers and commits, never panes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from citegauge.adapters.kafka.clients import timely
from citegauge.adapters.kafka.publisher import Publisher
from citegauge.adapters.kafka.totals import HotCounters
from citegauge.adapters.kafka.writer import RowWriter
from citegauge.domain.progress import Commit
from citegauge.errors import RetryableError
from citegauge.pipeline import Flush, PartitionPipeline
from citegauge.ports import ClosedMarker, HeartbeatMessage, Row

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 15.0


class Owned:
    """One assigned partition."""

    def __init__(self, partition: TopicPartition, pipeline: PartitionPipeline, committed: int) -> None:
        self.partition = partition
        self.pipeline = pipeline
        self.committed = committed
        self.published = pipeline.live_from
        self.committed_at_ns = time.monotonic_ns()
        self.last_commit: Commit | None = None
        self.marked_through = -1
        self.caught_up = False
        self.moved_at_ns = time.monotonic_ns()
        """When it last read something, or had nothing to read."""
        self.revoked = False
        self.warned_create_time = False


class Outlet:
    """Flushes on their way out."""

    def __init__(self, consumer: AIOKafkaConsumer, publisher: Publisher, writer: RowWriter) -> None:
        self._consumer = consumer
        self._publisher = publisher
        self._writer = writer
        self._flushes: deque[asyncio.Task[None]] = deque()
        self.counters = HotCounters()

    def __len__(self) -> int:
        """Flushes that are not finished."""
        return len(self._flushes)

    def send(self, taken: list[tuple[Owned, Flush]]) -> None:
        """Put flushes of one moment on their way, behind the earlier ones."""
        self.counters.count(flush for _, flush in taken)
        before = self._flushes[-1] if self._flushes else None
        self._flushes.append(asyncio.create_task(self._publish(taken, before), name="flush"))

    def check(self) -> None:
        """Forget what is finished; raise what a flush raised."""
        while self._flushes and self._flushes[0].done():
            self._flushes.popleft().result()

    async def drain(self, timeout_s: float) -> None:
        """Wait until every flush is out; past the time give up on the rest: it will be read again."""
        if self._flushes:
            _, late = await asyncio.wait(self._flushes, timeout=timeout_s)
            if late:
                logger.warning("%d flushes did not finish in time; what they held is read again", len(late))
            await self._cancel(late)

    async def close(self) -> None:
        """Give up on everything that is not out."""
        await self._cancel(set(self._flushes))

    @staticmethod
    async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish(self, taken: list[tuple[Owned, Flush]], before: asyncio.Task[None] | None) -> None:
        flushes = [flush for _, flush in taken]
        rows: list[Row] = []
        for flush in flushes:
            rows += [*flush.tombstones, *flush.traces, *flush.late, *flush.users, *flush.panes]
        stored = self._writer.submit(rows)
        beats = [
            HeartbeatMessage(
                _name(flush),
                flush.closed_through,
                flush.watermark_ns,
                owned.caught_up,
            )
            for owned, flush in taken
        ]
        # Oldest first: so what the cold tier must hold until its pane closes stands at the end.
        await self._publisher.panes(sorted((row for flush in flushes for row in flush.panes), key=lambda row: row.pane))
        await self._publisher.heartbeats(beats)
        await self._publisher.dead_letters(letter for flush in flushes for letter in flush.dead)
        await stored
        if before is not None:
            await asyncio.shield(before)
        await self._mark_closed(taken)
        await self._commit(taken)

    async def _mark_closed(self, taken: list[tuple[Owned, Flush]]) -> None:
        news = [(owned, flush) for owned, flush in taken if flush.closed_through > owned.marked_through]
        await self._publisher.closed(ClosedMarker(_name(flush), flush.closed_through) for _, flush in news)
        for owned, flush in news:
            owned.marked_through = flush.closed_through

    async def _commit(self, taken: list[tuple[Owned, Flush]]) -> None:
        offsets = {
            owned.partition: OffsetAndMetadata(flush.commit.offset, flush.commit.to_metadata())
            for owned, flush in taken
            if not owned.revoked and flush.commit != owned.last_commit
        }
        if offsets:
            try:
                await timely(self._consumer.commit(offsets), COMMIT_TIMEOUT_S, "a commit")
            except (CommitFailedError, IllegalStateError):
                self.counters.commits_lost += 1  # the partitions have a new owner, which reads a little more again
                return
            except (KafkaError, RetryableError) as exc:
                self.counters.commits_failed += 1
                logger.warning("a commit failed, the next one will cover it: %r", exc)
                return
        for owned, flush in taken:
            owned.last_commit = flush.commit
            owned.committed = flush.commit.offset
            owned.published = flush.commit.position
            owned.committed_at_ns = time.monotonic_ns()


def _name(flush: Flush) -> str:
    return f"{flush.topic}/{flush.partition}"
