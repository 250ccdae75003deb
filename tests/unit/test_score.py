"""Every formula and result state by hand, on spans that are built here."""

from __future__ import annotations

from itertools import permutations
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from citegauge.domain.pane import Tally
from citegauge.domain.policy import RoutePolicy, ScorePolicy, TopKBuckets
from citegauge.domain.recall import Group, State, TraceResult
from citegauge.domain.score import place, score
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from support.core_logs import generation, other, retrieval, span_id

POLICY = ScorePolicy()


def result(*spans: Span, policy: ScorePolicy = POLICY, **kwargs: Any) -> TraceResult:
    """The one result of these spans in any order."""
    found = [score(order, policy, **kwargs) for order in permutations(spans)]
    assert all(one == found[0] for one in found), "the result depends on the order"
    assert found[0] is not None
    return found[0]


def with_route(**fields: Any) -> ScorePolicy:
    """A policy for the route `support`."""
    return ScorePolicy(routes=MappingProxyType({"support": RoutePolicy(**fields)}))


def test_the_worked_example() -> None:
    """Of [c9, c1, c3] the answer cites c9, and c7 that nobody retrieved: recall 1/3, weight 1/(1+1/2+1/3), bucket 1-5."""
    found = result(retrieval(1, 0, ["c9", "c1", "c3"]), generation(1, 2, ["c9", "c7"]))
    assert found.state == State.measured
    assert found.recall == pytest.approx(1 / 3, abs=1e-15)
    assert found.hallucinated == ["c7"]
    assert found.cited == ["c9", "c7"]
    assert found.cited_ranks == [1]
    assert found.rank_weighted_recall == pytest.approx(1 / (1 + 1 / 2 + 1 / 3), abs=1e-15)
    assert found.group.top_k_bucket == "1-5"
    assert found.top1_score == 0.9


# -- states ------------------------------------------------------------------------------------------------------------


STATES: dict[State, tuple[list[Span], ScorePolicy]] = {
    State.measured: ([retrieval(1, 0), generation(1, 1)], POLICY),
    State.empty_retrieval: ([retrieval(1, 0, []), generation(1, 1, [])], POLICY),
    State.no_retrieval: ([generation(1, 1)], POLICY),
    State.no_generation: ([retrieval(1, 0)], POLICY),
    State.no_output: ([retrieval(1, 0), generation(1, 1, None)], POLICY),
    State.nonconformant: (
        [retrieval(1, 0), generation(1, 1, [], citation_form=CitationForm.INLINE, flags=Flag.EXPECTS_JSON)],
        POLICY,
    ),
    State.no_citation_format: ([retrieval(1, 0), generation(1, 1, [])], with_route(cites=False)),
    State.ids_missing: ([retrieval(1, 0, None), generation(1, 1)], POLICY),
    State.truncated: ([retrieval(1, 0, flags=Flag.TRUNCATED), generation(1, 1)], POLICY),
    State.granularity_mismatch: ([retrieval(1, 0), generation(1, 1, flags=Flag.FILE_LEVEL_CITATIONS)], POLICY),
    State.retrieved_is_cited: ([retrieval(1, 0, flags=Flag.RETRIEVED_IS_CITED), generation(1, 1)], POLICY),
    State.bad_time: ([retrieval(1, 0), generation(1, 1, flags=Flag.BAD_TIME)], POLICY),
}


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_every_state(state: State) -> None:
    """Each state has its cause, and only `measured` has ratios."""
    spans, policy = STATES[state]
    found = result(*spans, policy=policy)
    assert State(found.state) is state
    assert (found.recall is not None) is (state is State.measured)
    assert (found.rank_weighted_recall is not None) is (state is State.measured)


