"""At every flush the stored panes are the sums of the stored trace rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citegauge.domain.changes import TraceChange
from citegauge.domain.distribution import add_counts, fraction_key, histogram_key
from citegauge.domain.join import JoinState
from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.domain.recall import Group, State
from citegauge.domain.score import Placed
from citegauge.domain.state import Cell, TraceState
from citegauge.pipeline import PartitionPipeline, Record, tally_of
from citegauge.ports import PaneRow, TraceRow
from support.core_logs import Log, Shape, random_log
from support.delivery import SOURCE, FakeClickHouse, group_of
from support.oracle import JUDGED

POLICIES = st.builds(
    JoinPolicy,
    join_window_ns=st.sampled_from([60, 120]).map(lambda s: s * SECOND_NS),
    trace_panes_max=st.sampled_from([5, 60]),
    trace_spans_max=st.sampled_from([4, 1_000]),
    traces_max=st.sampled_from([5, 10**6]),
    groups_max=st.sampled_from([4, 10**6]),
)
SHAPES = st.builds(
    Shape, traces=st.integers(1, 15), endless_traces=st.integers(0, 1), minutes=st.sampled_from([4.0, 12.0])
)
UNMATCHED = {State.no_generation.name, State.no_retrieval.name}
Key = tuple[int, Group]


def counted(rows: list[TraceRow]) -> Tally:
    """What trace rows amount to, from nothing but their own columns."""
    tally = Tally()
    for row in rows:
        add_counts(tally.states, {int(State[row.state]): 1})
        if row.state in JUDGED:
            tally.citations += row.cited_retrieved + len(row.hallucinated_ids) + row.unresolved
            tally.hallucinated += len(row.hallucinated_ids)
            tally.dropped_citations += len(row.dropped_cited_ids)
            tally.unresolved += row.unresolved
        else:
            assert row.hallucinated_ids == row.dropped_cited_ids == []
        tally.ids_dropped += row.ids_dropped
        tally.nonconformant += row.nonconformant
        tally.cited_top1 += row.recall is not None and 1 in row.cited_ranks
        tally.cited_top3 += row.recall is not None and any(rank <= 3 for rank in row.cited_ranks)
        tally.low_confidence += row.low_confidence is True
        tally.confidence_known += row.low_confidence is not None
        if row.recall is not None:
            add_counts(tally.recall_counts, {fraction_key(row.cited_retrieved, row.retrieved): 1})
        if row.rank_weighted_recall is not None:
            add_counts(tally.rank_weighted_counts, {histogram_key(row.rank_weighted_recall): 1})
        if row.top1_score is not None:
            add_counts(tally.score_counts, {histogram_key(row.top1_score): 1})
    return tally


def check_sums(store: FakeClickHouse, *, only_matched: bool) -> None:
    """Panes equal the sums of their rows. `only_matched`: leave out rows that an idle flush may have shown too early."""
    rows: dict[Key, list[TraceRow]] = defaultdict(list)
    for (pane, group, _), row in store.live_traces.items():
        if not only_matched or row.state not in UNMATCHED or store.panes[pane, group].final:
            rows[pane, group].append(row)
    assert rows.keys() <= store.panes.keys(), "a trace row without a pane"
    for key, pane_row in store.panes.items():
        tally, sums = tally_of(pane_row), counted(rows.get(key, []))
        tally.recounted = 0  # a row does not say so
        if only_matched and not pane_row.final:
            assert (tally.measured, tally.recall_counts) == (sums.measured, sums.recall_counts), key
        else:
            assert tally == sums, key


def read(log: Log, policy: JoinPolicy, rng: random.Random, *, idle: bool) -> FakeClickHouse:
    """Read the log, flush now and then, and look at the stores after every flush."""
    pipeline = PartitionPipeline(SOURCE, log.decode, policy, ScorePolicy(), Commit(0, 0, Clock()))
    store = FakeClickHouse()
    for record in log.records:
        pipeline.feed(Record(record.offset, record.timestamp_ns, b"%d" % record.offset))
        if rng.random() < 0.3 or record is log.records[-1]:
            wall_ns = pipeline.join.clock.max_event_ns + rng.choice([0, 300]) * SECOND_NS
            flush = pipeline.take_flush(idle_wall_ns=wall_ns if idle and rng.random() < 0.5 else None)
            store.insert_all([*flush.tombstones, *flush.traces, *flush.panes])
            check_sums(store, only_matched=idle)
    assert all(row.final for row in store.panes.values())
    check_sums(store, only_matched=False)
    return store


@settings(max_examples=60)
@given(st.integers(0, 10**9), SHAPES, POLICIES, st.booleans())
def test_panes_are_the_sums_of_the_rows(seed: int, shape: Shape, policy: JoinPolicy, idle: bool) -> None:
    """At every flush, with deletions applied, each pane is what its rows say; once closed, with the verdicts.

    Between an idle flush and the next touch a verdict may stand that the open pane no longer counts: such rows are left
    out while the pane is open.
    """
    rng = random.Random(seed)
    read(random_log(rng, shape), policy, rng, idle=idle)


def _no_touch_of_the_old_cell(patch: pytest.MonkeyPatch) -> None:
    """A trace that moves touches only where it goes."""
    leave = JoinState._leave

    def stay_clean(self: JoinState, trace_id: bytes, home: Cell, offset: int, *, gone: bool) -> None:
        touched, was_dirty = home.touched, home in self.changes.dirty
        leave(self, trace_id, home, offset, gone=gone)
        home.touched = touched
        if not was_dirty:
            self.changes.dirty.pop(home, None)

    patch.setattr(JoinState, "_leave", stay_clean)


def _no_deletion_of_the_unmatched(patch: pytest.MonkeyPatch) -> None:
    """No row is ever deleted."""
    leave = JoinState._leave

    def keep(self: JoinState, trace_id: bytes, home: Cell, offset: int, **_: bool) -> None:
        leave(self, trace_id, home, offset, gone=False)

    patch.setattr(JoinState, "_leave", keep)


def _rows_of_the_unmatched(patch: pytest.MonkeyPatch) -> None:
    """Rows go out before their traces count."""
    enter = JoinState._enter

    def show(self: JoinState, trace: TraceState, cell: Cell, new: Placed) -> None:
        enter(self, trace, cell, new)
        if not new.matched:
            self._set_row(cell, TraceChange(self._judge.measure(new, trace.spans, oversize=False), trace.touched))

    patch.setattr(JoinState, "_enter", show)


@pytest.mark.parametrize("mutate", [_no_touch_of_the_old_cell, _no_deletion_of_the_unmatched, _rows_of_the_unmatched])
def test_a_broken_sum_is_noticed(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: each of these faults breaks the sums at some flush."""
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        _read_many()


def _read_many() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        read(random_log(rng, Shape(traces=15)), JoinPolicy(join_window_ns=60 * SECOND_NS), rng, idle=False)


@given(st.integers(0, 10**9))
@settings(max_examples=20)
def test_a_pane_row_carries_its_tally(seed: int) -> None:
    """A tally is read back from its row, and only states that occur are named."""
    rng = random.Random(seed)
    store = read(random_log(rng, Shape(traces=6)), JoinPolicy(), rng, idle=False)
    for row in store.panes.values():
        tally = tally_of(row)
        assert tally.state_counts() == row.states
        assert all(row.states.values())
        assert tally_of(_again(row)) == tally
    assert all(group_of(row) == key[1] for key, row in store.panes.items())


def _again(row: PaneRow) -> PaneRow:
    return msgspec.json.decode(msgspec.json.encode(row), type=PaneRow)
