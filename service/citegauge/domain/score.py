"""SCORE: a trace's result as a pure function of the set of its spans and the policy. No state, no time, no order.

Formulas (R = retrieved set in rank order, C = cited set, both de-duplicated):

* cited-chunk recall = |C ∩ R| / |R|
* rank-weighted recall = Σ 1/rank over C ∩ R  ÷  Σ 1/rank over R, rank 1 first
* top-1 score = score of the first document of the last stage that has scores

The recall is a proxy: a chunk that was never retrieved cannot be seen, and the ratio falls as |R| grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from citegauge.domain.distribution import RETRIEVED_MAX
from citegauge.domain.policy import RoutePolicy, ScorePolicy
from citegauge.domain.recall import Group, State, TraceResult
from citegauge.domain.span import CitationForm, Flag, Kind, Span

UNKNOWN = "unknown"
OTHER_ROUTE = "other"
# Plain integers: arithmetic on enum members costs more than the rest of the scoring together.
_RETRIEVAL, _RERANK, _GENERATION = int(Kind.RETRIEVAL), int(Kind.RERANK), int(Kind.GENERATION)
_INLINE = int(CitationForm.INLINE)
_TRUNCATED, _BAD_TIME, _DISTANCE = int(Flag.TRUNCATED), int(Flag.BAD_TIME), int(Flag.DISTANCE)
_SYNTHETIC_IDS, _RETRIEVED_IS_CITED = int(Flag.SYNTHETIC_IDS), int(Flag.RETRIEVED_IS_CITED)
_EXPECTS_JSON, _FILE_LEVEL_IDS = int(Flag.EXPECTS_JSON), int(Flag.FILE_LEVEL_IDS)
_FILE_LEVEL_CITATIONS = int(Flag.FILE_LEVEL_CITATIONS)
_MEASURED = State.measured

ANCESTORS_MAX = 1_000
"""How far parent links are followed; also what ends a cycle of parent links."""


def score(spans: Sequence[Span], policy: ScorePolicy, *, routes_frozen: bool = False) -> TraceResult | None:
    """The result of the distinct spans of one trace, in any order; None while it has no retrieval and no generation.

    `routes_frozen`: routes that the settings do not list are counted under `other`.
    """
    retrievals = [span for span in spans if span.kind == _RETRIEVAL]
    reranks = [span for span in spans if span.kind == _RERANK]
    generations = [span for span in spans if span.kind == _GENERATION]
    if len(spans) > 1:
        for found in (retrievals, reranks, generations):
            found.sort(key=_by_time)
    stages = retrievals + reranks
    if not stages and not generations:
        return None
    route = _route(spans, policy, routes_frozen)
    route_policy = policy.for_route(route)
    top_retrievals = _top_level(retrievals, spans)
    top_reranks = _top_level(reranks, spans)
    answer = _answer(generations, spans)
    finals = [span for span in (*stages, *generations) if span.final_ids]
    stage, retrieved = _retrieved(finals, top_reranks, top_retrievals)
    scored = next((found for found in (top_reranks, top_retrievals) if _has_scores(found)), None)
    citations = _citations(answer, retrieved, route_policy)
    nonconformant = _nonconformant(answer, route_policy, citations)
    state, matched = _state(
        stages=stages, used=stage, answer=answer, generations=generations, retrieved=retrieved,
        route_policy=route_policy, nonconformant=nonconformant,
    )
    if state == State.nonconformant and policy.nonconformant_as_zero:
        state = State.measured
    top_k = _top_k(top_reranks if stage is top_reranks else top_retrievals, top_retrievals, len(retrieved))
    return TraceResult(
        trace_id=spans[0].trace_id,
        state=state,
        matched=matched,
        event_ns=max(span.end_ns for span in (generations or stages)),
        group=Group(
            route,
            policy.buckets.label(top_k),
            _first(span.model for span in ([answer] if answer else []) + generations[::-1]),
            _first(span.retriever_version for span in stages),
            _first(span.scorer for span in _scorer_order(scored, top_reranks, top_retrievals)),
        ),
        top_k=top_k,
        retrieved=retrieved,
        scores=_aligned_scores(scored, retrieved),
        cited=citations.cited,
        cited_ranks=citations.ranks,
        hallucinated=citations.hallucinated,
        unresolved=citations.unresolved,
        ids_dropped=sum(span.ids_dropped for span in stage),
        rank_weighted_recall=_rank_weighted(citations.ranks, len(retrieved)) if state == State.measured else None,
        top1_score=_top1(scored, route_policy),
        nonconformant=nonconformant,
        synthetic_ids=any(span.flags & _SYNTHETIC_IDS for span in stage),
        retrieval_end_ns=max((span.end_ns for span in stages), default=0),
    )


def _by_time(span: Span) -> tuple[int, bytes]:
    return span.start_ns, span.span_id


def _route(spans: Iterable[Span], policy: ScorePolicy, routes_frozen: bool) -> str:
    """The route of the lowest rank; among equals the one nearest to the root, then the earliest."""
    best: Span | None = None
    for span in spans:
        if span.route and (best is None or _route_order(span) < _route_order(best)):
            best = span
    route = best.route if best is not None else UNKNOWN
    if (policy.only_listed_routes or routes_frozen) and route not in policy.routes:
        return OTHER_ROUTE
    return route


def _route_order(span: Span) -> tuple[int, bool, int, bytes]:
    return span.route_rank, bool(span.parent_id), span.start_ns, span.span_id


def _top_level(found: list[Span], spans: Sequence[Span]) -> list[Span]:
    """Those of `found` (all of one kind) that have no ancestor among them. Missing parents end the search."""
    if len(found) < 2:
        return found
    parents = {span.span_id: span.parent_id for span in spans}
    same_kind = {span.span_id for span in found}

    def nested(span: Span) -> bool:
        parent = span.parent_id
        for _ in range(ANCESTORS_MAX):
            if not parent:
                return False
            if parent in same_kind and parent != span.span_id:
                return True
            parent = parents.get(parent, b"")
        return False

    # A cycle of parent links would hide every span; then all of them stand.
    return [span for span in found if not nested(span)] or found


def _answer(generations: list[Span], spans: Sequence[Span]) -> Span | None:
    """The last-ending generation span with a captured answer that is not nested in another generation span."""
    captured = [span for span in _top_level(generations, spans) if span.citation_form] or [
        span for span in generations if span.citation_form
    ]
    return max(captured, key=lambda span: (span.end_ns, span.span_id), default=None)


def _unique(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def _retrieved(finals: list[Span], reranks: list[Span], retrievals: list[Span]) -> tuple[list[Span], list[str]]:
    """The last stage that has ids, and its ids: final context, else reranker output, else union of retrievers."""
    if finals:
        return finals, _unique(chunk for span in finals for chunk in span.final_ids or ())[:RETRIEVED_MAX]
    for stage in (reranks, retrievals):
        ids = _unique(chunk for span in stage for chunk in span.ids or ())
        if ids:
            return stage, ids[:RETRIEVED_MAX]
    return (reranks or retrievals), []


def _has_scores(stage: list[Span]) -> bool:
    return any(span.scores is not None or span.first_score is not None for span in stage)


def _scorer_order(scored: list[Span] | None, reranks: list[Span], retrievals: list[Span]) -> list[Span]:
    """A trace has one scorer: that of the stage whose scores are used; without scores, that of the last stage."""
    return scored if scored is not None else reranks or retrievals


def _first(values: Iterable[str]) -> str:
    return next((value for value in values if value), UNKNOWN)


def _top_k(stage: list[Span], retrievals: list[Span], n_retrieved: int) -> int:
    """The stage's own top_k, else the retrievers' (summed over a union of several), else the number retrieved."""
    for spans in (stage, retrievals):
        if spans and all(span.top_k for span in spans):
            return sum(span.top_k for span in spans)
    return n_retrieved


def _aligned_scores(scored: list[Span] | None, retrieved: list[str]) -> list[float | None]:
    if scored is None or not retrieved:
        return []
    by_id: dict[str, float | None] = {}
    for span in scored:
        for chunk, value in zip(span.ids or (), span.scores or (), strict=False):
            by_id.setdefault(chunk, value)
    return [by_id.get(chunk) for chunk in retrieved] if by_id else []


def _top1(scored: list[Span] | None, route_policy: RoutePolicy) -> float | None:
    if not scored:
        return None
    unusable = _TRUNCATED | _BAD_TIME
    if route_policy.score_direction == "higher":
        unusable |= _DISTANCE
    return None if scored[0].flags & unusable else scored[0].first_score


class _Citations:
    __slots__ = ("cited", "hallucinated", "ranks", "unresolved")

    def __init__(self, cited: list[str], hallucinated: list[str], ranks: list[int], unresolved: int) -> None:
        self.cited = cited
        self.hallucinated = hallucinated
        self.ranks = ranks
        self.unresolved = unresolved


def _citations(answer: Span | None, retrieved: list[str], route_policy: RoutePolicy) -> _Citations:
    """Resolve the answer's citations against the retrieved order. A position out of range never wraps."""
    if answer is None:
        return _Citations([], [], [], 0)
    unresolved = answer.unresolved
    named: list[str] = []
    for position in answer.positions or ():
        index = position - route_policy.position_base
        if 0 <= index < len(retrieved):
            named.append(retrieved[index])
        else:
            unresolved += 1
    cited = answer.cited or []
    if not named and not cited:
        return _Citations([], [], [], unresolved)
    rank_of = {chunk: rank for rank, chunk in enumerate(retrieved, start=1)}
    if answer.citation_form == _INLINE:
        cited = [token for token in cited if token in rank_of or _names_a_chunk(token)]
    unique = _unique((*cited, *named))
    ranks = sorted(rank_of[chunk] for chunk in unique if chunk in rank_of)
    return _Citations(unique, [chunk for chunk in unique if chunk not in rank_of], ranks, unresolved)


