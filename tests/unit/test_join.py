"""The join by hand: time, lateness, moves, bounds. What a restart makes of it stands in the delivery rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import MappingProxyType

import msgspec
import pytest

from citegauge.domain.changes import Changes
from citegauge.domain.join import EARLIEST_NS, JoinState
from citegauge.domain.policy import MINUTE_NS, SECOND_NS, JoinPolicy, RoutePolicy, ScorePolicy
from citegauge.domain.recall import Group, State
from citegauge.domain.span import Flag, Kind, Span
from support.core_logs import T0_NS, generation, other, retrieval, trace_id

P0 = T0_NS // MINUTE_NS
POLICY = JoinPolicy()
FAR_NS = T0_NS * 2
"""A record timestamp that bounds nothing."""
CLOSING_S = 60 + 300 + 30
"""A span that ends so many seconds after the start of a pane closes it."""


class Driver:
    """A join that is fed span by span, each in a record of its own unless said otherwise."""

    def __init__(self, policy: JoinPolicy = POLICY, scoring: ScorePolicy | None = None) -> None:
        self.join = JoinState(policy, scoring or ScorePolicy())
        self.offset = -1

    def feed(self, *spans: Span, record_ns: int = FAR_NS) -> None:
        """Apply spans at rising offsets."""
        for span in spans:
            self.offset += 1
            self.join.apply(span, self.offset, 0, record_ns)

    def tick(self, end_s: float) -> None:
        """Move event time on by a span that belongs to nothing."""
        self.feed(other(9_000 + self.offset, end_s))

    def take(self) -> Changes:
        """What changed since the last call."""
        return self.join.take_changes()

    def pane(self, number: int, group: Group) -> dict[str, int]:
        """States counted in an open pane, counted from `T0_NS`."""
        slot = self.join.slots.get(P0 + number)
        cell = None if slot is None else slot.cells.get(group)
        return {} if cell is None else cell.tally.state_counts()


def finals(changes: Changes) -> dict[tuple[int, str], dict[str, int]]:
    """States of closed panes by (pane from `T0_NS`, route)."""
    return {(one.pane - P0, one.group.route): one.tally.state_counts() for one in changes.finals}


GROUP = Group("support", "1-5", "m1", "r7", "unknown")


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_watermark_trails_the_newest_span() -> None:
    """Event time is the newest valid end less the bound for disorder, and never moves back."""
    driver = Driver()
    assert driver.join.watermark_ns == 0
    driver.feed(retrieval(1, 100))
    driver.feed(retrieval(2, 50))
    assert driver.join.watermark_ns == T0_NS + 70 * SECOND_NS


def test_a_pane_closes_exactly_at_its_end_plus_the_join_window() -> None:
    """One nanosecond earlier it is open."""
    driver = Driver()
    driver.feed(retrieval(1, 0))
    driver.feed(other(2, CLOSING_S - 1e-9))
    assert driver.join.closed_through < P0
    driver.feed(other(3, CLOSING_S))
    assert driver.join.closed_through == P0
    assert finals(driver.take()) == {(0, "support"): {"no_generation": 1}}


@pytest.mark.parametrize(
    ("end_ns", "valid"),
    [
        (EARLIEST_NS, True),
        (EARLIEST_NS - 1, False),
        (0, False),
        (T0_NS // SECOND_NS, False),
        (T0_NS + 60 * SECOND_NS, True),
        (T0_NS + 60 * SECOND_NS + 1, False),
    ],
    ids=["2000", "before_2000", "1970", "seconds_as_ns", "skew", "beyond_skew"],
)
def test_a_wrong_clock_is_bad_time(end_ns: int, *, valid: bool) -> None:
    """A span outside [2000-01-01, record time + skew] does not advance event time and lies where its record lies."""
    driver = Driver()
    wrong = retrieval(1, 0, end_ns=end_ns, start_ns=end_ns)
    driver.feed(wrong, record_ns=T0_NS)
    assert driver.join.counters.bad_time == (not valid)
    assert driver.join.clock.max_event_ns == (end_ns if valid else 0)
    found = driver.join.result(trace_id(1))
    assert found is not None
    assert found.event_ns == (end_ns if valid else T0_NS)


def test_a_trace_with_a_wrong_clock_is_not_measured() -> None:
    """`bad_time` is a state of the trace, in the pane of its record."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 0, end_ns=5, start_ns=3), record_ns=T0_NS + MINUTE_NS)
    assert driver.pane(1, GROUP) == {"bad_time": 1}
    found = driver.join.result(trace_id(1))
    assert found is not None
    assert found.recall is None


