"""What a sample holds, counted per source and convention. No judgement: `verdicts` and `delivery` draw conclusions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from citegauge.conventions import SpanFault
from citegauge.conventions.answers import PLACEHOLDERS
from citegauge.conventions.base import RawSpan
from citegauge.domain.join import EARLIEST_NS
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from citegauge.tools.doctor.forms import add_id_forms, envelope_name, guess, is_json
from citegauge.tools.doctor.look import Seen
from citegauge.tools.doctor.practice import Reading
from citegauge.tools.doctor.sample import SampleRecord

NAMES_MAX = 500
"""Different span names that are remembered."""
DELAYS_MAX = 100_000
"""Delays that are kept for their quantiles."""
SECOND_NS = 1_000_000_000

_UNITS = (("seconds", SECOND_NS), ("milliseconds", 1_000_000), ("microseconds", 1_000))


@dataclass(slots=True)
class StageCounts:
    """Retrieval or rerank spans of one convention."""

    spans: int = 0
    with_ids: int = 0
    returned_nothing: int = 0
    synthetic_ids: int = 0
    ids_dropped: int = 0
    """Documents without an id, over all spans."""
    with_scores: int = 0
    distances: int = 0
    with_top_k: int = 0
    with_version: int = 0
    with_scorer: int = 0
    truncated: int = 0
    malformed: int = 0

    def add(self, span: Span) -> None:
        """Count one span."""
        self.spans += 1
        self.with_ids += bool(span.ids or span.final_ids)
        self.returned_nothing += span.ids == [] and not span.ids_dropped
        self.synthetic_ids += bool(span.flags & Flag.SYNTHETIC_IDS)
        self.ids_dropped += span.ids_dropped
        self.with_scores += span.scores is not None or span.first_score is not None
        self.distances += bool(span.flags & Flag.DISTANCE)
        self.with_top_k += bool(span.top_k)
        self.with_version += bool(span.retriever_version)
        self.with_scorer += bool(span.scorer)
        self.truncated += bool(span.flags & Flag.TRUNCATED)
        self.malformed += bool(span.flags & Flag.MALFORMED)


@dataclass(slots=True)
class AnswerCounts:
    """Generation spans of one convention."""

    spans: int = 0
    with_answer: int = 0
    citing: int = 0
    """With at least one citation, resolvable or not."""
    forms: Counter[str] = field(default_factory=Counter)
    """How the citing ones cite."""
    by_position: int = 0
    with_model: int = 0
    streamed: int = 0
    """A placeholder for a stream stands where the answer belongs."""

    def add(self, span: Span, raw: RawSpan | None) -> None:
        """Count one span."""
        self.spans += 1
        self.with_answer += bool(span.citation_form)
        if span.cited or span.positions or span.unresolved:
            self.citing += 1
            self.forms[CitationForm(span.citation_form).name.lower()] += 1
            self.by_position += bool(span.positions)
        self.with_model += bool(span.model)
        self.streamed += not span.citation_form and is_streamed(raw)


def is_streamed(raw: RawSpan | None) -> bool:
    """Whether the span records a stream object instead of what was streamed."""
    return raw is not None and any(
        isinstance(value, str) and value.startswith(PLACEHOLDERS) for value in raw.attributes.values()
    )


@dataclass(slots=True)
class ConventionCounts:
    """Spans that one convention claims."""

    spans: int = 0
    other: int = 0
    retrievals: StageCounts = field(default_factory=StageCounts)
    reranks: StageCounts = field(default_factory=StageCounts)
    answers: AnswerCounts = field(default_factory=AnswerCounts)

    def add(self, seen: Seen) -> None:
        """Count one span."""
        self.spans += 1
        kind = seen.span.kind
        if kind == Kind.RETRIEVAL:
            self.retrievals.add(seen.span)
        elif kind == Kind.RERANK:
            self.reranks.add(seen.span)
        elif kind == Kind.GENERATION:
            self.answers.add(seen.span, seen.raw)
        else:
            self.other += 1


@dataclass(slots=True)
class ClockCounts:
    """Span ends against the record's timestamp (in files: against now)."""

    wrong_unit: Counter[str] = field(default_factory=Counter)
    """Ends that are a plausible date when read in another unit."""
    missing: int = 0
    too_old: int = 0
    future: int = 0
    backwards: int = 0
    """Spans that end before they start."""
    delays_ns: list[int] = field(default_factory=list)
    """Record timestamp - span end, of valid ends in topics."""

    def add(self, span: Span, record_ns: int, now_ns: int, skew_ns: int) -> None:
        """Count one span. `record_ns`: 0 where the record has no time."""
        end_ns = span.end_ns
        self.backwards += span.start_ns > end_ns > 0
        if end_ns > (record_ns or now_ns) + skew_ns:
            self.future += 1
        elif end_ns >= EARLIEST_NS:
            if record_ns and len(self.delays_ns) < DELAYS_MAX:
                self.delays_ns.append(record_ns - end_ns)
        elif end_ns == 0:
            self.missing += 1
        else:
            unit = next((name for name, ns in _UNITS if EARLIEST_NS <= end_ns * ns <= now_ns + 86_400 * SECOND_NS), "")
            if unit:
                self.wrong_unit[unit] += 1
            else:
                self.too_old += 1

    @property
    def bad(self) -> int:
        """Spans whose end cannot be believed."""
        return self.wrong_unit.total() + self.missing + self.too_old + self.future


