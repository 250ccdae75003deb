"""WINDOW: rolling 1 h, 6 h and 24 h as merges of panes. Pure; told the as-of time; knows no Kafka and no SQL.

Two small parts: `AsOf` says what time it is for the windows (from heartbeats), `WindowStore` keeps one owner's panes. What a
window's tally amounts to stands in `summary`.

A window is [start, end): end = the minute after as-of, start = (end - length) rounded down to the window's cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from citegauge.domain.distribution import fraction_value, histogram_value
from citegauge.domain.intervals import Moments, moments
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group

PANE_S = 60
MERGED = "*"


class WindowLength(NamedTuple):
    """One rolling window, all in seconds."""

    name: str
    length_s: int
    cell_s: int
    """Granularity of its start, and of what is kept for it."""


WINDOWS: tuple[WindowLength, ...] = (
    WindowLength("1h", 3_600, 60),
    WindowLength("6h", 6 * 3_600, 300),
    WindowLength("24h", 24 * 3_600, 900),
)


def bounds(window: WindowLength, end_s: int) -> tuple[int, int]:
    """[start, end) in unix seconds for an end at a whole minute."""
    return (end_s - window.length_s) // window.cell_s * window.cell_s, end_s


def window_end_s(as_of_ns: int) -> int:
    """The minute after as-of, in unix seconds."""
    return (as_of_ns // 1_000_000_000 // PANE_S + 1) * PANE_S


class RollUp(NamedTuple):
    """A window's tally under one key; `Group` fields are `*` where merged."""

    window: WindowLength
    start_s: int
    end_s: int
    group: Group
    tally: Tally
    scorers: int
    """How many scorers with scores are merged in it."""


class CellValues(NamedTuple):
    """What one cell of one group's window amounts to, for the detectors."""

    start_s: int
    recall: Moments
    score: Moments


def cell_of(start_s: int, tally: Tally) -> CellValues:
    """Of a cell's tally."""
    return CellValues(
        start_s, moments(tally.recall_counts, fraction_value), moments(tally.score_counts, histogram_value)
    )


class _Roll:
    """One window of one group over closed panes: cells by start, and their running sum."""

    __slots__ = ("cells", "end_s", "known", "start_s", "sum", "window")

    def __init__(self, window: WindowLength, end_s: int) -> None:
        self.window = window
        self.cells: dict[int, Tally] = {}
        self.known: dict[int, CellValues] = {}
        """What was computed of cells that have not changed since."""
        self.sum = Tally()
        self.start_s, self.end_s = bounds(window, end_s)

    def add(self, pane_s: int, tally: Tally) -> None:
        if pane_s < self.start_s:
            return
        assert pane_s < self.end_s
        cell_s = pane_s // self.window.cell_s * self.window.cell_s
        cell = self.cells.get(cell_s)
        if cell is None:
            cell = self.cells[cell_s] = Tally()
        cell.merge(tally)
        self.known.pop(cell_s, None)
        self.sum.merge(tally)

    def advance(self, end_s: int) -> None:
        self.start_s, self.end_s = bounds(self.window, end_s)
        for cell_s in [cell_s for cell_s in self.cells if cell_s < self.start_s]:
            self.sum.merge(self.cells.pop(cell_s), sign=-1)
            self.known.pop(cell_s, None)

    def cell(self, cell_s: int, keep: bool) -> CellValues:
        """What a cell amounts to; `keep` remembers it."""
        found = self.known.get(cell_s)
        if found is None:
            found = cell_of(cell_s, self.cells[cell_s])
            if keep:
                self.known[cell_s] = found
        return found


class _GroupWindows:
    """All windows of one group over closed panes. Panes at or after the end wait in `ahead`."""

    __slots__ = ("ahead", "rolls")

    def __init__(self, end_s: int) -> None:
        self.ahead: dict[int, Tally] = {}
        self.rolls = tuple(_Roll(window, end_s) for window in WINDOWS)

    def fold(self, pane_s: int, tally: Tally, end_s: int) -> None:
        if pane_s >= end_s:
            waiting = self.ahead.get(pane_s)
            if waiting is None:
                waiting = self.ahead[pane_s] = Tally()
            waiting.merge(tally)
            return
        for roll in self.rolls:
            roll.add(pane_s, tally)

    def advance(self, end_s: int) -> None:
        for roll in self.rolls:
            roll.advance(end_s)
        for pane_s in [pane_s for pane_s in self.ahead if pane_s < end_s]:
            tally = self.ahead.pop(pane_s)
            for roll in self.rolls:
                roll.add(pane_s, tally)

    @property
    def empty(self) -> bool:
        return not self.ahead and not any(roll.cells for roll in self.rolls)


