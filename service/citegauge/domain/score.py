"""SCORE: a trace's result as a pure function of the set of its spans and the policy. No state, no time, no order.

Formulas (R = retrieved set in rank order, C = cited set, both de-duplicated):

* cited-chunk recall = |C ∩ R| / |R|
* rank-weighted recall = Σ 1/rank over C ∩ R  ÷  Σ 1/rank over R, rank 1 first
* top-1 score = score of the first document of the last stage that has scores
* low confidence: top-1 score below the route's threshold for the scorer (of distances, above it)

The recall is a proxy: a chunk that was never retrieved cannot be seen, and the ratio falls as |R| grows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec

from citegauge.domain.distribution import RETRIEVED_MAX
from citegauge.domain.policy import RoutePolicy, ScorePolicy
from citegauge.domain.recall import CITATIONS_JUDGED, Group, State, TraceResult
from citegauge.domain.resolve import Resolved, resolve
from citegauge.domain.span import CitationForm, Flag, Kind, Span

UNKNOWN = "unknown"
OTHER = "other"
# Plain integers: arithmetic on enum members costs more than the rest of the scoring together.
_RETRIEVAL, _RERANK, _GENERATION = int(Kind.RETRIEVAL), int(Kind.RERANK), int(Kind.GENERATION)
_INLINE = int(CitationForm.INLINE)
_TRUNCATED, _BAD_TIME, _DISTANCE = int(Flag.TRUNCATED), int(Flag.BAD_TIME), int(Flag.DISTANCE)
_SYNTHETIC_IDS, _RETRIEVED_IS_CITED = int(Flag.SYNTHETIC_IDS), int(Flag.RETRIEVED_IS_CITED)
_EXPECTS_JSON, _FILE_LEVEL_IDS = int(Flag.EXPECTS_JSON), int(Flag.FILE_LEVEL_IDS)
_FILE_LEVEL_CITATIONS, _CITATIONS_CUT = int(Flag.FILE_LEVEL_CITATIONS), int(Flag.CITATIONS_CUT)
_MEASURED = State.measured

ANCESTORS_MAX = 1_000
"""How far parent links are followed; also what ends a cycle of parent links."""


class Placed(msgspec.Struct, gc=False):
    """Where a trace belongs, and what `measure` needs to go on. Cheap, since every span asks for it."""

    trace_id: bytes
    event_ns: int
    group: Group
    matched: bool
    """Both halves are there."""
    top_k: int
    retrieved: list[str]
    used: list[Span]
    """The stage that gave `retrieved`."""
    scored: list[Span] | None
    """The last stage that has scores."""
    stages: list[Span]
    generations: list[Span]
    answer: Span | None
    route_policy: RoutePolicy
    folded: bool = False
    """Its scorer became `other`, so its score is no score of any: those of different scorers are never mixed."""


def score(spans: Sequence[Span], policy: ScorePolicy, *, routes_frozen: bool = False) -> TraceResult | None:
    """The result of the distinct spans of one trace, in any order; None while it has no retrieval and no generation.

    `routes_frozen`: routes that the settings do not list are counted under `other`, and of these also model, retriever
    version and scorer are `other`; they have no top-1 score then.
    """
    placed = place(spans, policy, routes_frozen=routes_frozen)
    return None if placed is None else measure(placed, policy)


def place(spans: Sequence[Span], policy: ScorePolicy, *, routes_frozen: bool = False) -> Placed | None:
    """Group and event time of a trace; None while it has no retrieval and no generation."""
    if len(spans) == 1 and not spans[0].final_ids:
        return _place_alone(spans[0], policy, routes_frozen)
    retrievals: list[Span] = []
    reranks: list[Span] = []
    generations: list[Span] = []
    for span in sorted(spans, key=_by_time):
        kind = span.kind
        if kind == _RETRIEVAL:
            retrievals.append(span)
        elif kind == _GENERATION:
            generations.append(span)
        elif kind == _RERANK:
            reranks.append(span)
    stages = retrievals + reranks if reranks else retrievals
    if not stages and not generations:
        return None
    route = _route(spans, policy, routes_frozen)
    top_retrievals = retrievals if len(retrievals) < 2 else _top_level(retrievals, spans)
    top_reranks = reranks if len(reranks) < 2 else _top_level(reranks, spans)
    answer = _answer(generations, spans) if generations else None
    used, retrieved = _retrieved(stages, generations, top_reranks, top_retrievals)
    scored = top_reranks if _has_scores(top_reranks) else top_retrievals if _has_scores(top_retrievals) else None
    top_k = _top_k(top_reranks if used is top_reranks else top_retrievals, top_retrievals, len(retrieved))
    model = answer.model if answer is not None and answer.model else _last_model(generations)
    version = scorer = UNKNOWN
    for span in stages:
        if span.retriever_version:
            version = span.retriever_version
            break
    for span in scored if scored is not None else top_reranks or top_retrievals:
        if span.scorer:
            scorer = span.scorer
            break
    folded = routes_frozen and route == OTHER
    if folded:  # names that never repeat would make groups without bound
        model = version = scorer = OTHER
    group = Group(route, policy.buckets.label(top_k), model, version, scorer)
    matched = bool(generations) and bool(stages or retrieved)
    return Placed(
        spans[0].trace_id, _latest_end(generations or stages), group, matched, top_k, retrieved, used, scored, stages,
        generations, answer, policy.for_route(route), folded,
    )  # fmt: skip


def _place_alone(span: Span, policy: ScorePolicy, routes_frozen: bool) -> Placed | None:
    """What `place` finds for the first span of a trace, which is half of all spans, without looking for what cannot be."""
    route = _mapped(span.route or UNKNOWN, policy, routes_frozen)
    folded = routes_frozen and route == OTHER
    unknown = OTHER if folded else UNKNOWN
    kind = span.kind
    alone = [span]
    if kind == _GENERATION:
        model = OTHER if folded else span.model or UNKNOWN
        group = Group(route, policy.buckets.label(0), model, unknown, unknown)
        answer = span if span.citation_form else None
        return Placed(
            span.trace_id, span.end_ns, group, False, 0, [], [], None, [], alone, answer, policy.for_route(route), folded,
        )  # fmt: skip
    if kind != _RETRIEVAL and kind != _RERANK:  # noqa: PLR1714  # a tuple costs more, and every span asks
        return None
    retrieved = _ids(alone)
    scored = alone if _has_scores(alone) else None
    top_k = span.top_k or len(retrieved)
    version, scorer = (OTHER, OTHER) if folded else (span.retriever_version or UNKNOWN, span.scorer or UNKNOWN)
    group = Group(route, policy.buckets.label(top_k), unknown, version, scorer)
    return Placed(
        span.trace_id, span.end_ns, group, False, top_k, retrieved, alone, scored, alone, [], None,
        policy.for_route(route), folded,
    )  # fmt: skip


def measure(placed: Placed, policy: ScorePolicy) -> TraceResult:
    """The result of a placed trace; of an unmatched one, the verdict that it would get if its pane closed now."""
    used, retrieved, answer = placed.used, placed.retrieved, placed.answer
    citations = resolve(answer, retrieved, _listed(used) if answer is not None else (), placed.route_policy)
    nonconformant = _nonconformant(answer, placed.route_policy, citations)
    state = _state(placed, nonconformant)
    if state == State.nonconformant and policy.nonconformant_as_zero:
        state = _MEASURED
    hallucinated = citations.hallucinated if state in CITATIONS_JUDGED else []
    flags = ids_dropped = 0
    for span in used:
        flags |= span.flags
        ids_dropped += span.ids_dropped
    top1 = None if placed.folded else _top1(placed.scored, placed.route_policy)
    return TraceResult(
        trace_id=placed.trace_id,
        state=state,
        matched=placed.matched,
        event_ns=placed.event_ns,
        group=placed.group,
        top_k=placed.top_k,
        retrieved=retrieved,
        scores=_aligned_scores(placed.scored, retrieved),
        cited=citations.cited,
        cited_ranks=citations.ranks,
        hallucinated=hallucinated,
        unresolved=citations.unresolved,
        ids_dropped=ids_dropped,
        rank_weighted_recall=_rank_weighted(citations.ranks, len(retrieved)) if state == _MEASURED else None,
        top1_score=top1,
        nonconformant=nonconformant,
        synthetic_ids=bool(flags & _SYNTHETIC_IDS),
        retrieval_end_ns=_latest_end(placed.stages),
        dropped_cited=_returned_before(hallucinated, placed.stages) if hallucinated else [],
        low_confidence=None if top1 is None else _low_confidence(top1, placed.group.scorer, placed.route_policy),
    )


def _returned_before(cited: list[str], stages: list[Span]) -> list[str]:
    """Which of these some retriever or reranker returned, although they are not in the retrieved set."""
    returned = {chunk for span in stages for chunk in span.ids or ()}
    return [chunk for chunk in cited if chunk in returned]


def _latest_end(spans: list[Span]) -> int:
    latest = 0
    for span in spans:
        latest = max(latest, span.end_ns)
    return latest


def _last_model(generations: list[Span]) -> str:
    for span in reversed(generations):
        if span.model:
            return span.model
    return UNKNOWN


def _by_time(span: Span) -> tuple[int, bytes]:
    return span.start_ns, span.span_id


def _route(spans: Iterable[Span], policy: ScorePolicy, routes_frozen: bool) -> str:
    """The route of the lowest rank; among equals the one nearest to the root, then the earliest."""
    best: Span | None = None
    for span in spans:
        if span.route and (
            best is None
            or span.route_rank < best.route_rank
            or (span.route_rank == best.route_rank and _route_order(span) < _route_order(best))
        ):
            best = span
    return _mapped(best.route if best is not None else UNKNOWN, policy, routes_frozen)


def _mapped(route: str, policy: ScorePolicy, routes_frozen: bool) -> str:
    if (policy.only_listed_routes or routes_frozen) and route not in policy.routes:
        return OTHER
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
    if len(generations) == 1:
        return generations[0] if generations[0].citation_form else None
    captured = [span for span in _top_level(generations, spans) if span.citation_form] or [
        span for span in generations if span.citation_form
    ]
    return max(captured, key=lambda span: (span.end_ns, span.span_id), default=None)


def _listed(stage: list[Span]) -> Sequence[str]:
    """The ids of a stage's spans as they were listed. A stage of final ids has them on every span, any other on none."""
    if len(stage) == 1:
        return stage[0].final_ids or stage[0].ids or ()
    return [chunk for span in stage for chunk in span.final_ids or span.ids or ()]


