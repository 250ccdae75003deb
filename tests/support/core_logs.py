"""Spans by hand and whole random logs for the tests of the core. Knows nothing of what the core makes of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from citegauge.conventions import SpanFault
from citegauge.domain.policy import SECOND_NS, JoinPolicy
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from citegauge.errors import DeadLetterError

T0_NS = 1_764_460_800 * SECOND_NS
"""2025-11-30 00:00:00 UTC, the start of a pane."""
PANE_S = 60


def trace_id(number: int) -> bytes:
    """A trace id."""
    return number.to_bytes(16, "big")


def span_id(number: int) -> bytes:
    """A span id."""
    return number.to_bytes(8, "big")


def span(trace: int, number: int, kind: Kind, end_s: float, **fields: Any) -> Span:
    """A span that ends `end_s` seconds after `T0_NS` and took 100 ms, unless `fields` say otherwise."""
    end_ns = T0_NS + round(end_s * SECOND_NS)
    values: dict[str, Any] = {"start_ns": end_ns - SECOND_NS // 10, "end_ns": end_ns, "kind": int(kind), **fields}
    return Span(span_id=span_id(number), trace_id=trace_id(trace), **values)


def retrieval(trace: int, end_s: float, ids: Sequence[str] | None = ("c9", "c1", "c3"), **fields: Any) -> Span:
    """A retrieval (span number 1 of the trace)."""
    values: dict[str, Any] = {"route": "support", "route_rank": 1, "retriever_version": "r7", **fields}
    if ids is not None and "scores" not in values:
        values["scores"] = [0.9 - 0.1 * rank for rank in range(len(ids))]
        values["first_score"] = 0.9 if ids else None
    number = values.pop("number", 1)
    return span(
        trace, number, values.pop("kind", Kind.RETRIEVAL), end_s, ids=None if ids is None else list(ids), **values
    )


def generation(trace: int, end_s: float, cited: Sequence[str] | None = ("c9",), **fields: Any) -> Span:
    """A generation (span number 2 of the trace); `cited=None`: the answer was not captured."""
    form = CitationForm.UNKNOWN if cited is None else CitationForm.EXPLICIT
    values: dict[str, Any] = {"route": "support", "route_rank": 1, "model": "m1", "citation_form": int(form), **fields}
    number = values.pop("number", 2)
    return span(trace, number, Kind.GENERATION, end_s, cited=None if cited is None else list(cited), **values)


def other(trace: int, end_s: float, number: int = 3, **fields: Any) -> Span:
    """A span that is neither (number 3 of the trace)."""
    return span(trace, number, Kind.OTHER, end_s, **fields)


Item = Span | SpanFault | Rekeyed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record of a test log; `items` None: it cannot be decoded."""

    offset: int
    timestamp_ns: int
    items: tuple[Item, ...] | None


