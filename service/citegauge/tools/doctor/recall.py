"""Verdicts on what needs both halves of a trace: the two recalls, and hallucinated citations."""

from __future__ import annotations

import json
import re

from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State
from citegauge.tools.doctor.causes import Cause, latent_cause, recall_cause, setting_of
from citegauge.tools.doctor.hints import Suspect
from citegauge.tools.doctor.traces import JoinedTrace
from citegauge.tools.doctor.verdict import (
    Answer,
    Context,
    Counted,
    Verdict,
    counted,
    decide,
    plural,
    share_text,
    shortened,
)


def recall(context: Context) -> Verdict:
    """Cited-chunk recall, over the traces that have a retrieval which returned something."""
    judged = context.traces.judged
    asked = [one for one in judged if one.result.state not in (State.no_retrieval, State.empty_retrieval)]
    measured = [one for one in asked if one.result.state == State.measured]
    latent = counted(cause for one in judged if (cause := latent_cause(one)) is not None)
    causes = counted(recall_cause(one, context.policy) for one in asked if one.result.state != State.measured)
    causes += tuple(found for found in latent if found.cause.code not in {known.cause.code for known in causes})
    of, good = len(asked), len(measured)
    nothing = _no_halves(context)
    if nothing is not None:
        return _verdict("cannot", of, 0, nothing, latent)
    unusable = _no_valid_citation(measured, context.policy)
    if unusable is not None:
        return _verdict("cannot", of, 0, unusable, causes)
    answer = decide(good, of)
    if answer == "can":
        without = sum(one.result.state == State.no_retrieval for one in judged)
        because = f"{share_text(good, of)} of {plural(of, 'trace')} with a retrieval"
        if without:
            because += f" ({plural(without, 'more trace')} with an LLM span only)"
        return _verdict(answer, of, good, Cause("", because, ""), causes)
    if not of:
        nothing_found = "every retrieval in the sample returned nothing"
        return _verdict("cannot", of, good, Cause("empty_retrieval", nothing_found, "look at the retriever"), causes)
    first = causes[0]
    because = f"{first.cause.because} ({first.traces:,} of {plural(of, 'trace')})"
    return _verdict(answer, of, good, first.cause._replace(because=because), causes)


def _verdict(answer: Answer, of: int, good: int, first: Cause, causes: tuple[Counted, ...]) -> Verdict:
    return Verdict(
        metric="cited_chunk_recall",
        title="cited-chunk recall",
        answer=answer,
        traces=of,
        good=good,
        because=first.because,
        change=first.change,
        causes=causes,
    )


def _no_halves(context: Context) -> Cause | None:
    """Why there is nothing to join at all."""
    traces = context.traces
    if not any(source.records for source in context.sources):
        return Cause("empty", "there is no record to look at", "check the name, or look further back with --since")
    if all(source.unread_records >= source.records for source in context.sources):
        return Cause("unreadable", "no record can be read (see below)", "")
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
    halves = (one for one in context.traces.judged if one.result.state == state)
    cause = counted(recall_cause(one, context.policy) for one in halves)[0].cause
    return Cause(cause.code, f"no trace of the sample has {'an' if word[0] in 'AEIOL' else 'a'} {word}", cause.change)


def _quoted(suspect: Suspect) -> str:
    return f'"{suspect.name}" ({plural(suspect.spans, "span")})'


def mapping_of(suspect: Suspect) -> str:
    """The setting that makes a span of one's own known, as far as it can be guessed."""
    name = re.sub(r"\W+", "_", suspect.name).strip("_") or "mine"
    fields = {"kind": suspect.kind, "span_name": re.escape(suspect.name).replace("\\ ", " "), **suspect.fields}
    if not suspect.fields:
        fields |= {"ids": "<attribute>"} if suspect.kind == "retrieval" else {"output": "<attribute>"}
    inner = ", ".join(f"{key} = {_toml(value)}" for key, value in fields.items())
    listed = f" (its attributes: {', '.join(suspect.keys)})" if suspect.keys and not suspect.fields else ""
    return f"add to the settings: mappings.{name} = {{ {inner} }}{listed}"


def _toml(text: str) -> str:
    return f"'{text}'" if "\\" in text and "'" not in text else json.dumps(text, ensure_ascii=False)


def _no_valid_citation(measured: list[JoinedTrace], policy: ScorePolicy) -> Cause | None:
    """Measured answers of which not one cites a retrieved chunk: the recall would be 0 for a reason of form."""
    if not measured or any(one.result.cited_ranks for one in measured):
        return None
    citing = [one for one in measured if one.result.hallucinated or one.result.unresolved]
    if not citing:
        return Cause(
            "never_cites",
            f"no answer cites anything in a form that citegauge knows (of {plural(len(measured), 'answer')}), so the "
            "recall would be 0 throughout",
            "ask the model to cite chunk ids or numbers, as [1] or [chunk-7]; where citations exist beside the text, put "
            "them on the LLM span as generation.cited_ids",
        )
    return _mismatch(citing, policy)


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
    return f'"{shortened(text)}"'


def rank_weighted(found: Verdict) -> Verdict:
    """Rank-weighted recall needs what the recall needs."""
    return Verdict(
        metric="rank_weighted_recall",
        title="rank-weighted recall",
        answer=found.answer,
        traces=found.traces,
        good=found.good,
        because="as for cited-chunk recall; the documents must also stand in rank order",
        causes=found.causes,
    )


def hallucinated(context: Context, recall: Verdict) -> Verdict:
    """Citations of chunks that were not retrieved: only an id can name such a chunk."""
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
        answer, good = decide(len(measured), recall.traces), len(measured)
        because = f"{plural(wrong, 'citation')} of {all_citations:,} in the sample named a chunk that was not retrieved"
    return Verdict(
        metric="hallucinated_citations", title="hallucinated citations", answer=answer, traces=recall.traces, good=good,
        because=because, change=change,
    )  # fmt: skip
