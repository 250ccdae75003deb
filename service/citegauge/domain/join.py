"""JOIN: the updating join of one source partition. Pure, synchronous, told offsets and record times; it reads no clock.

A trace's result is a function of the set of its spans, so each arriving span recomputes its trace's contribution, takes
the old one out of its cell and puts the new one in. A *cell* is one group's pane. What decides closing and lateness comes
from the log alone, so that a replay decides the same.

Not here: offsets to commit (`domain.progress`), rows (`pipeline`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from citegauge.domain.changes import Changes, LateSpan, PaneSnapshot, TraceChange
from citegauge.domain.crowd import Crowd, route_class
from citegauge.domain.judge import Judge
from citegauge.domain.kept import KIND, first_offset, pack, same_spans, stood_in_closed, unpack, with_copy, without_old
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock
from citegauge.domain.recall import Group, TraceResult
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.score import Placed
from citegauge.domain.sources import SourceClocks, pack_clocks, unpack_clocks
from citegauge.domain.span import Flag, Kind, Span
from citegauge.domain.state import Cell, PaneSlot, TraceState

EARLIEST_NS = 946_684_800 * SECOND_NS
"""2000-01-01: a span that ends before it is `bad_time`."""
RECORD_NS_MAX = 4_102_444_800 * SECOND_NS
"""2100-01-01: a record's timestamp beyond it is not in milliseconds (and 2106 is where ClickHouse's `DateTime` ends)."""
NOTHING_CLOSED = -1
_OTHER = int(Kind.OTHER)
_BAD_TIME = int(Flag.BAD_TIME)


def has_time(record_ns: int) -> bool:
    """Whether a record's timestamp can bound event times. Without one (-1), or in a wrong unit, it cannot."""
    return EARLIEST_NS <= record_ns <= RECORD_NS_MAX


class JoinCounters(msgspec.Struct):
    """Totals since start, for metrics."""

    spans: dict[int, int] = msgspec.field(default_factory=dict)
    """Spans by `Kind`, duplicates and late ones included."""
    duplicates: int = 0
    late: int = 0
    bad_time: int = 0
    recounted: int = 0
    traces_closed: dict[int, int] = msgspec.field(default_factory=dict)
    """Traces by `State`, counted once their pane is closed."""
    oversize_traces: int = 0


