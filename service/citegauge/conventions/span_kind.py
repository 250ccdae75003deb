"""Instrumentation that says `gen_ai.span.kind` or `fi.span.kind`: Dify, LoongSuite, FutureAGI traceAI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.base import FILE_LEVEL_IDS, GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import Document, documents_in, read_documents
from citegauge.conventions.native import common, first
from citegauge.conventions.openinference import output_messages, read_generation, read_reranker, read_retriever
from citegauge.conventions.otel_genai import read_answer_of
from citegauge.conventions.values import count

_KIND_KEYS = ("gen_ai.span.kind", "fi.span.kind")
_KINDS = {"RETRIEVER": RETRIEVAL, "RERANKER": RERANK, "LLM": GENERATION}
_DIFY_KEY = "retrieval.document"
_TOP_K_KEYS = ("gen_ai.retrieval.top_k", "gen_ai.request.top_k", "retrieval.top_k")


def claims(raw: RawSpan) -> bool:
    """A span with one of the two kinds."""
    return any(key in raw.attributes for key in _KIND_KEYS)


def normalise(raw: RawSpan) -> Facts:
    """Facts of such a span."""
    attributes = raw.attributes
    kind = first(attributes, _KIND_KEYS)
    facts = Facts(kind=_KINDS.get(kind.upper(), OTHER) if isinstance(kind, str) else OTHER)
    if facts.kind == RETRIEVAL:
        _retrieval(facts, attributes)
    elif facts.kind == RERANK:
        read_reranker(facts, attributes)
    elif facts.kind == GENERATION:
        if any(key in attributes for key in ("gen_ai.output.messages", "gen_ai.completion")) or raw.events:
            read_answer_of(facts, raw)
        if not facts.citation_form:
            read_generation(facts, attributes, output_messages(attributes))
    common(facts, attributes)
    return facts


def _retrieval(facts: Facts, attributes: Mapping[str, Any]) -> None:
    value = first(attributes, ("gen_ai.retrieval.documents", _DIFY_KEY))
    if value is None:
        read_retriever(facts, attributes)
    else:
        documents = documents_in(value, facts)
        if documents is not None:
            if _DIFY_KEY in attributes:
                documents = [_dify(document, facts) for document in documents]
            read_documents(documents, facts)
    facts.top_k = count(first(attributes, _TOP_K_KEYS), facts) or facts.top_k
    if _DIFY_KEY in attributes and facts.scores is not None and not any(facts.scores):
        # Dify writes 0.0 where it has no score; a retriever that finds nothing similar at all is not told apart.
        facts.scores = facts.first_score = None


def _dify(document: Document, facts: Facts) -> Document:
    """Dify's id is that of the whole document: its content tells segments apart; without it only files are known."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    own, whole = document.get("id"), metadata.get("document_id")
    if whole in (None, "") or own not in (None, "", whole) or metadata.get("segment_id"):
        return document
    if document.get("content"):
        return {**document, "id": None}
    facts.flags |= FILE_LEVEL_IDS
    return {**document, "id": whole}


CONVENTION = Convention("gen_ai_span_kind", claims, normalise)
