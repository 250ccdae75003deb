"""The hot tier's loop: getmany → pipeline → publish → commit, for every assigned partition.

The loop never waits for what it sent on its way (`outlet.py`) unless ClickHouse's backlog is full: then it pauses
fetching, and goes on calling getmany so that it stays in the group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)

from citegauge.adapters.kafka.clients import timely, warn_create_time
from citegauge.adapters.kafka.ends import LogEnds
from citegauge.adapters.kafka.outlet import Outlet, Owned
from citegauge.adapters.kafka.publisher import Publisher
from citegauge.adapters.kafka.starts import Starts
from citegauge.adapters.kafka.totals import HotCounters, HotTotals, pipeline_totals
from citegauge.adapters.kafka.writer import RowWriter
from citegauge.errors import FatalError, RetryableError
from citegauge.intake import Decoder, Limits
from citegauge.pipeline import Flush, PartitionPipeline, Record, Source
from citegauge.settings import Settings

logger = logging.getLogger(__name__)

POLL_MS = 200
TURN_NS_MAX = 5_000_000
"""How long records are read between two turns of the event loop. By time: a span of a trace of a thousand costs 50 times
another's, and a heartbeat needs several turns."""
LOOKUP_TIMEOUT_S = 30.0
FLUSHES_MAX = 2_000
"""Unfinished flushes, beside the bound on their rows."""


class Positions(NamedTuple):
    """Where one partition stands, for metrics and health."""

    position: int
    committed: int
    published: int
    """Position of the last confirmed commit: everything before it is out."""
    end: int
    """End of the log as far as known; -1 before the first fetch."""
    watermark_ns: int
    replaying: bool
    commit_age_ns: int
    still_ns: int
    """For how long records have been waiting without one being read."""


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """Runs in the client's own task, beside our loop: so it only asks the loop to hand over, and waits a bounded time."""

    def __init__(self, tier: HotTier) -> None:
        self._tier = tier

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._tier.hand_over()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._tier.assignment_changed = True


