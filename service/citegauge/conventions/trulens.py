"""TruLens: contexts as plain texts, so that every chunk id is made from the content."""

from __future__ import annotations

from citegauge.conventions.answers import read_answer
from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import read_documents
from citegauge.conventions.native import common, first
from citegauge.conventions.values import count, embedded, text

TYPE_KEY = "ai.observability.span_type"
_KINDS = {"retrieval": RETRIEVAL, "reranking": RERANK, "generation": GENERATION}
_CONTEXT_KEYS = ("ai.observability.retrieval.retrieved_contexts", "ai.observability.reranking.ranked_contexts")
_OUTPUT_KEYS = (
    "ai.observability.call.return",
    "ai.observability.generation.output",
)


def claims(raw: RawSpan) -> bool:
    """A span with a TruLens type."""
    return TYPE_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a TruLens span."""
    attributes = raw.attributes
    facts = Facts(kind=_KINDS.get(text(attributes.get(TYPE_KEY)).lower(), OTHER))
    if facts.kind in (RETRIEVAL, RERANK):
        contexts = embedded(first(attributes, _CONTEXT_KEYS), facts)
        if isinstance(contexts, list):
            read_documents([{"content": item} if isinstance(item, str) else {} for item in contexts], facts)
        facts.top_k = count(attributes.get("ai.observability.retrieval.num_contexts"), facts)
    elif facts.kind == GENERATION:
        read_answer(facts, [first(attributes, _OUTPUT_KEYS)])
        facts.model = text(attributes.get("ai.observability.cost.model"))
    common(facts, attributes)
    return facts


CONVENTION = Convention("trulens", claims, normalise)
