"""Re-keyed spans on their way to Kafka: which partition, how large a message may be, sent until acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import stamina
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from citegauge.adapters.kafka.clients import timely
from citegauge.domain.rekeyed import Rekeyed, encode, trace_partition
from citegauge.errors import RetryableError
from citegauge.ports import DeadLetter

OVERHEAD_BYTES = 128
"""What Kafka adds to a message that is alone in its batch: 61 bytes of batch, at most 21 of record, rounded up."""
BATCH_BYTES_MAX = 256 * 1024
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
        try:
            self._message_bytes_max = self._message_bytes_max or await self._ask_message_bytes_max()
            fitting = [span for span in spans if span.size_bytes <= self._message_bytes_max]
            await timely(self._send_all(fitting), SEND_TIMEOUT_S, f"sending to {self._topic}")
        except KafkaError as exc:
            if isinstance(exc, MessageSizeTooLargeError):
                self._message_bytes_max = 0  # somebody has lowered it: ask again
            raise RetryableError(f"{self._topic} takes no spans: {exc!r}") from exc
        return [self._too_large(span) for span in spans if span.size_bytes > self._message_bytes_max]

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
