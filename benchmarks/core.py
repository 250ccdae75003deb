"""The pure core on one core, from memory: decode + join + score + pane + rows, beside the plain parser of the same bytes.

Times are CPU time of this process, the fastest of several rounds, so that other load on the machine weighs little.
Nothing here reads Kafka or writes ClickHouse.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import traffic
from citegauge.adapters.supervise import tame_collector
from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.policy import MINUTE_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.pipeline import PartitionPipeline, Record, Source
from citegauge.settings import PublishSettings

END_NS = 1_764_460_800 * 1_000_000_000
FLUSH_ROWS = PublishSettings().flush_rows_max
LOOK_EVERY_RECORDS = 1_000
"""As the hot tier does: a flush once so many rows are pending, looked at between batches."""


class CoreSpeed(msgspec.Struct, kw_only=True):
    """One measurement. Times are CPU microseconds per span."""

    encoding: str
    spans: int
    bytes_per_span: float
    spans_per_s: float
    total_us: float
    decode_us: float
    join_us: float
    """Join, score and pane."""
    rows_us: float
    plain_us: float
    """`json.loads`, or `ParseFromString` for protobuf, of the same bytes in the same run."""
    plain: str

    @property
    def times_plain(self) -> float:
        """How many times the plain parser alone the whole core takes."""
        return self.total_us / self.plain_us


class HotKey(msgspec.Struct, kw_only=True):
    """A client that uses one trace id for ever, beside ordinary traffic. CPU microseconds per span, decode to rows."""

    spans: int
    hot_us: float
    """Of a span of a trace that is oversize already."""
    growing_us: float
    """Of one of the spans before that, in the mean."""
    ordinary_us: float

    @property
    def ratio(self) -> float:
        """How many ordinary spans one of the hot key's costs."""
        return self.hot_us / self.ordinary_us


def hot_key(traces: int, rounds: int) -> HotKey:
    """The same native events twice, once all under one trace id."""
    found = list(traffic.spans(max(traces, 1_000), END_NS))
    ordinary = [message.value for message in traffic.native(iter(found))]
    one_id = [msgspec.structs.replace(span, trace_id=found[0].trace_id) for span in found]
    hot = [message.value for message in traffic.native(iter(one_id))]
    growing = JoinPolicy().trace_spans_max + 1
    tame_collector()
    times: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        plain, crowded = pipeline("jsonl"), pipeline("jsonl")
        times.append((_feed(plain, ordinary), _feed(crowded, hot[:growing]), _feed(crowded, hot[growing:], growing)))
        assert plain.join.counters.oversize_traces == 0
        assert crowded.join.counters.oversize_traces == 1
    ordinary_s, growing_s, hot_s = (min(column) for column in zip(*times, strict=True))
    return HotKey(
        spans=len(hot),
        hot_us=1e6 * hot_s / (len(hot) - growing),
        growing_us=1e6 * growing_s / growing,
        ordinary_us=1e6 * ordinary_s / len(ordinary),
    )


def _feed(into: PartitionPipeline, records: Sequence[bytes], first: int = 0) -> float:
    """CPU seconds of these records, flushes included."""
    gc.collect()
    started = time.process_time()
    for offset, record in enumerate(records, start=first):
        into.feed(Record(offset, END_NS + MINUTE_NS, record))
        if offset % LOOK_EVERY_RECORDS == 0 and into.pending >= FLUSH_ROWS:
            into.take_flush()
    into.take_flush()
    return time.process_time() - started


class _Stages:
    """CPU seconds of one pass, by stage."""

    def __init__(self) -> None:
        self.total = self.rows = 0.0
        self.published = 0


def measure(encoding: str, traces: int, rounds: int) -> CoreSpeed:
    """Measure `jsonl` or `otlp_proto`. Raises AssertionError when the core did not find what the traffic holds."""
    make = traffic.native if encoding == "jsonl" else traffic.otlp
    records = [message.value for message in make(traffic.spans(traces, END_NS))]
    decode = decoder(encoding, DecodePolicy())
    spans = sum(len(decode(record)) for record in records)
    plain = json.loads if encoding == "jsonl" else ExportTraceServiceRequest.FromString
    passes, decode_s, plain_s = [], [], []
    tame_collector()  # as the worker does
    for _ in range(rounds):
        # Side by side, so that a busy moment of the machine hits all of them.
        passes.append(_pass(encoding, records, traces))
        decode_s.append(_each(decode, records))
        plain_s.append(_each(plain, records))
    best = min(passes, key=lambda one: one.total)
    us = 1e6 / spans
    return CoreSpeed(
        encoding=encoding,
        spans=spans,
        bytes_per_span=sum(map(len, records)) / spans,
        spans_per_s=spans / best.total,
        total_us=best.total * us,
        decode_us=min(decode_s) * us,
        join_us=(best.total - best.rows - min(decode_s)) * us,
        rows_us=best.rows * us,
        plain_us=min(plain_s) * us,
        plain="json.loads" if encoding == "jsonl" else "ParseFromString",
    )


def pipeline(encoding: str) -> PartitionPipeline:
    """An empty partition at offset 0, with default policies."""
    return PartitionPipeline(
        Source("bench", 0),
        decoder(encoding, DecodePolicy()),
        JoinPolicy(),
        ScorePolicy(),
        Commit(0, 0, Clock()),
    )


def _pass(encoding: str, records: Sequence[bytes], traces: int) -> _Stages:
    found, measured, found_pipeline = _Stages(), 0, pipeline(encoding)
    recorded_ns = END_NS + MINUTE_NS
    gc.collect()
    started = time.process_time()
    for offset, record in enumerate(records):
        found_pipeline.feed(Record(offset, recorded_ns, record))
        if offset % LOOK_EVERY_RECORDS == 0 and found_pipeline.pending >= FLUSH_ROWS:
            measured += _flush(found_pipeline, found)
    measured += _flush(found_pipeline, found)
    found.total = time.process_time() - started
    assert measured == traces, f"{measured} traces measured with recall {traffic.RECALL}, not {traces}"
    return found


def _flush(of: PartitionPipeline, found: _Stages) -> int:
    started = time.process_time()
    flush = of.take_flush()
    found.rows += time.process_time() - started
    found.published += flush.rows
    return sum(row.recall == traffic.RECALL for row in flush.traces)


def _each(function: Callable[[bytes], object], records: Sequence[bytes]) -> float:
    gc.collect()
    started = time.process_time()
    for record in records:
        function(record)
    return time.process_time() - started