@dataclass(slots=True)
class Fault:
    """Unreadable records or spans of one reason."""

    records: int = 0
    spans: int = 0
    """Spans of records whose other spans can be read."""
    detail: str = ""
    """Of the first one."""
    offset: str = ""
    """`partition/offset` of the first one."""
    guess: str = ""
    """What the first such record may be instead."""


@dataclass(slots=True)
class SourceCounts:
    """One topic or file."""

    name: str
    is_topic: bool
    reading: Reading = field(default_factory=Reading)
    records: int = 0
    size_bytes: int = 0
    largest_bytes: int = 0
    largest_at: str = ""
    partitions: Counter[int] = field(default_factory=Counter)
    """Records by partition."""
    first_ns: int = 0
    last_ns: int = 0
    create_time: int = 0
    """Records whose timestamp the producer made."""
    keyed: int = 0
    keyed_by_trace: int = 0
    """Records whose key is the trace id of every span in them."""
    many_traces: int = 0
    """Records that hold spans of more than one trace."""
    envelopes: Counter[str] = field(default_factory=Counter)
    trace_id_forms: Counter[str] = field(default_factory=Counter)
    span_id_forms: Counter[str] = field(default_factory=Counter)
    spans: int = 0
    unread_records: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    conventions: dict[str, ConventionCounts] = field(default_factory=dict)
    clock: ClockCounts = field(default_factory=ClockCounts)

    def add_record(self, record: SampleRecord) -> None:
        """Count a record before it is read."""
        size = len(record.value or b"")
        self.records += 1
        self.size_bytes += size
        if size > self.largest_bytes:
            self.largest_bytes, self.largest_at = size, f"{record.partition}/{record.offset}"
        self.partitions[record.partition] += 1
        if record.timestamp_ns:
            self.first_ns = min(self.first_ns or record.timestamp_ns, record.timestamp_ns)
            self.last_ns = max(self.last_ns, record.timestamp_ns)
        self.create_time += self.is_topic and not record.log_append
        self.keyed += record.key is not None

    def add_fault(self, record: SampleRecord, reason: str, detail: str, *, whole: bool) -> None:
        """Count an unreadable record (`whole`) or span."""
        self.unread_records += whole
        fault = self.faults.setdefault(reason, Fault())
        fault.records += whole
        fault.spans += not whole
        if fault.records + fault.spans == 1:
            fault.detail, fault.offset = detail, f"{record.partition}/{record.offset}"
            fault.guess = guess(record.value or b"")

    def add_spans(self, record: SampleRecord, seen: list[Seen], faults: list[SpanFault]) -> None:
        """Count what was read of a record."""
        value = record.value or b""
        for fault in faults:
            self.add_fault(record, fault.reason, fault.detail, whole=False)
        if not seen:
            self.unread_records += bool(faults)
            return
        self.envelopes[envelope_name(value)] += 1
        if is_json(value):
            add_id_forms(value, self.trace_id_forms, self.span_id_forms)
        else:
            self.trace_id_forms["16 bytes"] += len(seen)
            self.span_id_forms["8 bytes"] += len(seen)
        traces = {one.span.trace_id for one in seen}
        self.many_traces += len(traces) > 1
        self.keyed_by_trace += len(traces) == 1 and names_trace(record.key, next(iter(traces)))
        self.spans += len(seen)
        for one in seen:
            counts = self.conventions.get(one.convention)
            if counts is None:
                counts = self.conventions[one.convention] = ConventionCounts()
            counts.add(one)


def names_trace(key: bytes | None, trace_id: bytes) -> bool:
    """Whether a record's key is this trace id, as bytes or as hex of any case, with or without dashes."""
    if key is None:
        return False
    return key == trace_id or key.replace(b"-", b"").lower() == trace_id.hex().encode()