class JoinState:
    """The join of one source partition."""

    def __init__(self, policy: JoinPolicy, scoring: ScorePolicy, clock: Clock | None = None) -> None:
        self.policy = policy
        self.scoring = scoring
        self.clock = clock or Clock()
        self._judge = Judge(scoring)
        self._sources = SourceClocks(policy.source_idle_ns, unpack_clocks(self.clock.sources))
        self.traces: dict[bytes, TraceState] = {}
        self.slots: dict[int, PaneSlot] = {}
        self.open_groups: dict[Group, int] = {}
        """Groups with an open cell, and in how many open slots."""
        self.changes = Changes()
        self.counters = JoinCounters()
        self.closed_through = self._closable(self.clock)

    @property
    def watermark_ns(self) -> int:
        """No span that ends before this is expected any more; 0 before the first valid span."""
        return max(0, self.clock.max_event_ns - self.policy.out_of_orderness_ns)

    @property
    def first_kept_offset(self) -> int | None:
        """The log from here on rebuilds every live trace and open pane; None when nothing is open."""
        offsets = [slot.first_offset for slot in self.slots.values() if slot.first_offset is not None]
        return min(offsets, default=None)

    def clock_before(self) -> Clock:
        """The clock with everything that a replay from here has to know."""
        return msgspec.structs.replace(self.clock, sources=pack_clocks(self._sources.clocks()))

    def apply(
        self, span: Span, offset: int, index: int, record_ns: int, origin: Rekeyed | None = None, log_ns: int = 0
    ) -> None:
        """Read one span of the record at `offset`. `record_ns`: timestamp of its first record, which bounds its event time.

        `origin` and `log_ns` (timestamp of this record) for a re-keyed span: then the slowest active source is the clock.
        """
        kinds = self.counters.spans
        kinds[span.kind] = kinds.get(span.kind, 0) + 1
        valid = EARLIEST_NS <= span.end_ns <= record_ns + self.policy.skew_ns
        if not valid:
            self.counters.bad_time += 1
            span = _with_record_time(span, record_ns)
        event_ns = span.end_ns if valid else 0
        if origin is not None and valid:
            event_ns = self._sources.seen(origin.source, event_ns, log_ns)
        pane = span.end_ns // self.policy.pane_ns
        if pane <= self.closed_through:
            self.counters.late += 1
            self.changes.late.append(LateSpan(span, offset, index, pane, self.watermark_ns, origin))
            if origin is None:
                return
        else:
            self._keep(span, pane, offset)
        if event_ns > self.clock.max_event_ns:
            self.clock = self.clock.advanced(event_ns)
            closable = self._closable(self.clock)
            if closable > self.closed_through:
                self._close(closable, offset, "final")

    def force_close(self, pane: int, offset: int) -> None:
        """Close every pane up to `pane` although the watermark has not passed it."""
        self.clock = self.clock.forced(pane)
        self._close(pane, offset, "forced")

    def freeze_routes(self, frozen: bool) -> None:
        """From now on, routes that the settings do not list are `other` (or no longer)."""
        self.clock = self.clock.with_frozen(frozen)

    def close_all(self, offset: int) -> None:
        """Close every open pane: the end of a complete log (`replay`)."""
        if self.slots:
            self._close(max(self.slots), offset, "final")

    def take_changes(self) -> Changes:
        """Everything to publish since the last call."""
        taken, self.changes = self.changes, Changes()
        return taken

    def idle_snapshots(self, wall_ns: int) -> Iterator[tuple[PaneSnapshot, list[TraceChange]]]:
        """Cells with unmatched traces as they would be if they closed now, for panes that the wall clock has left behind.

        Changes no state but the note that this was published; nothing comes twice for the same `touched`.
        """
        for slot in self.slots.values():
            end_ns = (slot.pane + 1) * self.policy.pane_ns
            if not slot.unmatched or wall_ns < end_ns + self.policy.join_window_ns:
                continue
            waiting: dict[Cell, list[TraceChange]] = {}
            for trace_id in sorted(slot.unmatched):
                trace = self.traces[trace_id]
                assert trace.cell is not None
                if trace.cell.idle_touched < trace.cell.touched:
                    change = TraceChange(self._verdict(trace_id, trace), trace.touched)
                    waiting.setdefault(trace.cell, []).append(change)
            for cell, rows in waiting.items():
                cell.idle_touched = cell.touched
                tally = cell.tally.copy()
                for row in rows:
                    tally.add(row.result, recounted=self.traces[row.result.trace_id].recounted)
                yield PaneSnapshot(cell.group, slot.pane, tally, cell.touched, "idle"), rows

    def result(self, trace_id: bytes) -> TraceResult | None:
        """The present result of a live trace, or None."""
        trace = self.traces.get(trace_id)
        placed = None if trace is None else self._judge.place(trace_id, trace.spans, trace.frozen)
        return None if trace is None or placed is None else self._verdict(trace_id, trace)

    # -- one span ---------------------------------------------------------------------------------------------------

    def _keep(self, span: Span, pane: int, offset: int) -> None:
        kept = pack(span, offset, self.closed_through)
        trace_id = span.trace_id
        trace = self.traces.get(trace_id)
        if trace is None:
            slot = self._slot(pane)
            trace = self.traces[trace_id] = TraceState((kept,), slot, offset)
            slot.latest.add(trace_id)
            slot.hold(offset)
            self._update(trace_id, trace, (), kept, span, offset)
            return
        if pane <= trace.latest.pane - self.policy.trace_panes_max:
            return  # as if it had come in time, and had been dropped since
        before, was_oversize = trace.spans, trace.crowd is not None
        moved = pane > trace.latest.pane
        if moved:
            # Also for a mere copy: a replay that begins between a span and its copy must not remember the trace longer.
            trace.latest.latest.discard(trace_id)
            trace.latest = self._slot(pane)
            trace.latest.latest.add(trace_id)
        oldest_ns = (pane - self.policy.trace_panes_max + 1) * self.policy.pane_ns if moved else 0
        add = self._add if trace.crowd is None else self._add_to_crowd
        changed, shortened = add(trace, kept, span, oldest_ns)
        if moved:
            trace.latest.hold(trace.first_offset)
        if not changed:
            self.counters.duplicates += 1
            return
        self._slot(pane).hold(trace.first_offset)
        self.counters.oversize_traces += trace.crowd is not None and not was_oversize
        self._update(trace_id, trace, before, kept, span, offset, shortened=shortened, was_oversize=was_oversize)

    def _add(self, trace: TraceState, kept: bytes, span: Span, oldest_ns: int) -> tuple[bool, bool]:
        """Returns whether the trace's spans are others now, and whether some were dropped for their age."""
        before = trace.spans
        after = merged = with_copy(before, kept)
        if oldest_ns:
            after = without_old(merged, oldest_ns)
        shortened = len(after) < len(merged)
        if shortened:
            trace.first_offset = first_offset(after)
        trace.spans = after
        if len(after) > self.policy.trace_spans_max:
            trace.crowd = Crowd(after, [route_class(unpack(one, span.trace_id)) for one in after])
            trace.spans = trace.crowd.representatives()
        return len(after) != len(before) or not same_spans(before, after), shortened

    def _add_to_crowd(self, trace: TraceState, kept: bytes, span: Span, oldest_ns: int) -> tuple[bool, bool]:
        """As `_add`, for an oversize trace.

        The newest stay, and one more than may count, by which an oversize trace is known. So what is kept does not depend
        on the order of arrival, nor on spans so old that a replay does not see them.
        """
        before, crowd = trace.spans, trace.crowd
        assert crowd is not None
        changed, n_before = crowd.put(kept, route_class(span)), len(crowd)
        if oldest_ns:
            crowd.drop_before(oldest_ns)
        if len(crowd) > self.policy.trace_spans_max + 1 and crowd.drop_oldest() is kept:
            return False, False
        trace.first_offset = crowd.first_offset
        if len(crowd) > self.policy.trace_spans_max:
            trace.spans = crowd.representatives()
        else:
            trace.spans, trace.crowd = crowd.spans, None
        shortened = len(crowd) < n_before
        # A mere copy can make its span the newest.
        return changed or shortened or not same_spans(before, trace.spans), shortened

    def _update(
        self,
        trace_id: bytes,
        trace: TraceState,
        before: tuple[bytes, ...],
        kept: bytes,
        span: Span,
        offset: int,
        *,
        shortened: bool = False,
        was_oversize: bool = False,
    ) -> None:
        """Move the trace's contribution from what `before` amounts to, to what its spans amount to now."""
        frozen, oversize = self.clock.routes_frozen, trace.crowd is not None
        if frozen == trace.frozen and self._changes_nothing(trace, before, span, was_oversize):
            return
        home, recounted = trace.cell, trace.recounted
        if home is not None and home.slot.closed:
            home, trace.cell, trace.recounted = None, None, True
        if shortened or oversize:
            trace.recounted = stood_in_closed(trace.spans, self.closed_through, self.policy.pane_ns)
        # Before anything else, while the last result of a long trace is still remembered.
        old = (
            self._judge.score(trace_id, before, trace.frozen, oversize=was_oversize) if trace.matched and home else None
        )
        new = self._judge.place(trace_id, trace.spans, frozen, kept, span)
        pane = None if new is None else new.event_ns // self.policy.pane_ns
        cell = None if new is None or pane is None or pane <= self.closed_through else self._cell(new.group, pane)
        if home is None and cell is None:
            return
        if home is not None:
            if old is not None:
                unchanged = cell is home and recounted == trace.recounted
                if unchanged and new is not None and old == self._judge.measure(new, trace.spans, oversize=oversize):
                    trace.frozen = frozen
                    return
                home.tally.add(old, recounted=recounted, sign=-1)
            stays = cell is home and not (trace.matched and new is not None and not new.matched)
            self._leave(trace_id, home, offset, gone=not stays)
        trace.touched = offset
        trace.cell = cell
        trace.matched = False
        trace.frozen = frozen
        if cell is not None and new is not None:
            self._enter(trace, cell, new)

    def _changes_nothing(self, trace: TraceState, before: tuple[bytes, ...], span: Span, was_oversize: bool) -> bool:
        """Whether an oversize trace keeps its representatives, or a span that is neither retrieval nor generation is a
        mere repetition of what is known.

        It can matter by its route, by its parent link (once a kind occurs twice), by making the trace oversize, and by
        replacing a span or dropping old ones (then fewer or as many are kept as before).
        """
        if trace.cell is not None and trace.cell.slot.closed:
            return False
        if trace.crowd is not None or was_oversize:
            return trace.crowd is not None and was_oversize and trace.spans == before
        if span.kind != _OTHER or len(trace.spans) <= len(before):
            return False
        kinds = [kept[KIND] for kept in trace.spans if kept[KIND] != _OTHER]
        if not kinds:
            return True
        if len(kinds) != len(set(kinds)) or trace.cell is None:
            return False
        return not span.route or span.route == trace.cell.group.route

    def _leave(self, trace_id: bytes, home: Cell, offset: int, *, gone: bool) -> None:
        """`gone`: a row that may have been published for it here must be deleted."""
        home.touched = offset
        self.changes.dirty[home] = None
        home.slot.unmatched.discard(trace_id)
        key = (home.group, home.slot.pane, trace_id)
        self.changes.rows.pop(key, None)
        if gone:
            self.changes.tombstones[key] = offset

    def _enter(self, trace: TraceState, cell: Cell, new: Placed) -> None:
        cell.touched = trace.touched
        self.changes.dirty[cell] = None
        # The trace may have newer spans of other kinds; this slot needs its first span all the same.
        cell.slot.hold(trace.first_offset)
        if new.matched:
            trace.matched = True
            result = self._judge.measure(new, trace.spans, oversize=trace.crowd is not None)
            cell.tally.add(result, recounted=trace.recounted)
            self._set_row(cell, TraceChange(result, trace.touched))
        else:
            cell.slot.unmatched.add(new.trace_id)

    def _set_row(self, cell: Cell, change: TraceChange) -> None:
        key = (cell.group, cell.slot.pane, change.result.trace_id)
        self.changes.tombstones.pop(key, None)
        self.changes.rows[key] = change

    def _slot(self, pane: int) -> PaneSlot:
        slot = self.slots.get(pane)
        if slot is None:
            slot = self.slots[pane] = PaneSlot(pane)
        return slot

    def _cell(self, group: Group, pane: int) -> Cell:
        slot = self._slot(pane)
        cell = slot.cells.get(group)
        if cell is None:
            cell = slot.cells[group] = Cell(group, slot)
            self.open_groups[group] = self.open_groups.get(group, 0) + 1
        return cell

    def _verdict(self, trace_id: bytes, trace: TraceState) -> TraceResult:
        return self._judge.score(trace_id, trace.spans, trace.frozen, oversize=trace.crowd is not None)

    # -- closing ----------------------------------------------------------------------------------------------------

    def _closable(self, clock: Clock) -> int:
        """The newest pane that this clock closes: its end + join window lies at or below the watermark."""
        watermark_ns = clock.max_event_ns - self.policy.out_of_orderness_ns
        by_time = (watermark_ns - self.policy.join_window_ns) // self.policy.pane_ns - 1
        return max(by_time, clock.forced_through, NOTHING_CLOSED)

    def _close(self, through: int, offset: int, kind: Literal["final", "forced"]) -> None:
        for pane in sorted(pane for pane in self.slots if pane <= through):
            slot = self.slots.pop(pane)
            self._give_verdicts(slot)
            for cell in slot.cells.values():
                self.changes.dirty.pop(cell, None)
                self.changes.finals.append(PaneSnapshot(cell.group, pane, cell.tally, offset, kind))
                self._count_closed(cell)
            for trace_id in slot.latest:
                del self.traces[trace_id]
            slot.closed = True
            slot.latest = set()
            slot.unmatched = set()
        self.closed_through = max(self.closed_through, through)

    def _give_verdicts(self, slot: PaneSlot) -> None:
        for trace_id in sorted(slot.unmatched):
            trace = self.traces[trace_id]
            assert trace.cell is not None
            assert trace.cell.slot is slot
            result = self._verdict(trace_id, trace)
            trace.cell.tally.add(result, recounted=trace.recounted)
            self._set_row(trace.cell, TraceChange(result, trace.touched))

    def _count_closed(self, cell: Cell) -> None:
        for state, n in cell.tally.states.items():
            self.counters.traces_closed[state] = self.counters.traces_closed.get(state, 0) + n
        self.counters.recounted += cell.tally.recounted
        if self.open_groups[cell.group] == 1:
            del self.open_groups[cell.group]
        else:
            self.open_groups[cell.group] -= 1


def _with_record_time(span: Span, record_ns: int) -> Span:
    """A span whose clock is wrong is placed where its record lies, and says so."""
    start_ns = span.start_ns if EARLIEST_NS <= span.start_ns <= record_ns else record_ns
    return msgspec.structs.replace(span, start_ns=start_ns, end_ns=record_ns, flags=span.flags | _BAD_TIME)