def test_an_answer_that_was_not_read_whole_is_not_measured() -> None:
    """What it cites is known in part, so a ratio would be a wrong one, and none of it is called hallucinated."""
    found = result(retrieval(1, 0), generation(1, 1, ["c9", "z1"], flags=Flag.CITATIONS_CUT))
    assert (found.state, found.recall, found.hallucinated) == (State.truncated, None, [])


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_a_citation_is_judged_only_where_the_retrieved_set_is_known(state: State) -> None:
    """A stray citation is hallucinated, and counted at all, in three states; in the others nobody can know."""
    spans, policy = STATES[state]
    astray = [msgspec.structs.replace(one, cited=["z1"], unresolved=1) if one.citation_form else one for one in spans]
    found = result(*astray, policy=policy)
    assert State(found.state) is state
    judged = state in {State.measured, State.nonconformant, State.empty_retrieval}
    answered = state not in {State.no_generation, State.no_output}
    assert found.cited == (["z1"] if answered else [])
    assert found.hallucinated == (["z1"] if judged else [])
    tally = Tally()
    tally.add(found)
    assert (tally.citations, tally.hallucinated, tally.unresolved) == ((2, 1, 1) if judged else (0, 0, 0))


@pytest.mark.parametrize("flags", [0, Flag.TRUNCATED], ids=["whole", "truncated"])
def test_what_a_cut_list_lacks_was_not_dropped_either(flags: int) -> None:
    """The reranker's list lacks `c7`, which the retriever returned: dropped, unless the list was cut off."""
    spans = (retrieval(1, 0, ["c9", "c7"]), retrieval(1, 1, ["c9"], kind=Kind.RERANK, number=9, flags=flags))
    found = result(*spans, generation(1, 2, ["c9", "c7"]))
    assert found.cited == ["c9", "c7"]
    assert found.hallucinated == found.dropped_cited == ([] if flags else ["c7"])
    tally = Tally()
    tally.add(found)
    assert (tally.citations, tally.dropped_citations) == ((0, 0) if flags else (2, 1))


def test_nothing_to_place() -> None:
    """A trace without retrieval and generation has no result."""
    assert score([other(1, 0, route="support")], POLICY) is None


def test_an_answer_that_cites_nothing_is_measured_as_zero() -> None:
    """A captured answer without citations has recall 0; one that was not captured has none."""
    silent = result(retrieval(1, 0), generation(1, 1, [], citation_form=CitationForm.INLINE))
    assert (silent.state, silent.recall, silent.nonconformant) == (State.measured, 0.0, False)


def test_an_unmatched_half_is_not_matched() -> None:
    """A half alone is not counted yet; a generation that brings the final context is whole."""
    assert not result(retrieval(1, 0)).matched
    assert not result(generation(1, 0)).matched
    assert result(generation(1, 0, ["a"], final_ids=["a", "b"])).matched


def test_an_empty_retrieval_without_answer() -> None:
    """A retriever that returned nothing explains itself also where no answer follows."""
    assert result(retrieval(1, 0, [])).state == State.empty_retrieval


def test_documents_without_ids_are_not_an_empty_retrieval() -> None:
    """Documents came, their ids did not: `ids_missing`, with the count of what was dropped."""
    found = result(retrieval(1, 0, [], ids_dropped=3), generation(1, 1, []))
    assert (found.state, found.ids_dropped) == (State.ids_missing, 3)


def test_nonconformant_as_zero() -> None:
    """Who wants it gets nonconformant answers as recall 0, still flagged."""
    spans, _ = STATES[State.nonconformant]
    found = result(*spans, policy=ScorePolicy(nonconformant_as_zero=True))
    assert (found.state, found.recall, found.nonconformant) == (State.measured, 0.0, True)


def test_a_route_can_demand_json() -> None:
    """`json`: text without resolvable citation is nonconformant; `text`: never; one valid citation is enough."""
    text = generation(1, 1, [], citation_form=CitationForm.INLINE, flags=Flag.EXPECTS_JSON)
    assert result(retrieval(1, 0), text, policy=with_route(answer_format="json")).state == State.nonconformant
    assert result(retrieval(1, 0), text, policy=with_route(answer_format="text")).state == State.measured
    cites = generation(1, 1, ["c1"], citation_form=CitationForm.INLINE)
    assert result(retrieval(1, 0), cites, policy=with_route(answer_format="json")).state == State.measured


def test_files_cited_and_files_retrieved_match() -> None:
    """Citing files is no mismatch where files were retrieved."""
    found = result(retrieval(1, 0, flags=Flag.FILE_LEVEL_IDS), generation(1, 1, flags=Flag.FILE_LEVEL_CITATIONS))
    assert found.state == State.measured


