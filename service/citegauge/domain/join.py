"""JOIN: the updating join of one source partition. Pure, synchronous, told offsets and record times; it reads no clock.

A trace's result is a function of the set of its spans, so each arriving span recomputes its trace's contribution, takes
the old one out of its cell and puts the new one in. A *cell* is one group's pane. What decides closing and lateness comes
from the log alone, so that a replay decides the same.

Not here: offsets to commit (`domain.progress`), rows (`pipeline`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock
from citegauge.domain.recall import Group, State, TraceResult
from citegauge.domain.score import Placed, measure, place
from citegauge.domain.span import Flag, Kind, Span

EARLIEST_NS = 946_684_800 * SECOND_NS
"""2000-01-01: a span that ends before it is `bad_time`."""
NOTHING_CLOSED = -1
_OTHER = int(Kind.OTHER)
_BAD_TIME = int(Flag.BAD_TIME)
_FROZEN, _OVERSIZE = 1, 2

# A kept span is bytes: id (8), offset (8, big endian), kind (1), then the span as a MessagePack array without its trace id.
_ID = slice(0, 8)
_OFFSET = slice(8, 16)
_KIND = 16
_BODY = slice(17, None)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Span).decode
_WIRE_FIELDS = tuple(name for name in Span.__struct_fields__ if name != "trace_id")
assert Span.__struct_fields__[-1] == "trace_id"


def pack(span: Span, offset: int) -> bytes:
    """The kept form of a span, about 30 bytes and its ids."""
    body = msgspec.structs.astuple(span)[:-1]
    return span.span_id + offset.to_bytes(8, "big") + bytes((span.kind,)) + _encode(body)


def unpack(kept: bytes, trace_id: bytes) -> Span:
    """Inverse of `pack`."""
    span = _decode(kept[_BODY])
    msgspec.structs.force_setattr(span, "trace_id", trace_id)
    return span


class PaneSlot:
    """One open minute of a partition."""

    __slots__ = ("cells", "closed", "first_offset", "latest", "pane", "unmatched")

    def __init__(self, pane: int) -> None:
        self.pane = pane
        self.closed = False
        self.cells: dict[Group, Cell] = {}
        self.unmatched: set[bytes] = set()
        """Traces that wait here for their other half."""
        self.latest: set[bytes] = set()
        """Traces whose newest span lies here: they leave memory when this slot closes."""
        self.first_offset: int | None = None
        """Smallest offset that must be read again to rebuild what this slot knows."""

    def hold(self, offset: int) -> None:
        """Note that rebuilding this slot needs the log from `offset` on."""
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset


class Cell:
    """One group's pane: its tally, and the last offset that touched it."""

    __slots__ = ("group", "idle_touched", "slot", "tally", "touched")

    def __init__(self, group: Group, slot: PaneSlot) -> None:
        self.group = group
        self.slot = slot
        self.tally = Tally()
        self.touched = -1
        self.idle_touched = -1
        """Value of `touched` when it was last published by an idle flush."""


class TraceState(msgspec.Struct, gc=False):  # gc=False: nothing it refers to refers back, and millions may live
    """One trace in memory."""

    spans: tuple[bytes, ...]
    """Kept spans, distinct by span id."""
    latest: PaneSlot
    first_offset: int
    cell: Cell | None = None
    """Where it is counted or waits. Its slot may have closed since: then it is there for good."""
    matched: bool = False
    """Its result is in the cell's tally."""
    recounted: bool = False
    """It was counted in a pane that has closed, and again in `cell`."""
    touched: int = -1
    oversize: bool = False
    mode: int = 0
    """The `_FROZEN` and `_OVERSIZE` bits when `cell` was found: what was added then must be taken out by the same rule."""


class TraceChange(NamedTuple):
    """A trace's row as of `touched`; the key is (group, pane, trace id)."""

    result: TraceResult
    touched: int


class PaneSnapshot(NamedTuple):
    """A cell as it is to be published."""

    group: Group
    pane: int
    tally: Tally
    touched: int
    kind: Literal["open", "idle", "final", "forced"]


class LateSpan(NamedTuple):
    """A span that came after its own pane had closed."""

    span: Span
    offset: int
    index: int
    pane: int
    watermark_ns: int


RowKey = tuple[Group, int, bytes]


