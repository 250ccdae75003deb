"""Langfuse's OpenTelemetry attributes: an observation type, and input and output as JSON text. Not its export files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.answers import is_answer, read_answer, texts_in
from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.native import TOP_K_KEYS, common, first
from citegauge.conventions.openinference import input_top_k
from citegauge.conventions.values import count, dumps, embedded, unquoted

TYPE_KEY = "langfuse.observation.type"
_KINDS = {"retriever": RETRIEVAL, "reranker": RERANK, "rerank": RERANK, "generation": GENERATION}


def claims(raw: RawSpan) -> bool:
    """A span with a Langfuse observation type."""
    return TYPE_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a Langfuse observation."""
    attributes = raw.attributes
    kind = attributes.get(TYPE_KEY)
    facts = Facts(kind=_KINDS.get(unquoted(kind).lower(), OTHER) if isinstance(kind, str) else OTHER)
    if facts.kind in (RETRIEVAL, RERANK):
        documents = documents_in(attributes.get("langfuse.observation.output"), facts)
        if documents is not None:
            read_documents(documents, facts)
        facts.top_k = count(first(attributes, TOP_K_KEYS), facts) or _top_k(attributes)
    elif facts.kind == GENERATION:
        read_output(facts, attributes.get("langfuse.observation.output"))
    common(facts, attributes)
    return facts


def read_output(facts: Facts, output: object) -> None:
    """The answer of a recorded output: a plain text, a message, or any response of a known shape."""
    response = embedded(output, facts)
    if response is None:
        texts = [output] if isinstance(output, str) else []  # broken JSON is an answer from which nothing can be read
    elif is_answer(response):
        texts = [dumps(response)]
    else:
        texts = texts_in(response)
    read_answer(facts, texts, response)


def _top_k(attributes: Mapping[str, Any]) -> int:
    found = input_top_k(attributes.get("langfuse.observation.input"))
    return found or input_top_k(attributes.get("langfuse.observation.metadata"))


CONVENTION = Convention("langfuse", claims, normalise)
