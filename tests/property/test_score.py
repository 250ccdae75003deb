"""The score of any set of spans: independent of order, and consistent in itself."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.policy import RoutePolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, State
from citegauge.domain.score import score
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from support.core_logs import T0_NS, span_id, trace_id
from support.oracle import JUDGED

CHUNKS = ["c1", "c2", "c3", "c4", "word"]
ids = st.lists(st.sampled_from(CHUNKS), max_size=6)
FLAGS = st.sampled_from([0, 0, 0, *[int(flag) for flag in Flag if flag]])


@st.composite
def traces(draw: st.DrawFn) -> list[Span]:
    """Distinct spans of one trace, with parent links of any shape."""
    numbers = draw(st.lists(st.integers(1, 8), min_size=1, max_size=8, unique=True))
    found: list[Span] = []
    for number in numbers:
        chunks = draw(st.none() | ids)
        scores = None if chunks is None else draw(st.none() | st.just([0.5, None, 0.25, 1.0, 0.0, None][: len(chunks)]))
        one = Span(
            trace_id=trace_id(1),
            span_id=span_id(number),
            parent_id=draw(st.sampled_from([b"", *[span_id(parent) for parent in (*numbers, 99)]])),
            kind=draw(st.sampled_from(Kind)),
            start_ns=T0_NS + draw(st.integers(0, 3)),
            end_ns=T0_NS + draw(st.integers(3, 6)),
            flags=draw(FLAGS),
            route=draw(st.sampled_from(["", "support", "search"])),
            route_rank=draw(st.integers(0, 2)),
            ids=chunks,
            ids_dropped=draw(st.integers(0, 1)),
            scores=scores,
            first_score=draw(st.none() | st.floats(-1, 1)),
            final_ids=draw(st.none() | st.none() | ids),
            top_k=draw(st.sampled_from([0, 3, 30])),
            retriever_version=draw(st.sampled_from(["", "r7", "r8"])),
            scorer=draw(st.sampled_from(["", "bge"])),
            model=draw(st.sampled_from(["", "m1"])),
            citation_form=draw(st.sampled_from(CitationForm)),
            cited=draw(st.none() | st.lists(st.sampled_from([*CHUNKS, "x9", "sic"]), max_size=5)),
            positions=draw(st.none() | st.lists(st.integers(-1, 8), max_size=3)),
            unresolved=draw(st.integers(0, 1)),
        )
        found.append(one)
    return found


policies = st.builds(
    ScorePolicy,
    default_route=st.builds(
        RoutePolicy,
        position_base=st.integers(0, 1),
        cites=st.sampled_from([True, True, False]),
        answer_format=st.sampled_from(["auto", "json", "text"]),
        score_direction=st.sampled_from(["higher", "lower"]),
    ),
    only_listed_routes=st.booleans(),
    nonconformant_as_zero=st.booleans(),
)


@given(traces(), policies, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_spans_does_not_matter(
    spans: list[Span], policy: ScorePolicy, frozen: bool, rng: random.Random
) -> None:
    """A trace's result is a function of the set of its spans."""
    shuffled = list(spans)
    rng.shuffle(shuffled)
    assert score(spans, policy, routes_frozen=frozen) == score(shuffled, policy, routes_frozen=frozen)


@given(traces(), policies)
def test_a_result_is_consistent(spans: list[Span], policy: ScorePolicy) -> None:
    """Sets are sets, cited splits into retrieved and hallucinated where one can know, and ratios are what they say."""
    found = score(spans, policy)
    if found is None:
        assert all(span.kind == Kind.OTHER for span in spans)
        return
    assert len(set(found.retrieved)) == len(found.retrieved)
    assert len(set(found.cited)) == len(found.cited)
    known = [chunk for chunk in found.cited if chunk in found.retrieved]
    assert sorted(known) == sorted(found.retrieved[rank - 1] for rank in found.cited_ranks)
    assert found.cited_ranks == sorted(set(found.cited_ranks))
    strange = [chunk for chunk in found.cited if chunk not in found.retrieved]
    assert found.hallucinated == (strange if STATE_NAMES[found.state] in JUDGED else [])
    assert set(found.dropped_cited) <= set(found.hallucinated)
    assert len(found.scores) in {0, len(found.retrieved)}
    assert found.event_ns in {span.end_ns for span in spans}
    measured = found.state == State.measured
    assert (found.recall is not None) == measured == (found.rank_weighted_recall is not None)
    if measured:
        assert found.matched
        assert found.recall == len(known) / len(found.retrieved)
        weights = [1 / rank for rank in range(1, len(found.retrieved) + 1)]
        weighted = sum(weights[rank - 1] for rank in found.cited_ranks) / sum(weights)
        assert found.rank_weighted_recall == pytest.approx(weighted, abs=1e-12)
    if not found.matched:
        assert found.state in {State.no_generation, State.no_retrieval, State.empty_retrieval}
