"""Vercel AI SDK: reranking, with documents and ranking as lists of JSON texts, and answers. Not its tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.answers import read_answer
from citegauge.conventions.base import GENERATION, MALFORMED, OTHER, RERANK, Convention, Facts, RawSpan
from citegauge.conventions.documents import Document, read_documents
from citegauge.conventions.native import common, first
from citegauge.conventions.values import count, embedded, text

_OPERATION_KEYS = ("ai.operationId", "operation.name")
_GENERATIONS = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")
_TOP_N_KEYS = ("ai.topN", "ai.settings.topN", "topN", "gen_ai.retrieval.top_k")


def claims(raw: RawSpan) -> bool:
    """A span of one of the SDK's operations."""
    return _operation(raw.attributes).startswith("ai.")


def normalise(raw: RawSpan) -> Facts:
    """Facts of an SDK span. Outer and inner generation both carry the answer; the score takes the outer one."""
    attributes = raw.attributes
    operation = _operation(attributes)
    facts = Facts()
    model = text(first(attributes, ("ai.model.id", "gen_ai.request.model")))
    if operation.startswith("ai.rerank") and attributes.get("ai.ranking") is not None:
        facts.kind = RERANK
        _ranking(facts, attributes)
        facts.scorer = f"rerank:{model}" if model else ""
    elif operation.startswith(_GENERATIONS):
        facts.kind = GENERATION
        facts.model = model
        answer = attributes.get("ai.response.object", attributes.get("ai.response.text"))
        read_answer(facts, [answer], attributes.get("ai.response.providerMetadata"))
    else:
        facts.kind = OTHER
    common(facts, attributes)
    return facts


def _operation(attributes: Mapping[str, Any]) -> str:
    value = first(attributes, _OPERATION_KEYS)
    return value if isinstance(value, str) else ""


def _ranking(facts: Facts, attributes: Mapping[str, Any]) -> None:
    ranking = embedded(attributes.get("ai.ranking"), facts)
    documents = embedded(attributes.get("ai.documents"), facts)
    ranked: list[Document] = []
    for entry in ranking if isinstance(ranking, list) else ():
        place = embedded(entry, facts)
        if not isinstance(place, dict):
            facts.flags |= MALFORMED
            continue
        index = first(place, ("originalIndex", "index"))
        known = isinstance(documents, list) and type(index) is int and 0 <= index < len(documents)
        document = embedded(documents[index] if known else place.get("document"), Facts())
        score = first(place, ("relevanceScore", "relevance_score", "score"))
        ranked.append({**(document if isinstance(document, dict) else {"content": document}), "score": score})
    read_documents(ranked, facts)
    facts.top_k = count(first(attributes, _TOP_N_KEYS), facts)


CONVENTION = Convention("vercel", claims, normalise)
