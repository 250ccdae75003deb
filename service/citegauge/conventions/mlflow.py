"""MLflow spans: every attribute is JSON text, the span type as well. Its trace file is opened in `flat`."""

from __future__ import annotations

from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.langfuse import read_output
from citegauge.conventions.native import TOP_K_KEYS, common, first
from citegauge.conventions.openinference import input_top_k
from citegauge.conventions.values import count, embedded, text

TYPE_KEY = "mlflow.spanType"
_KINDS = {"RETRIEVER": RETRIEVAL, "RERANKER": RERANK, "LLM": GENERATION, "CHAT_MODEL": GENERATION}


def claims(raw: RawSpan) -> bool:
    """A span with an MLflow type."""
    return TYPE_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of an MLflow span."""
    attributes = raw.attributes
    facts = Facts(kind=_KINDS.get(text(attributes.get(TYPE_KEY)).upper(), OTHER))
    if facts.kind in (RETRIEVAL, RERANK):
        documents = documents_in(attributes.get("mlflow.spanOutputs"), facts)
        if documents is not None:
            read_documents(documents, facts)
        facts.top_k = count(first(attributes, TOP_K_KEYS), facts) or input_top_k(attributes.get("mlflow.spanInputs"))
    elif facts.kind == GENERATION:
        read_output(facts, attributes.get("mlflow.spanOutputs"))
        inputs = embedded(attributes.get("mlflow.spanInputs"), Facts())
        facts.model = text(inputs.get("model")) if isinstance(inputs, dict) else ""
    common(facts, attributes)
    return facts


CONVENTION = Convention("mlflow", claims, normalise)
