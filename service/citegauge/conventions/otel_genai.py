"""OpenTelemetry GenAI semantic conventions, 1.36 to the separate repository's 0.1. Not its log records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.answers import read_answer, texts_in
from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.native import common, first
from citegauge.conventions.values import count, embedded, text

OPERATION_KEY = "gen_ai.operation.name"
_KINDS = {
    "retrieval": RETRIEVAL,
    "retrieve": RETRIEVAL,
    "rerank": RERANK,
    "chat": GENERATION,
    "text_completion": GENERATION,
    "generate_content": GENERATION,
}
_AGENT_KIT_KEY = "gcp.vertex.agent.llm_response"
_ANSWER_KEYS = ("gen_ai.completion", _AGENT_KIT_KEY, "lk.response.text")
_TOP_K_KEYS = ("gen_ai.retrieval.top_k", "gen_ai.request.top_k")


def claims(raw: RawSpan) -> bool:
    """A span with a GenAI operation, or with an answer of Google's agent kit, whose older versions name none."""
    return OPERATION_KEY in raw.attributes or _AGENT_KIT_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a GenAI span."""
    attributes = raw.attributes
    operation = attributes.get(OPERATION_KEY, "chat")
    facts = Facts(kind=_KINDS.get(operation.lower(), OTHER) if isinstance(operation, str) else OTHER)
    if facts.kind in (RETRIEVAL, RERANK):
        read_stage(facts, attributes)
    elif facts.kind == GENERATION:
        read_answer_of(facts, raw)
    common(facts, attributes)
    return facts


def read_stage(facts: Facts, attributes: Mapping[str, Any]) -> None:
    """Documents, top_k and scorer of a retrieval or rerank span."""
    documents = documents_in(attributes.get("gen_ai.retrieval.documents"), facts)
    if documents is not None:
        read_documents(documents, facts)
    # `gen_ai.request.top_k` is a sampling parameter elsewhere, but on a retrieval span it is the number asked for.
    facts.top_k = count(first(attributes, _TOP_K_KEYS), facts)
    model = text(attributes.get("gen_ai.request.model"))
    if model:
        facts.scorer = ("rerank:" if facts.kind == RERANK else "retrieval:") + model


def read_answer_of(facts: Facts, raw: RawSpan) -> None:
    """The answer from messages, completions (flat or whole) or events, whichever is there first."""
    attributes = raw.attributes
    value = attributes.get("gen_ai.output.messages")
    if value is None:
        value = _from_events(raw)
    if value is not None:
        messages = embedded(value, facts)
        read_answer(facts, texts_in(messages), messages)
        return
    flat = [
        item
        for key, item in attributes.items()
        if key.startswith("gen_ai.completion.") and key.endswith(".content") and isinstance(item, str)
    ]
    whole = embedded(first(attributes, _ANSWER_KEYS), facts)
    read_answer(facts, flat or texts_in(whole), whole)


_EVENTS = {
    "gen_ai.choice": ("message", "content", "gen_ai.event.content", "body"),
    "gen_ai.assistant.message": ("content", "gen_ai.event.content", "body"),
    "gen_ai.content.completion": ("gen_ai.completion",),
    "gen_ai.client.inference.operation.details": ("gen_ai.output.messages",),
}


def _from_events(raw: RawSpan) -> object:
    for event in raw.events or ():
        for key in _EVENTS.get(event.name, ()):
            if event.attributes.get(key) is not None:
                return event.attributes[key]
    return None


CONVENTION = Convention("otel_genai", claims, normalise)
