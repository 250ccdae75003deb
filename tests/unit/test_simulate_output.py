"""Files and topics of simulated traffic: nothing is lost on the way, order and pace are kept, nothing grows."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from citegauge.tools.simulate import generate
from citegauge.tools.simulate_encode import encode_native, record_key
from citegauge.tools.simulate_output import (
    IN_FLIGHT_MAX,
    WallClock,
    otlp_batches,
    produce,
    records,
    write_native,
    write_otlp,
    write_otlp_directory,
)
from citegauge.tools.simulate_spec import SECOND_NS, TrafficSpec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

START_NS = 1_764_460_800 * SECOND_NS
SPEC = TrafficSpec(
    seed=4,
    start_ns=START_NS,
    traces_max=1_500,
    traces_per_minute=6_000,
    disorder_ns=2 * SECOND_NS,
    duplicate_ratio=0.05,
)


def span_keys(requests: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """(trace id, span id) of every span of some OTLP requests, sorted, repetitions kept."""
    return sorted(
        (span.trace_id, span.span_id)
        for request in requests
        for resource_spans in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    )


EXPECTED_KEYS = sorted((span.trace_id, span.span_id) for span in generate(SPEC))


class SimulatedTime:
    """A wall clock that only moves while someone sleeps, and by exactly as much."""

    def __init__(self, now_ns: int) -> None:
        self.at_ns = now_ns
        self.sleeps_s: list[float] = []

    def now_ns(self) -> int:
        """The simulated time."""
        return self.at_ns

    async def sleep(self, seconds: float) -> None:
        """Pass the time at once."""
        self.sleeps_s.append(seconds)
        self.at_ns += round(seconds * SECOND_NS)
        await asyncio.sleep(0)

    @property
    def clock(self) -> WallClock:
        """This time in the form that the generator takes."""
        return WallClock(now_ns=self.now_ns, sleep=self.sleep)


class RecordingProducer:
    """Acknowledges on the loop's next turn; remembers what was sent, when, and how much was in flight."""

    def __init__(self, time: SimulatedTime, fail_at: int | None = None) -> None:
        self.sent: list[tuple[str, bytes | None, bytes | None, int | None]] = []
        self.sent_at_ns: list[int] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self._time = time
        self._fail_at = fail_at

    async def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, timestamp_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """As aiokafka's."""
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        failed = len(self.sent) == self._fail_at
        self.sent.append((topic, value, key, timestamp_ms))
        self.sent_at_ns.append(self._time.at_ns)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)

        def acknowledge() -> None:
            self.in_flight -= 1
            if failed:
                acknowledged.set_exception(OSError("refused"))
            else:
                acknowledged.set_result(None)

        asyncio.get_running_loop().call_soon(acknowledge)
        return acknowledged


def test_native_file() -> None:
    """The native file has one event a line, in the order of production."""
    file = io.BytesIO()
    assert write_native(SPEC, file) == len(EXPECTED_KEYS)
    assert file.getvalue() == b"".join(encode_native(span) + b"\n" for span in generate(SPEC))


def test_otlp_file_is_one_request() -> None:
    """The single OTLP file, though written batch by batch, reads as one request with every span."""
    file = io.BytesIO()
    assert write_otlp(SPEC, file) == len(EXPECTED_KEYS)
    assert span_keys([file.getvalue()]) == EXPECTED_KEYS


def test_otlp_directory(tmp_path: Path) -> None:
    """The OTLP directory has one request a batch, named in order, with every span in one of them."""
    assert write_otlp_directory(SPEC, tmp_path / "new") == len(EXPECTED_KEYS)
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files[:2]] == ["00000000.otlp.binpb", "00000001.otlp.binpb"]
    assert span_keys(file.read_bytes() for file in files) == EXPECTED_KEYS


def test_otlp_batches_are_bounded() -> None:
    """A batch keeps to its bounds of spans and of time, and is closed by either."""
    by_spans = list(otlp_batches(SPEC, spans_max=100, ns_max=60 * SECOND_NS))
    assert {len(batch) for batch in by_spans[:-1]} == {100}
    by_time = list(otlp_batches(SPEC, spans_max=100_000, ns_max=SECOND_NS))
    assert len(by_time) > 5
    assert all(batch[-1].emit_ns - batch[0].emit_ns <= SECOND_NS for batch in by_time)
    assert [span for batch in by_time for span in batch] == list(generate(SPEC))


