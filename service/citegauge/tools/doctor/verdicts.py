"""Per metric: can it be measured from this sample, for which share of the traces, and what one change would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State
from citegauge.domain.score import UNKNOWN
from citegauge.tools.doctor.causes import Cause, recall_cause, score_cause, setting_of
from citegauge.tools.doctor.hints import Hints, Suspect
from citegauge.tools.doctor.traces import JoinedTrace, Traces

Answer = Literal["can", "partly", "cannot"]
CAN_SHARE = 0.95
"""From this share on a metric can be measured; the rest is noise of real systems."""
CAUSES_SHOWN_MAX = 4
EXAMPLE_LENGTH_MAX = 40
ROUTES_SENSIBLE_MAX = 200


class Counted(NamedTuple):
    """A cause and how many traces share it."""

    traces: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the sample says of one metric."""

    metric: str
    """Stable name for `--json`."""
    title: str
    answer: Answer
    traces: int
    """Traces for which the question makes sense."""
    good: int
    """Of them: measured."""
    because: str
    change: str = ""
    """The one change that would help most; empty where nothing has to change."""
    causes: tuple[Counted, ...] = ()

    @property
    def share(self) -> float | None:
        """Measured / traces; None without traces."""
        return self.good / self.traces if self.traces else None


class Context(NamedTuple):
    """What every verdict may look at."""

    traces: Traces
    policy: ScorePolicy
    hints: Hints


def verdicts(context: Context) -> list[Verdict]:
    """One verdict per metric, in the order in which people ask."""
    recall = _recall(context)
    return [
        recall,
        _like_recall(recall, "rank_weighted_recall", "rank-weighted recall"),
        _top1(context),
        _hallucinated(context, recall),
        _top_k(context),
        _route(context),
        _version(context),
    ]


def share_text(good: int, of: int) -> str:
    """`62 %`, never rounded up to 100 or down to 0."""
    if not of:
        return "–"
    percent = 100 * good / of
    rounded = 100 if good == of else min(99, max(1, round(percent))) if good else 0
    return f"{rounded} %"


def _decide(good: int, of: int) -> Answer:
    return "can" if of and good / of >= CAN_SHARE else "partly" if good else "cannot"


def _counted(causes: Iterable[Cause]) -> tuple[Counted, ...]:
    found = Counter(causes)
    return tuple(Counted(n, cause) for cause, n in sorted(found.items(), key=lambda item: (-item[1], item[0].code)))


# ------------------------------------------------------------------------------------------------------------ recall


def _recall(context: Context) -> Verdict:
    judged = context.traces.judged
    nothing = _no_halves(context)
    with_retrieval = [one for one in judged if one.result.state not in (State.no_retrieval, State.empty_retrieval)]
    measured = [one for one in with_retrieval if one.result.state == State.measured]
    causes = _counted(recall_cause(one, context.policy) for one in with_retrieval if one.result.state != State.measured)
    of, good = len(with_retrieval), len(measured)
    if nothing is not None:
        return _recall_verdict("cannot", of, 0, nothing.because, nothing.change, causes)
    unusable = _no_valid_citation(measured, context.policy)
    if unusable is not None:
        return _recall_verdict("cannot", of, 0, unusable.because, unusable.change, causes)
    answer = _decide(good, of)
    if answer == "can":
        return _recall_verdict(answer, of, good, f"{share_text(good, of)} of {_n(of, 'trace')}", "", causes)
    if not causes:  # every trace with a retrieval returned nothing
        return _recall_verdict("cannot", of, good, "every retrieval in the sample returned nothing", "", causes)
    first = causes[0]
    because = f"{first.cause.because} ({first.traces:,} of {_n(of, 'trace')})"
    return _recall_verdict(answer, of, good, because, first.cause.change, causes)


def _recall_verdict(
    answer: Answer, of: int, good: int, because: str, change: str, causes: tuple[Counted, ...]
) -> Verdict:
    return Verdict(
        metric="cited_chunk_recall",
        title="cited-chunk recall",
        answer=answer,
        traces=of,
        good=good,
        because=because,
        change=change,
        causes=causes,
    )