@dataclass(slots=True)
class Log:
    """A test log and the decoder that reads it: a record's value is its own offset in digits."""

    records: list[LogRecord]
    by_value: Mapping[bytes, LogRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.by_value = {b"%d" % record.offset: record for record in self.records}

    def decode(self, value: bytes) -> list[Item]:
        """The pipeline's decoder for this log."""
        items = self.by_value[value].items
        if items is None:
            raise DeadLetterError("not_json")
        return list(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a random log contains: chances per trace or span, and sizes."""

    traces: int = 40
    minutes: float = 12.0
    late: float = 0.04
    duplicates: float = 0.15
    partial_copies: float = 0.1
    bad_time: float = 0.03
    bad_records: float = 0.03
    missing_half: float = 0.1
    route_on_root: float = 0.4
    long_traces: float = 0.1
    endless_traces: int = 0
    """Traces with a span every few seconds for the whole log."""
    disorder_s: float = 20.0
    spans_per_record: int = 3
    offset_gaps: float = 0.05


def random_log(rng: random.Random, shape: Shape) -> Log:
    """A log of `shape`. Its last record carries one far span without a result, whose watermark closes everything."""
    timed: list[tuple[float, Span]] = []
    for number in range(shape.traces):
        for made in _trace(rng, shape, number):
            _emit(rng, shape, timed, made)
    for number in range(shape.endless_traces):
        for made in _endless(rng, shape, shape.traces + number):
            _emit(rng, shape, timed, made)
    timed.sort(key=lambda pair: pair[0])
    records: list[LogRecord] = []
    offset, index = rng.randrange(50), 0
    while index < len(timed):
        size = rng.randint(1, shape.spans_per_record)
        batch = timed[index : index + size]
        index += size
        now_ns = T0_NS + round(batch[-1][0] * SECOND_NS)
        items: list[Item] = [made for _, made in batch]
        if rng.random() < shape.bad_records / 2:
            at = rng.randrange(len(items) + 1)
            items.insert(at, SpanFault(index=at, reason="no_trace_id", detail=""))
        records.append(LogRecord(offset=offset, timestamp_ns=now_ns, items=tuple(items)))
        offset += 1
        if rng.random() < shape.bad_records:
            records.append(LogRecord(offset=offset, timestamp_ns=now_ns, items=None))
            offset += 1
        if rng.random() < shape.offset_gaps:
            offset += rng.randint(1, 5)
    end_s = max(emitted_s for emitted_s, _ in timed) + 7_200
    last = other(999_999, end_s, number=1)
    records.append(LogRecord(offset=offset, timestamp_ns=last.end_ns + SECOND_NS, items=(last,)))
    return Log(records)


def rekeyed_log(rng: random.Random, log: Log, sources: int) -> Log:
    """The same spans as the re-key stage passes them on: each kind from sources of its own, which lag and pause.

    Re-keying is at least once, so some spans come twice, with the same origin.
    """
    delays_s = [rng.choice([0.0, 1.0, 30.0, 200.0]) for _ in range(sources)]
    whole_s = (log.records[-2].timestamp_ns - T0_NS) / SECOND_NS if len(log.records) > 1 else 0.0
    pauses = [(rng.uniform(0, whole_s), rng.choice([0.0, 60.0, 150.0, 400.0])) for _ in range(sources)]
    timed: list[tuple[int, Rekeyed]] = []
    for record in log.records:
        for index, item in enumerate(record.items or ()):
            if isinstance(item, Span):
                source = item.kind % sources
                origin = Rekeyed("raw", source, record.offset, index, record.timestamp_ns, item)
                at_s = (record.timestamp_ns - T0_NS) / SECOND_NS
                paused_s, length_s = pauses[source]
                until_s = paused_s + length_s if paused_s <= at_s <= paused_s + length_s else at_s
                at_ms = round((until_s + delays_s[source]) * 1_000)
                timed.extend((at_ms, origin) for _ in range(2 if rng.random() < 0.05 else 1))
    timed.sort(key=lambda pair: pair[0])
    ms_ns = SECOND_NS // 1_000
    return Log(
        [
            LogRecord(offset=offset, timestamp_ns=T0_NS + at_ms * ms_ns, items=(origin,))
            for offset, (at_ms, origin) in enumerate(timed)
        ]
    )


def _emit(rng: random.Random, shape: Shape, timed: list[tuple[float, Span]], made: Span) -> None:
    """Put a span, its late arrival and its copies on the time line."""
    end_s = (made.end_ns - T0_NS) / SECOND_NS
    emitted_s = end_s + rng.random() * shape.disorder_s
    if rng.random() < shape.late:
        emitted_s += rng.uniform(60, 500)
    if rng.random() < shape.bad_time:
        wrong_ns = rng.choice([0, made.end_ns // SECOND_NS, made.end_ns + 10**15, -5])
        made = msgspec.structs.replace(made, end_ns=wrong_ns, start_ns=rng.choice([made.start_ns, wrong_ns]))
    timed.append((emitted_s, made))
    if rng.random() < shape.duplicates:
        timed.append((emitted_s + rng.choice([0.0, rng.uniform(0, 30), rng.uniform(0, 400)]), made))
    if rng.random() < shape.partial_copies:
        poor = msgspec.structs.replace(
            made,
            ids=None,
            scores=None,
            first_score=None,
            cited=None,
            citation_form=0,
            route="",
            end_ns=made.end_ns + rng.choice([0, 0, -PANE_S * SECOND_NS, PANE_S * SECOND_NS, 4 * PANE_S * SECOND_NS]),
        )
        timed.append((emitted_s + rng.uniform(-10, 60), poor))


ROUTES = ("support", "search", "billing", "other")


def _trace(rng: random.Random, shape: Shape, number: int) -> list[Span]:
    start_s = rng.uniform(0, shape.minutes * 60)
    route = rng.choice(ROUTES)
    on_root = rng.random() < shape.route_on_root
    own = {"route": "" if on_root else route, "route_rank": 1}
    ids = [f"c{rng.randrange(12)}" for _ in range(rng.choice([0, 1, 3, 3, 5, 8]))]
    gap = rng.choice([0.5, 2.0, 2.0, 10.0, 70.0]) if rng.random() >= shape.long_traces else rng.uniform(60, 700)
    made: list[Span] = []
    halves = rng.random()
    if halves >= shape.missing_half / 2:
        made.append(retrieval(number, start_s, ids, top_k=rng.choice([0, 3, 10]), **own))
        if rng.random() < 0.15:
            parent = span_id(rng.choice([1, 8]))
            made.append(retrieval(number, start_s + 0.2, ids[:2], number=5, parent_id=parent, **own))
        if rng.random() < 0.15:
            made.append(
                retrieval(number, start_s + 0.4, ids[::-1][:3], number=6, kind=Kind.RERANK, scorer="bge", **own)
            )
    if halves < shape.missing_half / 2 or halves >= shape.missing_half:
        cited = rng.sample(ids, min(len(ids), rng.randrange(3))) + (["c77"] if rng.random() < 0.1 else [])
        made.append(generation(number, start_s + gap, None if rng.random() < 0.1 else cited, **own))
        if rng.random() < 0.15:
            again_s = start_s + gap + rng.choice([1.0, 65.0, 400.0])
            made.append(generation(number, again_s, cited, number=7, model="m2", **own))
    if on_root or rng.random() < 0.3:
        root_route: dict[str, Any] = {"route": route, "route_rank": 0} if on_root else {}
        made.append(other(number, start_s + gap + rng.choice([0.1, 5.0, 90.0, 300.0]), **root_route))
    if rng.random() < 0.2:
        made.append(other(number, start_s + rng.uniform(0, gap), number=8, parent_id=span_id(3)))
    if rng.random() < 0.03:
        made[0] = msgspec.structs.replace(made[0], flags=made[0].flags | Flag.TRUNCATED)
    return made


def _endless(rng: random.Random, shape: Shape, number: int) -> list[Span]:
    made: list[Span] = []
    at_s, serial = rng.uniform(0, 60), 20
    while at_s < shape.minutes * 60:
        kind = rng.random()
        if kind < 0.2:
            made.append(retrieval(number, at_s, [f"c{rng.randrange(5)}"], number=serial))
        elif kind < 0.4:
            made.append(generation(number, at_s, [f"c{rng.randrange(5)}"], number=serial))
        else:
            made.append(other(number, at_s, number=serial))
        serial += 1
        at_s += rng.choice([5.0, 20.0, 45.0, 90.0, 200.0])
    return made


SHORT_JOIN = JoinPolicy(join_window_ns=120 * SECOND_NS)
"""A short join window, so that short logs close many panes."""