def _names_a_chunk(token: str) -> bool:
    """A bracketed word without a digit, such as `[sic]`, is not taken for a citation unless it was retrieved."""
    return any(character.isdigit() for character in token)


def _nonconformant(answer: Span | None, route_policy: RoutePolicy, citations: _Citations) -> bool:
    """The answer had to be structured, is not, and has no resolvable citation."""
    if answer is None or answer.citation_form != _INLINE or citations.ranks:
        return False
    if route_policy.answer_format == "auto":
        return bool(answer.flags & _EXPECTS_JSON)
    return route_policy.answer_format == "json"


def _state(
    *, stages: list[Span], used: list[Span], answer: Span | None, generations: list[Span], retrieved: list[str],
    route_policy: RoutePolicy, nonconformant: bool,
) -> tuple[State, bool]:
    """The state, and whether both halves are there. For an unmatched trace: its verdict at closing."""
    returned_nothing = not retrieved and any(span.ids == [] and not span.ids_dropped for span in stages)
    if not stages and not retrieved:
        return State.no_retrieval, False
    if not generations:
        return (State.empty_retrieval if returned_nothing else State.no_generation), False
    flags = 0
    for span in used:
        flags |= span.flags
    for span in generations:
        flags |= span.flags & _BAD_TIME
    if flags & _BAD_TIME:
        state = State.bad_time
    elif flags & _TRUNCATED:
        state = State.truncated
    elif not retrieved:
        state = State.empty_retrieval if returned_nothing else State.ids_missing
    elif flags & _RETRIEVED_IS_CITED:
        state = State.retrieved_is_cited
    elif not route_policy.cites:
        state = State.no_citation_format
    elif answer is None:
        state = State.no_output
    elif answer.flags & _FILE_LEVEL_CITATIONS and not all(span.flags & _FILE_LEVEL_IDS for span in used):
        state = State.granularity_mismatch
    elif nonconformant:
        state = State.nonconformant
    else:
        state = State.measured
    return state, True


def _rank_weighted(ranks: list[int], n_retrieved: int) -> float:
    return _harmonic(ranks) / _harmonic(range(1, n_retrieved + 1))


def _harmonic(ranks: Iterable[int]) -> float:
    return sum(1.0 / rank for rank in ranks)