def _n(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _no_halves(context: Context) -> Cause | None:
    """Why there is nothing to join at all."""
    traces = context.traces
    if not traces.joined:
        suspects = context.hints.suspects("retrieval") or context.hints.suspects("generation")
        if suspects:
            return Cause(
                "unknown_spans",
                f"no span is known as a retrieval or an answer, but {_quoted(suspects[0])} looks like one",
                mapping_of(suspects[0]),
            )
        return Cause(
            "no_spans",
            "the sample holds no retrieval and no LLM span",
            'instrument retriever and LLM call, or set citegauge.kind = "retrieval" and "generation" on their spans',
        )
    judged = traces.judged
    if not judged:
        return Cause(
            "sample_too_short",
            "the sample is so short that it may have cut every trace",
            "take more: --records, or --since",
        )
    for state, kind, word in (
        (State.no_retrieval, "retrieval", "retrieval"),
        (State.no_generation, "generation", "LLM span"),
    ):
        if all(one.result.state == state for one in judged):
            return _one_half(context, state, kind, word)
    if all(not one.result.matched for one in judged):
        return Cause(
            "halves_apart",
            "retrievals and LLM spans come in different traces, so none can be joined",
            "pass the trace context on from the retriever to the LLM call (threads, async tasks, other services)",
        )
    return None


def _one_half(context: Context, state: State, kind: str, word: str) -> Cause:
    suspects = context.hints.suspects(kind)
    if suspects:
        return Cause(
            f"unknown_{kind}",
            f"no span is known as {'a retrieval' if kind == 'retrieval' else 'an LLM span'}, but {_quoted(suspects[0])} "
            "looks like one",
            mapping_of(suspects[0]),
        )
    some = next(one for one in context.traces.judged if one.result.state == state)
    cause = recall_cause(some, context.policy)
    return Cause(cause.code, f"no trace of the sample has {'an' if word[0] in 'AEIOL' else 'a'} {word}", cause.change)


def _quoted(suspect: Suspect) -> str:
    return f'"{suspect.name}" ({_n(suspect.spans, "span")})'


def mapping_of(suspect: Suspect) -> str:
    """The change that makes a span of one's own known."""
    return (
        f'set citegauge.kind = "{suspect.kind}" on the span "{suspect.name}", with '
        + ("retrieval.retrieved_ids = […]" if suspect.kind == "retrieval" else "generation.cited_ids = […]")
        + ", or map its name and attributes in the settings"
    )


def _no_valid_citation(measured: list[JoinedTrace], policy: ScorePolicy) -> Cause | None:
    """Measured answers of which not one cites a retrieved chunk: the recall would be 0 for a reason of form."""
    if not measured or any(one.result.cited_ranks for one in measured):
        return None
    citing = [one for one in measured if one.result.hallucinated or one.result.unresolved]
    if not citing:
        return Cause(
            "never_cites",
            f"{_none_of(len(measured), 'answer')} cites anything in a form that citegauge knows, so the recall would "
            "be 0 throughout",
            "ask the model to cite chunk ids or numbers, as [1] or [chunk-7]; where citations exist beside the text, put "
            "them on the LLM span as generation.cited_ids",
        )
    return _mismatch(citing, policy)


def _none_of(count: int, word: str) -> str:
    return f"the only {word} does not" if count == 1 else f"none of {count:,} {word}s"


def _mismatch(citing: list[JoinedTrace], policy: ScorePolicy) -> Cause:
    result = citing[0].result
    base = policy.for_route(result.group.route).position_base
    if base == 1 and any(one.note.position_zero for one in citing):
        return Cause(
            "position_base",
            "answers cite the position 0, so they count from 0",
            f"set {setting_of(result.group.route, 'position_base')} = 0",
        )
    if all(one.result.synthetic_ids for one in citing):
        return Cause(
            "synthetic_ids",
            "the retriever records no chunk ids (their content stands in), so the ids that answers cite match nothing",
            "record the chunk ids that the prompt shows: document.id, or chunk_id in the metadata",
        )
    by_id = next((one.result for one in citing if one.result.hallucinated and one.result.retrieved), None)
    example = (
        f": cited {_short(by_id.hallucinated[0])}, retrieved {_short(by_id.retrieved[0])}" if by_id is not None else ""
    )
    return Cause(
        "ids_differ",
        f"no citation names a retrieved chunk{example}",
        "record the same ids on the retrieval span that the prompt shows to the model",
    )


def _short(text: str) -> str:
    return f'"{text[:EXAMPLE_LENGTH_MAX]}{"…" if len(text) > EXAMPLE_LENGTH_MAX else ""}"'


def _like_recall(recall: Verdict, metric: str, title: str) -> Verdict:
    return Verdict(
        metric=metric,
        title=title,
        answer=recall.answer,
        traces=recall.traces,
        good=recall.good,
        because="as for cited-chunk recall; the documents must also stand in rank order",
        causes=recall.causes,
    )


# ------------------------------------------------------------------------------------------------------ other metrics


def _top1(context: Context) -> Verdict:
    asked = [one for one in context.traces.joined if _retrieves(one) and one.result.state != State.empty_retrieval]
    good = [one for one in asked if one.result.top1_score is not None]
    causes = _counted(score_cause(one, context.policy) for one in asked if one.result.top1_score is None)
    answer = _decide(len(good), len(asked))
    change = ""
    if not asked:
        because = "the sample holds no retrieval"
    elif good and len(good) > 2 and all(one.result.top1_score == 0 for one in good):
        answer, because = "cannot", "every recorded score is 0: a default, not a measurement"
        change = "record the score that the retriever gave"
        good = []
    elif answer == "can":
        because = f"{share_text(len(good), len(asked))} of {_n(len(asked), 'trace')} with a retrieval"
        scorers = {one.result.group.scorer for one in good}
        if UNKNOWN in scorers:
            because += (
                "; who gave the scores is not recorded (retrieval.scorer), so a new embedding model looks like a drop"
            )
    else:
        because = f"{causes[0].cause.because} ({causes[0].traces:,} of {_n(len(asked), 'trace')})"
        change = causes[0].cause.change
    return Verdict(
        metric="top1_score", title="top-1 score", answer=answer, traces=len(asked), good=len(good),
        because=because, change=change, causes=causes,
    )  # fmt: skip


def _retrieves(trace: JoinedTrace) -> bool:
    return bool(trace.note.stage) and trace.result.state != State.no_retrieval


def _hallucinated(context: Context, recall: Verdict) -> Verdict:
    measured = [one for one in context.traces.judged if one.result.state == State.measured]
    citing = [one for one in measured if one.note.by_id or one.note.by_position]
    answer, change = recall.answer, ""
    good = recall.good
    if not measured:
        because = "it needs what cited-chunk recall needs"
    elif not citing:
        answer, good, because = "cannot", 0, "no answer cites anything"
    elif not any(one.note.by_id for one in citing):
        answer = "partly"
        because = (
            "answers cite by number: a citation of nothing is seen only when the number is out of range (unresolved)"
        )
        change = "let the model cite chunk ids instead of numbers"
    elif sum(one.result.synthetic_ids for one in citing) * 2 > len(citing):
        answer, good, because = "cannot", 0, "the retriever records no chunk ids, so every cited id looks hallucinated"
        change = "record chunk ids on the retrieval span"
    else:
        wrong = sum(len(one.result.hallucinated) for one in measured)
        all_citations = sum(
            len(one.result.cited_ranks) + len(one.result.hallucinated) + one.result.unresolved for one in measured
        )
        answer, good = _decide(recall.good or len(measured), recall.traces), len(measured)
        because = f"{_n(wrong, 'citation')} of {all_citations:,} in the sample named a chunk that was not retrieved"
    return Verdict(
        metric="hallucinated_citations", title="hallucinated citations", answer=answer, traces=recall.traces, good=good,
        because=because, change=change,
    )  # fmt: skip


def _split(context: Context, known: Callable[[JoinedTrace], bool]) -> tuple[list[JoinedTrace], int, Answer]:
    asked = [one for one in context.traces.joined if _retrieves(one)]
    good = sum(known(one) for one in asked)
    return asked, good, _decide(good, len(asked))


def _top_k(context: Context) -> Verdict:
    asked, stated, answer = _split(context, lambda one: one.note.top_k)
    from_list = sum(not one.note.top_k and bool(one.result.retrieved) for one in asked)
    change = ""
    if not asked:
        because = "the sample holds no retrieval"
    elif answer == "can":
        because = f"{share_text(stated, len(asked))} of the retrievals say how many chunks they asked for"
    elif from_list:
        answer = "partly"
        because = (
            f"in {from_list:,} of {_n(len(asked), 'trace')} the number of chunks asked for is not recorded: the number "
            "returned is taken, which a filter or a reranker makes smaller"
        )
        change = "put retrieval.top_k on the retrieval span"
    else:
        because = "the retrieval spans say neither how many chunks they asked for nor which they found"
        change = "put retrieval.top_k on the retrieval span"
    return Verdict(
        metric="top_k_buckets", title="top_k buckets", answer=answer, traces=len(asked), good=stated,
        because=because, change=change,
    )  # fmt: skip


def _route(context: Context) -> Verdict:
    joined = context.traces.joined
    known = [one for one in joined if one.result.group.route not in (UNKNOWN, "")]
    routes = {one.result.group.route for one in known}
    keys = [key for key, _ in Counter(one.note.route_key for one in known).most_common() if key]
    answer = _decide(len(known), len(joined))
    change = ""
    better = [key for key, _ in context.hints.route_keys() if key not in keys]
    suggested = f'set score.route_keys = ["{better[0]}"]' if better else ""
    if not joined:
        because = "the sample holds no trace to split"
    elif not known:
        because = "no span names a route"
        change = suggested or "put a route on the root span, or set service.name on the resource"
    elif len(routes) > max(ROUTES_SENSIBLE_MAX, len(known) // 2) and len(known) >= 20:
        answer = "partly"
        because = f"{keys[0]} has {len(routes):,} values in {len(known):,} traces: that is no route"
        change = suggested or "set score.route_keys to an attribute that has few values"
    else:
        because = (
            f"{_n(len(routes), 'route')} by {_keys_text(keys)} in {share_text(len(known), len(joined))} of the traces"
        )
        if len(routes) == 1:
            name = next(iter(routes))
            because += f': every trace is on "{name[:EXAMPLE_LENGTH_MAX]}"'
            change = suggested
        elif answer != "can":
            change = suggested or "put the route on the root span of every trace"
    return Verdict(
        metric="route_split", title="split by route", answer=answer, traces=len(joined), good=len(known),
        because=because, change=change,
    )  # fmt: skip


def _keys_text(keys: list[str]) -> str:
    return " and ".join(keys[:2]) + (f" and {len(keys) - 2} more" if len(keys) > 2 else "") if keys else "a mapped key"


def _version(context: Context) -> Verdict:
    asked, good, answer = _split(context, lambda one: one.result.group.retriever_version != UNKNOWN)
    versions = {one.result.group.retriever_version for one in asked} - {UNKNOWN}
    change = "" if answer == "can" else (
        "put retriever.version on the retrieval span: the date of the index, or the commit of the retriever"
    )  # fmt: skip
    if not asked:
        because, change = "the sample holds no retrieval", ""
    elif good:
        because = f"{_n(len(versions), 'version')} in {share_text(good, len(asked))} of the traces"
    else:
        because = "no retrieval says which version of the retriever or index answered"
    return Verdict(
        metric="version_split", title="split by retriever version", answer=answer, traces=len(asked), good=good,
        because=because, change=change,
    )  # fmt: skip
