"""The oracle: what one partition's log must amount to, in one plain pass. Pure; reads no clock, no database, no Kafka.

It remembers whole spans and adds up every trace afresh when a pane closes: no running sums, nothing taken back, nothing
packed, no offsets held, no flushes. With the worker's join it shares the formulas only: `score`, `Tally`, the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import Group, State, TraceResult
from citegauge.domain.score import place, score
from citegauge.domain.span import Flag, Kind, Span

YEAR_2000_NS = 946_684_800 * SECOND_NS
OFFSETS_PER_TRACE_MAX = 10_000
"""Offsets remembered of one trace; of one that comes in more pieces, only the first and the last of the rest."""


class Arrival(NamedTuple):
    """One readable span, and where it was read first."""

    span: Span
    record_ns: int
    """Timestamp of its first record: bounds its event time."""
    origin: tuple[str, int, int, int]
    """Topic, partition, offset of that record, and position of the span in it."""
    source: int = 0
    """Which clock it belongs to; 0 where a partition has one."""


class Late(NamedTuple):
    """A span that came after its own pane had closed."""

    arrival: Arrival
    end_ns: int
    pane: int
    watermark_ns: int


class Row(NamedTuple):
    """A trace as its pane counts it."""

    result: TraceResult
    offsets: tuple[int, ...]
    """Where it was touched, if at all: ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPane:
    """A pane that will never change again."""

    pane: int
    offset: int
    """The record that closed it."""
    forced: bool
    tallies: Mapping[Group, Tally]
    """Of every group that was ever found in it, emptied ones too."""
    rows: Mapping[tuple[Group, bytes], Row]


class EventClock(Protocol):
    """How far event time has come, over the spans of a log in order."""

    def seen(self, arrival: Arrival, log_ns: int, *, late: bool) -> int:
        """A span with a valid end, in a record of log time `log_ns`; returns the event time so far. All in ns."""


class NewestSpan:
    """Of a partition that is keyed by trace id: its newest span that was in time."""

    def __init__(self) -> None:
        self._newest_ns: int = 0

    def seen(self, arrival: Arrival, log_ns: int, *, late: bool) -> int:
        """See `EventClock`."""
        if not late:
            self._newest_ns = max(self._newest_ns, arrival.span.end_ns)
        return self._newest_ns


class SlowestSource:
    """Of a partition that several sources feed: the newest span of that source which is behind all others.

    A source does not count once the log has gone on for `idle_ns` without it.
    """

    def __init__(self, idle_ns: int) -> None:
        self._idle_ns = idle_ns
        self._newest_ns: dict[int, int] = {}
        self._heard_ns: dict[int, int] = {}
        self._log_ns = self._event_ns = 0

    def seen(self, arrival: Arrival, log_ns: int, *, late: bool) -> int:
        """See `EventClock`. A late span counts: its source is alive."""
        source = arrival.source
        self._log_ns = max(self._log_ns, log_ns)
        self._heard_ns[source] = self._log_ns
        self._newest_ns[source] = max(arrival.span.end_ns, self._newest_ns.get(source, 0))
        since_ns = self._log_ns - self._idle_ns
        slowest_ns = min(self._newest_ns[one] for one, heard_ns in self._heard_ns.items() if heard_ns >= since_ns)
        self._event_ns = max(self._event_ns, slowest_ns)
        return self._event_ns


@dataclass(slots=True)
class _Copy:
    """A distinct span: its richest copy, and what all its copies together say of the time."""

    span: Span
    end_ns: int
    arrival: int
    closed_then: int


@dataclass(slots=True)
class _Life:
    """A trace from its first span until the pane of its latest one closes."""

    latest: int
    spans: dict[bytes, _Copy] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    frozen: bool = False
    """Whether unlisted routes were `other` when it last changed."""
    counted: bool = False
    """It stands in a closed pane."""


