"""The bytes of simulated spans: native events and OTLP protobuf. Not the traffic itself, and not where the bytes go.

OTLP spans look like OpenInference's: a RETRIEVER span with flat documents (ids and scores, no content), an LLM span
whose answer cites in its text. What OpenInference has no key for stands under the native event's key
(`retrieval.top_k`, `retriever.version`, `retrieval.scorer`); the route is the resource's `service.name`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from citegauge.tools.simulate import TrafficSpan

_JSON = "application/json"
_TEXT = "text/plain"
_ENCODER = msgspec.json.Encoder()

AttributeValue = str | int | float


class _RetrievalAttributes(
    msgspec.Struct,
    gc=False,
    rename={
        "retrieved_ids": "retrieval.retrieved_ids",
        "scores": "retrieval.scores",
        "top_k": "retrieval.top_k",
        "version": "retriever.version",
        "scorer": "retrieval.scorer",
    },
):
    route: str
    retrieved_ids: list[str]
    scores: list[float]
    top_k: int
    version: str
    scorer: str


class _GenerationAttributes(
    msgspec.Struct,
    gc=False,
    rename={
        "model": "generation.model",
        "cited_ids": "generation.cited_ids",
        "num_citations": "generation.num_citations",
    },
):
    route: str
    model: str
    cited_ids: list[str]
    num_citations: int


class _NativeEvent(msgspec.Struct, gc=False):
    trace_id: str
    span_id: str
    parent_span_id: None
    name: str
    kind: str
    start_time_unix_nano: int
    end_time_unix_nano: int
    status: str
    attributes: _RetrievalAttributes | _GenerationAttributes


def record_key(span: TrafficSpan) -> bytes:
    """The Kafka key of a span's record: its trace id as 32 hex digits in ASCII."""
    return span.trace_id.hex().encode("ascii")


def encode_native(span: TrafficSpan) -> bytes:
    """One native event: a JSON object on one line, without the line's end."""
    attributes: _RetrievalAttributes | _GenerationAttributes
    if span.kind == "retrieval":
        name = "retrieve"
        attributes = _RetrievalAttributes(
            span.route, span.retrieved, span.scores, span.top_k, span.retriever_version, span.scorer
        )
    else:
        name = "answer"
        attributes = _GenerationAttributes(span.route, span.model, span.cited, len(span.cited))
    return _ENCODER.encode(
        _NativeEvent(
            span.trace_id.hex(), span.span_id.hex(), None, name, span.kind, span.start_ns, span.end_ns, "ok", attributes
        )
    )


def encode_otlp(batch_of_spans: Iterable[TrafficSpan]) -> bytes:
    """One `ExportTraceServiceRequest`, with a resource per run of equal routes, as a collector would have batched them.

    Such requests may be concatenated: the result is one valid request with the spans of all.
    """
    request = ExportTraceServiceRequest()
    by_route = sorted(batch_of_spans, key=lambda span: span.route)
    for route, spans in groupby(by_route, key=lambda span: span.route):
        scope_spans = _add_resource(request.resource_spans.add(), route)
        for span in spans:
            otlp = scope_spans.spans.add(
                trace_id=span.trace_id,
                span_id=span.span_id,
                start_time_unix_nano=span.start_ns,
                end_time_unix_nano=span.end_ns,
                status=Status(code=Status.STATUS_CODE_OK),
            )
            if span.kind == "retrieval":
                _fill_retriever(otlp, span)
            else:
                _fill_llm(otlp, span)
    return request.SerializeToString()


def _add_resource(resource_spans: ResourceSpans, route: str) -> ScopeSpans:
    for key, value in (
        ("telemetry.sdk.language", "python"),
        ("telemetry.sdk.name", "opentelemetry"),
        ("service.name", route),
        ("deployment.environment.name", "simulated"),
    ):
        attribute = resource_spans.resource.attributes.add(key=key)
        attribute.value.string_value = value
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "openinference.instrumentation.citegauge_simulate"
    scope_spans.scope.version = "1"
    return scope_spans


