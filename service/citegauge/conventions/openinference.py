"""OpenInference (Arize): `openinference.span.kind` and flat document and message keys. Not what Phoenix stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.answers import is_answer, read_answer, texts_in
from citegauge.conventions.base import (
    GENERATION,
    OTHER,
    RERANK,
    RETRIEVAL,
    RETRIEVED_IS_CITED,
    Convention,
    Facts,
    RawSpan,
)
from citegauge.conventions.documents import Document, documents_in, flat_documents, merged, read_documents
from citegauge.conventions.native import TOP_K_KEYS, common, first
from citegauge.conventions.values import count, embedded, text

KIND_KEY = "openinference.span.kind"
_KINDS = {"RETRIEVER": RETRIEVAL, "RERANKER": RERANK, "LLM": GENERATION}
_WHOLE_KEYS = ("retrieval.documents", "retrieval.documents_json", "retrieval.document", "retrieval.documents_count")
_MESSAGE_PREFIX = "llm.output_messages."
_TEMPLATE_PREFIX = "llm.prompt_template."


def claims(raw: RawSpan) -> bool:
    """A span with an OpenInference kind."""
    return KIND_KEY in raw.attributes


def normalise(raw: RawSpan) -> Facts:
    """Facts of an OpenInference span."""
    attributes = raw.attributes
    kind = attributes.get(KIND_KEY)
    facts = Facts(kind=_KINDS.get(kind.upper(), OTHER) if isinstance(kind, str) else OTHER)
    if facts.kind == RETRIEVAL:
        read_retriever(facts, attributes)
        if _is_retrieve_and_generate(raw):
            _retrieve_and_generate(facts, attributes)
    elif facts.kind == RERANK:
        read_reranker(facts, attributes)
    elif facts.kind == GENERATION:
        messages = output_messages(attributes)
        if not messages and any(key.startswith(_TEMPLATE_PREFIX) for key in attributes):
            facts.kind = OTHER  # a prompt builder: its output is the prompt, with every chunk in it
            return facts
        read_generation(facts, attributes, messages)
    common(facts, attributes)
    return facts


def _is_retrieve_and_generate(raw: RawSpan) -> bool:
    output = raw.attributes.get("output.value")
    return "retrieve_and_generate" in raw.name.lower() or (
        isinstance(output, str) and '"retrievedReferences"' in output
    )


def _retrieve_and_generate(facts: Facts, attributes: Mapping[str, Any]) -> None:
    """Bedrock answers and retrieves in one call, and records only what the answer cites."""
    facts.kind = GENERATION
    facts.flags |= RETRIEVED_IS_CITED
    facts.final_ids, facts.ids, facts.scores, facts.first_score = facts.ids, None, None, None
    facts.top_k, facts.scorer = 0, ""
    response = embedded(attributes.get("output.value"), Facts())
    read_answer(facts, texts_in(response), response)


def read_retriever(facts: Facts, attributes: Mapping[str, Any]) -> None:
    """Documents from flat keys, from the attribute as one value, from the output; top_k from the input."""
    flat = flat_documents(attributes, "retrieval.documents.", facts)
    whole = first(attributes, _WHOLE_KEYS)
    documents: list[Document] | None
    if flat:
        needs_ids = any(item.get("id") in (None, "") for item in flat)
        documents = merged(flat, documents_in(attributes.get("output.value"), Facts())) if needs_ids else flat
    elif whole is not None and not isinstance(whole, int | float):
        documents = documents_in(whole, facts)
    elif whole == 0 and not isinstance(whole, bool):
        documents = []
    else:
        documents = _from_output(attributes, facts)
    if documents is not None:
        read_documents(documents, facts)
    facts.top_k = count(first(attributes, TOP_K_KEYS), facts) or input_top_k(attributes.get("input.value"))
    model = text(attributes.get("embedding.model_name"))
    facts.scorer = f"retrieval:{model}" if model else ""


def _from_output(attributes: Mapping[str, Any], facts: Facts) -> list[Document] | None:
    value = attributes.get("output.value")
    if not isinstance(value, str) or attributes.get("output.mime_type", "application/json") != "application/json":
        return None
    return documents_in(value, facts, keys=("documents",))


def read_reranker(facts: Facts, attributes: Mapping[str, Any]) -> None:
    """Output documents and scores of a reranker."""
    documents: list[Document] | None = flat_documents(attributes, "reranker.output_documents.", facts)
    if not documents:
        documents = documents_in(attributes.get("reranker.output_documents"), facts)
    if documents is not None:
        read_documents(documents, facts)
    facts.top_k = count(attributes.get("reranker.top_k"), facts)
    model = text(attributes.get("reranker.model_name"))
    facts.scorer = f"rerank:{model}" if model else ""


def input_top_k(value: object) -> int:
    """`top_k` of a JSON input where it is a positive int, else 0: callers' inputs are not our schema."""
    if not isinstance(value, str | dict):
        return 0
    found = embedded(value, Facts())
    if not isinstance(found, dict):
        return 0
    top_k = found.get("top_k", found.get("k"))
    return count(top_k, Facts()) if type(top_k) is int else 0


def output_messages(attributes: Mapping[str, Any]) -> list[str]:
    """The texts of `llm.output_messages.*`, in the order they were recorded."""
    found: list[str] = []
    for key, value in attributes.items():
        if (
            key.startswith(_MESSAGE_PREFIX)
            and key.endswith((".message.content", ".message_content.text"))
            and isinstance(value, str)
        ):
            found.append(value)
    return found


def read_generation(facts: Facts, attributes: Mapping[str, Any], messages: list[str]) -> None:
    """The answer from the messages, else completions, else the output; provider blocks from the output."""
    output = attributes.get("output.value")
    texts = messages or [
        value
        for key, value in attributes.items()
        if key.startswith("llm.choices.") and key.endswith(".completion.text") and isinstance(value, str)
    ]
    if not texts and isinstance(output, str) and not _has_tool_calls(attributes):
        response = embedded(output, facts)
        texts = [output] if is_answer(response) else texts_in(response)
        if not texts and response is None:
            texts = [output]  # broken JSON: captured, but no citation can be read from it
    read_answer(facts, texts, output)


def _has_tool_calls(attributes: Mapping[str, Any]) -> bool:
    return any(key.startswith(_MESSAGE_PREFIX) and ".tool_calls." in key for key in attributes)


CONVENTION = Convention("openinference", claims, normalise)
