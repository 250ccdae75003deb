"""The sample's traces as the core would score them, each with what is known of how its spans came.

A sample cuts traces: an unmatched one near the sample's ends may have its other half outside. Such traces are set apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from citegauge.domain.join import EARLIEST_NS, JoinState
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import TraceResult
from citegauge.domain.span import Flag, Kind, Span
from citegauge.tools.doctor.counts import SourceCounts, is_streamed
from citegauge.tools.doctor.look import Seen
from citegauge.tools.doctor.sample import Reach
from citegauge.tools.replay import NEVER_NS

MARGIN_NS_MIN = 10 * SECOND_NS
"""An SDK exports every 5 s and a collector waits a little: the halves of a trace may come so far apart."""
MARGIN_QUANTILE = 0.99
_STAGES = (int(Kind.RETRIEVAL), int(Kind.RERANK))


@dataclass(slots=True)
class Note:
    """What the doctor knows of one trace beside its result."""

    first_ns: int = 0
    """Smallest record timestamp; 0: unknown."""
    last_ns: int = 0
    spans: int = 0
    span_ids: set[bytes] = field(default_factory=set)
    repeated: int = 0
    """Spans that came more than once."""
    partitions: set[tuple[int, int]] = field(default_factory=set)
    """(source, partition) of the retrieval, rerank and generation spans."""
    stage: str = ""
    """Convention of a retrieval or rerank span; of one with ids where there is one."""
    answers: set[str] = field(default_factory=set)
    """Conventions of the generation spans."""
    stage_flags: int = 0
    dropped: int = 0
    """Attributes and events that the SDK dropped from the retrieval and rerank spans."""
    top_k: bool = False
    """Some stage says how many it asked for."""
    document_without_id: bool = False
    has_scores: bool = False
    first_scored: bool = False
    """Some stage has a score for its first document."""
    by_position: bool = False
    by_id: bool = False
    position_zero: bool = False
    answered: bool = False
    """Some generation span has its answer or its citations."""
    answer_cut: bool = False
    """Some answer was not read whole."""
    streamed: bool = False
    route_rank: int = 255
    route_key: str = ""
    """The key that gave the route."""

    def add(self, seen: Seen, place: tuple[int, int], record_ns: int, route_keys: tuple[str, ...]) -> None:
        """Note one span."""
        span = seen.span
        if record_ns:
            self.first_ns = min(self.first_ns or record_ns, record_ns)
            self.last_ns = max(self.last_ns, record_ns)
        self.spans += 1
        self.repeated += span.span_id in self.span_ids
        self.span_ids.add(span.span_id)
        if span.route and span.route_rank < self.route_rank:
            self.route_rank = span.route_rank
            self.route_key = route_keys[span.route_rank] if span.route_rank < len(route_keys) else ""
        if span.kind in _STAGES:
            self.partitions.add(place)
            self._add_stage(seen)
        elif span.kind == Kind.GENERATION:
            self.partitions.add(place)
            self.answers.add(seen.convention)
            self.by_position = self.by_position or bool(span.positions)
            self.by_id = self.by_id or bool(span.cited)
            self.position_zero = self.position_zero or 0 in (span.positions or ())
            self.answered = self.answered or bool(span.citation_form)
            self.answer_cut = self.answer_cut or bool(span.flags & Flag.CITATIONS_CUT)
            self.streamed = self.streamed or (not span.citation_form and is_streamed(seen.raw))
            if span.flags & Flag.RETRIEVED_IS_CITED:
                self.stage = self.stage or seen.convention

    def _add_stage(self, seen: Seen) -> None:
        span = seen.span
        if not self.stage or span.ids:
            self.stage = seen.convention
        self.stage_flags |= span.flags
        self.dropped += seen.raw.dropped if seen.raw is not None else 0
        self.top_k = self.top_k or bool(span.top_k)
        self.document_without_id = self.document_without_id or bool(span.ids_dropped)
        self.first_scored = self.first_scored or span.first_score is not None
        self.has_scores = self.has_scores or span.scores is not None or span.first_score is not None


@dataclass(frozen=True, slots=True)
class JoinedTrace:
    """One trace with a retrieval or a generation."""

    result: TraceResult
    note: Note
    cut: bool
    """Unmatched, and so near to an end of the sample that its other half may lie outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """All traces of the sample."""

    joined: list[JoinedTrace]
    without_stage: int
    """Traces with neither retrieval nor generation."""
    repeated_spans: int
    half_ids: int
    """Pairs of traces of which one has the last 8 bytes of the other as its whole id."""

    @property
    def judged(self) -> list[JoinedTrace]:
        """Those that the sample shows whole."""
        return [trace for trace in self.joined if not trace.cut]


