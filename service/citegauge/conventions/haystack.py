"""Haystack's own tracer: component types, and outputs as JSON where content tracing is on."""

from __future__ import annotations

from citegauge.conventions.base import GENERATION, OTHER, RERANK, RETRIEVAL, Convention, Facts, RawSpan
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.langfuse import read_output
from citegauge.conventions.native import common
from citegauge.conventions.openinference import input_top_k
from citegauge.conventions.values import text

TYPE_KEY = "haystack.component.type"
_ENDINGS = (("Retriever", RETRIEVAL), ("Ranker", RERANK), ("Generator", GENERATION))


def claims(raw: RawSpan) -> bool:
    """A span of a component."""
    return TYPE_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of a component, whose class name ends in what it is."""
    attributes = raw.attributes
    name = text(attributes.get(TYPE_KEY))
    facts = Facts(kind=next((kind for ending, kind in _ENDINGS if name.endswith(ending)), OTHER))
    output = attributes.get("haystack.component.output")
    if facts.kind in (RETRIEVAL, RERANK):
        documents = documents_in(output, facts)
        if documents is not None:
            read_documents(documents, facts)
        facts.top_k = input_top_k(attributes.get("haystack.component.input"))
    elif facts.kind == GENERATION:
        read_output(facts, output)
    common(facts, attributes)
    return facts


CONVENTION = Convention("haystack", claims, normalise)
