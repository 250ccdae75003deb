"""Why something cannot be measured, and the one change that would help: sentences for people, by state and convention.

`because` continues "…: ", `change` is an order. No counting here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from citegauge.domain.policy import RoutePolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, State
from citegauge.domain.span import Flag
from citegauge.tools.doctor.traces import JoinedTrace


class Cause(NamedTuple):
    """One reason, the same for all traces that share it."""

    code: str
    because: str
    change: str


CAPTURE = "set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY in the application (older releases: =true)"
_HIDDEN = "unset OPENINFERENCE_HIDE_OUTPUTS and OPENINFERENCE_HIDE_OUTPUT_MESSAGES in the application"
_OWN_IDS = 'put the ids on the retrieval span: retrieval.retrieved_ids = ["chunk-1", …]'
_OWN_SCORES = (
    "put ids and scores on the retrieval span: retrieval.retrieved_ids and, in the same order, retrieval.scores"
)
_OWN_CITED = 'put on the LLM span what it cites: generation.cited_ids = ["chunk-1", …]'
_OWN_ANSWER = f"{_OWN_CITED}, or its text: generation.output"

# The documents of a retrieval are not recorded at all.
_RECORD_DOCUMENTS: Mapping[str, str] = {
    "otel_genai": CAPTURE,
    "openinference": f"{_HIDDEN}; without a framework, set retrieval.documents.0.document.id, …1.… on the span",
    "openllmetry": "set TRACELOOP_TRACE_CONTENT=true in the application",
    "langfuse": 'return the documents from the retriever observation: span.update(output=[{"id": …, "score": …}, …])',
    "mlflow": 'return the documents from the RETRIEVER span as [{"page_content": …, "metadata": {"chunk_id": …}}, …]',
    "langsmith": "unset LANGSMITH_HIDE_OUTPUTS in the application",
    "datadog": 'give the retrieval span its documents: LLMObs.annotate(output_data=[{"id": …, "score": …, "text": …}])',
    "haystack": "set HAYSTACK_CONTENT_TRACING_ENABLED=true in the application",
    "openlit": "call openlit.init(capture_message_content=True)",
    "vector_db": f"this database's instrumentation records no results: make a retriever span of your own, and {_OWN_IDS}",
}

# Documents are recorded, but without an id and without a content that could stand in.
_GIVE_IDS: Mapping[str, str] = {
    "openinference": "set document.id on every document of the retriever span (LangChain: pass ids= to add_documents)",
    "otel_genai": "give every document an id when it is indexed (LangChain: pass ids= to add_documents)",
    "openllmetry": "put chunk_id into every document's metadata when it is indexed",
    "langfuse": 'return [{"id": …}, …] from the retriever observation',
    "mlflow": "put chunk_id into every document's metadata when it is indexed",
    "langsmith": "put chunk_id into every document's metadata when it is indexed",
    "datadog": 'give every document an "id" in LLMObs.annotate(output_data=…)',
}

_RECORD_ANSWER: Mapping[str, str] = {
    "otel_genai": CAPTURE,
    "openinference": _HIDDEN,
    "openllmetry": "set TRACELOOP_TRACE_CONTENT=true in the application",
    "langfuse": "record the output of the generation: generation.update(output=…) (and no mask that removes it)",
    "mlflow": "let the LLM span record its outputs: mlflow.<library>.autolog(), or span.set_outputs(…)",
    "langsmith": "unset LANGSMITH_HIDE_OUTPUTS in the application",
    "datadog": "record the answer: LLMObs.annotate(output_data=…)",
    "haystack": "set HAYSTACK_CONTENT_TRACING_ENABLED=true in the application",
    "openlit": "call openlit.init(capture_message_content=True)",
    "vercel": "set experimental_telemetry: { isEnabled: true, recordOutputs: true }",
}

_GIVE_SCORES: Mapping[str, str] = {
    "openinference": "set document.score on the documents of the retriever span (LangChain's own spans never have it)",
    "otel_genai": "put the score into the documents (LangChain: metadata.score) and record them",
    "openllmetry": "put score into every retrieved document's metadata",
    "langfuse": 'return the score with every document: [{"id": …, "score": …}, …]',
    "mlflow": "put score into every retrieved document's metadata",
    "datadog": 'give every document a "score" in LLMObs.annotate(output_data=…)',
}


_TOP_K_KEY: Mapping[str, str] = {
    "otel_genai": "gen_ai.retrieval.top_k",
    "openlit": "gen_ai.retrieval.top_k",
    "vercel": "gen_ai.retrieval.top_k",
    "vector_db": "db.vector.query.top_k",
    "trulens": "ai.observability.retrieval.num_contexts",
}
_TOP_K_CHANGE: Mapping[str, str] = {
    "datadog": 'record it: LLMObs.annotate(metadata={"top_k": …})',
    "haystack": "give top_k to the retriever when it is run, so that it stands in haystack.component.input",
}


def top_k_change(convention: str) -> str:
    """How spans of a convention say how many chunks they asked for."""
    if convention in _TOP_K_CHANGE:
        return _TOP_K_CHANGE[convention]
    return f"put {_TOP_K_KEY.get(convention, 'retrieval.top_k')} on the retrieval span"


def recall_cause(trace: JoinedTrace, policy: ScorePolicy) -> Cause:
    """Why a trace is not measured. Only for traces in another state than `measured`."""
    result, note = trace.result, trace.note
    state = STATE_NAMES[result.state]
    if result.state == State.truncated:
        return truncated_cause(trace)
    if result.state == State.ids_missing:
        return _ids_missing(trace)
    if result.state == State.no_output:
        return _no_output(trace)
    if result.state == State.no_citation_format:
        name = setting_of(result.group.route, "cites")
        return Cause(state, "the settings say that the route never cites", f"remove {name} = false, if it does cite")
    if result.state == State.nonconformant:
        name = setting_of(result.group.route, "answer_format")
        return Cause(
            state,
            'the answer had to be JSON with "citations", is not, and cites nothing',
            f'mend the prompt or the response format; where plain text is meant, set {name} = "text"',
        )
    assert state in _FIXED, state
    because, change = _FIXED[state]
    if result.state == State.no_generation:
        change = _INSTRUMENT_LLM.get(note.stage, change)
    return Cause(state, because, change)


_FIXED: Mapping[str, tuple[str, str]] = {
    "no_generation": (
        "the trace has a retrieval and no LLM span",
        (
            "instrument the LLM call too, in the same trace as the retriever (pass the trace context on to threads, tasks "
            "and other services)"
        ),
    ),
    "no_retrieval": (
        "the trace has an LLM span and no retrieval",
        "instrument the retriever too, in the same trace as the LLM call",
    ),
    "empty_retrieval": ("the retriever returned nothing", "nothing to change in the traces"),
    "granularity_mismatch": (
        "the answer cites files, and the retriever returns chunks",
        f"let the answer cite chunks, and {_OWN_CITED}",
    ),
    "retrieved_is_cited": (
        "the source lists only the chunks that the answer cites, so the recall would always be 1",
        (
            "retrieve and generate in two calls (Bedrock: Retrieve, then Converse), so that the trace lists all that was "
            "retrieved"
        ),
    ),
    "bad_time": (
        "the span's end is no believable time",
        "send end times as Unix nanoseconds from a synchronised clock (see below)",
    ),
}
_INSTRUMENT_LLM: Mapping[str, str] = {
    "openinference": (
        "instrument the LLM client too, in the same trace: OpenAIInstrumentor().instrument() of "
        "openinference-instrumentation-openai, or the package of your LLM"
    ),
    "langfuse": 'make the LLM call an observation of type "generation" in the same trace',
    "mlflow": "let MLflow trace the LLM call too, in the same trace: mlflow.openai.autolog(), or the one of your library",
}


def latent_cause(trace: JoinedTrace) -> Cause | None:
    """What would stop an unmatched trace from being measured once its other half came; None: nothing is known."""
    result, note = trace.result, trace.note
    if result.state == State.no_generation:
        if note.stage_flags & Flag.TRUNCATED:
            return truncated_cause(trace)
        return None if result.retrieved else _ids_missing(trace)
    if result.state == State.no_retrieval and not note.answered:
        return _no_output(trace)
    return None


def truncated_cause(trace: JoinedTrace) -> Cause:
    """Why the retrieved list, or the list of what is cited, cannot be trusted."""
    note = trace.note
    if note.stage == "openlit":
        return Cause(
            "truncated:openlit",
            "OpenLIT records only the first 3 documents",
            f"no setting of OpenLIT changes that: {_OWN_IDS}",
        )
    if note.stage == "datadog":
        return Cause(
            "truncated:datadog",
            "Datadog's tracer drops inputs and outputs of large spans",
            "annotate documents with ids and scores only, without their text",
        )
    if note.dropped and note.stage == "vector_db":
        return Cause(
            "truncated:events",
            "the OpenTelemetry SDK dropped events, and each hit is one",
            "set OTEL_SPAN_EVENT_COUNT_LIMIT=10000 in the application",
        )
    if note.stage_flags & Flag.MALFORMED and not note.dropped:
        return Cause(
            "truncated:json",
            "the recorded documents are cut off in the middle",
            "unset OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT and OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT in the application (or "
            "the attribute limit of your collector)",
        )
    if note.stage_flags & Flag.TRUNCATED:
        return Cause(
            "truncated:attributes",
            "the OpenTelemetry SDK dropped attributes, the best documents first",
            "set OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=10000 in the application (the default is 128)",
        )
    if note.answer_cut:
        return Cause(
            "truncated:answer",
            "the answer is longer, or cites more, than is read",
            "keep answers below 10,000 citations and a million characters; look for one that repeats itself",
        )
    return Cause(
        "truncated:spans", "the trace has too many spans", "raise join.trace_spans_max above the longest trace"
    )


def _ids_missing(trace: JoinedTrace) -> Cause:
    stage = trace.note.stage
    if trace.note.document_without_id:
        change = _GIVE_IDS.get(stage, _OWN_IDS)
        return Cause(f"ids_missing:{stage}", "the retrieved documents have no ids", change)
    change = _RECORD_DOCUMENTS.get(stage, _OWN_IDS)
    return Cause(f"documents_missing:{stage}", "the retrieval span does not say which documents it found", change)


def _no_output(trace: JoinedTrace) -> Cause:
    note = trace.note
    if note.streamed:
        return Cause(
            "no_output:streamed",
            "the answer was streamed, and a stream object was recorded in its place",
            f"update the instrumentation, or {_OWN_ANSWER} once the stream has ended",
        )
    convention = min(note.answers, default="")
    change = _RECORD_ANSWER.get(convention, _OWN_ANSWER)
    return Cause(f"no_output:{convention}", "the answer's text is not recorded on the LLM span", change)


def score_cause(trace: JoinedTrace, policy: ScorePolicy) -> Cause:
    """Why a trace with a retrieval has no top-1 score."""
    note, result = trace.note, trace.result
    if result.state == State.truncated or note.stage_flags & Flag.TRUNCATED:
        return truncated_cause(trace)
    if result.state == State.bad_time:
        return Cause("bad_time", *_FIXED["bad_time"])
    higher = policy.for_route(result.group.route).score_direction == "higher"
    if note.stage_flags & Flag.DISTANCE and higher:
        return Cause(
            "distances",
            "the recorded scores are distances, and lower is better",
            f'set {setting_of(result.group.route, "score_direction")} = "lower"',
        )
    if note.first_scored:  # and yet not counted
        return Cause("bad_time", *_FIXED["bad_time"])
    if note.has_scores:
        return Cause(
            "first_score_missing", "only some documents have a score, and the first has none", "score every document"
        )
    if note.stage_flags & Flag.MALFORMED:
        return Cause(
            "scores_malformed",
            "the recorded scores are no numbers (NaN, text, true)",
            "record finite numbers as scores",
        )
    if not result.retrieved and not note.document_without_id and result.state != State.empty_retrieval:
        change = _RECORD_DOCUMENTS.get(note.stage, _OWN_SCORES)
        return Cause(f"documents_missing:{note.stage}", "the retrieval span says nothing about its documents", change)
    change = _GIVE_SCORES.get(note.stage, _OWN_SCORES)
    return Cause(f"scores_missing:{note.stage}", "the retrieval span has no scores", change)


def setting_of(route: str, name: str) -> str:
    """The setting of one route, as it is written in TOML."""
    assert name in RoutePolicy.__dataclass_fields__, name
    bare = route.replace("-", "").replace("_", "").isalnum() and route.isascii()
    return f"routes.{route if bare else json.dumps(route, ensure_ascii=False)}.{name}"
