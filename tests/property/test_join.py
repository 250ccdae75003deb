"""The law of the join: without late spans and without traces longer than the join window, order, repetition and batching of
a log do not matter.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.changes import RowKey
from citegauge.domain.join import JoinState
from citegauge.domain.kept import pack, unpack
from citegauge.domain.pane import Tally
from citegauge.domain.policy import MINUTE_NS, SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import Group, TraceResult
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from support.core_logs import T0_NS, LogRecord, other, span_id, trace_id
from support.oracle import NUMBER_NAMES, tally_numbers, truth_of

RECORD_NS = T0_NS + 10 * MINUTE_NS
POLICY = JoinPolicy()
SCORING = ScorePolicy()
ids = st.lists(st.sampled_from(["c1", "c2", "c3", "c4"]), max_size=4)
Ends = tuple[dict[tuple[int, Group], Tally], dict[RowKey, TraceResult]]


@st.composite
def spans(draw: st.DrawFn) -> Span:
    """A span of one of few traces, within four minutes: less than the join window, so nothing is late."""
    kind = draw(st.sampled_from(Kind))
    end_ns = T0_NS + draw(st.integers(0, 4 * 60)) * SECOND_NS + draw(st.sampled_from([0, 1, SECOND_NS - 1]))
    return Span(
        trace_id=trace_id(draw(st.integers(1, 3))),
        span_id=span_id(draw(st.integers(1, 5))),
        parent_id=draw(st.sampled_from([b"", span_id(1), span_id(2)])),
        kind=kind,
        start_ns=end_ns - draw(st.integers(0, 2)) * SECOND_NS,
        end_ns=draw(st.sampled_from([end_ns, end_ns, end_ns, 0])),
        flags=draw(st.sampled_from([0, 0, 0, int(Flag.TRUNCATED)])),
        route=draw(st.sampled_from(["", "support", "search"])),
        route_rank=draw(st.integers(0, 2)),
        ids=draw(st.none() | ids) if kind in {Kind.RETRIEVAL, Kind.RERANK} else None,
        final_ids=draw(st.sampled_from([None, None, ["c2"]])),
        first_score=draw(st.none() | st.floats(0, 1)),
        top_k=draw(st.sampled_from([0, 3, 10])),
        cited=draw(ids) if kind == Kind.GENERATION else None,
        citation_form=draw(st.sampled_from(CitationForm)) if kind == Kind.GENERATION else 0,
        model=draw(st.sampled_from(["", "m1", "m2"])) if kind == Kind.GENERATION else "",
    )


class Reader:
    """Reads batches of spans, takes changes at chosen record boundaries, and applies them as the stores would."""

    def __init__(self, policy: JoinPolicy) -> None:
        self.join = JoinState(policy, SCORING)
        self.panes: dict[tuple[int, Group], Tally] = {}
        self.rows: dict[RowKey, TraceResult] = {}

    def read(self, records: list[list[Span]], rng: random.Random, *, by_watermark: bool) -> Ends:
        """All records, then everything is closed: by the end of the log, or by a far span's watermark."""
        for offset, record in enumerate(records):
            for index, span in enumerate(record):
                self.join.apply(span, offset, index, RECORD_NS)
            if rng.random() < 0.3:
                self._store()
        if by_watermark:
            self.join.apply(other(999, 5_000, number=1), len(records), 0, T0_NS * 2)
        else:
            self.join.close_all(len(records))
        self._store()
        assert self.join.counters.late == 0
        return {key: tally for key, tally in self.panes.items() if tally.states}, self.rows

    def _store(self) -> None:
        changes = self.join.take_changes()
        for key in changes.tombstones:
            self.rows.pop(key, None)
        self.rows.update({key: change.result for key, change in changes.rows.items()})
        for cell in changes.dirty:
            self.panes[cell.slot.pane, cell.group] = cell.tally.copy()
        for final in changes.finals:
            self.panes[final.pane, final.group] = final.tally.copy()


def batched(log: list[Span], rng: random.Random) -> list[list[Span]]:
    """The log cut into records of 1 to 6 spans."""
    records: list[list[Span]] = []
    while log:
        size = rng.randint(1, 6)
        records.append(log[:size])
        log = log[size:]
    return records


def check(log: list[Span], rng: random.Random | None, policy: JoinPolicy) -> None:
    """One reading in order against the oracle and, with `rng`, one that is shuffled, repeated and cut otherwise."""
    plain = Reader(policy).read([[span] for span in log], random.Random(0), by_watermark=False)
    if rng is not None:
        shuffled = log + [rng.choice(log) for _ in range(rng.randint(0, len(log)))]
        rng.shuffle(shuffled)
        assert Reader(policy).read(batched(shuffled, rng), rng, by_watermark=bool(rng.randint(0, 1))) == plain
    records = [LogRecord(offset=n, timestamp_ns=RECORD_NS, items=(span,)) for n, span in enumerate(log)]
    end = LogRecord(offset=len(log), timestamp_ns=T0_NS * 2, items=(other(999, 5_000, number=1),))
    truth = truth_of([*records, end], policy, SCORING)
    panes, rows = plain
    assert {(pane, group, trace): row for (group, pane, trace), row in rows.items()} == truth.rows
    assert {key: tally_numbers(tally) for key, tally in panes.items()} == {
        key: {name: numbers[name] for name in NUMBER_NAMES} for key, numbers in truth.panes.items() if numbers["states"]
    }


@given(st.lists(spans(), min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_order_repetition_and_batching_do_not_matter(log: list[Span], rng: random.Random) -> None:
    """Any permutation, duplication and batching of a log gives the same panes and rows, and they are the oracle's."""
    check(log, rng, POLICY)


@given(st.lists(spans(), min_size=1, max_size=25), st.randoms(use_true_random=False), st.integers(1, 4))
def test_oversize_traces_do_not_depend_on_order(log: list[Span], rng: random.Random, spans_max: int) -> None:
    """The same with traces that have too many spans, as long as a span's copies are equal."""
    distinct = {(span.trace_id, span.span_id): span for span in log}
    check(list(distinct.values()), rng, replace(POLICY, trace_spans_max=spans_max))


@given(st.lists(spans(), min_size=1, max_size=25), st.integers(1, 4))
def test_oversize_traces_with_unlike_copies_are_the_oracles(log: list[Span], spans_max: int) -> None:
    """Read once and in order, copies that say more, end later or are of another kind give what the oracle finds."""
    check(log, None, replace(POLICY, trace_spans_max=spans_max))


@given(spans(), st.integers(0, (1 << 47) - 1), st.integers(-1, 1 << 32))
def test_a_kept_span_is_read_back(span: Span, offset: int, closed_through: int) -> None:
    """Packing loses nothing."""
    assert unpack(pack(span, offset, closed_through), span.trace_id) == span
