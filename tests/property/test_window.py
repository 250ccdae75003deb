"""Windows against a naive recomputation from all panes, under any sequence of messages, closings, advances and restarts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.window import (
    MERGED,
    WINDOWS,
    AsOf,
    Heartbeat,
    RollUp,
    WindowStore,
    bounds,
    cell_of,
    roll_up,
    window_end_s,
)

T0_S = 1_764_460_800
SOURCES = ("a/0", "a/1")
GROUPS = [
    Group("support", "1-5", "m1", "r7", "bge"),
    Group("support", "1-5", "m2", "r7", "unknown"),
    Group("search", "1-5", "m1", "r7", "bge"),
]
MINUTES = st.one_of(
    # Around the end and around the start of every window, where mistakes live.
    *[st.integers(-length - 17, -length + 3) for length in (0, 60, 360, 1_440)],
    st.integers(-2_000, 100),
)
"""Minutes from the end of the windows."""


@st.composite
def tallies(draw: st.DrawFn) -> Tally:
    """A pane's tally; empty ones occur, because a pane can be emptied."""
    tally = Tally()
    measured = draw(st.integers(0, 3))
    if measured:
        tally.states = {int(State.measured): measured}
        tally.recall_counts = {fraction_key(draw(st.integers(0, 3)), 3): measured}
        tally.rank_weighted_counts = {histogram_key(draw(st.sampled_from([0.0, 0.5, 1.0]))): measured}
    silent = draw(st.integers(0, 2))
    if silent:
        tally.states[int(State.no_generation)] = silent
    scored = draw(st.integers(0, 2)) if tally.states else 0
    if scored:
        tally.score_counts = {histogram_key(draw(st.sampled_from([0.1, 0.9, -2.0]))): scored}
    tally.citations = draw(st.integers(0, 5))
    return tally


@dataclass(slots=True)
class Naive:
    """Everything ever accepted, by the words of the design."""

    end_s: int
    closed: dict[str, int] = field(default_factory=dict)
    panes: dict[tuple[str, int, Group], tuple[int, Tally]] = field(default_factory=dict)

    def upsert(self, source: str, pane_s: int, group: Group, version: int, tally: Tally) -> None:
        """The highest version wins until the source has closed the pane; what lies before every window is of no use."""
        known = self.panes.get((source, pane_s, group))
        useless = pane_s < bounds(WINDOWS[-1], self.end_s)[0]
        if pane_s > self.closed.get(source, -1) and not useless and (known is None or known[0] <= version):
            self.panes[source, pane_s, group] = (version, tally)

    def windows(self) -> dict[tuple[str, Group], tuple[int, int, Tally]]:
        """(window, group) to start, end and sum, recomputed from all panes; empty ones are left out."""
        found: dict[tuple[str, Group], tuple[int, int, Tally]] = {}
        for window in WINDOWS:
            start_s = (self.end_s - window.length_s) // window.cell_s * window.cell_s
            for (_, pane_s, group), (_, tally) in self.panes.items():
                if start_s <= pane_s < self.end_s:
                    found.setdefault((window.name, group), (start_s, self.end_s, Tally()))[2].merge(tally)
        return {key: one for key, one in found.items() if one[2].states}


