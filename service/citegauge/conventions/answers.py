"""What a generation span cites, from whatever holds its answer, strongest form first. The text itself is not kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from citegauge.conventions.base import (
    CITATIONS_CUT,
    EXPECTS_JSON,
    FILE_LEVEL_CITATIONS,
    FILE_LEVEL_IDS,
    MALFORMED,
    RETRIEVAL,
    Facts,
)
from citegauge.conventions.blocks import provider_citations
from citegauge.conventions.documents import read_documents
from citegauge.conventions.values import embedded
from citegauge.domain import citations
from citegauge.domain.span import CitationForm

PLACEHOLDERS = ("<generator object", "<async_generator object", "<coroutine object", "<openai.Stream", "<Stream")
"""What instrumentation writes instead of a streamed answer."""


def read_answer(facts: Facts, texts: Iterable[object], raw: object = None) -> None:
    """Set the citations: JSON with `citations` in the text, else provider blocks in `raw`, else inline markers.

    `texts` are the parts of the answer; `raw` the provider's response, parsed or as JSON text, where it is recorded.
    """
    _read_hosted_search(facts, raw)
    body = "\n".join(part for part in texts if isinstance(part, str)).strip()
    if body.startswith(PLACEHOLDERS):
        body = ""
    answer = citations.from_text(body) if body else None
    if answer is not None and answer.citations.form == CitationForm.STRUCTURED:
        _set(facts, answer.citations)
        return
    found = provider_citations(raw if not isinstance(raw, str) else embedded(raw, facts))
    if found is not None:
        _set(facts, found.citations)
        if found.file_level:
            facts.flags |= FILE_LEVEL_CITATIONS
        return
    if answer is None:
        return
    if answer.broken_json:
        facts.flags |= EXPECTS_JSON | MALFORMED
    _set(facts, answer.citations)


_SEARCH = "file_search_call"


def _read_hosted_search(facts: Facts, raw: object) -> None:
    """OpenAI's hosted file search: it retrieves within the generation, and says files and scores if asked to (`include`)."""
    if isinstance(raw, str):
        if _SEARCH not in raw:
            return
        raw = embedded(raw, Facts())
    items = raw.get("output") if isinstance(raw, dict) else raw
    calls = [
        item
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and item.get("type") == _SEARCH
    ]
    if not calls:
        return
    facts.inside = Facts(kind=RETRIEVAL, flags=FILE_LEVEL_IDS, retriever_version=_SEARCH, scorer=_SEARCH)
    lists = [call["results"] for call in calls if isinstance(call.get("results"), list)]
    if lists:
        results = [result for found in lists for result in found if isinstance(result, dict)]
        read_documents([{"id": item.get("file_id"), "score": item.get("score")} for item in results], facts.inside)


_PROVIDER_KEYS = (
    "retrievedReferences",
    "document_ids",
    "sources",
    "document_index",
    "search_result_index",
    "cited_text",
)


def is_answer(value: object) -> bool:
    """True for the JSON answer that a prompt asked for: an object with `citations` that no provider's API made."""
    if not isinstance(value, dict) or "citations" not in value:
        return False
    stated = value["citations"]
    return not isinstance(stated, list) or not any(
        isinstance(item, dict) and any(key in item for key in _PROVIDER_KEYS) for item in stated
    )


def explicit(facts: Facts, value: object) -> bool:
    """Set the citations from a list of ids on the span itself; False where there is none."""
    if value is None:
        return False
    value = embedded(value, facts)
    if not isinstance(value, list | tuple):
        facts.flags |= MALFORMED
        return False
    _set(facts, citations.from_ids(value))
    return True


def _set(facts: Facts, found: citations.Citations) -> None:
    facts.citation_form = found.form
    facts.cited = found.cited
    facts.positions = found.positions or None
    facts.unresolved = found.unresolved
    if found.cut:
        facts.flags |= CITATIONS_CUT


def explicit_positions(facts: Facts, stated: list[Any]) -> int:
    """Set the cited positions from a list on the span itself; returns how many of it are none."""
    within = stated[: citations.CITATIONS_MAX]
    if len(within) < len(stated):
        facts.flags |= CITATIONS_CUT
    found = [value for value in within if type(value) is int]
    facts.positions = found or None
    return len(within) - len(found)


TEXT_KEYS = ("answer", "response", "text", "content", "output", "output_text", "completion", "result", "generated_text")
DEPTH_MAX = 12
"""How deep an answer may lie inside a recorded response."""


def texts_in(value: Any, depth: int = 0) -> list[str]:
    """Texts of an assistant's answer in a recorded response of a known shape; empty where none is recognised."""
    if isinstance(value, str):
        return [value]
    if depth > DEPTH_MAX:
        return []
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item, depth + 1)]
    if not isinstance(value, dict):
        return []
    if value.get("role") in ("user", "system", "tool", "human", "developer") or value.get("type") in _NO_ANSWER_TYPES:
        return []
    for key in ("replies", "generations", "choices", "candidates", "messages", "outputs", "parts", "message", "delta"):
        inner = value.get(key)
        # A conversation: earlier answers cite for earlier questions, so only the last one counts.
        parts = reversed(inner) if key == "messages" and isinstance(inner, list) else (inner,)
        for part in parts:
            if part is not None and (found := texts_in(part, depth + 1)):
                return found
    for key in TEXT_KEYS:
        inner = value.get(key)
        if isinstance(inner, str):
            return [inner]
        if inner is not None and (found := texts_in(inner, depth + 1)):
            return found
    return []


# A tuple: what is looked up in it may be a list, which has no hash.
_NO_ANSWER_TYPES = (
    "tool_call", "tool_call_response", "tool_use", "tool_result", "thinking", "reasoning", "function_call", "human",
)  # fmt: skip
