"""The re-key stage: source topics of any encoding and any key → one topic of compact spans keyed by trace id.

At least once: a span that is sent twice is recognised by the join. Source partitions are aligned in event time: what lies
far ahead of the slowest active one is held back, and its partition paused, so that the join need not hold what lies
between them, and nothing is late merely because another partition was read first. It joins nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import stamina
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)

from citegauge.adapters.kafka.publisher import Publisher
from citegauge.conventions import SpanFault
from citegauge.domain.join import EARLIEST_NS
from citegauge.domain.rekeyed import Rekeyed, encode, trace_partition
from citegauge.domain.sources import release_bound_ns
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError, FatalError, RetryableError
from citegauge.pipeline import DeadLetter, Decoder, Limits
from citegauge.settings import Settings

logger = logging.getLogger(__name__)

POLL_MS = 200
TURN_NS_MAX = 5_000_000
"""How long spans are decoded between two turns of the event loop: a single record may hold seconds of them."""


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """Runs in the client's own task; only leaves a note for the loop."""

    def __init__(self, tier: RekeyTier) -> None:
        self._tier = tier

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Nothing to save: what was not committed is sent again by the new owner."""

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """The loop finds out where to start."""
        self._tier.assignment_changed = True


class _Held(NamedTuple):
    """One decoded record that was not sent yet."""

    offset: int
    newest_ns: int
    spans: list[Rekeyed]


class _Source:
    """One source partition. It holds at most what one fetch gave: it is paused until that is sent."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.newest_ns = 0
        self.held: deque[_Held] = deque()
        self.paused = False


