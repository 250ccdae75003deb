"""The native event's attributes, also on OTLP spans. Not the JSON line around them (`lines`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from citegauge.conventions.answers import explicit, explicit_positions, read_answer
from citegauge.conventions.base import (
    EXPECTS_JSON,
    GENERATION,
    MALFORMED,
    OTHER,
    RERANK,
    RETRIEVAL,
    Convention,
    Facts,
    RawSpan,
)
from citegauge.conventions.values import chunk_id, count, dumps, embedded, id_list, score, text

KIND_KEY = "citegauge.kind"
"""Says the kind of a span in so many words."""

KINDS: Mapping[str, int] = {
    "retrieval": RETRIEVAL,
    "retriever": RETRIEVAL,
    "retrieve": RETRIEVAL,
    "rerank": RERANK,
    "reranker": RERANK,
    "generation": GENERATION,
    "generate": GENERATION,
    "llm": GENERATION,
    "chat": GENERATION,
    "other": OTHER,
}

RETRIEVED_KEYS = (
    "retrieval.retrieved_ids",
    "retrieval.ids",
    "retrieval.chunk_ids",
    "retrieval.document_ids",
    "retrieved_ids",
    "chunk_ids",
)
RERANKED_KEYS = ("rerank.retrieved_ids", "rerank.reranked_ids", "rerank.ids", "rerank.chunk_ids", "reranked_ids")
SCORE_KEYS = ("retrieval.scores", "retrieval.chunk_scores", "scores", "chunk_scores")
RERANK_SCORE_KEYS = ("rerank.scores", "rerank.chunk_scores", "rerank_scores")
TOP_K_KEYS = ("retrieval.top_k", "rag.top_k", "retriever.top_k", "top_k")
RERANK_TOP_K_KEYS = ("rerank.top_k", "reranker.top_k", "rerank.top_n")
FINAL_KEYS = ("retrieval.final_context_ids", "final_context_ids", "generation.context_ids", "rag.context_ids")
CITED_KEYS = ("generation.cited_ids", "generation.citations", "cited_ids", "generation.cited_chunk_ids")
POSITION_KEYS = ("generation.cited_positions", "cited_positions")
OUTPUT_KEYS = ("generation.output", "output.value", "output")
VERSION_KEYS = (
    "retriever.version",
    "retrieval.retriever_version",
    "retrieval.version",
    "retriever_version",
    "retrieval.index_version",
    "index.version",
)
MODEL_KEYS = (
    "generation.model",
    "llm.model_name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "langfuse.observation.model.name",
    "model",
)
FORMAT_KEYS = ("generation.output_format", "gen_ai.output.type")
SCORER_KEYS = ("retrieval.scorer", "rerank.scorer", "scorer")

_MARKS = (
    KIND_KEY,
    "retrieval.retrieved_ids",
    "generation.cited_ids",
    "retrieval.ids",
    "generation.output",
    "rerank.ids",
)


def first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first key that is there and not null."""
    for key in keys:
        value = attributes.get(key)
        if value is not None:
            return value
    return None


def first_text(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The first key's value that is a non-empty text (`values.text`)."""
    for key in keys:
        found = text(attributes.get(key))
        if found:
            return found
    return ""


def claims(raw: RawSpan) -> bool:
    """A span that states its kind, or carries ids under a native name."""
    attributes = raw.attributes
    return any(mark in attributes for mark in _MARKS)


def normalise(raw: RawSpan) -> Facts:
    """Facts of a span with native attributes."""
    attributes = raw.attributes
    facts = Facts(kind=_kind(attributes))
    if facts.kind == RETRIEVAL:
        _stage(facts, attributes, RETRIEVED_KEYS, SCORE_KEYS, TOP_K_KEYS)
    elif facts.kind == RERANK:
        _stage(
            facts,
            attributes,
            RERANKED_KEYS + RETRIEVED_KEYS,
            RERANK_SCORE_KEYS + SCORE_KEYS,
            RERANK_TOP_K_KEYS + TOP_K_KEYS,
        )
    elif facts.kind == GENERATION:
        _answer(facts, attributes)
    common(facts, attributes)
    return facts


def common(facts: Facts, attributes: Mapping[str, Any]) -> None:
    """What every convention accepts beside its own names: final context, version, scorer, model."""
    if facts.kind in (RETRIEVAL, RERANK):
        facts.retriever_version = facts.retriever_version or first_text(attributes, VERSION_KEYS)
        facts.scorer = first_text(attributes, SCORER_KEYS) or facts.scorer
    elif facts.kind == GENERATION:
        facts.model = facts.model or first_text(attributes, MODEL_KEYS)
        if any(is_json(attributes.get(key)) for key in FORMAT_KEYS):
            facts.flags |= EXPECTS_JSON
    else:
        return
    value = first(attributes, FINAL_KEYS)
    if value is not None:
        dropped = facts.ids_dropped
        facts.final_ids = id_list(value, facts)
        # The count belongs to the ids of the stage where it has some.
        facts.ids_dropped = dropped if facts.ids is not None else facts.ids_dropped


def is_json(value: object) -> bool:
    """True for the ways to say that an output is JSON."""
    return isinstance(value, str) and value.lower() in ("json", "json_object", "json_schema", "application/json")


def _kind(attributes: Mapping[str, Any]) -> int:
    stated = attributes.get(KIND_KEY)
    if isinstance(stated, str):
        return KINDS.get(stated.lower(), OTHER)
    if "retrieval.retrieved_ids" in attributes or "retrieval.ids" in attributes:
        return RETRIEVAL
    return RERANK if "rerank.ids" in attributes else GENERATION


def _stage(
    facts: Facts, attributes: Mapping[str, Any], ids: tuple[str, ...], scores: tuple[str, ...], top_k: tuple[str, ...]
) -> None:
    recorded = embedded(first(attributes, ids), facts)
    facts.ids = id_list(recorded, facts)
    _scores(facts, recorded, embedded(first(attributes, scores), facts))
    facts.top_k = count(first(attributes, top_k), facts)


def _scores(facts: Facts, recorded: object, values: object) -> None:
    if values is None:
        return
    if not isinstance(values, list | tuple) or (isinstance(recorded, list | tuple) and len(recorded) != len(values)):
        # Which score belongs to which id is unknown, also of the first one.
        facts.flags |= MALFORMED
        return
    align_scores(facts, recorded, values)


def align_scores(facts: Facts, recorded: object, values: Sequence[object]) -> None:
    """Set the scores of ids as recorded: those of dropped ids are dropped too, but the first one counts anyway."""
    found = [score(value, facts) for value in values]
    facts.first_score = found[0] if found else None
    if isinstance(recorded, list | tuple) and facts.ids:
        kept = [value for item, value in zip(recorded, found, strict=True) if chunk_id(item) is not None]
        facts.scores = kept if any(value is not None for value in kept) else None


def _answer(facts: Facts, attributes: Mapping[str, Any]) -> None:
    if explicit(facts, first(attributes, CITED_KEYS)):
        positions = first(attributes, POSITION_KEYS)
        if isinstance(positions, list):
            explicit_positions(facts, positions)
        return
    positions = first(attributes, POSITION_KEYS)
    if isinstance(positions, list):
        explicit(facts, [])
        facts.unresolved = explicit_positions(facts, positions)
        return
    output = first(attributes, OUTPUT_KEYS)
    read_answer(facts, [_as_text(output)], output)


def _as_text(output: object) -> object:
    if isinstance(output, dict | list):
        return dumps(output)
    return output


CONVENTION = Convention("native", claims, normalise)
