"""LangWatch: RAG contexts with chunk and document ids, values wrapped as `{"type": …, "value": …}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import Document, documents_in, read_documents
from citegauge.conventions.langfuse import read_output
from citegauge.conventions.native import TOP_K_KEYS, common, first
from citegauge.conventions.values import chunk_id, count, embedded, text

TYPE_KEY = "langwatch.span.type"
_KINDS = {"rag": RETRIEVAL, "retriever": RETRIEVAL, "rerank": RERANK, "llm": GENERATION}
_CONTEXT_KEYS = ("langwatch.rag.contexts", "langwatch.rag_contexts", "langwatch.contexts")


def claims(raw: RawSpan) -> bool:
    """A span with a LangWatch type."""
    return TYPE_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a LangWatch span."""
    attributes = raw.attributes
    facts = Facts(kind=_KINDS.get(text(attributes.get(TYPE_KEY)).lower(), OTHER))
    if facts.kind in (RETRIEVAL, RERANK):
        documents = documents_in(_unwrapped(first(attributes, _CONTEXT_KEYS), facts), facts)
        if documents is not None:
            read_documents([_with_id(document) for document in documents], facts)
        facts.top_k = count(first(attributes, TOP_K_KEYS), facts)
    elif facts.kind == GENERATION:
        read_output(facts, _unwrapped(attributes.get("langwatch.output"), facts))
    common(facts, attributes)
    return facts


def _unwrapped(value: object, facts: Facts) -> object:
    found = embedded(value, facts)
    if isinstance(found, dict) and "value" in found and "type" in found:
        return found["value"]
    return value


def _with_id(document: Document) -> Mapping[str, Any]:
    own, whole = chunk_id(document.get("chunk_id")), chunk_id(document.get("document_id"))
    if own is not None and whole is not None and own.isdigit():
        own = f"{whole}#{own}"  # it counts within the document
    # Where there is no chunk id, the document id is one that LangWatch made from the content.
    return document if own is None and whole is None else {**document, "id": own or whole}


CONVENTION = Convention("langwatch", claims, normalise)