def _fill_retriever(otlp: OtlpSpan, span: TrafficSpan) -> None:
    otlp.name = "VectorIndexRetriever.retrieve"
    otlp.kind = OtlpSpan.SPAN_KIND_INTERNAL
    ranked = list(zip(span.retrieved, span.scores, strict=True))
    documents = [{"id": chunk, "score": score} for chunk, score in ranked]
    attributes: dict[str, AttributeValue] = {
        "openinference.span.kind": "RETRIEVER",
        "input.value": _question(span),
        "input.mime_type": _TEXT,
        # An empty retrieval has no document keys: only this says that it returned nothing.
        "output.value": _ENCODER.encode({"documents": documents}).decode(),
        "output.mime_type": _JSON,
        "session.id": _session(span),
        "retrieval.top_k": span.top_k,
        "retriever.version": span.retriever_version,
        "retrieval.scorer": span.scorer,
    }
    for rank, (chunk, score) in enumerate(ranked):
        attributes[f"retrieval.documents.{rank}.document.id"] = chunk
        attributes[f"retrieval.documents.{rank}.document.score"] = score
    _set_attributes(otlp, attributes)


def _fill_llm(otlp: OtlpSpan, span: TrafficSpan) -> None:
    otlp.name = "ChatCompletion"
    otlp.kind = OtlpSpan.SPAN_KIND_INTERNAL
    answer = _answer_text(span)
    as_json = span.answer_form == "json"
    question = _question(span)
    prompt_tokens, completion_tokens = 200 + 180 * len(span.retrieved), 12 + len(answer) // 4
    parameters = '{"response_format":{"type":"json_object"},"temperature":0}' if as_json else '{"temperature":0}'
    _set_attributes(
        otlp,
        {
            "openinference.span.kind": "LLM",
            "llm.model_name": span.model,
            "llm.system": "simulated",
            "llm.provider": "simulated",
            "llm.invocation_parameters": parameters,
            "input.value": question,
            "input.mime_type": _TEXT,
            "llm.input_messages.0.message.role": "system",
            "llm.input_messages.0.message.content": "Answer from the sources and cite them.",
            "llm.input_messages.1.message.role": "user",
            "llm.input_messages.1.message.content": question,
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": answer,
            "output.value": answer,
            "output.mime_type": _JSON if as_json else _TEXT,
            "llm.token_count.prompt": prompt_tokens,
            "llm.token_count.completion": completion_tokens,
            "llm.token_count.total": prompt_tokens + completion_tokens,
            "session.id": _session(span),
        },
    )


def _set_attributes(otlp: OtlpSpan, attributes: dict[str, AttributeValue]) -> None:
    for key, value in attributes.items():
        attribute = otlp.attributes.add(key=key)
        if isinstance(value, str):
            attribute.value.string_value = value
        elif isinstance(value, int):
            attribute.value.int_value = value
        else:
            attribute.value.double_value = value


_STATEMENTS: Final = (
    "The setting is described in the guide",
    "It takes effect after a restart",
    "The limit depends on the plan",
    "The default is safe for most teams",
    "An administrator can change it",
)


def _answer_text(span: TrafficSpan) -> str:
    """The answer, citing exactly `span.cited` in that order, in the span's own form."""
    if span.answer_form == "json":
        return _ENCODER.encode({"answer": f"{_STATEMENTS[0]}.", "citations": span.cited}).decode()
    if not span.cited:
        return f"{_STATEMENTS[0]}. {_STATEMENTS[1]}."
    marks = _marks(span)
    # Two markers to a bracket, as models do for statements with two sources.
    pairs = [", ".join(marks[at : at + 2]) for at in range(0, len(marks), 2)]
    return " ".join(f"{_STATEMENTS[at % len(_STATEMENTS)]} [{pair}]." for at, pair in enumerate(pairs))


def _marks(span: TrafficSpan) -> list[str]:
    ranks = {chunk: str(rank) for rank, chunk in enumerate(span.retrieved, start=1)}
    # A chunk that was not retrieved has no position, so an answer that cites one names ids throughout.
    if span.answer_form == "ids" or not all(chunk in ranks for chunk in span.cited):
        return span.cited
    return [ranks[chunk] for chunk in span.cited]


def _question(span: TrafficSpan) -> str:
    return f"Question {span.trace_id[:2].hex()} to {span.route}"


def _session(span: TrafficSpan) -> str:
    return f"session-{span.trace_id[:6].hex()}"
