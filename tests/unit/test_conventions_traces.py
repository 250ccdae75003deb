"""Real trace files: both envelopes agree, and what is known of each file is found in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.span import CitationForm, Flag, Kind, Span

TRACES = Path(__file__).parents[1] / "golden" / "traces"
NAMES = sorted(path.name.removesuffix(".otlp.binpb") for path in TRACES.glob("*.otlp.binpb"))


def _spans(name: str) -> list[Span]:
    found = decoder("otlp_proto", DecodePolicy())((TRACES / f"{name}.otlp.binpb").read_bytes())
    spans = [span for span in found if isinstance(span, Span)]
    assert spans
    assert len(spans) == len(found)
    return spans


def _one(name: str, kind: Kind, at: int = 0) -> Span:
    return [span for span in _spans(name) if span.kind == kind][at]


@pytest.mark.parametrize("name", NAMES)
def test_protobuf_json_and_sniffed_forms_give_equal_spans(name: str) -> None:
    """The envelope never decides what a span means."""
    expected = _spans(name)
    as_json = (TRACES / f"{name}.otlp.json").read_bytes()
    as_proto = (TRACES / f"{name}.otlp.binpb").read_bytes()
    for encoding, record in (("otlp_json", as_json), ("jsonl", as_json), ("auto", as_json), ("auto", as_proto)):
        assert decoder(encoding, DecodePolicy())(record) == expected, encoding


def test_ids_from_the_output_complete_flat_documents_without_ids() -> None:
    """LangChain under OpenInference has its ids in `output.value` only."""
    span = _one("openinference_langchain", Kind.RETRIEVAL)
    assert span.ids == ["chunk-2", "chunk-5", "chunk-3", "chunk-4"]
    assert (span.scores, span.first_score, span.route) == (None, None, "support-bot")


def test_a_retriever_inside_a_retriever_has_no_ids_of_its_own() -> None:
    """Texts such as `<NodeWithScore(…)>` are not documents."""
    assert _one("openinference_llamaindex_streaming", Kind.RETRIEVAL).ids is None


def test_evicted_documents_are_truncation() -> None:
    """At the attribute limit the best documents are the ones that are missing."""
    span = _one("openinference_llamaindex_top50_attr_limit", Kind.RETRIEVAL, at=1)
    assert span.flags & Flag.TRUNCATED
    assert span.first_score is None
    assert span.ids is not None
    assert span.ids[0] == "node-40"


def test_a_prompt_builder_is_no_generation() -> None:
    """A span of kind LLM whose output is the prompt cites every chunk, and none of it counts."""
    generations = [span for span in _spans("openinference_haystack") if span.kind == Kind.GENERATION]
    assert [(span.model, span.positions) for span in generations] == [("fake", [1])]


def test_attribute_types_lie() -> None:
    """Scores as text and ids as numbers are read; NaN and Infinity are missing and flagged."""
    flat, structured = _spans("edge_attribute_types")
    assert flat.ids == ["a", "42", "9007199254740993", "b", "b"]
    assert flat.scores == [0.5, None, 1.0, None, 0.0]
    assert flat.flags == Flag.MALFORMED
    assert (structured.ids, structured.scores, structured.top_k) == (["x", "y"], [0.5, None], 2)


def test_langfuse_quotes_and_inputs() -> None:
    """Metadata values are JSON-quoted, and the top_k stands in the input."""
    span = _one("langfuse_sdk.0", Kind.RETRIEVAL, at=1)
    assert (span.ids, span.scores, span.top_k, span.route) == (["7", "9007199254740993"], [None, 0.5], 3, "/chat")
    answer = _one("langfuse_sdk.0", Kind.GENERATION)
    assert (answer.citation_form, answer.cited, answer.positions) == (CitationForm.INLINE, [], [1, 3])


def test_otel_genai_documents_and_messages() -> None:
    """Documents are JSON text with null scores; the answer stands in the output messages."""
    span = _one("otel_genai_langchain", Kind.RETRIEVAL)
    assert (span.ids, span.scores) == (["chunk-2", "chunk-5", "chunk-3", "chunk-4"], None)
    answer = _one("otel_genai_langchain", Kind.GENERATION)
    assert (answer.model, answer.positions) == ("fake-model", [1, 3])
