"""Vector database client spans of OpenLLMetry: one span event per hit. Writes are OTHER."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.base import OTHER, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import Document, read_documents
from citegauge.conventions.native import common, first
from citegauge.conventions.values import count, embedded

SYSTEMS = frozenset(("pinecone", "chroma", "chromadb", "milvus", "qdrant", "weaviate", "marqo", "lancedb"))
_EVENTS = {"db.query.result": "db.query.result.", "db.search.result": "db.search.result."}
_TOP_K_KEYS = ("db.vector.query.top_k", "pinecone.query.top_k", "db.chroma.query.n_results", "db.milvus.search.limit")
_READS = ("query", "search")


def claims(raw: RawSpan) -> bool:
    """A span of a known vector database."""
    system = raw.attributes.get("db.system", raw.attributes.get("db.system.name"))
    return isinstance(system, str) and system.lower() in SYSTEMS


def normalise(raw: RawSpan) -> Facts:
    """Facts of a query; every other operation is OTHER."""
    attributes = raw.attributes
    documents: list[Document] = [
        _hit(event.attributes, prefix) for event in raw.events or () if (prefix := _EVENTS.get(event.name)) is not None
    ]
    operation = f"{raw.name} {attributes.get('db.operation', '')}".lower()
    is_read = bool(documents) or any(word in operation for word in _READS)
    facts = Facts(kind=RETRIEVAL if is_read else OTHER)
    if is_read:
        if documents:
            read_documents([_with_metadata(document) for document in documents], facts)
        facts.top_k = count(first(attributes, _TOP_K_KEYS), facts)
        common(facts, attributes)
    return facts


def _hit(attributes: Mapping[str, Any], prefix: str) -> Document:
    """The fields of one hit; Marqo's come under their own names (`_id`, `_score`)."""
    found = {key.removeprefix(prefix): value for key, value in attributes.items() if key.startswith(prefix)}
    return found or attributes


def _with_metadata(document: Document) -> Document:
    # The metadata is the text of a Python dict, which is not JSON: it is left alone.
    metadata = embedded(document.get("metadata"), Facts())
    return {**document, "metadata": metadata if isinstance(metadata, dict) else None}


CONVENTION = Convention("vector_db", claims, normalise)