class HotTier:
    """The loop. `run` returns after `stop`, and raises when going on would lose data."""

    def __init__(
        self,
        settings: Settings,
        decoders: Mapping[str, Decoder],
        consumer: AIOKafkaConsumer,
        starts: Starts,
        publisher: Publisher,
        writer: RowWriter,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._settings = settings
        self._decoders = decoders
        self._consumer = consumer
        self._starts = starts
        self._outlet = Outlet(consumer, publisher, writer)
        self._writer = writer
        self._wall_ns = wall_ns
        self._owned: dict[TopicPartition, Owned] = {}
        self._stopping = asyncio.Event()
        self._handing_over: asyncio.Event | None = None
        self._paused = False
        self._ends = LogEnds(consumer)
        self._asking: asyncio.Task[object] | None = None
        self.assignment_changed = False
        self._retired = HotTotals()
        self.turned_ns = time.monotonic_ns()
        """Monotonic time of the loop's last turn, for the watchdog."""

    # -- outside ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until `stop`. The clients must be started; this does not close them."""
        self._consumer.subscribe(list(self._decoders), listener=_Listener(self))
        interval_ns = int(self._settings.publish.interval_s * 1e9)
        next_flush_ns = time.monotonic_ns() + interval_ns
        writing = asyncio.create_task(self._writer.run(), name="clickhouse-writer")
        try:
            while not self._stopping.is_set():
                self.turned_ns = time.monotonic_ns()
                self._check_tasks(writing)
                if self._handing_over is not None:
                    await self._drain()
                    self._handing_over.set()
                    self._handing_over = None
                if self.assignment_changed:
                    await self._try_take_over()
                await self._read()
                if time.monotonic_ns() >= next_flush_ns or self._pending() >= self._settings.publish.flush_rows_max:
                    next_flush_ns = time.monotonic_ns() + interval_ns
                    self._flush()
                    self._ask_ends()
            await self._drain()
            self._check_tasks(writing)
        finally:
            if self._handing_over is not None:
                self._handing_over.set()
            await self._outlet.close()
            ended = [writing] if self._asking is None else [writing, self._asking]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

    def stop(self) -> None:
        """Ask the loop to finish what it has read, commit and return."""
        self._stopping.set()

    async def hand_over(self) -> None:
        """Called when partitions are taken away: waits until the loop has drained, but not for ever."""
        if not self._owned or self._stopping.is_set():
            return
        self._handing_over = drained = asyncio.Event()
        try:
            await asyncio.wait_for(drained.wait(), self._settings.kafka.drain_timeout_s + 5)
        except TimeoutError:
            logger.warning("handing over partitions without a last commit: the new owner reads a little more again")

    def positions(self) -> dict[TopicPartition, Positions]:
        """Every owned partition's standing."""
        now_ns = time.monotonic_ns()
        return {
            partition: Positions(
                position=owned.pipeline.progress.position,
                committed=owned.committed,
                published=owned.published,
                end=self._ends.of(partition),
                watermark_ns=owned.pipeline.join.watermark_ns,
                replaying=owned.pipeline.replaying,
                commit_age_ns=now_ns - owned.committed_at_ns,
                still_ns=0 if self._paused else now_ns - owned.moved_at_ns,
            )
            for partition, owned in self._owned.items()
        }

    def pipelines(self) -> Iterable[PartitionPipeline]:
        """The pipelines of the owned partitions, for metrics."""
        return [owned.pipeline for owned in self._owned.values()]

    def totals(self) -> HotTotals:
        """Totals since start, over partitions that were given away too."""
        totals = HotTotals()
        totals.add(self._retired)
        for owned in self._owned.values():
            if not owned.pipeline.replaying:
                totals.add(pipeline_totals(owned.pipeline))
        return totals

    @property
    def counters(self) -> HotCounters:
        """Totals of what was published, since start."""
        return self._outlet.counters

    @property
    def excused(self) -> bool:
        """Whether commits wait for ClickHouse, which is no fault of ours."""
        return self._writer.failing or self._paused

    @property
    def paused(self) -> bool:
        """Whether reading waits for ClickHouse."""
        return self._paused

    # -- assignment ---------------------------------------------------------------------------------------------------

    async def _try_take_over(self) -> None:
        self.assignment_changed = False
        try:
            await self._take_over()
        except (RetryableError, KafkaError) as exc:
            logger.warning("cannot take over the assigned partitions yet: %r", exc)
            self.assignment_changed = True

    async def _take_over(self) -> None:
        """Find out where each new partition stands, seek there, and start its pipeline."""
        assigned = self._consumer.assignment()
        for partition in list(self._owned):
            if partition not in assigned:
                self._retire(self._owned.pop(partition))
        for partition in sorted(assigned - self._owned.keys()):
            start = await timely(self._starts.of(partition), LOOKUP_TIMEOUT_S, f"the start of {partition}")
            try:
                self._consumer.seek(partition, start.offset)
            except IllegalStateError:
                return  # taken away again meanwhile; the listener has set the flag
            source = Source(partition.topic, partition.partition, self._settings.epoch_of(partition.topic))
            join = self._settings.join
            pipeline = PartitionPipeline(
                source,
                self._decoders[partition.topic],
                self._settings.join_policy(),
                self._settings.score_policy(),
                start,
                Limits(
                    record_bytes_max=join.record_bytes_max,
                    dead_letter_payload=join.dead_letter_payload,
                    dead_letters_max=join.dead_letters_max,
                ),
            )
            self._owned[partition] = Owned(partition, pipeline, start.offset)
            logger.info(
                "reading %s from offset %d (%d records again in silence)",
                source.name,
                start.offset,
                start.position - start.offset,
            )

    # -- reading --------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        self._keep_pressure()
        try:
            batches = await self._fetch()
        except NoOffsetForPartitionError:
            # A new partition before our own seek; its start is decided in `_take_over`.
            self.assignment_changed = True
            return
        except OffsetOutOfRangeError as exc:
            if self._consumer.assignment() - self._owned.keys():
                self.assignment_changed = True  # the client began at the commit by itself; `Starts` judges it
                return
            epochs = sorted({self._settings.epoch_setting(at.topic) for at in exc.args[0]})
            raise FatalError(
                f"the log no longer holds the offset to read next ({exc}): its retention is shorter than the lag; "
                f"start with --rebuild-from <offset|time> and raise {' and '.join(epochs)}"
            ) from exc
        except RecordTooLargeError as exc:
            raise FatalError(f"raise kafka.partition_fetch_bytes_max: {exc}") from exc
        for partition, records in batches.items():
            owned = self._owned.get(partition)
            if owned is not None:
                await self._feed(owned, records)
        for partition, owned in self._owned.items():
            if partition not in batches:
                await self._look_idle(partition, owned)

    async def _fetch(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records, or nothing when it takes too long.

        During a rebalance `getmany` waits for the next assignment, which waits until we have handed over: so it is given
        up. It takes records only at its very end, so that none is lost.
        """
        fetching = asyncio.create_task(
            self._consumer.getmany(timeout_ms=POLL_MS, max_records=self._settings.kafka.batch_records_max)
        )
        try:
            done, _ = await asyncio.wait({fetching}, timeout=2 * POLL_MS / 1_000)
            if not done:
                fetching.cancel()
                await asyncio.wait({fetching})
        finally:
            fetching.cancel()
        return {} if fetching.cancelled() else fetching.result()

    async def _feed(self, owned: Owned, records: list[ConsumerRecord]) -> None:
        owned.caught_up = False
        owned.moved_at_ns = time.monotonic_ns()
        pipeline = owned.pipeline
        if records and records[0].timestamp_type == 0 and not owned.warned_create_time:
            owned.warned_create_time = True
            warn_create_time(owned.partition.topic)
        turned_ns = time.monotonic_ns()
        for record in records:
            if owned.revoked:
                return
            if record.offset < pipeline.progress.position:
                continue  # fetched before our seek
            for _ in pipeline.slices(Record(record.offset, record.timestamp * 1_000_000, record.value)):
                if time.monotonic_ns() - turned_ns > TURN_NS_MAX:
                    await asyncio.sleep(0)
                    turned_ns = time.monotonic_ns()
                    if owned.revoked:
                        return
            if time.monotonic_ns() - turned_ns > TURN_NS_MAX:
                await asyncio.sleep(0)
                turned_ns = time.monotonic_ns()
        owned.caught_up = self._at_end(owned.partition, pipeline.progress.position)
        if pipeline.dead:
            pipeline.ceiling.check(len(pipeline.dead), pipeline.dead[-1])

    async def _look_idle(self, partition: TopicPartition, owned: Owned) -> None:
        try:
            position = await self._consumer.position(partition)
        except (IllegalStateError, KafkaError):
            return
        owned.pipeline.skip_to(position)
        owned.caught_up = self._at_end(partition, position)
        if owned.caught_up or self._paused:
            owned.moved_at_ns = time.monotonic_ns()

    def _at_end(self, partition: TopicPartition, position: int) -> bool:
        """Whether the last fetch left nothing to read; under steady traffic that is the moment to say so."""
        return not self._paused and position >= self._ends.of(partition) >= 0

    def _ask_ends(self) -> None:
        """Beside the loop, which must not wait for a broker that is away."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ends.ask(self._owned), name="log-ends")

    def _keep_pressure(self) -> None:
        bound = self._settings.clickhouse.buffer_rows_max
        full = self._writer.backlog_rows + self._pending() > bound or len(self._outlet) > FLUSHES_MAX
        assigned = self._consumer.assignment()
        if full and assigned:
            if not self._paused:
                logger.warning("reading pauses: %d rows wait for ClickHouse", self._writer.backlog_rows)
            self._paused = True
            self._consumer.pause(*assigned)
        elif self._paused and self._writer.backlog_rows <= bound // 2:
            logger.warning("reading goes on: %d rows wait for ClickHouse", self._writer.backlog_rows)
            self._paused = False
            self._consumer.resume(*assigned)

    # -- publishing -----------------------------------------------------------------------------------------------------

    def _pending(self) -> int:
        return sum(owned.pipeline.pending for owned in self._owned.values() if not owned.pipeline.replaying)

    def _flush(self) -> None:
        """Take what changed and send it on its way, behind the flushes before it."""
        taken: list[tuple[Owned, Flush]] = []
        for owned in self._owned.values():
            if not owned.pipeline.replaying:
                idle_wall_ns = self._wall_ns() if owned.caught_up else None
                taken.append((owned, owned.pipeline.take_flush(idle_wall_ns=idle_wall_ns)))
        if not taken:
            return
        self._outlet.send(taken)

    async def _drain(self) -> None:
        """Publish and commit what was read, within the time allowed, then forget the partitions."""
        self._flush()
        await self._outlet.drain(self._settings.kafka.drain_timeout_s)
        for owned in self._owned.values():
            self._retire(owned)
        self._owned.clear()

    def _retire(self, owned: Owned) -> None:
        owned.revoked = True
        if not owned.pipeline.replaying:
            self._retired.add(pipeline_totals(owned.pipeline))

    def _check_tasks(self, writing: asyncio.Task[None]) -> None:
        """Raise what a background task raised; nothing ends in silence."""
        self._outlet.check()
        if writing.done():
            writing.result()
            raise FatalError("the ClickHouse writer ended by itself")
