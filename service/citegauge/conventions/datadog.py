"""Datadog LLM Observability span events, as `flat` opens them. Not APM spans."""

from __future__ import annotations

from citegauge.conventions.answers import read_answer, texts_in
from citegauge.conventions.base import GENERATION, OTHER, RETRIEVAL, TRUNCATED, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.native import common
from citegauge.conventions.openinference import input_top_k
from citegauge.conventions.values import text

KIND_KEY = "datadog.span.kind"
META_KEY = "datadog.meta"
DROPPED_KEY = "datadog.dropped_io"
_KINDS = {"retrieval": RETRIEVAL, "llm": GENERATION}


def claims(raw: RawSpan) -> bool:
    """A span event of LLM Observability."""
    return KIND_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a span event."""
    attributes = raw.attributes
    facts = Facts(kind=_KINDS.get(text(attributes.get(KIND_KEY)).lower(), OTHER))
    meta = attributes.get(META_KEY)
    meta = meta if isinstance(meta, dict) else {}
    output, given = meta.get("output"), meta.get("input")
    output = output if isinstance(output, dict) else {}
    if facts.kind == RETRIEVAL:
        documents = documents_in(output.get("documents"), facts)
        if documents is not None:
            read_documents(documents, facts)
        metadata = meta.get("metadata")
        facts.top_k = input_top_k(metadata) or input_top_k(given.get("value") if isinstance(given, dict) else None)
        if attributes.get(DROPPED_KEY):
            facts.flags |= TRUNCATED
    elif facts.kind == GENERATION:
        answer = output.get("messages", output.get("value"))
        read_answer(facts, texts_in(answer), answer)
        facts.model = text(meta.get("model_name"))
    common(facts, attributes)
    return facts


CONVENTION = Convention("datadog", claims, normalise)