def test_a_bad_time_of_what_is_used_decides() -> None:
    """The flag matters on the retrieval that gave the ids as well."""
    assert result(retrieval(1, 0, flags=Flag.BAD_TIME), generation(1, 1)).state == State.bad_time


# -- stages ------------------------------------------------------------------------------------------------------------


def test_the_union_of_top_level_retrievers() -> None:
    """Two retrievers side by side are united in order of time; one inside another is its detail and stays out."""
    found = result(
        retrieval(1, 1, ["a", "b"], number=10, top_k=2),
        retrieval(1, 2, ["b", "c"], number=11, top_k=2),
        retrieval(1, 0.5, ["x", "y"], number=12, parent_id=span_id(13), top_k=9),
        other(1, 0.9, number=13, parent_id=span_id(10)),
        generation(1, 3, ["c"]),
    )
    assert found.retrieved == ["a", "b", "c"]
    assert found.top_k == 4
    assert found.recall == 1 / 3


def test_a_cycle_of_parent_links_hides_nothing() -> None:
    """Retrievers that are each other's ancestors all stand; a span that is its own parent stands too."""
    found = result(
        retrieval(1, 1, ["a"], number=10, parent_id=span_id(11)),
        retrieval(1, 2, ["b"], number=11, parent_id=span_id(10)),
        generation(1, 3, ["b"]),
    )
    assert found.retrieved == ["a", "b"]
    own = retrieval(1, 1, ["a"], number=10, parent_id=span_id(10))
    assert result(own, retrieval(1, 2, ["b"], number=11), generation(1, 3)).retrieved == ["a", "b"]


def test_a_cycle_beside_a_good_retriever() -> None:
    """A cycle of other spans above a retriever ends the search for ancestors."""
    found = result(
        retrieval(1, 1, ["a"], number=10, parent_id=span_id(20)),
        retrieval(1, 2, ["b"], number=11),
        other(1, 1, number=20, parent_id=span_id(21)),
        other(1, 1, number=21, parent_id=span_id(20)),
    )
    assert found.retrieved == ["a", "b"]


def test_the_reranker_is_the_last_stage() -> None:
    """Ids, top_k, score and scorer come from the reranker where it has them."""
    found = result(
        retrieval(1, 0, ["a", "b", "c", "d"], top_k=20, scorer="retriever:bm25"),
        retrieval(
            1,
            1,
            ["c", "a"],
            number=5,
            kind=Kind.RERANK,
            top_k=2,
            scorer="reranker:bge",
            scores=[3.0, 2.0],
            first_score=3.0,
        ),
        generation(1, 2, ["a"]),
    )
    assert found.retrieved == ["c", "a"]
    assert (found.recall, found.cited_ranks) == (0.5, [2])
    assert (found.top_k, found.group.top_k_bucket) == (2, "1-5")
    assert (found.top1_score, found.group.scorer, found.scores) == (3.0, "reranker:bge", [3.0, 2.0])


def test_a_reranker_without_ids_gives_its_scores_only() -> None:
    """The last stage with ids and the last stage with scores need not be the same."""
    found = result(
        retrieval(1, 0, ["a", "b"], scorer="retriever:bm25"),
        retrieval(1, 1, None, number=5, kind=Kind.RERANK, scorer="reranker:bge", first_score=7.5),
        generation(1, 2, ["a"]),
    )
    assert found.retrieved == ["a", "b"]
    assert (found.top1_score, found.group.scorer) == (7.5, "reranker:bge")


def test_a_reranker_alone_is_a_retrieval() -> None:
    """A trace with only a reranker before its answer is matched."""
    found = result(retrieval(1, 0, ["a"], kind=Kind.RERANK), generation(1, 1, ["a"]))
    assert (found.state, found.recall) == (State.measured, 1.0)


