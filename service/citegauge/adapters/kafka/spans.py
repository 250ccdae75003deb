"""Re-keyed spans on their way to Kafka: which partition, how large a message may be, sent until acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import stamina
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from citegauge.adapters.kafka.clients import MESSAGE_BYTES_MAX, timely
from citegauge.domain.rekeyed import Rekeyed, encode, trace_partition
from citegauge.errors import RetryableError
from citegauge.ports import DeadLetter

logger = logging.getLogger(__name__)

OVERHEAD_BYTES = 128
"""What Kafka adds to a message that is alone in its batch: 61 bytes of batch, at most 21 of record, rounded up."""
BATCH_BYTES_MAX = 256 * 1024
ASKED_MAX = 5
SEND_TIMEOUT_S = 60.0
"""Beyond the client's own time limit for a batch."""


class Outgoing(NamedTuple):
    """One span on its way."""

    end_ns: int
    partition: int
    """Of the spans topic."""
    key: bytes
    value: bytes
    source: str
    source_partition: int
    offset: int
    place: int
    """Position of the span in its record."""
    record_ns: int

    @property
    def size_bytes(self) -> int:
        """What it takes as a message of its own, not compressed."""
        return len(self.key) + len(self.value) + OVERHEAD_BYTES


def outgoing(rekeyed: Rekeyed, partitions: int) -> Outgoing:
    """A span and its origin as a message to one of `partitions`."""
    trace_id = rekeyed.span.trace_id
    return Outgoing(
        end_ns=rekeyed.span.end_ns,
        partition=trace_partition(trace_id, partitions),
        key=trace_id.hex().encode(),
        value=encode(rekeyed),
        source=rekeyed.topic,
        source_partition=rekeyed.partition,
        offset=rekeyed.offset,
        place=rekeyed.index,
        record_ns=rekeyed.record_ns,
    )


class SpanSender:
    """Sends to the spans topic, all or nothing, for ever."""

    def __init__(
        self, producer: AIOKafkaProducer, topic: str, ask_message_bytes_max: Callable[[], Awaitable[int]]
    ) -> None:
        """`ask_message_bytes_max`: the largest message that the topic takes, asked at start and whenever it refuses one."""
        self._producer = producer
        self._topic = topic
        self._ask_message_bytes_max = ask_message_bytes_max
        self._message_bytes_max = 0
        self._unanswered = 0
        self.retries = 0

    async def send(self, spans: Sequence[Outgoing], on_retry: Callable[[], None]) -> list[DeadLetter]:
        """Send all that the topic takes; returns when every replica has them. What it cannot take comes back.

        `on_retry` is called before each further try.
        """
        async for attempt in stamina.retry_context(
            on=RetryableError, attempts=None, timeout=None, wait_initial=0.2, wait_max=10.0
        ):
            with attempt:
                if attempt.num > 1:
                    self.retries += 1
                    on_retry()
                return await self._try(spans)
        raise AssertionError("it is tried for ever")

    async def _try(self, spans: Sequence[Outgoing]) -> list[DeadLetter]:
        await self._ask(max(span.size_bytes for span in spans))
        try:
            fitting = [span for span in spans if span.size_bytes <= self._message_bytes_max]
            await timely(self._send_all(fitting), SEND_TIMEOUT_S, f"sending to {self._topic}")
        except KafkaError as exc:
            if isinstance(exc, MessageSizeTooLargeError):
                self._message_bytes_max = 0  # somebody has lowered it: ask again
            raise RetryableError(f"{self._topic} takes no spans: {exc!r}") from exc
        return [self._too_large(span) for span in spans if span.size_bytes > self._message_bytes_max]

    async def _ask(self, largest_bytes: int) -> None:
        """Learn what the topic takes. A broker that does not tell is taken for one with Kafka's default: at once for what
        fits into that, and for good when it has not told `ASKED_MAX` times.
        """
        if self._message_bytes_max:
            return
        try:
            self._message_bytes_max = await self._ask_message_bytes_max()
        except (KafkaError, RetryableError) as exc:
            self._unanswered += 1
            if self._unanswered < ASKED_MAX and largest_bytes > MESSAGE_BYTES_MAX:
                raise RetryableError(f"{self._topic} does not tell how large a message may be: {exc!r}") from exc
            logger.warning(
                "%s does not tell how large a message may be (%r): %d bytes", self._topic, exc, MESSAGE_BYTES_MAX
            )
            self._message_bytes_max = MESSAGE_BYTES_MAX

    async def _send_all(self, spans: list[Outgoing]) -> None:
        sent = [await self._send(partition, batch) for partition, batch in self._batches(spans)]
        await asyncio.gather(*sent)

    def _batches(self, spans: Iterable[Outgoing]) -> Iterable[tuple[int, list[Outgoing]]]:
        """Spans by partition, in batches that the topic takes as they are."""
        bytes_max = min(self._message_bytes_max, BATCH_BYTES_MAX)
        filling: dict[int, list[Outgoing]] = {}
        filled: dict[int, int] = {}
        for span in spans:
            size = filled.get(span.partition, 0) + span.size_bytes
            if size > bytes_max and span.partition in filling:
                yield span.partition, filling.pop(span.partition)
                size = span.size_bytes
            filling.setdefault(span.partition, []).append(span)
            filled[span.partition] = size
        yield from filling.items()

    async def _send(self, partition: int, spans: list[Outgoing]) -> asyncio.Future[object]:
        batch = self._producer.create_batch()
        for span in spans:
            taken = batch.append(key=span.key, value=span.value, timestamp=None)
            assert taken is not None, "batches are smaller than the client's"
        sent: asyncio.Future[object] = await self._producer.send_batch(batch, self._topic, partition=partition)
        return sent

    def _too_large(self, span: Outgoing) -> DeadLetter:
        return DeadLetter(
            topic=span.source,
            partition=span.source_partition,
            offset=span.offset,
            index=span.place,
            reason="rekeyed_too_large",
            detail=f"{span.size_bytes} bytes re-keyed; {self._topic} takes {self._message_bytes_max} (max.message.bytes)",
            timestamp_ns=span.record_ns,
            size_bytes=span.size_bytes,
        )
