"""Spring AI's vector stores: observation tags, the response as a list of texts. Not its chat models (`otel_genai`)."""

from __future__ import annotations

from citegauge.conventions.base import DISTANCE, MALFORMED, OTHER, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import Document, documents_in, read_documents
from citegauge.conventions.native import common, first
from citegauge.conventions.values import count, embedded, text

KIND_KEY = "spring.ai.kind"
DOCUMENTS_KEY = "db.vector.query.response.documents"
_OPERATION_KEYS = ("db.operation.name", "db.vector.client.operation")
_METRIC_KEYS = ("db.search.similarity_metric", "db.vector.similarity_metric")
_DISTANCES = frozenset(("euclidean", "euclidean_distance", "l2", "l1", "manhattan", "hamming", "jaccard"))


def claims(raw: RawSpan) -> bool:
    """A span of a vector store."""
    return raw.attributes.get(KIND_KEY) == "vector_store" or DOCUMENTS_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a query; adding and deleting are OTHER."""
    attributes = raw.attributes
    value = attributes.get(DOCUMENTS_KEY)
    operation = text(first(attributes, _OPERATION_KEYS)).lower()
    facts = Facts(kind=RETRIEVAL if value is not None or operation == "query" or raw.name.endswith(" query") else OTHER)
    if facts.kind != RETRIEVAL:
        return facts
    documents = _documents(value, facts)
    if documents is not None:
        read_documents(documents, facts)
    if facts.scores and text(first(attributes, _METRIC_KEYS)).lower() in _DISTANCES:
        facts.flags |= DISTANCE
    facts.top_k = count(attributes.get("db.vector.query.top_k"), facts)
    common(facts, attributes)
    return facts


def _documents(value: object, facts: Facts) -> list[Document] | None:
    """Objects, or the texts alone. Its writer does not escape the quotes inside a text: then nothing is known."""
    found = embedded(value, Facts())
    if isinstance(found, list) and found and all(isinstance(item, str) for item in found):
        return [{"content": item} for item in found]
    if isinstance(found, list | dict):
        return documents_in(found, facts)
    if value is not None and value != "":
        facts.flags |= MALFORMED
    return None


CONVENTION = Convention("spring_ai", claims, normalise)
