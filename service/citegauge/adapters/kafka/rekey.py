"""The re-key stage: source topics of any encoding and any key → one topic of compact spans keyed by trace id.

At least once: a span that is sent twice is recognised by the join. Source partitions are aligned in time
(`domain.alignment`): what lies far ahead is held, and its partition paused. It joins nothing.

aiokafka forgets where a partition stands, and whether it is paused, at every assignment, also of a partition that stays. So
does the stage: at each assignment it forgets everything, and each partition begins again at its commit, on its own, so that
one whose place cannot be found yet holds up no other. What is under way belongs to the assignment that it began in; it
commits and pauses nothing in the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)

from citegauge.adapters.kafka.clients import timely, warn_create_time
from citegauge.adapters.kafka.ends import LogEnds
from citegauge.adapters.kafka.places import Places
from citegauge.adapters.kafka.publisher import Publisher
from citegauge.adapters.kafka.source import Opening, Source, SourcePosition
from citegauge.adapters.kafka.spans import Outgoing, SpanSender
from citegauge.domain.alignment import Alignment, Standing
from citegauge.domain.policy import SECOND_NS
from citegauge.errors import FatalError, RetryableError
from citegauge.intake import Decoder
from citegauge.ports import DeadLetter, HeartbeatMessage
from citegauge.settings import Settings

logger = logging.getLogger(__name__)

POLL_MS = 200
COMMIT_TIMEOUT_S = 15.0
BEAT_TIMEOUT_S = 15.0


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """Runs in the client's own task; only leaves a note for the loop."""

    def __init__(self, tier: RekeyTier) -> None:
        self._tier = tier

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Nothing to save: what was not committed is sent again by the new owner."""
        self._tier.assignment += 1
        self._tier.between_assignments = True

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """The loop finds out where to start."""
        self._tier.assignment += 1
        self._tier.between_assignments = False


class RekeyTier:
    """The loop. `run` returns after `stop`, and raises when going on would lose data."""

    def __init__(
        self,
        settings: Settings,
        decoders: Mapping[str, Decoder],
        consumer: AIOKafkaConsumer,
        places: Places,
        sender: SpanSender,
        publisher: Publisher,
    ) -> None:
        """`decoders`: by source topic."""
        self._settings = settings
        self._decoders = decoders
        self._consumer = consumer
        self._places = places
        self._sender = sender
        self._publisher = publisher
        self._opening = Opening(settings, decoders)
        self._ends = LogEnds(consumer)
        self._sources: dict[TopicPartition, Source] = {}
        self._placing: dict[TopicPartition, asyncio.Task[int]] = {}
        self._alignment = self._new_alignment()
        self._fetching: asyncio.Task[dict[TopicPartition, list[ConsumerRecord]]] | None = None
        self._fetches = 0
        self._create_time: set[str] = set()
        self._dead_since_beat: dict[TopicPartition, int] = {}
        self._stopping = asyncio.Event()
        self.assignment = 0
        """Counts what the group says of assignments."""
        self.between_assignments = False
        self._taken = 0
        """The assignment that the sources belong to."""
        self.spans = 0
        self.records = 0
        self.dead_letters: dict[str, int] = {}
        self.overruled: dict[TopicPartition, int] = {}
        """How often a partition was no longer waited for."""
        self.turned_ns = time.monotonic_ns()
        """Monotonic time of the loop's last turn, for the watchdog."""

    # -- outside ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until `stop`. The clients must be started; this does not close them."""
        self._consumer.subscribe(list(self._decoders), listener=_Listener(self))
        beating = asyncio.create_task(self._beat(), name="rekey-heartbeats")
        try:
            while not self._stopping.is_set():
                self._turned()
                if beating.done():
                    beating.result()
                    raise FatalError("the heartbeats of the re-key stage ended by themselves")
                if not self._current and not self.between_assignments:
                    await self._take_over()
                self._place()
                await self._turn()
        finally:
            ended = [beating, *self._placing.values(), *([self._fetching] if self._fetching is not None else [])]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

    def stop(self) -> None:
        """Ask the loop to finish what it has read and return."""
        self._stopping.set()

    @property
    def paused(self) -> int:
        """Source partitions that wait for slower ones."""
        return sum(bool(source.queue) for source in self._sources.values())

    @property
    def held_bytes(self) -> int:
        """What waits to be sent, about."""
        return sum(held.size_bytes for source in self._sources.values() for held in source.queue)

    @property
    def retries(self) -> int:
        """How often spans, dead letters or heartbeats had to be sent again."""
        return self._sender.retries + self._publisher.retries

    def positions(self) -> dict[TopicPartition, SourcePosition]:
        """The standing of every owned partition whose place is known."""
        return {at: source.position(self._ends.of(at)) for at, source in self._sources.items()}

    def unplaced(self) -> dict[TopicPartition, int]:
        """Owned partitions whose place is not known yet, and for how long that has been so, ns."""
        return {at: self._places.searched_ns(at) for at in self._placing}

    # -- assignment ---------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Forget the assignment before, with what it had under way, and look for the place of every partition."""
        taken = self.assignment
        for task in self._placing.values():
            task.cancel()
        await asyncio.gather(*self._placing.values(), return_exceptions=True)
        if self._fetching is not None:
            fetching, self._fetching = self._fetching, None
            await asyncio.wait({fetching}, timeout=2 * POLL_MS / 1_000)
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        self._alignment = self._new_alignment()
        self._sources = {}
        self._placing = {
            at: asyncio.create_task(self._places.find(at), name=f"place-{at.topic}-{at.partition}")
            for at in self._consumer.assignment()
        }
        self._taken = taken

    def _place(self) -> None:
        """Seek where a place was found."""
        for at, task in list(self._placing.items()):
            if not task.done():
                continue
            del self._placing[at]
            offset = task.result()
            try:
                self._consumer.seek(at, offset)
            except IllegalStateError:
                continue  # taken away meanwhile; the listener has left its note
            self._sources[at] = Source(offset, self._fetches, self._settings.join.dead_letters_max)
            logger.info("re-keying %s/%d from offset %d", at.topic, at.partition, offset)

    def _new_alignment(self) -> Alignment[TopicPartition]:
        rekey = self._settings.rekey
        return Alignment(
            ahead_ns=int(rekey.ahead_s * SECOND_NS),
            hold_ns=int(rekey.hold_s_max * SECOND_NS),
            behind_ns=int(rekey.hold_behind_s_max * SECOND_NS),
        )

    @property
    def _current(self) -> bool:
        """Whether the sources are those of the present assignment."""
        return self._taken == self.assignment

    # -- one turn -------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        batches = await self._fetch()
        dead: list[DeadLetter] = []
        for at, records in batches.items():
            source = self._sources.get(at)
            if source is None or not self._current:
                continue
            if source.after_fetch >= self._fetches:
                with suppress(IllegalStateError):  # taken away in this moment
                    self._consumer.seek(at, source.next_offset)  # fetched before it had its place
                continue
            await self._decode(at, source, records, dead)
        await self._set_aside(dead)
        await self._release()

    async def _fetch(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records, or nothing yet.

        During a rebalance `getmany` waits for its end. It is left to wait, since the loop must go on to turn: the client
        takes records only at its very end. It is not told to read what has no place: that would only raise an error.
        """
        if self._fetching is None:
            self._fetches += 1
            records_max = self._settings.kafka.batch_records_max
            fetch = self._consumer.getmany(*self._sources, timeout_ms=POLL_MS, max_records=records_max)
            self._fetching = asyncio.create_task(fetch, name="rekey-fetch")
        done, _ = await asyncio.wait({self._fetching}, timeout=2 * POLL_MS / 1_000)
        if not done:
            return {}
        fetching, self._fetching = self._fetching, None
        try:
            return fetching.result()
        except NoOffsetForPartitionError:
            return {}  # of a partition that has no place yet
        except OffsetOutOfRangeError as exc:
            if not self._current or self._placing:
                return {}  # `Places` judges it
            raise FatalError(f"{self._places.overtaken(str(exc))}") from exc
        except RecordTooLargeError as exc:
            raise FatalError(f"raise kafka.partition_fetch_bytes_max: {exc}") from exc

    async def _decode(
        self, at: TopicPartition, source: Source, records: list[ConsumerRecord], dead: list[DeadLetter]
    ) -> None:
        if records[0].timestamp_type == 0 and at.topic not in self._create_time:
            self._create_time.add(at.topic)
            warn_create_time(at.topic)
        for record in records:
            if record.offset >= source.next_offset:
                before = len(dead)
                held = await self._opening.open(record, dead)
                source.hold(held)
                source.ceiling.read(len(dead) - before, readable=bool(held.spans) or len(dead) == before)
                self.records += 1

    async def _set_aside(self, dead: list[DeadLetter]) -> None:
        for letter in dead:
            at = TopicPartition(letter.topic, letter.partition)
            n = self._dead_since_beat[at] = self._dead_since_beat.get(at, 0) + 1
            if at in self._sources:
                self._sources[at].ceiling.check(n, letter)
            self.dead_letters[letter.reason] = self.dead_letters.get(letter.reason, 0) + 1
        await self._publisher.dead_letters(dead)

    async def _release(self) -> None:
        """Send what no partition that is waited for is far behind, commit it, and pause those that still hold something."""
        if not self._current:
            return
        spans: list[Outgoing] = []
        newest: dict[Source, int] = {}
        bound_ns = self._bound_ns()
        for source in self._sources.values():
            while source.queue and source.queue[0].time_ns <= bound_ns:
                held = source.queue.popleft()  # it counts as sent once it is: see `Source.sent`
                spans.extend(held.spans)
                newest[source] = max(newest.get(source, 0), held.newest_ns)
                self._alignment.sent(held.time_ns)
        if spans:
            spans.sort(key=lambda span: span.end_ns)
            refused = await self._sender.send(spans, self._turned)
            await self._set_aside(refused)
            self.spans += len(spans) - len(refused)
        for source, newest_ns in newest.items():
            source.sent(newest_ns)
        await self._skip_gaps()
        await self._commit()
        self._pause()

    def _bound_ns(self) -> int:
        standings = {
            at: Standing(
                clock_ns=source.clock_ns,
                head_ns=source.queue[0].time_ns if source.queue else None,
                at_end=0 <= self._ends.fetched(at) <= source.next_offset,
            )
            for at, source in self._sources.items()
        }
        # Where the place is still looked for, nobody knows how far behind it is.
        standings |= {at: Standing(clock_ns=0, head_ns=None, at_end=False) for at in self._placing}
        full = self.held_bytes > self._settings.rekey.held_bytes_max
        bound_ns, overruled = self._alignment.bound_ns(standings, time.monotonic_ns(), full=full)
        for at in overruled:
            self.overruled[at] = self.overruled.get(at, 0) + 1
            reason = (
                "no more may be held (rekey.held_bytes_max)"
                if full
                else "it held them for too long, or is too far back"
            )
            logger.warning("%s/%d is no longer waited for by the others: %s", at.topic, at.partition, reason)
        return bound_ns

    async def _skip_gaps(self) -> None:
        """The log has offsets without records (of transactions, or compacted): they count as read.

        Not while a fetch is under way: the client counts as read what it has and we have not.
        """
        for at, source in self._sources.items():
            gap = not source.queue and self._ends.of(at) > source.next_offset
            if gap and self._current and self._fetching is None:
                try:
                    position = await timely(self._consumer.position(at), COMMIT_TIMEOUT_S, "a position")
                except (IllegalStateError, KafkaError, RetryableError):
                    continue
                source.skip_to(position)
            if not source.queue and 0 <= self._ends.of(at) <= source.next_offset:
                source.moved_at_ns = time.monotonic_ns()

    async def _commit(self) -> None:
        """Also where a partition begins, once: so that the next assignment finds its place however quiet it is."""
        offsets = {
            at: source.sent_offset for at, source in self._sources.items() if source.sent_offset != source.committed
        }
        if not offsets or not self._current:
            return
        try:
            await timely(self._consumer.commit(offsets), COMMIT_TIMEOUT_S, "a commit of the re-key stage")
        except (CommitFailedError, IllegalStateError):
            logger.warning("a commit of the re-key stage was refused: the partitions have a new owner")
            return
        except (KafkaError, RetryableError) as exc:
            logger.warning("a commit of the re-key stage failed, the next one will cover it: %r", exc)
            return
        for at, offset in offsets.items():
            source = self._sources.get(at)
            if source is not None:
                source.committed, source.committed_at_ns = offset, time.monotonic_ns()

    def _pause(self) -> None:
        """What the client says is paused, and what should be, made to agree."""
        if not self._current:
            return
        assigned, paused = self._consumer.assignment(), self._consumer.paused()
        for at, source in self._sources.items():
            if at in assigned and bool(source.queue) != (at in paused):
                (self._consumer.pause if source.queue else self._consumer.resume)(at)

    def _turned(self) -> None:
        self.turned_ns = time.monotonic_ns()

    # -- heartbeats -----------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Tell the windows, each publish, whether what stood in the source a moment ago has been re-keyed."""
        while True:
            self._dead_since_beat.clear()
            asked = [*self._sources, *self._placing]
            answered = await self._ends.ask(asked)
            beats = [self._heartbeat(at) for at in self._consumer.assignment()]
            for at in asked:
                if at in self._sources:
                    self._sources[at].end_before = self._ends.of(at) if at in answered else -1
            try:
                await timely(self._publisher.heartbeats(beats), BEAT_TIMEOUT_S, "a heartbeat of the re-key stage")
            except RetryableError as exc:
                logger.warning("%s", exc)
            await asyncio.sleep(self._settings.publish.interval_s)

    def _heartbeat(self, at: TopicPartition) -> HeartbeatMessage:
        source = self._sources.get(at) if self._current else None
        caught_up = source is not None and 0 <= source.end_before <= source.sent_offset
        return HeartbeatMessage(f"{at.topic}/{at.partition}", -1, 0, caught_up)