class Windows(RuleBasedStateMachine):
    """Any sequence of what the cold tier does to a store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = WindowStore(T0_S)
        self.naive = Naive(T0_S)

    @rule(
        source=st.sampled_from(SOURCES),
        minute=MINUTES,
        group=st.sampled_from(GROUPS),
        version=st.integers(0, 4),
        tally=tallies(),
    )
    def upsert(self, source: str, minute: int, group: Group, version: int, tally: Tally) -> None:
        """A pane message: fresh, repeated, stale, or for a closed pane."""
        pane_s = self.naive.end_s + 60 * minute
        self.store.upsert(source, pane_s, group, version, tally.copy())
        self.naive.upsert(source, pane_s, group, version, tally)

    @rule(source=st.sampled_from(SOURCES), minute=MINUTES)
    def close(self, source: str, minute: int) -> None:
        """A closed marker: new, repeated or old."""
        through_s = self.naive.end_s + 60 * minute
        self.store.close(source, through_s)
        self.naive.closed[source] = max(self.naive.closed.get(source, -1), through_s)

    @rule(minutes=st.integers(-2, 3) | st.integers(-100, 100) | st.integers(0, 2_000))
    def advance(self, minutes: int) -> None:
        """As-of moves on; a step back changes nothing."""
        end_s = self.naive.end_s + 60 * minutes
        self.store.advance(end_s)
        self.naive.end_s = max(self.naive.end_s, end_s)

    @precondition(lambda self: self.naive.closed)
    @rule()
    def restart(self) -> None:
        """A new owner: closed panes folded by cell, later ones in detail, then as-of moves to where it was."""
        closed = self.naive.closed
        end_s = min(max(closed.values()) + 60, self.naive.end_s)
        store = WindowStore(end_s)
        for window in WINDOWS:
            start_s, _ = bounds(window, end_s)
            cells: dict[tuple[int, Group], Tally] = {}
            for (source, pane_s, group), (_, tally) in self.naive.panes.items():
                if start_s <= pane_s <= closed.get(source, -1) and pane_s < end_s:
                    cell = pane_s // window.cell_s * window.cell_s
                    cells.setdefault((cell, group), Tally()).merge(tally)
            for (cell, group), tally in cells.items():
                store.restore_cell(window, cell, group, tally)
        late = {key: one for key, one in self.naive.panes.items() if key[1] > closed.get(key[0], -1) or key[1] >= end_s}
        for (source, pane_s, group), (version, tally) in late.items():
            store.upsert(source, pane_s, group, version, tally)
        for source, through_s in closed.items():
            store.close(source, through_s)
        store.advance(self.naive.end_s)
        self.store = store

    @invariant()
    def windows_equal_the_naive_ones(self) -> None:
        """Every window of every group is the sum of its panes, with the documented bounds."""
        found = {
            (one.window.name, one.group): (one.start_s, one.end_s, one.tally) for one in self.store.group_windows()
        }
        assert found == self.naive.windows()

    @invariant()
    def cells_equal_the_naive_ones(self) -> None:
        """Each cell of each window has the moments of its panes, whether it was asked for before or not."""
        for window, keep in itertools.product(WINDOWS, (False, True, True)):
            start_s, end_s = bounds(window, self.naive.end_s)
            sums: dict[Group, dict[int, Tally]] = {}
            for (_, pane_s, group), (_, tally) in self.naive.panes.items():
                if start_s <= pane_s < end_s:
                    cell_s = pane_s // window.cell_s * window.cell_s
                    sums.setdefault(group, {}).setdefault(cell_s, Tally()).merge(tally)
            for group in {*sums, *self.store.groups()}:
                expected = [cell_of(cell_s, tally) for cell_s, tally in sorted(sums.get(group, {}).items())]
                found = self.store.cells(group, window, keep=keep)
                assert [cell for cell in found if cell.recall.n or cell.score.n] == [
                    cell for cell in expected if cell.recall.n or cell.score.n
                ]

    @invariant()
    def roll_ups_are_sums_of_groups(self) -> None:
        """Per window, route and bucket all groups merged; per scorer those with scores; and how many scorers there are."""
        groups = list(self.store.group_windows())
        expected: dict[tuple[str, Group], tuple[Tally, set[str]]] = {}
        for one in groups:
            for scorer in {MERGED} | ({one.group.scorer} if one.tally.score_counts else set()):
                key = (one.window.name, Group(one.group.route, one.group.top_k_bucket, MERGED, MERGED, scorer))
                tally, scorers = expected.setdefault(key, (Tally(), set()))
                tally.merge(one.tally)
                scorers |= {one.group.scorer} if one.tally.score_counts else set()
        found = {(one.window.name, one.group): (one.tally, one.scorers) for one in roll_up(groups)}
        assert found == {key: (tally, len(scorers)) for key, (tally, scorers) in expected.items()}

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        """Panes before the longest window are kept neither in detail nor folded."""
        oldest_s, _ = bounds(WINDOWS[-1], self.naive.end_s)
        assert all(pane_s >= oldest_s for _, pane_s in self.store._detail)
        for windows in self.store._groups.values():
            for roll in windows.rolls:
                assert all(cell_s >= bounds(roll.window, self.naive.end_s)[0] for cell_s in roll.cells)


Windows.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
test_windows_equal_a_naive_recomputation = Windows.TestCase


beats = st.builds(
    Heartbeat,
    st.integers(0, 100),
    st.integers(0, 100).map(lambda s: s * 10**9),
    st.booleans(),
    st.integers(0, 100).map(lambda s: s * 10**9),
)


@given(st.lists(st.tuples(st.sampled_from(SOURCES), beats, st.integers(0, 120)), max_size=20))
def test_as_of_never_moves_back(steps: list[tuple[str, Heartbeat, int]]) -> None:
    """As-of is the wall clock or the newest watermark seen, whichever rule holds, and only grows."""
    as_of, before = AsOf(10 * 10**9), 0
    for source, beat, wall_s in steps:
        as_of.beat(source, beat)
        wall_ns = wall_s * 10**9
        now = as_of.update(wall_ns)
        known = as_of.sources.values()
        live = all(one.caught_up and wall_ns - one.received_ns <= 10 * 10**9 for one in known)
        assert now == max(before, wall_ns if live else max(one.watermark_ns for one in known))
        before = now


@given(st.lists(st.tuples(st.sampled_from((*SOURCES, "gone/0", "gone/1")), beats, st.integers(0, 120)), max_size=20))
def test_as_of_is_that_of_the_topics_that_are_read(steps: list[tuple[str, Heartbeat, int]]) -> None:
    """From the first heartbeat of a topic that is read on, those of others change neither as-of nor what it waits for."""
    read = [step for step in steps if step[0] in SOURCES]
    if read:
        first = steps.index(read[0])
        steps = steps[first:]
    told, alone = AsOf(10 * 10**9, {"a"}), AsOf(10 * 10**9)
    for source, beat, wall_s in steps:
        told.beat(source, beat)
        if source in SOURCES or not read:
            alone.beat(source, beat)
        assert told.update(wall_s * 10**9) == alone.update(wall_s * 10**9)
        assert told.sources == alone.sources


@given(st.integers(0, 1 << 62))
def test_window_bounds(as_of_ns: int) -> None:
    """The end is the minute after as-of; the start lies on a cell and at most one cell before end - length."""
    end_s = window_end_s(as_of_ns)
    assert end_s % 60 == 0
    assert 0 < end_s - as_of_ns / 10**9 <= 60 or as_of_ns > 1 << 53
    for window in WINDOWS:
        start_s, end = bounds(window, end_s)
        assert end == end_s
        assert start_s % window.cell_s == 0
        assert 0 <= end_s - window.length_s - start_s < window.cell_s


def test_roll_up_keeps_its_inputs() -> None:
    """Merging into roll-ups changes none of the group tallies."""
    tally = Tally()
    tally.states = {0: 1}
    groups = [RollUp(WINDOWS[0], 0, 60, group, tally.copy(), 0) for group in GROUPS]
    list(roll_up(groups))
    assert all(one.tally == tally for one in groups)