@pytest.mark.parametrize("where", ["retrieval", "generation"])
def test_final_context_ids_win(where: str) -> None:
    """What reached the model's context is the retrieved set, wherever the source says it."""
    finals: dict[str, Any] = {"final_ids": ["c3", "c1", "c3"]}
    found = result(
        retrieval(1, 0, ["c9", "c1", "c3"], **(finals if where == "retrieval" else {})),
        generation(1, 1, ["c1"], **(finals if where == "generation" else {})),
    )
    assert found.retrieved == ["c3", "c1"]
    assert (found.recall, found.cited_ranks) == (0.5, [2])
    assert found.scores == pytest.approx([0.7, 0.8])


def test_repeated_ids_count_once() -> None:
    """Both sets are de-duplicated, the first rank stands."""
    found = result(retrieval(1, 0, ["a", "b", "a"]), generation(1, 1, ["b", "b", "z", "z"]))
    assert (found.retrieved, found.cited, found.hallucinated) == (["a", "b"], ["b", "z"], ["z"])
    assert found.recall == 0.5


# -- citations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "positions", "cited", "unresolved"),
    [(1, [1, 3], ["c9", "c3"], 0), (0, [0, 2], ["c9", "c3"], 0), (1, [0, 4, -1], [], 3), (0, [3, -1], [], 2)],
)
def test_positions_resolve_against_the_retrieved_order(
    base: int, positions: list[int], cited: list[str], unresolved: int
) -> None:
    """`[1]` is the first chunk or, by setting, the second; out of range is unresolved and never wraps."""
    answer = generation(1, 1, [], citation_form=CitationForm.INLINE, positions=positions)
    found = result(retrieval(1, 0), answer, policy=with_route(position_base=base))
    assert (found.cited, found.unresolved) == (cited, unresolved)


def test_inline_words_without_digit_are_not_citations() -> None:
    """`[sic]` is no hallucination; a retrieved id without digit is a citation; explicit ids are taken at their word."""
    inline = generation(1, 1, ["sic", "doc", "c77"], citation_form=CitationForm.INLINE)
    found = result(retrieval(1, 0, ["doc", "b"]), inline)
    assert (found.cited, found.hallucinated) == (["doc", "c77"], ["c77"])
    assert result(retrieval(1, 0, ["doc"]), generation(1, 1, ["sic"])).hallucinated == ["sic"]


def test_the_last_captured_top_level_answer_counts() -> None:
    """Of several generations the last-ending one with an answer that is not nested in another gives the citations."""
    found = result(
        retrieval(1, 0),
        generation(1, 1, ["c1"], number=10, model="draft"),
        generation(1, 5, ["c3"], number=11, model="final"),
        generation(1, 6, None, number=12),
        generation(1, 7, ["c9", "c1"], number=13, parent_id=span_id(11), model="inner"),
    )
    assert (found.cited, found.group.model) == (["c3"], "final")
    assert found.event_ns == generation(1, 7).end_ns


def test_the_order_of_citation_is_kept() -> None:
    """Cited ids stand in the order of the answer, ranks ascend."""
    found = result(retrieval(1, 0), generation(1, 1, ["c3", "c9"]))
    assert (found.cited, found.cited_ranks) == (["c3", "c9"], [1, 3])


# -- scores ------------------------------------------------------------------------------------------------------------


def test_distances_are_not_scores() -> None:
    """A recorded distance is no top-1 score unless the route says that it means distances."""
    spans = retrieval(1, 0, flags=Flag.DISTANCE), generation(1, 1)
    assert result(*spans).top1_score is None
    assert result(*spans, policy=with_route(score_direction="lower")).top1_score == 0.9


@pytest.mark.parametrize("flag", [Flag.TRUNCATED, Flag.BAD_TIME])
def test_an_untrustworthy_span_has_no_top1_score(flag: Flag) -> None:
    """Where documents or times are wrong, the first score may be another document's."""
    assert result(retrieval(1, 0, flags=flag), generation(1, 1)).top1_score is None


def test_a_missing_first_score_is_missing() -> None:
    """The second document's score never stands in for the first one's."""
    found = result(retrieval(1, 0, ["a", "b"], scores=[None, 0.5], first_score=None), generation(1, 1))
    assert (found.top1_score, found.scores) == (None, [None, 0.5])


