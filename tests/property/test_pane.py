"""Laws of the tally: order, merging and taking back leave no trace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.pane import Tally
from citegauge.domain.recall import STATE_NAMES, Group, State, TraceResult
from citegauge.domain.summary import shares
from support.oracle import JUDGED, pane_numbers

GROUP = Group("support", "1-5", "m1", "r7", "unknown")


@st.composite
def results(draw: st.DrawFn) -> TraceResult:
    """A trace's result with any state and counters."""
    state = draw(st.sampled_from(State))
    retrieved = [f"c{n}" for n in range(draw(st.integers(1, 6)))]
    ranks = sorted(draw(st.sets(st.integers(1, len(retrieved)))))
    measured = state == State.measured
    score = draw(st.none() | st.floats(-10, 10))
    return TraceResult(
        trace_id=bytes(16),
        state=state,
        matched=True,
        event_ns=0,
        group=GROUP,
        top_k=len(retrieved),
        retrieved=retrieved,
        scores=[],
        cited=[retrieved[rank - 1] for rank in ranks],
        cited_ranks=ranks,
        hallucinated=[f"x{n}" for n in range(draw(st.integers(0, 2)))],
        unresolved=draw(st.integers(0, 2)),
        ids_dropped=draw(st.integers(0, 2)),
        rank_weighted_recall=draw(st.floats(0, 1)) if measured else None,
        top1_score=score,
        nonconformant=draw(st.booleans()),
        synthetic_ids=False,
        retrieval_end_ns=0,
        low_confidence=None if score is None else draw(st.none() | st.booleans()),
    )


counted = st.lists(st.tuples(results(), st.booleans()), max_size=12)


def tally_of(found: list[tuple[TraceResult, bool]]) -> Tally:
    """Their sum."""
    tally = Tally()
    for result, recounted in found:
        tally.add(result, recounted=recounted)
    return tally


@given(counted, st.randoms(use_true_random=False))
def test_order_does_not_matter(found: list[tuple[TraceResult, bool]], rng: object) -> None:
    """Any order of the same traces gives the same tally, and it equals the plain sums."""
    shuffled = list(found)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    tally = tally_of(found)
    assert tally_of(shuffled) == tally
    numbers = pane_numbers(found)
    assert tally.state_counts() == numbers.pop("states")
    assert {name: getattr(tally, name) for name in numbers} == numbers
    assert tally.traces == len(found)
    assert tally.measured == sum(result.state == State.measured for result, _ in found)
    assert tally.cited_any == sum(result.state == State.measured and bool(result.cited_ranks) for result, _ in found)


@given(counted, counted, counted)
def test_merging_is_commutative_and_associative(
    one: list[tuple[TraceResult, bool]], two: list[tuple[TraceResult, bool]], three: list[tuple[TraceResult, bool]]
) -> None:
    """How partial tallies are put together does not matter: it is the tally of all their traces."""
    whole = tally_of(one + two + three)
    left, right = tally_of(one), tally_of(two)
    left.merge(tally_of(two))
    left.merge(tally_of(three))
    right.merge(tally_of(three))
    other_way = tally_of(one)
    other_way.merge(right)
    back = tally_of(three)
    back.merge(tally_of(two))
    back.merge(tally_of(one))
    assert left == other_way == back == whole


@given(counted, counted)
def test_subtracting_undoes_adding(one: list[tuple[TraceResult, bool]], two: list[tuple[TraceResult, bool]]) -> None:
    """Taking traces or a tally back leaves exactly what was there before, down to absent keys."""
    tally = tally_of(one)
    for result, recounted in two:
        tally.add(result, recounted=recounted)
    for result, recounted in reversed(two):
        tally.add(result, recounted=recounted, sign=-1)
    assert tally == tally_of(one)
    tally.merge(tally_of(two))
    tally.merge(tally_of(two), sign=-1)
    assert tally == tally_of(one)


@given(counted)
def test_what_nobody_can_know_moves_no_share_of_citations(found: list[tuple[TraceResult, bool]]) -> None:
    """Without the traces whose citations cannot be judged, each count of citations is the same."""
    tally = tally_of(found)
    judged = tally_of([pair for pair in found if STATE_NAMES[pair[0].state] in JUDGED])
    for name in ("citations", "hallucinated", "dropped_citations", "unresolved"):
        assert getattr(tally, name) == getattr(judged, name)
    assert shares(tally)["hallucinated"] == shares(judged)["hallucinated"]
    assert tally.hallucinated + tally.unresolved <= tally.citations


@given(counted, results())
def test_a_copy_is_independent(found: list[tuple[TraceResult, bool]], more: TraceResult) -> None:
    """Counting into a copy does not change the original."""
    tally = tally_of(found)
    twin = tally.copy()
    assert twin == tally
    twin.add(more)
    assert tally == tally_of(found)
    assert twin != tally


@given(counted)
def test_state_names_round_trip(found: list[tuple[TraceResult, bool]]) -> None:
    """States by public name are read back as they were."""
    tally = tally_of(found)
    twin = tally.copy()
    twin.set_state_counts(tally.state_counts())
    assert twin == tally
    assert set(tally.state_counts()) <= set(STATE_NAMES)