def _ids(stage: list[Span]) -> list[str]:
    """The distinct ids of a stage's spans, in order, within the bound of a fraction key."""
    return list(dict.fromkeys(_listed(stage)))[:RETRIEVED_MAX]


def _retrieved(
    stages: list[Span], generations: list[Span], reranks: list[Span], retrievals: list[Span]
) -> tuple[list[Span], list[str]]:
    """The last stage that has ids, and its ids: final context, else reranker output, else union of retrievers."""
    finals = [span for found in (stages, generations) for span in found if span.final_ids]
    if finals:
        return finals, _ids(finals)
    for stage in (reranks, retrievals):
        ids = _ids(stage) if stage else []
        if ids:
            return stage, ids
    return (reranks or retrievals), []


def _has_scores(stage: list[Span]) -> bool:
    for span in stage:  # noqa: SIM110  # a generator costs more, and every span asks
        if span.scores is not None or span.first_score is not None:
            return True
    return False


def _top_k(stage: list[Span], retrievals: list[Span], n_retrieved: int) -> int:
    """The stage's own top_k, else the retrievers' (summed over a union of several), else the number retrieved."""
    for spans in (stage, retrievals):
        known = [span.top_k for span in spans]
        if known and 0 not in known:
            return sum(known)
    return n_retrieved