# -- lateness ------------------------------------------------------------------------------------------------------------


def test_a_late_span_changes_nothing_but_the_late_table() -> None:
    """A span whose own pane is closed when it is read is reported with its source, and touches no trace."""
    driver = Driver()
    driver.feed(retrieval(1, 0))
    driver.tick(CLOSING_S)
    driver.take()
    before = driver.join.first_kept_offset
    driver.feed(generation(1, 30))
    changes = driver.take()
    assert [(late.offset, late.index, late.pane) for late in changes.late] == [(2, 0, P0)]
    assert changes.late[0].watermark_ns == driver.join.watermark_ns
    assert len(changes) == 1
    assert driver.join.first_kept_offset == before
    assert driver.join.counters.late == 1


def test_lateness_looks_at_the_spans_own_pane() -> None:
    """A span in an open pane is in time even when its trace was counted in a closed one: it counts again."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 1), other(1, 200))
    driver.tick(CLOSING_S)
    assert finals(driver.take()) == {(0, "support"): {"measured": 1}}
    driver.feed(generation(1, 250, ["c1"], number=7))
    slot = driver.join.slots[P0 + 4]
    (cell,) = slot.cells.values()
    assert cell.tally.state_counts() == {"measured": 1}
    assert cell.tally.recounted == 1
    driver.tick(2_000)
    changes = driver.take()
    assert finals(changes)[4, "support"] == {"measured": 1}
    assert not changes.tombstones, "the row in the closed pane stays"
    assert driver.join.counters.recounted == 1


def test_an_unmatched_trace_gets_its_verdict_at_closing_and_counts_again() -> None:
    """The half that comes after closing counts the trace a second time, in its own pane."""
    driver = Driver()
    driver.feed(retrieval(1, 0), other(1, 200))
    driver.tick(CLOSING_S)
    assert finals(driver.take()) == {(0, "support"): {"no_generation": 1}}
    driver.feed(generation(1, 390))
    assert driver.pane(6, GROUP) == {"measured": 1}
    driver.tick(2_000)
    assert driver.join.counters.recounted == 1


def test_a_retrieval_after_closing_adds_nothing() -> None:
    """A trace whose answer lies in a closed pane is counted there for good."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 1), other(1, 200))
    driver.tick(CLOSING_S)
    driver.take()
    driver.feed(retrieval(1, 300, number=7))
    assert len(driver.take()) == 0


# -- touching ------------------------------------------------------------------------------------------------------------


def test_a_late_route_moves_the_trace() -> None:
    """The route that arrives on the root moves the trace to its group; the old row is deleted, the old pane is emptied."""
    driver = Driver()
    driver.feed(retrieval(1, 0, route=""), generation(1, 1, route=""))
    first = driver.take()
    unknown = GROUP._replace(route="unknown")
    assert set(first.rows) == {(unknown, P0, trace_id(1))}
    driver.feed(other(1, 2, route="support", route_rank=0))
    moved = driver.take()
    assert moved.tombstones == {(unknown, P0, trace_id(1)): 2}
    assert set(moved.rows) == {(GROUP, P0, trace_id(1))}
    assert {(cell.group.route, cell.tally.traces, cell.touched) for cell in moved.dirty} == {
        ("unknown", 0, 2),
        ("support", 1, 2),
    }