class WindowStore:
    """The panes of one owner (a partition of the panes topic), and the windows over them.

    A source partition's pane is kept in detail, highest version winning, until that partition's closed marker passes it;
    then it is folded, and further messages for it are ignored.
    """

    def __init__(self, end_s: int = 0) -> None:
        self.end_s = end_s
        self.closed_through: dict[str, int] = {}
        """Newest closed pane by source, start in unix seconds."""
        self._detail: dict[tuple[str, int], dict[Group, tuple[int, Tally]]] = {}
        self._groups: dict[Group, _GroupWindows] = {}

    def upsert(self, source: str, pane_s: int, group: Group, version: int, tally: Tally) -> bool:
        """Take a pane as published. False when it is closed, not newer than what is known, or before every window."""
        if pane_s <= self.closed_through.get(source, -1) or pane_s < self.oldest_s:
            return False
        cells = self._detail.setdefault((source, pane_s), {})
        known = cells.get(group)
        if known is not None and known[0] > version:
            return False
        cells[group] = (version, tally)
        return True

    def close(self, source: str, through_s: int) -> None:
        """The source's panes up to `through_s` are final: fold them."""
        if through_s <= self.closed_through.get(source, -1):
            return
        self.closed_through[source] = through_s
        for key in [key for key in self._detail if key[0] == source and key[1] <= through_s]:
            for group, (_, tally) in self._detail.pop(key).items():
                self._windows(group).fold(key[1], tally, self.end_s)

    def restore_cell(self, window: WindowLength, cell_s: int, group: Group, tally: Tally) -> None:
        """Take the sum of closed panes of one cell of one window, as SQL folded it. Only before the first `upsert`."""
        rolls = self._windows(group).rolls
        next(roll for roll in rolls if roll.window == window).add(cell_s, tally)

    def advance(self, end_s: int) -> None:
        """Move the end of every window; it never moves back."""
        if end_s <= self.end_s:
            return
        self.end_s = end_s
        for key in [key for key in self._detail if key[1] < self.oldest_s]:
            del self._detail[key]  # of a source that stopped and never closed it
        for group in list(self._groups):
            windows = self._groups[group]
            windows.advance(end_s)
            if windows.empty:
                del self._groups[group]

    def is_closed(self, source: str, pane_s: int) -> bool:
        """Whether messages for this pane are of no more use."""
        return pane_s <= self.closed_through.get(source, -1)

    @property
    def oldest_s(self) -> int:
        """Start of the longest window: panes before it are in none."""
        return bounds(WINDOWS[-1], self.end_s)[0]

    @property
    def open_panes(self) -> int:
        """(source, pane) pairs kept in detail."""
        return len(self._detail)

    def group_windows(self, windows: Sequence[WindowLength] = WINDOWS) -> Iterator[RollUp]:
        """Each of these windows of every full group that has any trace in it."""
        open_cells: dict[Group, list[tuple[int, Tally]]] = {}
        for (_, pane_s), cells in self._detail.items():
            for group, (_, tally) in cells.items():
                open_cells.setdefault(group, []).append((pane_s, tally))
        for group in self._groups.keys() | open_cells.keys():
            closed = self._groups.get(group)
            for window in windows:
                start_s, end_s = bounds(window, self.end_s)
                tally = closed.rolls[WINDOWS.index(window)].sum.copy() if closed is not None else Tally()
                for pane_s, cell in open_cells.get(group, ()):
                    if start_s <= pane_s < end_s:
                        tally.merge(cell)
                if tally.states:
                    yield RollUp(window, start_s, end_s, group, tally, 1 if tally.score_counts else 0)

    def groups(self) -> list[Group]:
        """Every full group that any pane is known of."""
        found = dict.fromkeys(self._groups)
        for cells in self._detail.values():
            found |= dict.fromkeys(cells)
        return list(found)

    def cells(self, group: Group, window: WindowLength, *, keep: bool = False) -> list[CellValues]:
        """A group's cells of one window, closed and open panes together, oldest first; none where no pane is.

        `keep` remembers what closed panes amount to, for who asks every minute.
        """
        start_s, end_s = bounds(window, self.end_s)
        waiting: dict[int, Tally] = {}
        for (_, pane_s), panes in self._detail.items():
            known = panes.get(group)
            if known is not None and start_s <= pane_s < end_s:
                waiting.setdefault(pane_s // window.cell_s * window.cell_s, Tally()).merge(known[1])
        closed = self._groups.get(group)
        if closed is None:
            return [cell_of(cell_s, waiting[cell_s]) for cell_s in sorted(waiting)]
        roll = closed.rolls[WINDOWS.index(window)]
        found = []
        for cell_s in sorted(roll.cells.keys() | waiting.keys()):
            tally = waiting.get(cell_s)
            if tally is None:
                found.append(roll.cell(cell_s, keep))
            else:
                if cell_s in roll.cells:
                    tally.merge(roll.cells[cell_s])
                found.append(cell_of(cell_s, tally))
        return found

    def _windows(self, group: Group) -> _GroupWindows:
        windows = self._groups.get(group)
        if windows is None:
            windows = self._groups[group] = _GroupWindows(self.end_s)
        return windows


def roll_up(groups: Iterable[RollUp]) -> Iterator[RollUp]:
    """Per window and (route, top_k bucket): all merged (`*`), and one per scorer that has scores."""
    merged: dict[tuple[WindowLength, Group], tuple[RollUp, set[str]]] = {}
    for item in groups:
        scorers = [MERGED] + ([item.group.scorer] if item.tally.score_counts else [])
        for scorer in scorers:
            group = Group(item.group.route, item.group.top_k_bucket, MERGED, MERGED, scorer)
            key = (item.window, group)
            known = merged.get(key)
            if known is None:
                known = merged[key] = (item._replace(group=group, tally=item.tally.copy()), set())
            else:
                known[0].tally.merge(item.tally)
            if item.tally.score_counts:
                known[1].add(item.group.scorer)
    for item, found in merged.values():
        yield item._replace(scorers=len(found))


class Heartbeat(NamedTuple):
    """What a source partition says of itself at each publish."""

    closed_through_s: int
    watermark_ns: int
    caught_up: bool
    received_ns: int
    """Wall clock of the receiver."""


def _topic(source: str) -> str:
    return source.rpartition("/")[0]


class AsOf:
    """The time up to which the windows speak: the wall clock while every source is caught up, else the newest watermark.

    So windows empty when traffic stops, and stand still when the reader lags. Never moves back.

    A source is a topic's partition, `topic/partition`. One whose topic is no longer read falls silent for good and is not
    waited for. One of a topic that is read is waited for however long it is silent: nobody knows what is in it.
    """

    def __init__(
        self, stale_after_ns: int, topics: Collection[str] | None = None, rekeyed: Collection[str] = ()
    ) -> None:
        """`stale_after_ns`: a source that was silent for longer is not taken for caught up (three intervals).

        `topics`: those that are read; None for all. Until one of them is heard, those that are heard count: a worker that
        was told other topics than its neighbours must not stand still for that. `rekeyed`: topics in front of those, which
        the re-key stage reads: nothing is caught up before the stage has spoken of each of them, and while it is not itself.
        """
        self.stale_after_ns = stale_after_ns
        self.value_ns = 0
        self._topics = None if topics is None else frozenset(topics)
        self._rekeyed = frozenset(rekeyed)
        self._stage: dict[str, Heartbeat] = {}
        self._read: dict[str, Heartbeat] = {}
        self._unread: dict[str, Heartbeat] = {}

    def beat(self, source: str, heartbeat: Heartbeat) -> None:
        """Take a heartbeat."""
        if _topic(source) in self._rekeyed:
            self._stage[source] = heartbeat
            return
        (self._read if self._is_read(source) else self._unread)[source] = heartbeat

    def ignores(self, source: str) -> bool:
        """Whether nobody waits for this source, because its topic is not read."""
        return bool(self._read) and not self._is_read(source)

    @property
    def sources(self) -> Mapping[str, Heartbeat]:
        """The newest heartbeat of each source that is waited for."""
        return self._read or self._unread

    @property
    def ignored(self) -> Collection[str]:
        """Sources that were heard and are not waited for."""
        return self._unread.keys() if self._read else ()

    def _is_read(self, source: str) -> bool:
        return self._topics is None or _topic(source) in self._topics

    def update(self, wall_ns: int) -> int:
        """As-of in ns; 0 before the first heartbeat."""
        beats = self.sources.values()
        if beats:
            stage = self._rekeyed <= {_topic(source) for source in self._stage}
            live = stage and all(self._is_live(beat, wall_ns) for beat in (*beats, *self._stage.values()))
            now_ns = wall_ns if live else max(beat.watermark_ns for beat in beats)
            self.value_ns = max(self.value_ns, now_ns)
        return self.value_ns

    def _is_live(self, beat: Heartbeat, wall_ns: int) -> bool:
        return beat.caught_up and wall_ns - beat.received_ns <= self.stale_after_ns

    def caught_up(self, wall_ns: int) -> bool:
        """Whether as-of is the wall clock."""
        return self.value_ns > 0 and self.value_ns >= wall_ns