class TraceBook:
    """Spans of the sample by trace. Mutable; `close` ends it."""

    def __init__(self) -> None:
        self._notes: dict[bytes, Note] = {}
        self._spans: list[tuple[Span, int]] = []

    def add(self, seen: Seen, place: tuple[int, int], record_ns: int, route_keys: tuple[str, ...]) -> None:
        """Take one span from (source, partition)."""
        note = self._notes.get(seen.span.trace_id)
        if note is None:
            note = self._notes[seen.span.trace_id] = Note()
        note.add(seen, place, record_ns, route_keys)
        self._spans.append((seen.span, record_ns))

    def close(
        self, join_policy: JoinPolicy, score_policy: ScorePolicy, *, now_ns: int, edges: tuple[int, int]
    ) -> Traces:
        """Join and score. `edges`: `edges_of` the sample."""
        results = _joined(self._spans, join_policy, score_policy, now_ns)
        margin_ns = self._margin_ns(results, join_policy)
        joined = [
            JoinedTrace(result, note, _is_cut(result, note, edges, margin_ns))
            for result in results
            for note in (self._notes[result.trace_id],)
        ]
        ids = self._notes.keys()
        halves = {trace_id[8:] for trace_id in ids if any(trace_id[:8])}
        return Traces(
            joined=joined,
            without_stage=len(ids) - len({result.trace_id for result in results}),
            repeated_spans=sum(note.repeated for note in self._notes.values()),
            half_ids=sum(1 for trace_id in ids if not any(trace_id[:8]) and trace_id[8:] in halves),
        )

    def _margin_ns(self, results: Iterable[TraceResult], policy: JoinPolicy) -> int:
        notes = [self._notes[result.trace_id] for result in results if result.matched]
        lengths = sorted(note.last_ns - note.first_ns for note in notes)
        usual = lengths[int(len(lengths) * MARGIN_QUANTILE)] if lengths else 0
        return min(max(usual, MARGIN_NS_MIN), policy.join_window_ns)


def _joined(
    spans: list[tuple[Span, int]], join_policy: JoinPolicy, score_policy: ScorePolicy, now_ns: int
) -> list[TraceResult]:
    latest_ns = max(
        (span.end_ns for span, _ in spans if EARLIEST_NS <= span.end_ns <= now_ns + join_policy.skew_ns), default=now_ns
    )
    # Nothing is late in a sample, and all partitions meet, as they do after the re-key stage.
    policy = replace(join_policy, join_window_ns=NEVER_NS, traces_max=len(spans) + 1)
    join = JoinState(policy, score_policy)
    for offset, (span, record_ns) in enumerate(spans):
        join.apply(span, offset, 0, record_ns or latest_ns)
    join.close_all(len(spans))
    results: dict[bytes, TraceResult] = {}
    for change in join.take_changes().rows.values():
        known = results.get(change.result.trace_id)
        if known is None or known.event_ns < change.result.event_ns:
            results[change.result.trace_id] = change.result
    return sorted(results.values(), key=lambda result: (result.event_ns, result.trace_id))


def _is_cut(result: TraceResult, note: Note, edges: tuple[int, int], margin_ns: int) -> bool:
    if result.matched or not note.first_ns:
        return False
    start_ns, end_ns = edges
    return bool(start_ns and note.first_ns < start_ns + margin_ns) or bool(end_ns and note.last_ns > end_ns - margin_ns)


def edges_of(
    sources: Iterable[tuple[SourceCounts, dict[int, Reach], dict[int, tuple[int, int]]]],
) -> tuple[int, int]:
    """Between which record times the sample is whole, 0 for no limit. Per source: counts, reaches, and each partition's
    first and last record time.

    A partition that was read to its end bounds nothing but the newest time of all: what comes next is not written yet.
    """
    starts: list[int] = []
    ends: list[int] = []
    newest_ns = 0
    for counts, reaches, times in sources:
        newest_ns = max(newest_ns, counts.last_ns)
        for partition, (first_ns, last_ns) in times.items():
            reach = reaches.get(partition)
            if reach is not None and reach.before:
                starts.append(first_ns)
            if reach is not None and reach.after:
                ends.append(last_ns)
    return max(starts, default=0), min(ends, default=newest_ns)