def test_a_later_generation_moves_the_trace_to_another_pane() -> None:
    """The event time is the last generation's: while both panes are open, the trace moves."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 1))
    driver.take()
    driver.feed(generation(1, 70, number=7))
    moved = driver.take()
    assert moved.tombstones == {(GROUP, P0, trace_id(1)): 2}
    assert driver.pane(0, GROUP) == {}
    assert driver.pane(1, GROUP) == {"measured": 1}


def test_moving_there_and_back_leaves_one_row() -> None:
    """Of one key at most one row goes out, and it is the last one."""
    driver = Driver()
    driver.feed(retrieval(1, 0, route="", route_rank=255), generation(1, 1))
    driver.feed(other(1, 2, route="billing", route_rank=0))
    driver.feed(other(1, 2, number=4, route="support", route_rank=0, start_ns=T0_NS - 1))
    changes = driver.take()
    assert set(changes.rows) == {(GROUP, P0, trace_id(1))}
    assert (GROUP._replace(route="billing"), P0, trace_id(1)) in changes.tombstones
    assert not set(changes.rows) & set(changes.tombstones)


def test_a_richer_copy_wins_in_any_order() -> None:
    """Of two copies of a span the one that says more is used; a mere repetition touches nothing."""
    poor = retrieval(1, 0, None, number=1, route="", retriever_version="")
    rich = retrieval(1, 0, ["a", "b"])
    for order in permutations([poor, rich, generation(1, 1, ["a"])]):
        driver = Driver()
        driver.feed(*order)
        found = driver.join.result(trace_id(1))
        assert found is not None
        assert (found.retrieved, found.recall) == (["a", "b"], 0.5)
        driver.take()
        driver.feed(*order)
        assert len(driver.take()) == 0
        assert driver.join.counters.duplicates >= 3


def test_a_trace_that_becomes_unmatched_loses_its_row() -> None:
    """Its row was published and counts no longer: it is deleted until the verdict brings another."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 1, model=""))
    (key,) = driver.take().rows
    # A richer copy of the answer turns out to be no generation at all; the group stays the same.
    longer = generation(1, 1, ["c9"] * 40, model="")
    driver.feed(msgspec.structs.replace(longer, kind=int(Kind.OTHER)))
    changes = driver.take()
    assert [cell.tally.traces for cell in changes.dirty] == [0]
    assert changes.tombstones == {key: 2}
    driver.tick(CLOSING_S)
    assert driver.take().rows[key].result.state == State.no_generation


# -- memory and hold-back ------------------------------------------------------------------------------------------------


