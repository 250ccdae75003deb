"""What a log must amount to: one plain pass that remembers whole spans and shares only `score` and the key formulas.

It keeps no running sums, takes nothing back, packs nothing, knows no offsets to hold and no flushes: at every closing it
adds up all traces afresh. Slow and simple on purpose.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, Group, State, TraceResult
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.score import score
from citegauge.domain.span import Flag, Kind, Span
from support.core_logs import LogRecord

PaneKey = tuple[int, Group]
RowKey = tuple[int, Group, bytes]
LateKey = tuple[str, int, int, int]
"""Topic, partition, offset, position in the record."""
TOPIC, PARTITION = "traces", 0
"""Where the log is taken to come from."""


@dataclass(slots=True)
class Copy:
    """A distinct span of a trace: its richest copy, and what all copies together say of its time of arrival."""

    span: Span
    end_ns: int
    arrival: int
    closed_then: int


@dataclass(slots=True)
class Life:
    """A trace from its first span until the pane of its latest one closes."""

    latest: int
    spans: dict[bytes, Copy] = field(default_factory=dict)
    frozen: bool = False
    """Whether unlisted routes were `other` when it last changed."""
    counted: bool = False
    """It stands in a closed pane."""


@dataclass(slots=True)
class Truth:
    """Everything that must stand in the stores once the whole log is read and closed."""

    panes: dict[PaneKey, dict[str, object]] = field(default_factory=dict)
    rows: dict[RowKey, TraceResult] = field(default_factory=dict)
    late: dict[LateKey, list[tuple[str, str, int, int]]] = field(default_factory=dict)
    """Trace id, span id, pane, watermark. A span that was re-keyed twice and both times late may stand as either."""
    dead: set[tuple[int, int]] = field(default_factory=set)
    forced: int = 0
    freezes: int = 0
    recounted: int = 0


JUDGED = {"measured", "nonconformant", "empty_retrieval"}
"""States whose citations a pane counts, said here once more."""


def pane_numbers(results: list[tuple[TraceResult, bool]]) -> dict[str, object]:
    """The counters of a pane row over its traces; the flag says that a trace is counted again."""
    measured = [result for result, _ in results if result.state == State.measured]
    judged = [result for result, _ in results if STATE_NAMES[result.state] in JUDGED]
    weighted = [result.rank_weighted_recall for result in measured if result.rank_weighted_recall is not None]
    scores = [result.top1_score for result, _ in results if result.top1_score is not None]
    confidence = [result.low_confidence for result, _ in results if result.low_confidence is not None]
    return {
        "states": dict(Counter(STATE_NAMES[result.state] for result, _ in results)),
        "citations": sum(len(r.cited_ranks) + len(r.hallucinated) + r.unresolved for r in judged),
        "hallucinated": sum(len(result.hallucinated) for result in judged),
        "dropped_citations": sum(len(result.dropped_cited) for result in judged),
        "unresolved": sum(result.unresolved for result in judged),
        "ids_dropped": sum(result.ids_dropped for result, _ in results),
        "nonconformant": sum(result.nonconformant for result, _ in results),
        "recounted": sum(again for _, again in results),
        "cited_top1": sum(1 in result.cited_ranks for result in measured),
        "cited_top3": sum(not {1, 2, 3}.isdisjoint(result.cited_ranks) for result in measured),
        "low_confidence": confidence.count(True),
        "confidence_known": len(confidence),
        "recall_counts": dict(Counter(fraction_key(len(r.cited_ranks), len(r.retrieved)) for r in measured)),
        "rank_weighted_counts": dict(Counter(map(histogram_key, weighted))),
        "score_counts": dict(Counter(map(histogram_key, scores))),
    }


NUMBER_NAMES = tuple(pane_numbers([]))


def tally_numbers(tally: Tally) -> dict[str, object]:
    """A tally in the form of `pane_numbers`."""
    return {"states": tally.state_counts(), **{name: getattr(tally, name) for name in NUMBER_NAMES[1:]}}


class Oracle:
    """Reads a log once."""

    def __init__(self, policy: JoinPolicy, scoring: ScorePolicy) -> None:
        self.policy = policy
        self.scoring = scoring
        self.truth = Truth()
        self.lives: dict[bytes, Life] = {}
        self.open: dict[int, set[Group]] = {}
        """Open panes, and every group that was ever found in them."""
        self.closed = -1
        self.newest_ns = 0
        self.sources: dict[tuple[str, int], tuple[int, int]] = {}
        """Newest end and last log time by source of re-keyed spans."""
        self.log_ns = 0
        self.frozen = False
        self.arrivals = 0

    def read(self, records: list[LogRecord]) -> Truth:
        """Read records in order; returns the truth so far."""
        for record in records:
            if record.items is None:
                self.truth.dead.add((record.offset, -1))
            for index, item in enumerate(record.items or ()):
                if isinstance(item, Span):
                    self._span(item, record.timestamp_ns, record, (TOPIC, PARTITION, record.offset, index))
                elif isinstance(item, Rekeyed):
                    source = (item.topic, item.partition, item.offset, item.index)
                    self._span(item.span, item.record_ns, record, source)
                else:
                    self.truth.dead.add((record.offset, item.index))
            self._keep_bounds(record.offset)
        return self.truth

    def _span(self, span: Span, at: int, record: LogRecord, source: LateKey) -> None:
        """`at`: the time of the record in which the span was read first."""
        policy = self.policy
        good_time = 946_684_800 * SECOND_NS <= span.end_ns <= at + policy.skew_ns
        event_ns = self._event_time(span, record, source) if good_time else 0
        if not good_time:
            start = span.start_ns if 946_684_800 * SECOND_NS <= span.start_ns <= at else at
            flags = span.flags | Flag.BAD_TIME
            span = msgspec.structs.replace(span, start_ns=start, end_ns=at, flags=flags)
        pane = span.end_ns // policy.pane_ns
        if pane <= self.closed:
            watermark = max(0, self.newest_ns - policy.out_of_orderness_ns)
            told = (span.trace_id.hex(), span.span_id.hex(), pane, watermark)
            self.truth.late.setdefault(source, []).append(told)
            if source[0] == TOPIC:
                return  # only after an early closing can it be the newest; of a re-keyed one its source has moved on
        else:
            self._keep(span, pane)
        if event_ns > self.newest_ns:
            self.newest_ns = event_ns
            watermark = self.newest_ns - policy.out_of_orderness_ns
            while (passed := self._oldest_passed(watermark)) is not None:
                self._close(passed, record.offset, forced=False)
            self.closed = max(self.closed, (watermark - policy.join_window_ns) // policy.pane_ns - 1)

    def _event_time(self, span: Span, record: LogRecord, source: LateKey) -> int:
        """The span's own end; of re-keyed spans the newest end of the slowest source that is not idle."""
        if source[0] == TOPIC:
            return span.end_ns
        self.log_ns = max(self.log_ns, record.timestamp_ns)
        before_ns, _ = self.sources.get(source[:2], (0, 0))
        self.sources[source[:2]] = (max(before_ns, span.end_ns), self.log_ns)
        active_since = self.log_ns - self.policy.source_idle_ns
        return min(event_ns for event_ns, log_ns in self.sources.values() if log_ns >= active_since)

    def _oldest_passed(self, watermark_ns: int) -> int | None:
        passed = [p for p in self.open if (p + 1) * self.policy.pane_ns + self.policy.join_window_ns <= watermark_ns]
        return min(passed, default=None)

    def _keep(self, span: Span, pane: int) -> None:
        policy, life = self.policy, self.lives.get(span.trace_id)
        if life is None:
            life = self.lives[span.trace_id] = Life(latest=pane)
        elif pane <= life.latest - policy.trace_panes_max:
            return
        before = {key: copy.span for key, copy in life.spans.items()}
        decided_before = self._deciding(life)
        life.latest = max(life.latest, pane)
        self.open.setdefault(life.latest, set())
        known = life.spans.get(span.span_id)
        self.arrivals += 1
        if known is None:
            life.spans[span.span_id] = Copy(span, span.end_ns, self.arrivals, self.closed)
        else:
            known.span = max(known.span, span, key=_richness)
            known.end_ns = max(known.end_ns, span.end_ns)
        life.spans = {
            key: copy
            for key, copy in life.spans.items()
            if copy.end_ns // policy.pane_ns > life.latest - policy.trace_panes_max
        }
        newest = sorted(life.spans.items(), key=lambda pair: (pair[1].end_ns, pair[0]))
        kept = dict(newest[-policy.trace_spans_max - 1 :])
        dropped = set(before) - set(kept)
        life.spans = kept
        changed = {key: copy.span for key, copy in kept.items()} != before
        if changed or self._deciding(life) != decided_before:
            self.open.setdefault(pane, set())
            life.frozen = self.frozen
            if dropped or len(kept) > policy.trace_spans_max:
                life.counted = self._counted_before(life)
            found = self._result(life)
            if found is not None and found.event_ns // policy.pane_ns > self.closed:
                self.open.setdefault(found.event_ns // policy.pane_ns, set()).add(found.group)

    def _deciding(self, life: Life) -> set[bytes]:
        """Ids of the spans that the result comes from: all; of too many the newest of each kind and one for the route."""
        if len(life.spans) <= self.policy.trace_spans_max:
            return set(life.spans)

        def newest(copies: list[Copy]) -> set[bytes]:
            return {max(copies, key=lambda copy: (copy.end_ns, copy.span.span_id)).span.span_id} if copies else set()

        all_copies = list(life.spans.values())
        found: set[bytes] = set()
        for kind in (Kind.RETRIEVAL, Kind.RERANK, Kind.GENERATION):
            found |= newest([copy for copy in all_copies if copy.span.kind == kind])
        named = [copy for copy in all_copies if copy.span.route]
        best = min(((copy.span.route_rank, bool(copy.span.parent_id)) for copy in named), default=None)
        return found | newest([one for one in named if (one.span.route_rank, bool(one.span.parent_id)) == best])

    def _counted_before(self, life: Life) -> bool:
        """Of a trace that lost its oldest spans: whether what is left, read alone, stood in a pane that closed."""
        stood: int | None = None
        seen: list[Span] = []
        deciding = self._deciding(life)
        copies = [copy for key, copy in life.spans.items() if key in deciding]
        for copy in sorted(copies, key=lambda copy: copy.arrival):
            if stood is not None and stood <= copy.closed_then:
                return True
            seen.append(copy.span)
            result = score(seen, self.scoring)
            if result is not None:
                stood = result.event_ns // self.policy.pane_ns
                stood = stood if stood > copy.closed_then else None
        return stood is not None and stood <= self.closed

    def _result(self, life: Life) -> TraceResult | None:
        deciding = self._deciding(life)
        spans = [copy.span for key, copy in life.spans.items() if key in deciding]
        result = score(spans, self.scoring, routes_frozen=life.frozen)
        if result is not None and len(life.spans) > self.policy.trace_spans_max:
            gone = dict.fromkeys(("rank_weighted_recall", "top1_score", "low_confidence"))
            return msgspec.structs.replace(result, state=State.truncated, hallucinated=[], dropped_cited=[], **gone)
        return result

    def _close(self, pane: int, offset: int, *, forced: bool) -> None:
        found: dict[Group, list[tuple[TraceResult, bool]]] = {group: [] for group in self.open.pop(pane)}
        for trace_id, life in self.lives.items():
            result = self._result(life)
            if result is not None and result.event_ns // self.policy.pane_ns == pane:
                self.truth.rows[pane, result.group, trace_id] = result
                found[result.group].append((result, life.counted))
                self.truth.recounted += life.counted
                life.counted = True
        for group, results in found.items():
            numbers = pane_numbers(results)
            self.truth.panes[pane, group] = {**numbers, "forced": forced, "version": 2 * offset + 1}
        self.lives = {trace_id: life for trace_id, life in self.lives.items() if life.latest != pane}
        self.closed = max(self.closed, pane)

    def _keep_bounds(self, offset: int) -> None:
        while len(self.lives) > self.policy.traces_max and self.open:
            self.truth.forced += 1
            self._close(min(self.open), offset, forced=True)
        groups = len(set().union(*self.open.values()))
        if not self.frozen and groups >= self.policy.groups_max:
            self.frozen = True
            self.truth.freezes += 1
        elif self.frozen and groups < self.policy.groups_max // 2:
            self.frozen = False


def _richness(span: Span) -> tuple[int, bytes]:
    body = msgspec.msgpack.encode(msgspec.structs.replace(span, trace_id=b""))
    return len(body), body


def truth_of(records: list[LogRecord], policy: JoinPolicy, scoring: ScorePolicy) -> Truth:
    """What the whole log amounts to."""
    return Oracle(policy, scoring).read(records)