@pytest.mark.parametrize(
    ("below", "direction", "low"),
    [
        ({}, "higher", None),
        ({"other": 0.95}, "higher", None),
        ({"bge": 0.95}, "higher", True),
        ({"bge": 0.9}, "higher", False),
        ({"bge": 0.95}, "lower", False),
        ({"bge": 0.9}, "lower", False),
        ({"bge": 0.85}, "lower", True),
    ],
)
def test_low_confidence_is_below_the_threshold_of_route_and_scorer(
    below: dict[str, float], direction: str, low: bool | None
) -> None:
    """The threshold itself is good enough; without one for this scorer nothing is known; a distance is bad above it."""
    spans = retrieval(1, 0, scorer="bge"), generation(1, 1)
    assert (
        result(*spans, policy=with_route(low_confidence_below=below, score_direction=direction)).low_confidence is low
    )
    assert result(*spans).low_confidence is None


def test_without_a_score_no_confidence_is_known() -> None:
    """A score that is missing is not a low one."""
    spans = retrieval(1, 0, ["a"], scores=[None], first_score=None, scorer="bge"), generation(1, 1)
    assert result(*spans, policy=with_route(low_confidence_below={"bge": 0.5})).low_confidence is None


# -- groups ------------------------------------------------------------------------------------------------------------


def test_the_route_of_the_lowest_rank_wins() -> None:
    """A more specific key wins; among equals the root, then the earliest span."""
    found = result(
        retrieval(1, 0, route="by_retriever", route_rank=2),
        generation(1, 1, route="by_model", route_rank=2, parent_id=span_id(3)),
        other(1, 5, route="by_root", route_rank=0),
    )
    assert found.group.route == "by_root"
    nested = retrieval(1, 0, route="nested", route_rank=2, parent_id=span_id(2))
    assert result(nested, generation(1, 1, route="root", route_rank=2)).group.route == "root"
    assert result(retrieval(1, 0, route="first"), generation(1, 1, route="second")).group.route == "first"


def test_unknown_where_nothing_is_recorded() -> None:
    """Dimensions that nobody recorded are `unknown`."""
    bare = retrieval(1, 0, [], route="", retriever_version=""), generation(1, 1, [], route="", model="")
    found = result(*bare)
    assert found.group == ("unknown", "unknown", "unknown", "unknown", "unknown")


def test_listed_routes_survive() -> None:
    """Frozen routes and `only_listed_routes` turn unlisted routes into `other`, listed ones stay."""
    spans = retrieval(1, 0), generation(1, 1)
    assert result(*spans, routes_frozen=True).group.route == "other"
    assert result(*spans, policy=with_route(), routes_frozen=True).group.route == "support"
    listed = ScorePolicy(routes=MappingProxyType({"billing": RoutePolicy()}), only_listed_routes=True)
    assert result(*spans, policy=listed).group.route == "other"


@pytest.mark.parametrize(
    ("top_k", "ids", "bucket"),
    [
        (0, 3, "1-5"),
        (0, 0, "unknown"),
        (3, 8, "1-5"),
        (6, 2, "6-10"),
        (10, 2, "6-10"),
        (11, 2, "11-20"),
        (21, 2, "21-50"),
        (50, 2, "21-50"),
        (51, 2, "51+"),
        (10**9, 2, "51+"),
    ],
)
def test_top_k_bucket(top_k: int, ids: int, bucket: str) -> None:
    """The bucket comes from the span's top_k, else (top_k 0: not recorded) from the number retrieved."""
    found = result(retrieval(1, 0, [f"c{n}" for n in range(ids)], top_k=top_k), generation(1, 1, []))
    assert (found.top_k, found.group.top_k_bucket) == (top_k or ids, bucket)


def test_buckets_are_a_setting() -> None:
    """Other bounds give other labels."""
    buckets = TopKBuckets(upper_bounds=(1, 100))
    assert [buckets.label(k) for k in (-1, 0, 1, 2, 100, 101)] == [
        "unknown",
        "unknown",
        "1-1",
        "2-100",
        "2-100",
        "101+",
    ]


def test_event_time() -> None:
    """A trace's event time is its last generation's end, else its last retrieval's or reranker's."""
    assert result(retrieval(1, 9), generation(1, 4), other(1, 30)).event_ns == generation(1, 4).end_ns
    assert result(retrieval(1, 9), retrieval(1, 3, number=5)).event_ns == retrieval(1, 9).end_ns