def test_a_trace_is_remembered_until_its_latest_span_is_closed() -> None:
    """Any kind of span prolongs it, and with it the offset that must be read again."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 1), other(1, 130))
    driver.tick(CLOSING_S + 60)
    assert driver.join.closed_through == P0 + 1
    assert trace_id(1) in driver.join.traces
    assert driver.join.first_kept_offset == 0
    driver.tick(CLOSING_S + 120)
    assert trace_id(1) not in driver.join.traces
    assert driver.join.first_kept_offset == 3


def test_a_mere_copy_prolongs_its_trace() -> None:
    """A poorer copy that ends later counts as seen: a replay that begins between the two would keep it as a span."""
    driver = Driver()
    driver.feed(retrieval(1, 0), retrieval(1, 130, None, scores=None, route=""))
    assert driver.join.counters.duplicates == 1
    driver.tick(CLOSING_S + 60)
    assert trace_id(1) in driver.join.traces
    assert driver.join.first_kept_offset == 0


def test_what_a_trace_left_behind_is_held() -> None:
    """An open pane that a trace has left must be rebuilt as well: emptied, not absent."""
    driver = Driver()
    driver.feed(retrieval(1, 0), generation(1, 1))
    driver.feed(generation(1, 70, number=7))
    driver.tick(80)
    assert driver.join.slots[P0].first_offset == 0
    assert driver.join.first_kept_offset == 0


def test_nothing_open_holds_nothing() -> None:
    """Without open panes there is no offset to keep."""
    driver = Driver()
    assert driver.join.first_kept_offset is None
    driver.feed(retrieval(1, 0))
    driver.join.close_all(0)
    assert driver.join.first_kept_offset is None
    assert not driver.join.traces


# -- bounds --------------------------------------------------------------------------------------------------------------


def test_the_trace_cap_forgets_old_spans() -> None:
    """A result uses the spans of its newest panes only, and what was dropped holds no offset."""
    driver = Driver(replace(POLICY, trace_panes_max=10))
    driver.feed(retrieval(1, 0, ["old"]))
    for minute in range(1, 12):
        driver.feed(other(1, 60 * minute, number=100 + minute))
    driver.feed(retrieval(1, 61 * 11, ["new"], number=50), generation(1, 61 * 11, ["new"], number=51))
    found = driver.join.result(trace_id(1))
    assert found is not None
    assert found.retrieved == ["new"]
    driver.tick(60 * 11 + CLOSING_S - 90)
    assert driver.join.first_kept_offset is not None
    assert driver.join.first_kept_offset > 0


def test_the_trace_cap_does_not_depend_on_the_order() -> None:
    """A span beyond the cap is left out also when it comes after the newer ones."""
    policy = replace(POLICY, trace_panes_max=3)
    spans = [retrieval(1, 0, ["old"]), retrieval(1, 190, ["new"], number=5), generation(1, 191, ["new"], number=6)]
    found = set()
    for order in permutations(spans):
        driver = Driver(policy)
        driver.feed(*order)
        result = driver.join.result(trace_id(1))
        assert result is not None
        found.add(tuple(result.retrieved))
    assert found == {("new",)}


def test_a_trace_that_lost_its_past_is_not_recounted() -> None:
    """What the cap dropped cannot decide whether a trace counts again: a replay would not see it."""
    driver = Driver(replace(POLICY, trace_panes_max=10))
    driver.feed(retrieval(1, 0), generation(1, 1))
    for minute in range(1, 12):
        driver.feed(other(1, 60 * minute, number=100 + minute))
    driver.feed(retrieval(1, 700, number=50), generation(1, 701, number=51))
    driver.tick(3_000)
    assert driver.join.counters.recounted == 0


def test_an_oversize_trace_is_truncated_in_any_order() -> None:
    """With too many spans a trace is `truncated`, in whatever order they came: no ratio, no score, no hallucinations."""
    policy = replace(POLICY, trace_spans_max=3)
    spans = [retrieval(1, 0, ["c9"]), generation(1, 1, ["c9", "z1"]), other(1, 2), other(1, 3, number=4)]
    for order in permutations(spans):
        driver = Driver(policy)
        driver.feed(*order[:3])
        full = driver.join.result(trace_id(1))
        assert full is None or full.state != State.truncated
        driver.feed(*order[3:], *order)
        found = driver.join.result(trace_id(1))
        assert found is not None
        assert (found.state, found.recall, found.top1_score) == (State.truncated, None, None)
        assert (found.cited, found.hallucinated) == (["c9", "z1"], [])
        assert driver.join.counters.oversize_traces == 1
        assert driver.pane(0, found.group) == {"truncated": 1}


def test_an_oversize_trace_is_judged_by_its_newest_spans() -> None:
    """It lies where its newest answer lies, in the group of its newest spans; half of one is `truncated`, too."""
    driver = Driver(replace(POLICY, trace_spans_max=3))
    driver.feed(*(retrieval(1, second, number=100 + second) for second in range(5)))
    half = driver.join.result(trace_id(1))
    assert half is not None
    assert (half.state, half.matched) == (State.truncated, False)
    driver.feed(
        generation(1, 10, ["c1"], number=200, model="m1"), generation(1, 70, ["new"], number=201, model="m2"),
        retrieval(1, 65, ["new"], number=202), other(1, 71, number=203, route="root", route_rank=0),
    )  # fmt: skip
    found = driver.join.result(trace_id(1))
    assert found is not None
    assert (found.group.route, found.group.model) == ("root", "m2")
    assert (found.state, found.retrieved, found.cited_ranks) == (State.truncated, ["new"], [1])
    assert driver.pane(1, found.group) == {"truncated": 1}
    assert not any(cell.tally.traces for cell in driver.join.slots[P0].cells.values())


def test_an_oversize_trace_that_rests_is_measured_again() -> None:
    """Once its old spans are beyond its newest panes, what is left is a trace like any other."""
    driver = Driver(replace(POLICY, trace_spans_max=3, trace_panes_max=3))
    driver.feed(*(other(1, second, number=100 + second) for second in range(9)))
    driver.feed(retrieval(1, 200, number=50), generation(1, 201, number=51))
    found = driver.join.result(trace_id(1))
    assert found is not None
    assert found.state == State.measured
    assert driver.join.first_kept_offset == 0, "the first minute is still open"
    driver.tick(CLOSING_S)
    assert driver.join.first_kept_offset == 9


def test_an_oversize_trace_keeps_its_newest_spans() -> None:
    """The kept number is bounded, and neither old nor repeated spans come back."""
    driver = Driver(replace(POLICY, trace_spans_max=3))
    spans = [other(1, second, number=100 + second) for second in range(10)]
    driver.feed(*spans)
    driver.feed(*spans[:3])
    kept = driver.join.traces[trace_id(1)]
    assert kept.crowd is not None
    assert len(kept.crowd) == 4
    assert kept.first_offset == 6


def test_forced_closing_closes_early() -> None:
    """An early closing gives verdicts, is marked, and makes later spans of its panes late; event time does not move."""
    driver = Driver()
    driver.feed(retrieval(1, 0), retrieval(2, 70))
    watermark = driver.join.watermark_ns
    driver.join.force_close(P0, driver.offset)
    changes = driver.take()
    assert [(one.pane, one.kind, one.touched) for one in changes.finals] == [(P0, "forced", 1)]
    assert driver.join.watermark_ns == watermark
    assert driver.join.clock.forced_through == P0
    driver.feed(generation(1, 30))
    assert driver.join.counters.late == 1
    assert set(driver.join.traces) == {trace_id(2)}


def test_frozen_routes_apply_to_what_changes_afterwards() -> None:
    """While frozen, unlisted routes are `other`; a trace keeps the rule under which it last changed."""
    scoring = ScorePolicy(routes=MappingProxyType({"listed": RoutePolicy()}))
    driver = Driver(scoring=scoring)
    driver.feed(retrieval(1, 0), generation(1, 1), retrieval(2, 0))
    driver.join.freeze_routes(True)
    driver.feed(generation(2, 1), retrieval(3, 0, route="listed"), generation(3, 1, route="listed"))
    states = {group.route: cell.tally.traces for group, cell in driver.join.slots[P0].cells.items()}
    assert states == {"support": 1, "other": 1, "listed": 1}
    driver.join.freeze_routes(False)
    driver.feed(other(2, 5))
    states = {
        group.route: cell.tally.traces for group, cell in driver.join.slots[P0].cells.items() if cell.tally.traces
    }
    assert states == {"support": 2, "listed": 1}


# -- idle flush ----------------------------------------------------------------------------------------------------------


def test_an_idle_flush_publishes_as_if_closed_and_changes_nothing() -> None:
    """It shows unmatched traces with their verdict once, closes nothing, and leaves the tallies as they were."""
    driver = Driver()
    driver.feed(retrieval(1, 0), retrieval(2, 0), generation(2, 1), retrieval(3, 130))
    driver.take()
    held = driver.join.first_kept_offset
    wall_ns = T0_NS + (60 + 300) * SECOND_NS
    assert list(driver.join.idle_snapshots(wall_ns - 1)) == []
    ((snapshot, rows),) = driver.join.idle_snapshots(wall_ns)
    # Trace 1 waits in another group than trace 2, whose model is known.
    assert (snapshot.pane, snapshot.kind, snapshot.tally.state_counts()) == (P0, "idle", {"no_generation": 1})
    assert [(row.result.trace_id, row.touched) for row in rows] == [(trace_id(1), 0)]
    assert list(driver.join.idle_snapshots(wall_ns)) == []
    assert len(driver.take()) == 0
    assert driver.join.first_kept_offset == held
    assert driver.join.closed_through < P0
    driver.feed(generation(1, 2))
    assert driver.pane(0, GROUP) == {"measured": 2}
    driver.tick(CLOSING_S)
    assert driver.join.counters.traces_closed[State.measured] == 2


def test_an_idle_flush_repeats_what_was_touched_since() -> None:
    """A cell that another trace touched is shown again, with all that wait in it."""
    driver = Driver()
    driver.feed(retrieval(1, 0))
    wall_ns = T0_NS + 10_000 * SECOND_NS
    assert len(list(driver.join.idle_snapshots(wall_ns))) == 1
    driver.feed(retrieval(2, 1))
    ((snapshot, rows),) = driver.join.idle_snapshots(wall_ns)
    assert snapshot.tally.state_counts() == {"no_generation": 2}
    assert sorted(row.touched for row in rows) == [0, 1]
    assert snapshot.touched == 1


def test_a_flag_of_the_record_time_survives_packing() -> None:
    """What the join marks as bad time stays marked when the span is unpacked again."""
    driver = Driver()
    driver.feed(retrieval(1, 0, end_ns=7, flags=Flag.SYNTHETIC_IDS), generation(1, 1), record_ns=T0_NS)
    found = driver.join.result(trace_id(1))
    assert found is not None
    assert found.synthetic_ids
    assert found.state == State.bad_time
