"""Simulated bytes, compared with the formats written out by hand; the decoders are not used here."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from citegauge.tools.simulate import TrafficSpan
from citegauge.tools.simulate_encode import encode_native, encode_otlp, record_key

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

RETRIEVAL = TrafficSpan(
    emit_ns=1_764_460_800_500_000_000,
    trace_id=bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736"),
    span_id=bytes.fromhex("00f067aa0ba902b7"),
    kind="retrieval",
    start_ns=1_764_460_800_000_000_000,
    end_ns=1_764_460_800_041_000_000,
    route="support",
    top_k=3,
    retriever_version="r7",
    scorer="reranker:bge-v2",
    retrieved=["c9", "c1", "c3"],
    scores=[0.88, 0.71, 0.64],
    model="m1",
    cited=["c9", "c3"],
    answer_form="ids",
)
GENERATION = msgspec.structs.replace(
    RETRIEVAL,
    span_id=bytes.fromhex("53995c3f42cd8ad8"),
    kind="generation",
    start_ns=1_764_460_800_050_000_000,
    end_ns=1_764_460_802_050_000_000,
)


def otlp_spans(*spans: TrafficSpan) -> list[tuple[OtlpSpan, dict[str, object]]]:
    """Every span of one encoded batch with its attributes as plain values."""
    request = ExportTraceServiceRequest.FromString(encode_otlp(spans))
    return [
        (span, {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes})
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def test_native_retrieval() -> None:
    """A native retrieval is one line of JSON with exactly the documented fields."""
    line = encode_native(RETRIEVAL)
    assert b"\n" not in line
    assert json.loads(line) == {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "parent_span_id": None,
        "name": "retrieve",
        "kind": "retrieval",
        "start_time_unix_nano": 1764460800000000000,
        "end_time_unix_nano": 1764460800041000000,
        "status": "ok",
        "attributes": {
            "route": "support",
            "retrieval.retrieved_ids": ["c9", "c1", "c3"],
            "retrieval.scores": [0.88, 0.71, 0.64],
            "retrieval.top_k": 3,
            "retriever.version": "r7",
            "retrieval.scorer": "reranker:bge-v2",
        },
    }


def test_native_generation() -> None:
    """A native generation lists the cited ids and their number, and nothing of the retrieval."""
    assert json.loads(encode_native(GENERATION)) == {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "53995c3f42cd8ad8",
        "parent_span_id": None,
        "name": "answer",
        "kind": "generation",
        "start_time_unix_nano": 1764460800050000000,
        "end_time_unix_nano": 1764460802050000000,
        "status": "ok",
        "attributes": {
            "route": "support",
            "generation.model": "m1",
            "generation.cited_ids": ["c9", "c3"],
            "generation.num_citations": 2,
        },
    }


def test_recall_of_the_native_pair_by_hand() -> None:
    """The bytes alone give 2 of 3 chunks cited, a top-1 score of 0.88 and rank-weighted (1 + 1/3) / (1 + 1/2 + 1/3)."""
    retrieved = json.loads(encode_native(RETRIEVAL))["attributes"]
    cited = json.loads(encode_native(GENERATION))["attributes"]["generation.cited_ids"]
    ranks = [rank for rank, chunk in enumerate(retrieved["retrieval.retrieved_ids"], 1) if chunk in cited]
    assert ranks == [1, 3]
    assert len(ranks) / len(retrieved["retrieval.retrieved_ids"]) == pytest.approx(2 / 3)
    assert sum(1 / rank for rank in ranks) / (1 + 1 / 2 + 1 / 3) == pytest.approx(8 / 11)
    assert retrieved["retrieval.scores"][0] == 0.88


def test_record_key_is_hex() -> None:
    """The Kafka key is the trace id as 32 lower-case hex digits in ASCII."""
    assert record_key(RETRIEVAL) == b"4bf92f3577b34da6a3ce929d0e0e4736"


def test_otlp_retriever_span() -> None:
    """An OTLP retrieval is an OpenInference RETRIEVER span with flat documents in rank order."""
    ((span, attributes),) = otlp_spans(RETRIEVAL)
    assert span.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span.span_id.hex() == "00f067aa0ba902b7"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1764460800000000000, 1764460800041000000)
    assert attributes["openinference.span.kind"] == "RETRIEVER"
    documents = {key: value for key, value in attributes.items() if key.startswith("retrieval.documents.")}
    assert documents == {
        "retrieval.documents.0.document.id": "c9",
        "retrieval.documents.0.document.score": 0.88,
        "retrieval.documents.1.document.id": "c1",
        "retrieval.documents.1.document.score": 0.71,
        "retrieval.documents.2.document.id": "c3",
        "retrieval.documents.2.document.score": 0.64,
    }
    assert attributes["retrieval.top_k"] == 3
    assert attributes["retriever.version"] == "r7"
    assert attributes["retrieval.scorer"] == "reranker:bge-v2"
    assert 12 <= len(attributes) <= 30


def test_otlp_empty_retrieval_says_that_it_is_empty() -> None:
    """A retrieval that returned nothing has no document keys, and an output with an empty list: not a missing one."""
    ((_, attributes),) = otlp_spans(msgspec.structs.replace(RETRIEVAL, retrieved=[], scores=[], cited=[]))
    assert not [key for key in attributes if key.startswith("retrieval.documents")]
    assert json.loads(str(attributes["output.value"])) == {"documents": []}


def test_otlp_llm_span() -> None:
    """An OTLP generation is an OpenInference LLM span with its model, and the same answer in both places."""
    ((span, attributes),) = otlp_spans(GENERATION)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1764460800050000000, 1764460802050000000)
    assert attributes["openinference.span.kind"] == "LLM"
    assert attributes["llm.model_name"] == "m1"
    assert attributes["output.value"] == attributes["llm.output_messages.0.message.content"]
    assert 15 <= len(attributes) <= 25


@pytest.mark.parametrize(
    ("cited", "answer_form", "brackets"),
    [
        (["c9", "c3"], "ids", ["c9, c3"]),
        (["c9", "c1", "c3"], "ids", ["c9, c1", "c3"]),
        (["c9", "c3"], "positions", ["1, 3"]),
        (["c1"], "positions", ["2"]),
        (["c9", "c77"], "positions", ["c9, c77"]),
        ([], "positions", []),
        ([], "ids", []),
    ],
)
def test_otlp_inline_markers(cited: list[str], answer_form: str, brackets: list[str]) -> None:
    """An answer cites ids or 1-based positions, two to a bracket; only ids where one was not retrieved."""
    answer = msgspec.structs.replace(GENERATION, cited=cited, answer_form=answer_form)
    ((_, attributes),) = otlp_spans(answer)
    assert re.findall(r"\[([^\]]*)\]", str(attributes["output.value"])) == brackets
    assert attributes["output.mime_type"] == "text/plain"


@pytest.mark.parametrize("cited", [[], ["c9", "c77"]])
def test_otlp_json_answer(cited: list[str]) -> None:
    """An answer in JSON is an object with `citations`, and the span says that JSON was asked for."""
    ((_, attributes),) = otlp_spans(msgspec.structs.replace(GENERATION, cited=cited, answer_form="json"))
    output = json.loads(str(attributes["output.value"]))
    assert set(output) == {"answer", "citations"}
    assert output["citations"] == cited
    assert attributes["output.mime_type"] == "application/json"
    assert json.loads(str(attributes["llm.invocation_parameters"]))["response_format"] == {"type": "json_object"}


def test_otlp_batch_has_one_resource_per_route() -> None:
    """The route is the service name of the resource that a span stands under, whatever the order of the batch."""
    other = msgspec.structs.replace(GENERATION, route="docs", span_id=bytes(8))
    request = ExportTraceServiceRequest.FromString(encode_otlp([RETRIEVAL, other, GENERATION]))
    ids_by_service = {
        next(a.value.string_value for a in resource_spans.resource.attributes if a.key == "service.name"): [
            span.span_id for scope_spans in resource_spans.scope_spans for span in scope_spans.spans
        ]
        for resource_spans in request.resource_spans
    }
    assert ids_by_service == {"docs": [bytes(8)], "support": [RETRIEVAL.span_id, GENERATION.span_id]}
    assert len(request.resource_spans) == 2