class RekeyTier:
    """The loop. `run` returns after `stop`, and raises when going on would lose data."""

    def __init__(
        self,
        settings: Settings,
        decoders: Mapping[str, Decoder],
        consumer: AIOKafkaConsumer,
        producer: AIOKafkaProducer,
        publisher: Publisher,
    ) -> None:
        """`decoders`: by source topic."""
        self._settings = settings
        self._decoders = decoders
        self._consumer = consumer
        self._producer = producer
        self._publisher = publisher
        self._limits = Limits(
            record_bytes_max=settings.join.record_bytes_max, dead_letter_payload=settings.join.dead_letter_payload
        )
        self._sources: dict[TopicPartition, _Source] = {}
        self._stopping = asyncio.Event()
        self.assignment_changed = False
        self.spans = 0
        self.records = 0
        self.dead_letters: dict[str, int] = {}
        self.turned_ns = time.monotonic_ns()
        """Monotonic time of the loop's last turn, for the watchdog."""

    async def run(self) -> None:
        """Read until `stop`. The clients must be started; this does not close them."""
        self._consumer.subscribe(list(self._decoders), listener=_Listener(self))
        while not self._stopping.is_set():
            self.turned_ns = time.monotonic_ns()
            if self.assignment_changed:
                self.assignment_changed = False
                await self._take_over()
            await self._turn()

    def stop(self) -> None:
        """Ask the loop to finish what it has read and return."""
        self._stopping.set()

    @property
    def paused(self) -> int:
        """Source partitions that wait for slower ones."""
        return sum(bool(source.held) for source in self._sources.values())

    async def _take_over(self) -> None:
        assigned = self._consumer.assignment()
        self._sources = {partition: source for partition, source in self._sources.items() if partition in assigned}
        try:
            for partition in assigned - self._sources.keys():
                at = await self._consumer.committed(partition)
                if at is None:
                    earliest = self._settings.kafka.start_from == "earliest"
                    find = self._consumer.beginning_offsets if earliest else self._consumer.end_offsets
                    at = (await find([partition]))[partition]
                self._consumer.seek(partition, at)
                self._sources[partition] = _Source(at)
        except (IllegalStateError, KafkaError) as exc:
            logger.warning("cannot take over the assigned partitions yet: %r", exc)
            self.assignment_changed = True

    async def _turn(self) -> None:
        try:
            batches = await self._consumer.getmany(
                timeout_ms=POLL_MS, max_records=self._settings.kafka.batch_records_max
            )
        except NoOffsetForPartitionError:
            self.assignment_changed = True
            return
        except OffsetOutOfRangeError as exc:
            raise FatalError(
                f"a source topic no longer holds the offset to re-key next ({exc}): its retention is shorter than the lag; "
                f"reset the offsets of group {self._settings.rekey.group_id}"
            ) from exc
        except RecordTooLargeError as exc:
            raise FatalError(f"raise kafka.partition_fetch_bytes_max: {exc}") from exc
        dead: list[DeadLetter] = []
        for partition, records in batches.items():
            source = self._sources.get(partition)
            if source is not None:
                await self._decode(partition.topic, source, records, dead)
        await self._publisher.dead_letters(dead)
        for letter in dead:
            self.dead_letters[letter.reason] = self.dead_letters.get(letter.reason, 0) + 1
        await self._release()

    async def _decode(self, topic: str, source: _Source, records: list[ConsumerRecord], dead: list[DeadLetter]) -> None:
        skew_ns = self._settings.join_policy().skew_ns
        turned_ns = time.monotonic_ns()
        for record in records:
            if record.offset < source.next_offset:
                continue  # fetched before our seek
            record_ns = record.timestamp * 1_000_000
            spans: list[Rekeyed] = []
            newest_ns = 0
            try:
                for index, item in enumerate(self._read(self._decoders[topic], record.value)):
                    if time.monotonic_ns() - turned_ns > TURN_NS_MAX:
                        await asyncio.sleep(0)
                        turned_ns = time.monotonic_ns()
                    if isinstance(item, SpanFault):
                        dead.append(self._letter(record, item.index, item.reason, item.detail))
                        continue
                    if isinstance(item, Rekeyed):
                        raise FatalError(f"{topic} is a re-keyed topic: it cannot be a source")
                    spans.append(Rekeyed(record.topic, record.partition, record.offset, index, record_ns, item))
                    if EARLIEST_NS <= item.end_ns <= record_ns + skew_ns:
                        newest_ns = max(newest_ns, item.end_ns)
            except DeadLetterError as exc:
                dead.append(self._letter(record, -1, exc.reason, exc.detail))
            source.held.append(_Held(record.offset, newest_ns, spans))
            source.newest_ns = max(source.newest_ns, newest_ns)
            source.next_offset = record.offset + 1
            self.records += 1

    async def _release(self) -> None:
        """Send what no active source partition is far behind, commit it, and pause those that still hold something."""
        owned = {at: source for at, source in self._sources.items() if at in self._consumer.assignment()}
        active = [at for at, source in owned.items() if source.held or not self._idle(at, source)]
        newest_ns = {at: source.newest_ns for at, source in owned.items() if source.newest_ns}
        bound_ns = release_bound_ns(newest_ns, active, int(self._settings.rekey.ahead_s * 1e9))
        spans: list[Rekeyed] = []
        offsets: dict[TopicPartition, int] = {}
        for at, source in owned.items():
            while source.held and source.held[0].newest_ns <= bound_ns:
                spans.extend(source.held.popleft().spans)
                offsets[at] = source.held[0].offset if source.held else source.next_offset
        if offsets:
            spans.sort(key=lambda rekeyed: rekeyed.span.end_ns)
            await self._send(spans)
            self.spans += len(spans)
            await self._commit(offsets)
        for at, source in owned.items():
            if bool(source.held) != source.paused:
                source.paused = bool(source.held)
                (self._consumer.pause if source.paused else self._consumer.resume)(at)

    def _idle(self, at: TopicPartition, source: _Source) -> bool:
        """Nothing is left to read. An end that is not known yet may lie anywhere."""
        end = self._consumer.highwater(at)
        return end is not None and source.next_offset >= end

    def _read(self, decode: Decoder, value: bytes | None) -> Iterable[Span | SpanFault | Rekeyed]:
        if not value:
            raise DeadLetterError("empty_record")
        if len(value) > self._limits.record_bytes_max:
            raise DeadLetterError("record_too_large", f"{len(value)} bytes")
        return decode(value)

    def _letter(self, record: ConsumerRecord, index: int, reason: str, detail: str) -> DeadLetter:
        return DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            index=index,
            reason=reason,
            detail=detail,
            timestamp_ns=record.timestamp * 1_000_000,
            size_bytes=len(record.value or b""),
            payload=record.value if self._limits.dead_letter_payload else None,
        )

    async def _send(self, spans: list[Rekeyed]) -> None:
        """All spans, each to the partition of its trace; returns when every replica has them."""
        by_partition: dict[int, list[Rekeyed]] = {}
        partitions = self._settings.rekey.spans_partitions
        for rekeyed in spans:
            by_partition.setdefault(trace_partition(rekeyed.span.trace_id, partitions), []).append(rekeyed)
        async for attempt in stamina.retry_context(
            on=RetryableError, attempts=None, timeout=None, wait_initial=0.2, wait_max=10.0
        ):
            with attempt:
                try:
                    acknowledged = [
                        sent
                        for partition, found in by_partition.items()
                        for sent in await self._send_batches(partition, found)
                    ]
                    await asyncio.gather(*acknowledged)
                except KafkaError as exc:
                    raise RetryableError(f"re-keying failed: {exc!r}") from exc

    async def _send_batches(self, partition: int, spans: list[Rekeyed]) -> list[asyncio.Future[object]]:
        topic = self._settings.rekey.spans_topic
        sent: list[asyncio.Future[object]] = []
        batch = self._producer.create_batch()
        for rekeyed in spans:
            key, value = rekeyed.span.trace_id.hex().encode(), encode(rekeyed)
            if batch.append(key=key, value=value, timestamp=None) is None:
                sent.append(await self._producer.send_batch(batch, topic, partition=partition))
                batch = self._producer.create_batch()
                if batch.append(key=key, value=value, timestamp=None) is None:
                    raise FatalError(f"a re-keyed span of {len(value)} bytes does not fit into a batch")
        sent.append(await self._producer.send_batch(batch, topic, partition=partition))
        return sent

    async def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            logger.warning("a commit of the re-key stage was refused: the partitions have a new owner")
