"""OpenLLMetry (Traceloop): entity outputs as JSON, older LLM spans. Not its vector database spans (`vector_db`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.native import TOP_K_KEYS, common, first
from citegauge.conventions.otel_genai import OPERATION_KEY, read_answer_of
from citegauge.conventions.values import count, embedded

KIND_KEY = "traceloop.span.kind"
REQUEST_KEY = "llm.request.type"
_REQUESTS = {"chat": GENERATION, "completion": GENERATION, "rerank": RERANK}
_RETRIEVE_TASK = re.compile(r"retriever?\.task\Z", re.IGNORECASE)
_OUTPUT_KEYS = ("traceloop.entity.output", "gen_ai.task.output")


def claims(raw: RawSpan) -> bool:
    """A span with an entity kind, an older request type, or the retrieval operation that only it has."""
    attributes = raw.attributes
    return KIND_KEY in attributes or REQUEST_KEY in attributes or attributes.get(OPERATION_KEY) == "vector_db_retrieve"


def normalise(raw: RawSpan) -> Facts:
    """Facts of an OpenLLMetry span."""
    attributes = raw.attributes
    facts = Facts(kind=_kind(raw))
    if facts.kind in (RETRIEVAL, RERANK):
        documents = documents_in(_output(attributes, facts), facts)
        if documents is not None:
            read_documents(documents, facts)
        facts.top_k = count(first(attributes, TOP_K_KEYS), facts)
    elif facts.kind == GENERATION:
        read_answer_of(facts, raw)
    common(facts, attributes)
    return facts


def _kind(raw: RawSpan) -> int:
    attributes = raw.attributes
    if attributes.get(OPERATION_KEY) == "vector_db_retrieve":
        return RETRIEVAL
    request = attributes.get(REQUEST_KEY)
    if isinstance(request, str):
        return _REQUESTS.get(request.lower(), OTHER)
    if attributes.get(KIND_KEY) == "task" and _RETRIEVE_TASK.search(raw.name):
        return RETRIEVAL
    return OTHER


def _output(attributes: Mapping[str, Any], facts: Facts) -> object:
    value = first(attributes, _OUTPUT_KEYS)
    if isinstance(value, str) and '"outputs"' in value:
        found = embedded(value, facts)
        return found.get("outputs") if isinstance(found, dict) and "outputs" in found else value
    return value


CONVENTION = Convention("openllmetry", claims, normalise)