def _aligned_scores(scored: list[Span] | None, retrieved: list[str]) -> list[float | None]:
    if scored is None or not retrieved:
        return []
    if len(scored) == 1 and scored[0].ids == retrieved:
        return scored[0].scores or []
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


def _low_confidence(top1: float, scorer: str, route_policy: RoutePolicy) -> bool | None:
    threshold = route_policy.low_confidence_below.get(scorer)
    if threshold is None:
        return None
    return top1 < threshold if route_policy.score_direction == "higher" else top1 > threshold


def _nonconformant(answer: Span | None, route_policy: RoutePolicy, citations: Resolved) -> bool:
    """The answer had to be structured, is not, and has no resolvable citation."""
    if answer is None or answer.citation_form != _INLINE or citations.ranks:
        return False
    if route_policy.answer_format == "auto":
        return bool(answer.flags & _EXPECTS_JSON)
    return route_policy.answer_format == "json"


def _state(placed: Placed, nonconformant: bool) -> State:
    """The state; for an unmatched trace its verdict at closing."""
    retrieved, generations, answer = placed.retrieved, placed.generations, placed.answer
    used, route_policy = placed.used, placed.route_policy
    if not placed.stages and not retrieved:
        return State.no_retrieval
    returned_nothing = not retrieved and any(span.ids == [] and not span.ids_dropped for span in placed.stages)
    if not generations:
        return State.empty_retrieval if returned_nothing else State.no_generation
    flags = 0
    for span in used:
        flags |= span.flags
    for span in generations:
        flags |= span.flags & _BAD_TIME
    if flags & _BAD_TIME:
        state = State.bad_time
    elif flags & _TRUNCATED or (answer is not None and answer.flags & _CITATIONS_CUT):
        state = State.truncated
    elif not retrieved:
        state = State.empty_retrieval if returned_nothing else State.ids_missing
    elif answer is not None and answer.positions and any(span.ids_dropped for span in used):
        state = State.ids_missing  # where an id is missing, nobody knows which chunk a later position means
    elif flags & _RETRIEVED_IS_CITED:
        state = State.retrieved_is_cited
    elif not route_policy.cites:
        state = State.no_citation_format
    elif answer is None:
        state = State.no_output
    elif _other_granularity(answer, used, route_policy):
        state = State.granularity_mismatch
    elif nonconformant:
        state = State.nonconformant
    else:
        state = State.measured
    return state


def _other_granularity(answer: Span, used: list[Span], route_policy: RoutePolicy) -> bool:
    """Files are cited where chunks were retrieved, or numbers that count something else than the retrieved list."""
    if answer.positions and not answer.cited and not route_policy.numbers_name_chunks:
        return True
    return bool(answer.flags & _FILE_LEVEL_CITATIONS) and not all(span.flags & _FILE_LEVEL_IDS for span in used)


def _rank_weighted(ranks: list[int], n_retrieved: int) -> float:
    cited = 0.0
    for rank in ranks:
        cited += 1.0 / rank
    return cited / _harmonic(n_retrieved)


@functools.lru_cache(maxsize=4_096)
def _harmonic(n: int) -> float:
    """1 + 1/2 + … + 1/n."""
    return sum(1.0 / rank for rank in range(1, n + 1))
