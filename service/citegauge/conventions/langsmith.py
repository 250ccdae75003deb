"""LangSmith's OpenTelemetry export, and its runs (opened in `flat`): a run kind, and raw JSON outputs."""

from __future__ import annotations

from citegauge.conventions.base import GENERATION, OTHER, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.langfuse import read_output
from citegauge.conventions.native import TOP_K_KEYS, common, first
from citegauge.conventions.openinference import input_top_k
from citegauge.conventions.values import count

KIND_KEY = "langsmith.span.kind"
OUTPUT_KEY = "gen_ai.completion"
INPUT_KEY = "gen_ai.prompt"
_KINDS = {"retriever": RETRIEVAL, "llm": GENERATION}


def claims(raw: RawSpan) -> bool:
    """A span with a LangSmith kind. Its GenAI operation is wrong for retrievers (`embeddings`)."""
    return KIND_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a LangSmith run."""
    attributes = raw.attributes
    kind = attributes.get(KIND_KEY)
    facts = Facts(kind=_KINDS.get(kind.lower(), OTHER) if isinstance(kind, str) else OTHER)
    output = attributes.get(OUTPUT_KEY)
    if facts.kind == RETRIEVAL:
        documents = documents_in(output, facts)
        if documents is not None:
            read_documents(documents, facts)
        facts.top_k = count(first(attributes, TOP_K_KEYS), facts) or input_top_k(attributes.get(INPUT_KEY))
    elif facts.kind == GENERATION:
        read_output(facts, output)
    common(facts, attributes)
    return facts


CONVENTION = Convention("langsmith", claims, normalise)