class Changes:
    """What has to be published: taken by `JoinState.take_changes` at record boundaries only."""

    __slots__ = ("dirty", "finals", "late", "rows", "tombstones")

    def __init__(self) -> None:
        self.dirty: set[Cell] = set()
        self.finals: list[PaneSnapshot] = []
        self.rows: dict[RowKey, TraceChange] = {}
        self.tombstones: dict[RowKey, int] = {}
        """Old key to the offset at which the trace left it."""
        self.late: list[LateSpan] = []

    def __len__(self) -> int:
        return len(self.dirty) + len(self.finals) + len(self.rows) + len(self.tombstones) + len(self.late)


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

    def apply(self, span: Span, offset: int, index: int, record_ns: int) -> None:
        """Read one span of the record at `offset`. `record_ns`: the record's timestamp, which bounds its event time."""
        kinds = self.counters.spans
        kinds[span.kind] = kinds.get(span.kind, 0) + 1
        valid = EARLIEST_NS <= span.end_ns <= record_ns + self.policy.skew_ns
        if not valid:
            self.counters.bad_time += 1
            span = _with_record_time(span, record_ns)
        pane = span.end_ns // self.policy.pane_ns
        if pane <= self.closed_through:
            self.counters.late += 1
            self.changes.late.append(LateSpan(span, offset, index, pane, self.watermark_ns))
            return
        self._keep(span, pane, offset)
        if valid and span.end_ns > self.clock.max_event_ns:
            self.clock = self.clock.advanced(span.end_ns)
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
            for trace_id in slot.unmatched:
                trace = self.traces[trace_id]
                assert trace.cell is not None
                if trace.cell.idle_touched < trace.cell.touched:
                    change = TraceChange(self._score(trace_id, trace.spans, trace.mode), trace.touched)
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
        placed = None if trace is None else self._place(trace_id, trace.spans, trace.mode)
        return None if trace is None or placed is None else self._measure(placed, trace.mode)

    # -- one span ---------------------------------------------------------------------------------------------------

    def _keep(self, span: Span, pane: int, offset: int) -> None:
        slot = self.slots.get(pane)
        if slot is None:
            slot = self.slots[pane] = PaneSlot(pane)
        kept = pack(span, offset)
        trace_id = span.trace_id
        trace = self.traces.get(trace_id)
        if trace is None:
            trace = self.traces[trace_id] = TraceState((kept,), slot, offset)
            slot.latest.add(trace_id)
            slot.hold(offset)
            self._update(trace_id, trace, (), span, offset)
            return
        before = trace.spans
        after = self._with(before, kept)
        if after is before:
            self.counters.duplicates += 1
            return
        if pane > trace.latest.pane:
            trace.latest.latest.discard(trace_id)
            slot.latest.add(trace_id)
            trace.latest = slot
            after = self._without_old(after, pane)
        if len(after) > self.policy.trace_spans_max:
            # The smallest ids stay, so that what is kept does not depend on the order of arrival.
            after = tuple(sorted(after)[: self.policy.trace_spans_max])
            self.counters.oversize_traces += not trace.oversize
            trace.oversize = True
        trace.first_offset = min(int.from_bytes(kept[_OFFSET], "big") for kept in after)
        trace.latest.hold(trace.first_offset)
        trace.spans = after
        self._update(trace_id, trace, before, span, offset)

    def _with(self, spans: tuple[bytes, ...], kept: bytes) -> tuple[bytes, ...]:
        """`spans` and `kept`; of two copies of a span the richer stays. `spans` itself when nothing changes."""
        span_id = kept[_ID]
        for position, other in enumerate(spans):
            if other[_ID] == span_id:
                mine, theirs = kept[_BODY], other[_BODY]
                if (len(mine), mine) <= (len(theirs), theirs):
                    return spans
                richer = span_id + other[_OFFSET] + kept[_KIND:]
                return (*spans[:position], richer, *spans[position + 1 :])
        return (*spans, kept)

    def _without_old(self, spans: tuple[bytes, ...], latest_pane: int) -> tuple[bytes, ...]:
        oldest_ns = (latest_pane - self.policy.trace_panes_max + 1) * self.policy.pane_ns
        if all(_decode(kept[_BODY]).end_ns >= oldest_ns for kept in spans):
            return spans
        return tuple(kept for kept in spans if _decode(kept[_BODY]).end_ns >= oldest_ns)

    def _update(self, trace_id: bytes, trace: TraceState, before: tuple[bytes, ...], span: Span, offset: int) -> None:
        """Move the trace's contribution from what `before` amounts to, to what its spans amount to now."""
        if span.kind == _OTHER and self._changes_nothing(trace, before, span):
            return
        home = trace.cell
        if home is not None and home.slot.closed:
            home, trace.cell, trace.recounted = None, None, True
        mode = _FROZEN * self.clock.routes_frozen | _OVERSIZE * trace.oversize
        new = self._place(trace_id, trace.spans, mode)
        pane = None if new is None else new.event_ns // self.policy.pane_ns
        cell = None if new is None or pane is None or pane <= self.closed_through else self._cell(new.group, pane)
        if home is None and cell is None:
            return
        if home is not None and trace.matched:
            old = self._score(trace_id, before, trace.mode)
            if cell is home and new is not None and old == self._measure(new, mode):
                return
            home.tally.add(old, recounted=trace.recounted, sign=-1)
        self._leave(trace_id, home, cell, offset)
        trace.touched = offset
        trace.cell = cell
        trace.matched = False
        trace.mode = mode
        if cell is not None and new is not None:
            self._enter(trace, cell, new)

    def _changes_nothing(self, trace: TraceState, before: tuple[bytes, ...], span: Span) -> bool:
        """Whether a span that is neither retrieval nor generation is a mere repetition of what is known.

        It can matter by its route, by its parent link (once a kind occurs twice) and by replacing a span or dropping
        old ones (then fewer or as many are kept as before).
        """
        if len(trace.spans) <= len(before) or (trace.cell is not None and trace.cell.slot.closed):
            return False
        kinds = [kept[_KIND] for kept in trace.spans if kept[_KIND] != _OTHER]
        if not kinds:
            return True
        if len(kinds) != len(set(kinds)) or trace.cell is None:
            return False
        return not span.route or span.route == trace.cell.group.route

    def _leave(self, trace_id: bytes, home: Cell | None, cell: Cell | None, offset: int) -> None:
        if home is None:
            return
        home.touched = offset
        self.changes.dirty.add(home)
        home.slot.unmatched.discard(trace_id)
        key = (home.group, home.slot.pane, trace_id)
        self.changes.rows.pop(key, None)
        if cell is not home:
            self.changes.tombstones[key] = offset

    def _enter(self, trace: TraceState, cell: Cell, new: Placed) -> None:
        cell.touched = trace.touched
        self.changes.dirty.add(cell)
        # The trace may have newer spans of other kinds; this slot needs its first span all the same.
        cell.slot.hold(trace.first_offset)
        if new.matched:
            trace.matched = True
            result = self._measure(new, trace.mode)
            cell.tally.add(result, recounted=trace.recounted)
            self._set_row(cell, TraceChange(result, trace.touched))
        else:
            cell.slot.unmatched.add(new.trace_id)

    def _set_row(self, cell: Cell, change: TraceChange) -> None:
        key = (cell.group, cell.slot.pane, change.result.trace_id)
        self.changes.tombstones.pop(key, None)
        self.changes.rows[key] = change

    def _cell(self, group: Group, pane: int) -> Cell:
        slot = self.slots.get(pane)
        if slot is None:
            slot = self.slots[pane] = PaneSlot(pane)
        cell = slot.cells.get(group)
        if cell is None:
            cell = slot.cells[group] = Cell(group, slot)
            self.open_groups[group] = self.open_groups.get(group, 0) + 1
        return cell

    def _place(self, trace_id: bytes, spans: tuple[bytes, ...], mode: int) -> Placed | None:
        unpacked = [unpack(kept, trace_id) for kept in spans]
        return place(unpacked, self.scoring, routes_frozen=bool(mode & _FROZEN))

    def _measure(self, placed: Placed, mode: int) -> TraceResult:
        result = measure(placed, self.scoring)
        if mode & _OVERSIZE and result.matched:
            return msgspec.structs.replace(result, state=State.truncated, rank_weighted_recall=None, top1_score=None)
        return result

    def _score(self, trace_id: bytes, spans: tuple[bytes, ...], mode: int) -> TraceResult:
        placed = self._place(trace_id, spans, mode)
        assert placed is not None, "a placed trace has a retrieval or a generation"
        return self._measure(placed, mode)

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
                self.changes.dirty.discard(cell)
                self.changes.finals.append(PaneSnapshot(cell.group, pane, cell.tally, offset, kind))
                self._count_closed(cell)
            for trace_id in slot.latest:
                del self.traces[trace_id]
            slot.closed = True
            slot.latest = set()
            slot.unmatched = set()
        self.closed_through = max(self.closed_through, through)

    def _give_verdicts(self, slot: PaneSlot) -> None:
        for trace_id in slot.unmatched:
            trace = self.traces[trace_id]
            assert trace.cell is not None and trace.cell.slot is slot
            result = self._score(trace_id, trace.spans, trace.mode)
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
