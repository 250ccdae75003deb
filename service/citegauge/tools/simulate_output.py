"""Where simulated bytes go: a file, a directory, a Kafka topic. Makes neither spans nor clients.

The Kafka producer and the clock are given by the caller, so nothing here knows brokers, addresses or the time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol

from citegauge.tools.simulate import TrafficSpan, generate
from citegauge.tools.simulate_encode import encode_native, encode_otlp, record_key
from citegauge.tools.simulate_spec import SECOND_NS, TrafficSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

Encoding = Literal["native", "otlp_proto"]

OTLP_BATCH_SPANS_MAX = 512
"""Spans of one OTLP batch: an OpenTelemetry SDK's default."""
OTLP_BATCH_NS_MAX = 5 * SECOND_NS
"""Time from the first to the last span of one OTLP batch, likewise."""
IN_FLIGHT_MAX = 2_000
"""Records handed to the Kafka producer and not yet acknowledged."""
PACE_NS_MAX = SECOND_NS
"""Longest sleep between two looks at the wall clock, so that a clock that is set is noticed."""
MILLISECOND_NS = SECOND_NS // 1_000


class TrafficRecord(NamedTuple):
    """One Kafka record, ready to be sent."""

    key: bytes | None
    """32 hex digits of the trace id in ASCII; None for a batch of many traces."""
    value: bytes
    emit_ns: int
    """When it is produced: that of its last span."""
    spans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """The caller's time, for producing in real time."""

    now_ns: Callable[[], int]
    """Integer ns since the epoch."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Takes seconds."""


class Producer(Protocol):
    """The one method of an `aiokafka.AIOKafkaProducer` that is used."""

    async def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, timestamp_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Buffer one record; the future is its acknowledgement."""


def otlp_batches(
    spec: TrafficSpec, *, spans_max: int = OTLP_BATCH_SPANS_MAX, ns_max: int = OTLP_BATCH_NS_MAX
) -> Iterator[list[TrafficSpan]]:
    """The traffic as an SDK or collector would batch it: many traces to a batch, one trace in one or two batches."""
    batch: list[TrafficSpan] = []
    for span in generate(spec):
        if batch and (len(batch) >= spans_max or span.emit_ns - batch[0].emit_ns > ns_max):
            yield batch
            batch = []
        batch.append(span)
    if batch:
        yield batch


def records(spec: TrafficSpec, encoding: Encoding = "native", *, keyed: bool = True) -> Iterator[TrafficRecord]:
    """The traffic as Kafka records, in order of production. Lazy.

    Native: one span a record. `otlp_proto`: one trace's share of a batch a record, as a collector with
    `partition_traces_by_id` sends it; with `keyed` false whole batches without a key, which is a collector's default.
    """
    if encoding == "native":
        for span in generate(spec):
            yield TrafficRecord(record_key(span) if keyed else None, encode_native(span), span.emit_ns, 1)
        return
    for batch in otlp_batches(spec):
        emit_ns = batch[-1].emit_ns
        if not keyed:
            yield TrafficRecord(None, encode_otlp(batch), emit_ns, len(batch))
            continue
        by_trace: dict[bytes, list[TrafficSpan]] = {}
        for span in batch:
            by_trace.setdefault(span.trace_id, []).append(span)
        for spans in by_trace.values():
            yield TrafficRecord(record_key(spans[0]), encode_otlp(spans), emit_ns, len(spans))


def write_native(spec: TrafficSpec, file: BinaryIO) -> int:
    """Write one native event a line; returns the number of spans. The traffic must be finite."""
    spans = 0
    for span in generate(spec):
        file.write(encode_native(span) + b"\n")
        spans += 1
    return spans


def write_otlp(spec: TrafficSpec, file: BinaryIO) -> int:
    """Write one `ExportTraceServiceRequest` with all spans; returns their number. The traffic must be finite.

    It is written batch by batch: concatenated messages of one type are, in protobuf, one message.
    """
    spans = 0
    for batch in otlp_batches(spec):
        file.write(encode_otlp(batch))
        spans += len(batch)
    return spans


def write_otlp_directory(spec: TrafficSpec, directory: Path) -> int:
    """Write every batch to a file of its own, `00000000.otlp.binpb` and so on; returns the number of spans.

    The directory is made. Files of the same name are overwritten, others stay.
    """
    directory.mkdir(parents=True, exist_ok=True)
    spans = 0
    for number, batch in enumerate(otlp_batches(spec)):
        (directory / f"{number:08d}.otlp.binpb").write_bytes(encode_otlp(batch))
        spans += len(batch)
    return spans


async def produce(
    spec: TrafficSpec,
    producer: Producer,
    topic: str,
    *,
    realtime: bool,
    clock: WallClock,
    encoding: Encoding = "native",
    keyed: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Send the traffic to a topic; returns the number of spans, all acknowledged. Record timestamps are `emit_ns`.

    With `realtime` a record waits until the wall clock reaches its time: what lies in the past goes at once, so traffic
    that starts yesterday and has no end is a back-fill that goes on live. Without, everything goes at once.
    `on_progress` is told (spans sent, `emit_ns` of the last) whenever everything sent is acknowledged.

    The producer is neither started nor stopped here; its errors go to the caller.
    """
    in_flight: list[asyncio.Future[Any]] = []
    spans = emit_ns = 0

    async def settle() -> None:
        # Every outcome is collected before the first error is raised, so that none is left behind unseen.
        outcomes = await asyncio.gather(*in_flight, return_exceptions=True)
        in_flight.clear()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if on_progress is not None:
            on_progress(spans, emit_ns)

    for record in records(spec, encoding, keyed=keyed):
        early = realtime and record.emit_ns > clock.now_ns()
        if len(in_flight) >= IN_FLIGHT_MAX or (early and in_flight):
            await settle()
        while realtime and (wait_ns := record.emit_ns - clock.now_ns()) > 0:
            await clock.sleep(min(wait_ns, PACE_NS_MAX) / SECOND_NS)
        in_flight.append(
            await producer.send(topic, record.value, record.key, timestamp_ms=record.emit_ns // MILLISECOND_NS)
        )
        spans, emit_ns = spans + record.spans, record.emit_ns
    await settle()
    return spans