def test_a_retrieved_set_beyond_the_key_is_cut() -> None:
    """More chunks than a fraction key can hold are cut off, and the trace stays measurable."""
    ids = [f"c{n}" for n in range(70_000)]
    found = score([retrieval(1, 0, ids, scores=None), generation(1, 1, ["c0"])], POLICY)
    assert found is not None
    assert len(found.retrieved) == 65_535
    assert found.recall == 1 / 65_535


def test_a_hallucinated_citation_that_a_stage_had_returned_is_told_apart() -> None:
    """`c7` was retrieved and dropped by the reranker, `c8` was never there: both are hallucinated, one was dropped."""
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["c9", "c7", "c1"], trace_id=b"t" * 16)
    reranker = Span(span_id=b"k" * 8, kind=2, end_ns=10**18 + 1, ids=["c1", "c9"], trace_id=b"t" * 16)
    answer = Span(
        span_id=b"g" * 8, kind=3, end_ns=10**18 + 2, citation_form=1, cited=["c9", "c7", "c8"], trace_id=b"t" * 16
    )
    result = score([retriever, reranker, answer], ScorePolicy())
    assert result is not None
    assert result.hallucinated == ["c7", "c8"]
    assert result.dropped_cited == ["c7"]
    assert result.cited_ranks == [2]


def test_positions_of_provider_blocks_do_not_follow_the_routes_base() -> None:
    """Decode has made them count from 1; the base of a route is about markers in its text."""
    policy = ScorePolicy(default_route=RoutePolicy(position_base=0))
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["a", "b"], trace_id=b"t" * 16)
    blocks = Span(span_id=b"g" * 8, kind=3, end_ns=10**18, citation_form=3, positions=[1], trace_id=b"t" * 16)
    inline = msgspec.structs.replace(blocks, citation_form=4)
    by_blocks, by_marker = score([retriever, blocks], policy), score([retriever, inline], policy)
    assert by_blocks is not None
    assert by_marker is not None
    assert (by_blocks.cited, by_marker.cited) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("positions", "cited", "unresolved"),
    [
        ([42], ["42"], 0),
        ([42, 99], ["42"], 1),
        ([3, 42], ["3", "42"], 0),
        ([1, 42], ["17"], 1),
        ([1, 2], ["17", "42"], 0),
        ([3], ["3"], 0),
        ([99], [], 1),
    ],
)
def test_numbers_may_be_the_chunks_own_ids(positions: list[int], cited: list[str], unresolved: int) -> None:
    """With integer ids `[42]` names chunk 42; one number that can only be a position makes all of them positions."""
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["17", "42", "3"], trace_id=b"t" * 16)
    answer = Span(span_id=b"g" * 8, kind=3, end_ns=10**18, citation_form=4, positions=positions, trace_id=b"t" * 16)
    found = result(retriever, answer)
    assert (sorted(found.cited), found.unresolved) == (sorted(cited), unresolved)


def test_positions_count_repeated_documents() -> None:
    """`[4]` of a list [a, b, b, c] is c, although the retrieved set has three members."""
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["a", "b", "b", "c"], trace_id=b"t" * 16)
    answer = Span(span_id=b"g" * 8, kind=3, end_ns=10**18, citation_form=4, positions=[4, 5], trace_id=b"t" * 16)
    result = score([retriever, answer], ScorePolicy())
    assert result is not None
    assert (result.retrieved, result.cited, result.unresolved) == (["a", "b", "c"], ["c"], 1)


