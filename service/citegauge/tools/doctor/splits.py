"""Verdicts on what the retrieval alone can say: its score, and what the traces are split by."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from citegauge.domain.recall import State
from citegauge.domain.score import UNKNOWN
from citegauge.tools.doctor.causes import score_cause, top_k_change
from citegauge.tools.doctor.traces import JoinedTrace
from citegauge.tools.doctor.verdict import Answer, Context, Verdict, counted, decide, plural, share_text, shortened

ROUTES_SENSIBLE_MAX = 200
KEYS_KEPT_MAX = 5


def top1_score(context: Context) -> Verdict:
    """The score of the first document. It needs no answer, so cut traces count too."""
    asked = [one for one in context.traces.joined if _retrieves(one) and one.result.state != State.empty_retrieval]
    good = [one for one in asked if one.result.top1_score is not None]
    causes = counted(score_cause(one, context.policy) for one in asked if one.result.top1_score is None)
    answer = decide(len(good), len(asked))
    change = ""
    if not asked:
        because = "the sample holds no retrieval"
    elif good and len(good) > 2 and all(one.result.top1_score == 0 for one in good):
        answer, because = "cannot", "every recorded score is 0: a default, not a measurement"
        change = "record the score that the retriever gave"
        good = []
    elif answer == "can":
        because = f"{share_text(len(good), len(asked))} of {plural(len(asked), 'trace')} with a retrieval"
        scorers = {one.result.group.scorer for one in good}
        if UNKNOWN in scorers:
            because += (
                "; who gave the scores is not recorded (retrieval.scorer), so a new embedding model looks like a drop"
            )
    else:
        because = f"{causes[0].cause.because} ({causes[0].traces:,} of {plural(len(asked), 'trace')})"
        change = causes[0].cause.change
    return Verdict(
        metric="top1_score", title="top-1 score", answer=answer, traces=len(asked), good=len(good),
        because=because, change=change, causes=causes,
    )  # fmt: skip


def _retrieves(trace: JoinedTrace) -> bool:
    return bool(trace.note.stage) and trace.result.state != State.no_retrieval


def _split(context: Context, known: Callable[[JoinedTrace], bool]) -> tuple[list[JoinedTrace], int, Answer]:
    asked = [one for one in context.traces.joined if _retrieves(one)]
    good = sum(known(one) for one in asked)
    return asked, good, decide(good, len(asked))


def top_k_buckets(context: Context) -> Verdict:
    """The number of chunks that the retriever was asked for."""
    asked, stated, answer = _split(context, lambda one: one.note.top_k)
    from_list = sum(not one.note.top_k and bool(one.result.retrieved) for one in asked)
    silent = Counter(one.note.stage for one in asked if not one.note.top_k)
    advice = top_k_change(silent.most_common(1)[0][0]) if silent else ""
    change = ""
    if not asked:
        because = "the sample holds no retrieval"
    elif answer == "can":
        because = f"{share_text(stated, len(asked))} of the retrievals say how many chunks they asked for"
    elif from_list:
        answer = "partly"
        because = (
            f"in {from_list:,} of {plural(len(asked), 'trace')} the number of chunks asked for is not recorded: the number "
            "returned is taken, which a filter or a reranker makes smaller"
        )
        change = advice
    else:
        because = "the retrieval spans say neither how many chunks they asked for nor which they found"
        change = advice
    return Verdict(
        metric="top_k_buckets", title="top_k buckets", answer=answer, traces=len(asked), good=stated,
        because=because, change=change,
    )  # fmt: skip


def route_split(context: Context) -> Verdict:
    """Which part of the application a trace belongs to."""
    joined = context.traces.joined
    known = [one for one in joined if one.result.group.route not in (UNKNOWN, "")]
    routes = {one.result.group.route for one in known}
    keys = [key for key, _ in Counter(one.note.route_key for one in known).most_common() if key]
    answer = decide(len(known), len(joined))
    change = ""
    better = [key for key, _ in context.hints.route_keys() if key not in keys]
    # The list replaces the built-in one, so what gives routes now stays in it.
    listed = ", ".join(json.dumps(key, ensure_ascii=False) for key in (*better[:1], *keys[:KEYS_KEPT_MAX]))
    suggested = f"set score.route_keys = [{listed}]" if better else ""
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
        share = share_text(len(known), len(joined))
        because = f"{plural(len(routes), 'route')} by {_keys_text(keys)} in {share} of the traces"
        if len(routes) == 1:
            name = next(iter(routes))
            because += f': every trace is on "{shortened(name)}"'
            change = suggested
        elif answer != "can":
            change = suggested or "put the route on the root span of every trace"
    return Verdict(
        metric="route_split", title="split by route", answer=answer, traces=len(joined), good=len(known),
        because=because, change=change,
    )  # fmt: skip


def _keys_text(keys: list[str]) -> str:
    if not keys:
        return "a mapped key"
    more = f" and {len(keys) - 2} more" if len(keys) > 2 else ""
    return ("the key " if len(keys) == 1 else "the keys ") + " and ".join(keys[:2]) + more


def version_split(context: Context) -> Verdict:
    """Which version of retriever or index answered."""
    asked, good, answer = _split(context, lambda one: one.result.group.retriever_version != UNKNOWN)
    versions = {one.result.group.retriever_version for one in asked} - {UNKNOWN}
    change = "" if answer == "can" else (
        "put retriever.version on the retrieval span: the date of the index, or the commit of the retriever"
    )  # fmt: skip
    if not asked:
        because, change = "the sample holds no retrieval", ""
    elif good:
        because = f"{plural(len(versions), 'version')} in {share_text(good, len(asked))} of the traces"
    else:
        because = "no retrieval says which version of the retriever or index answered"
    return Verdict(
        metric="version_split", title="split by retriever version", answer=answer, traces=len(asked), good=good,
        because=because, change=change,
    )  # fmt: skip