def test_keyed_otlp_records_hold_one_trace_each() -> None:
    """A keyed OTLP record holds spans of the trace in its key alone, all due by then; together they hold every span."""
    made = list(records(SPEC, "otlp_proto"))
    first_due_ns = {(span.trace_id, span.span_id): span.emit_ns for span in reversed(list(generate(SPEC)))}
    for record in made:
        keys = span_keys([record.value])
        assert {trace_id.hex().encode() for trace_id, _ in keys} == {record.key}
        assert len(keys) == record.spans
        assert all(first_due_ns[key] <= record.emit_ns for key in keys)
    assert span_keys(record.value for record in made) == EXPECTED_KEYS
    assert [record.emit_ns for record in made] == sorted(record.emit_ns for record in made)


@pytest.mark.parametrize("encoding", ["native", "otlp_proto"])
def test_unkeyed_records(encoding: Any) -> None:
    """Without keys, an OTLP record is a batch of many traces, and no record has a key."""
    made = list(records(SPEC, encoding, keyed=False))
    assert {record.key for record in made} == {None}
    assert sum(record.spans for record in made) == len(EXPECTED_KEYS)
    if encoding == "otlp_proto":
        assert span_keys(record.value for record in made) == EXPECTED_KEYS
        assert len({trace_id for trace_id, _ in span_keys([made[0].value])}) > 1


async def test_backfill_sends_everything_at_once() -> None:
    """Without real time every span is sent in order, keyed and stamped, with no sleep and a bounded backlog."""
    time = SimulatedTime(0)
    producer = RecordingProducer(time)
    progress: list[tuple[int, int]] = []
    sent = await produce(
        SPEC, producer, "t", realtime=False, clock=time.clock, on_progress=lambda *seen: progress.append(seen)
    )
    spans = list(generate(SPEC))
    assert sent == len(spans) > IN_FLIGHT_MAX
    assert producer.sent == [("t", encode_native(span), record_key(span), span.emit_ns // 1_000_000) for span in spans]
    assert time.sleeps_s == []
    assert producer.in_flight == 0
    assert producer.in_flight_max <= IN_FLIGHT_MAX
    assert progress == [
        (IN_FLIGHT_MAX, spans[IN_FLIGHT_MAX - 1].emit_ns),
        (len(spans), spans[-1].emit_ns),
    ]


async def test_real_time_catches_up_and_then_keeps_pace() -> None:
    """In real time, what lies in the past goes at once; afterwards each record is sent at its time, never before."""
    spans = list(generate(SPEC))
    time = SimulatedTime(START_NS + 5 * SECOND_NS)
    producer = RecordingProducer(time)
    await produce(SPEC, producer, "t", realtime=True, clock=time.clock)
    assert producer.sent_at_ns == [max(span.emit_ns, START_NS + 5 * SECOND_NS) for span in spans]
    assert producer.sent_at_ns.count(START_NS + 5 * SECOND_NS) > 100


async def test_real_time_looks_at_the_clock_every_second() -> None:
    """Even before a long pause no sleep is longer than a second, so a clock that is set forward is noticed."""
    rare = TrafficSpec(seed=1, start_ns=START_NS, traces_max=2, traces_per_minute=0.1)
    time = SimulatedTime(START_NS - 60 * SECOND_NS)
    await produce(rare, RecordingProducer(time), "t", realtime=True, clock=time.clock)
    assert max(time.sleeps_s) == 1.0
    assert len(time.sleeps_s) > 60


async def test_acknowledgements_are_awaited_before_a_pause() -> None:
    """Nothing stays unacknowledged while the generator waits for its time, so an error is not found minutes later."""
    time = SimulatedTime(START_NS)
    producer = RecordingProducer(time, fail_at=0)
    with pytest.raises(OSError, match="refused"):
        await produce(SPEC, producer, "t", realtime=True, clock=time.clock)
    assert len(producer.sent) == 1


async def test_producer_errors_reach_the_caller() -> None:
    """A record that the broker refuses ends the production with that error."""
    time = SimulatedTime(0)
    with pytest.raises(OSError, match="refused"):
        await produce(SPEC, RecordingProducer(time, fail_at=100), "t", realtime=False, clock=time.clock)