def test_positions_behind_a_missing_id_are_not_measurable() -> None:
    """With a document without id in the list, `[2]` may be any chunk: no ratio, rather than credit for the wrong one."""
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["a", "c"], ids_dropped=1, trace_id=b"t" * 16)
    by_position = Span(span_id=b"g" * 8, kind=3, end_ns=10**18, citation_form=4, positions=[2], trace_id=b"t" * 16)
    by_id = msgspec.structs.replace(by_position, positions=None, cited=["c"], citation_form=1)
    first, second = score([retriever, by_position], ScorePolicy()), score([retriever, by_id], ScorePolicy())
    assert first is not None
    assert second is not None
    assert (first.state, first.recall) == (State.ids_missing, None)
    assert (second.state, second.recall) == (State.measured, 0.5)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    "changes", [{}, {"ids": []}, {"ids": ["a", "a", "b"]}, {"top_k": 7, "ids": ["a"]}, {"flags": 1}]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_span_alone_is_placed_as_among_others(kind: Kind, changes: dict[str, Any], frozen: bool) -> None:
    """The short way for a trace's first span finds what the long way finds beside a span that says nothing."""
    span = Span(
        span_id=b"s" * 8, kind=int(kind), start_ns=10**18, end_ns=10**18 + 5, route="support", route_rank=3,
        first_score=0.5, retriever_version="r7", scorer="x", model="m1", citation_form=1, trace_id=b"t" * 16,
    )  # fmt: skip
    span = msgspec.structs.replace(span, **changes)
    silent = Span(span_id=b"z" * 8, kind=0, start_ns=10**18 + 9, end_ns=10**18 + 9, trace_id=b"t" * 16)
    policy = ScorePolicy(routes=MappingProxyType({}))
    assert score([span], policy, routes_frozen=frozen) == score([span, silent], policy, routes_frozen=frozen)


def test_names_that_never_repeat_make_one_group_while_frozen() -> None:
    """Whatever spans name is `other` then, not the route alone; listed routes stay as they are."""
    policy = ScorePolicy(routes=MappingProxyType({"listed": RoutePolicy()}))

    def groups(route: str) -> set[Group]:
        found = set()
        for n in range(50):
            kept = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["a"], route=route or f"r{n}", trace_id=b"t" * 16,
                        retriever_version=f"build-{n}", scorer=f"s{n}")  # fmt: skip
            answer = Span(
                span_id=b"g" * 8, kind=3, end_ns=10**18, route=route or f"r{n}", model=f"m{n}", trace_id=b"t" * 16
            )
            for spans in ([kept], [answer], [kept, answer]):
                placed = place(spans, policy, routes_frozen=True)
                assert placed is not None
                found.add(placed.group)
        return found

    assert groups("") == {Group("other", bucket, "other", "other", "other") for bucket in ("1-5", "unknown")}
    assert len(groups("listed")) == 150


def test_scores_of_other_scorers_are_no_statistic() -> None:
    """A trace whose scorer became `other` has no top-1 score, alone or joined; recall and the chunks' scores stay."""
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["a", "b"], scores=[0.9, 0.5], first_score=0.9,
                     scorer="bge", trace_id=b"t" * 16)  # fmt: skip
    answer = Span(span_id=b"g" * 8, kind=3, end_ns=10**18, citation_form=1, cited=["a"], trace_id=b"t" * 16)
    policy = ScorePolicy(default_route=RoutePolicy(low_confidence_below=MappingProxyType({"bge": 1.0, "other": 1.0})))
    for spans in ([retriever], [retriever, answer]):
        usual, frozen = score(spans, policy), score(spans, policy, routes_frozen=True)
        assert usual is not None
        assert frozen is not None
        assert (usual.top1_score, usual.low_confidence) == (0.9, True)
        assert (frozen.group.scorer, frozen.top1_score, frozen.low_confidence) == ("other", None, None)
        assert (frozen.recall, frozen.scores, frozen.state) == (usual.recall, usual.scores, usual.state)


def test_numbers_of_a_citation_engine_name_no_chunk() -> None:
    """Where a route says that its numbers count re-split sources, `[1]` credits nobody and the trace is not measured."""
    policy = ScorePolicy(default_route=RoutePolicy(numbers_name_chunks=False))
    retriever = Span(span_id=b"r" * 8, kind=1, end_ns=10**18, ids=["a", "b"], trace_id=b"t" * 16)
    answer = Span(span_id=b"g" * 8, kind=3, end_ns=10**18, citation_form=4, positions=[1], trace_id=b"t" * 16)
    result = score([retriever, answer], policy)
    assert result is not None
    assert (result.state, result.cited, result.unresolved) == (State.granularity_mismatch, [], 1)