class Oracle:
    """Reads one partition's log once, in order. Holds open panes and live traces only."""

    def __init__(
        self,
        policy: JoinPolicy,
        scoring: ScorePolicy,
        clock: EventClock | None = None,
        forced: Mapping[int, int] | None = None,
    ) -> None:
        """`forced`: offsets after which the worker closed every pane up to a given one early."""
        self.policy = policy
        self.scoring = scoring
        self.closed = -1
        """Newest closed pane."""
        self.event_ns = 0
        self.frozen = False
        self._clock: EventClock = clock or NewestSpan()
        self._forced = forced or {}
        self._lives: dict[bytes, _Life] = {}
        self._open: dict[int, set[Group]] = {}
        self._open_groups: dict[Group, int] = {}
        self._by_latest: dict[int, set[bytes]] = {}
        self._candidates: dict[int, set[bytes]] = {}
        """Traces with a span in an open pane: only they can be counted there."""
        self._arrivals = 0
        self._late: list[Late] = []
        self._done: list[ClosedPane] = []

    @property
    def watermark_ns(self) -> int:
        """No span that ends before this is waited for."""
        return max(0, self.event_ns - self.policy.out_of_orderness_ns)

    @property
    def open_panes(self) -> int:
        """Panes that are still open."""
        return len(self._open)

    def read(self, offset: int, log_ns: int, arrivals: Iterable[Arrival]) -> None:
        """Read the spans of one record; also call it for a record without any. `log_ns`: the record's own timestamp."""
        for arrival in arrivals:
            self._span(arrival, offset, log_ns)
        self._keep_bounds(offset)

    def take_closed(self) -> list[ClosedPane]:
        """Panes that closed since the last call, ascending."""
        taken, self._done = self._done, []
        return taken

    def take_late(self) -> list[Late]:
        """Late spans since the last call, in the order of the log."""
        taken, self._late = self._late, []
        return taken

    # -- one span -----------------------------------------------------------------------------------------------------

    def _span(self, arrival: Arrival, offset: int, log_ns: int) -> None:
        span, policy = arrival.span, self.policy
        valid = YEAR_2000_NS <= span.end_ns <= arrival.record_ns + policy.skew_ns
        if not valid:
            at = arrival.record_ns
            start = span.start_ns if YEAR_2000_NS <= span.start_ns <= at else at
            span = msgspec.structs.replace(span, start_ns=start, end_ns=at, flags=span.flags | Flag.BAD_TIME)
        pane = span.end_ns // policy.pane_ns
        late = pane <= self.closed
        if late:
            self._late.append(Late(arrival, span.end_ns, pane, self.watermark_ns))
        else:
            self._keep(span, pane, offset)
        event_ns = self._clock.seen(arrival, log_ns, late=late) if valid else 0
        if event_ns > self.event_ns:
            self.event_ns = event_ns
            passed_ns = event_ns - policy.out_of_orderness_ns - policy.join_window_ns
            self._close_through(passed_ns // policy.pane_ns - 1, offset, forced=False)

    def _keep(self, span: Span, pane: int, offset: int) -> None:
        life = self._lives.get(span.trace_id)
        if life is None:
            life = self._lives[span.trace_id] = _Life(latest=pane)
            self._by_latest.setdefault(pane, set()).add(span.trace_id)
        elif pane <= life.latest - self.policy.trace_panes_max:
            return
        if pane > life.latest:
            self._by_latest[life.latest].discard(span.trace_id)
            self._by_latest.setdefault(pane, set()).add(span.trace_id)
            life.latest = pane
        if len(life.offsets) < OFFSETS_PER_TRACE_MAX:
            life.offsets.append(offset)
        else:
            life.offsets[-1] = offset
        self._open.setdefault(life.latest, set())
        before, judged_before = set(life.spans), {copy.span.span_id for copy in self._judged(life)}
        replaced = self._add(life, span)
        life.spans = self._within_bounds(life)
        after, judged = set(life.spans), {copy.span.span_id for copy in self._judged(life)}
        if not replaced and after == before and judged == judged_before:
            return
        self._open.setdefault(pane, set())
        self._candidates.setdefault(pane, set()).add(span.trace_id)
        life.frozen = self.frozen
        if not before <= after or self._oversize(life):
            life.counted = self._stood_in_closed(life)
        placed = place([copy.span for copy in self._judged(life)], self.scoring, routes_frozen=life.frozen)
        if placed is not None and placed.event_ns // self.policy.pane_ns > self.closed:
            self._open_group(placed.event_ns // self.policy.pane_ns, placed.group)

    def _add(self, life: _Life, span: Span) -> bool:
        """Whether the span took the place of a poorer copy."""
        self._arrivals += 1
        known = life.spans.get(span.span_id)
        if known is None:
            life.spans[span.span_id] = _Copy(span, span.end_ns, self._arrivals, self.closed)
            return False
        known.end_ns = max(known.end_ns, span.end_ns)
        if span == known.span or _richness(span) <= _richness(known.span):
            return False
        known.span = span
        return True

    def _within_bounds(self, life: _Life) -> dict[bytes, _Copy]:
        """Without what is too old for the trace, and of the rest the newest, one more than may count."""
        policy = self.policy
        oldest_ns = (life.latest - policy.trace_panes_max + 1) * policy.pane_ns
        kept = {key: copy for key, copy in life.spans.items() if copy.end_ns >= oldest_ns}
        if len(kept) > policy.trace_spans_max + 1:
            by_age = sorted(kept.items(), key=lambda pair: (pair[1].end_ns, pair[0]))
            kept = dict(by_age[-policy.trace_spans_max - 1 :])
        return kept

    def _oversize(self, life: _Life) -> bool:
        return len(life.spans) > self.policy.trace_spans_max

    def _judged(self, life: _Life) -> list[_Copy]:
        """The spans that decide: all; of an oversize trace the newest of each kind and of those best at the route."""
        copies = list(life.spans.values())
        if not self._oversize(life):
            return copies
        by_age = sorted(copies, key=lambda copy: (copy.end_ns, copy.span.span_id))
        newest = {copy.span.kind: copy for copy in by_age if copy.span.kind != Kind.OTHER}
        routes = {(copy.span.route_rank, copy.span.parent_id != b""): copy for copy in by_age if copy.span.route}
        chosen = [*newest.values(), *(routes[best] for best in sorted(routes)[:1])]
        return list({copy.span.span_id: copy for copy in chosen}.values())

    def _stood_in_closed(self, life: _Life) -> bool:
        """Of a trace that lost its oldest spans: whether what is left, read alone, stood in a pane that closed."""
        copies = sorted(self._judged(life), key=lambda copy: copy.arrival)
        closed_next = [*(copy.closed_then for copy in copies[1:]), self.closed][: len(copies)]
        seen: list[Span] = []
        for copy, closed_next_then in zip(copies, closed_next, strict=True):
            seen.append(copy.span)
            if closed_next_then == copy.closed_then:
                continue  # no pane closed before the next span came
            placed = place(seen, self.scoring)
            if placed is not None and copy.closed_then < placed.event_ns // self.policy.pane_ns <= closed_next_then:
                return True
        return False

    def _open_group(self, pane: int, group: Group) -> None:
        groups = self._open.setdefault(pane, set())
        if group not in groups:
            groups.add(group)
            self._open_groups[group] = self._open_groups.get(group, 0) + 1

    def _result(self, life: _Life) -> TraceResult | None:
        judged = [copy.span for copy in self._judged(life)]
        result = score(judged, self.scoring, routes_frozen=life.frozen)
        if result is not None and self._oversize(life):
            return msgspec.structs.replace(
                result, state=State.truncated, rank_weighted_recall=None, top1_score=None, low_confidence=None,
                hallucinated=[], dropped_cited=[],
            )  # fmt: skip
        return result

    # -- closing ------------------------------------------------------------------------------------------------------

    def _close_through(self, through: int, offset: int, *, forced: bool) -> None:
        if through > self.closed:
            for pane in sorted(pane for pane in self._open if pane <= through):
                self._close(pane, offset, forced=forced)
            self.closed = through

    def _close(self, pane: int, offset: int, *, forced: bool) -> None:
        groups = self._open.pop(pane)
        tallies = {group: Tally() for group in groups}
        rows: dict[tuple[Group, bytes], Row] = {}
        for trace_id in self._candidates.pop(pane, ()):
            life = self._lives.get(trace_id)
            result = None if life is None else self._result(life)
            if life is None or result is None or result.event_ns // self.policy.pane_ns != pane:
                continue
            tallies.setdefault(result.group, Tally()).add(result, recounted=life.counted)
            rows[result.group, trace_id] = Row(result, tuple(life.offsets))
            life.counted = True
        for group in groups:
            self._open_groups[group] -= 1
            if not self._open_groups[group]:
                del self._open_groups[group]
        for trace_id in self._by_latest.pop(pane, ()):
            del self._lives[trace_id]
        self._done.append(ClosedPane(pane=pane, offset=offset, forced=forced, tallies=tallies, rows=rows))

    def _keep_bounds(self, offset: int) -> None:
        policy = self.policy
        if offset in self._forced:
            self._close_through(self._forced[offset], offset, forced=True)
        while len(self._lives) > policy.traces_max and self._open:
            self._close_through(min(self._open), offset, forced=True)
        if not self.frozen and len(self._open_groups) >= policy.groups_max:
            self.frozen = True
        elif self.frozen and len(self._open_groups) < policy.groups_max // 2:
            self.frozen = False


def _richness(span: Span) -> tuple[int, bytes]:
    """Which of two copies stays: the one that says more; of equally long ones always the same."""
    body = msgspec.msgpack.encode(msgspec.structs.replace(span, trace_id=b""))
    return len(body), body
