"""Provider citation blocks inside a recorded response → ids and positions. Not text markers (`domain.citations`).

Shapes: Anthropic, Cohere v1 and v2, Bedrock RetrieveAndGenerate, Azure On Your Data, OpenAI annotations, Gemini and
Vertex grounding, a plain `citations` list. An index is given as the position counted from 1, the default base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from citegauge.conventions.base import Facts
from citegauge.conventions.documents import document_id
from citegauge.domain.citations import CITATIONS_MAX, Citations, chunk_id, from_json_list
from citegauge.domain.span import CitationForm

NODES_MAX = 20_000
"""Values of a response that are looked at."""
_BLOCKS = int(CitationForm.BLOCKS)


class Blocks(NamedTuple):
    """What the provider says was cited."""

    citations: Citations
    file_level: bool
    """The ids name files, not chunks."""


class _Found:
    """Collects citations of one response."""

    def __init__(self) -> None:
        self.cited: list[str] = []
        self.positions: list[int] = []
        self.unresolved = 0
        self.file_level = False
        self.stated = False
        """A citation structure was there, even if it cites nothing."""

    def id(self, value: object, *, file_level: bool = False) -> None:
        found = chunk_id(value)
        if found is None or len(self.cited) >= CITATIONS_MAX:
            self.unresolved += 1
        else:
            self.cited.append(found)
            self.file_level |= file_level

    def index(self, value: object) -> None:
        if type(value) is int and value >= 0 and len(self.positions) < CITATIONS_MAX:
            self.positions.append(value + 1)
        else:
            self.unresolved += 1


def provider_citations(response: object) -> Blocks | None:
    """Citations of a recorded response; None where the provider recorded no citation structure."""
    if not isinstance(response, dict | list):
        return None
    found = _Found()
    for node in _nodes(response):
        _read_node(node, found)
    if not (found.stated or found.cited or found.positions or found.unresolved):
        return None
    cut = len(found.cited) + len(found.positions) + found.unresolved >= CITATIONS_MAX
    return Blocks(Citations(_BLOCKS, found.cited, found.positions, found.unresolved, cut), found.file_level)


def _nodes(response: object) -> Iterator[dict[str, Any]]:
    """The objects inside a response, outermost first, in order."""
    waiting: list[object] = [response]
    seen = 0
    while waiting and seen < NODES_MAX:
        node = waiting.pop()
        seen += 1
        if isinstance(node, dict):
            yield node
            # The keys that are read as a whole are not entered.
            waiting.extend(value for key, value in reversed(node.items()) if not _is_leaf(key, value))
        elif isinstance(node, list):
            waiting.extend(reversed(node[:NODES_MAX]))


_LEAVES = frozenset(("citations", "annotations", "groundingMetadata", "grounding_metadata"))


def _is_leaf(key: str, value: object) -> bool:
    # Azure's context holds sources on offer rather than citations: they are read with the text around them.
    return key in _LEAVES or (key == "context" and isinstance(value, dict) and "citations" in value)


def _read_node(node: dict[str, Any], found: _Found) -> None:
    citations = node.get("citations")
    if isinstance(citations, list) and citations:
        _read_citations(citations, found)
    annotations = node.get("annotations")
    for annotation in annotations if isinstance(annotations, list) else ():
        if isinstance(annotation, dict):
            _read_annotation(annotation, found)
    grounding = node.get("groundingMetadata", node.get("grounding_metadata"))
    if isinstance(grounding, dict):
        _read_grounding(grounding, found)
    context = node.get("context")
    if isinstance(context, dict) and isinstance(context.get("citations"), list):
        _read_azure(node, context["citations"], found)


def _read_citations(citations: list[Any], found: _Found) -> None:
    plain = [item for item in citations if not isinstance(item, dict)]
    if plain:
        if not all(isinstance(item, str) and item.startswith("http") for item in plain):
            stated = from_json_list(plain)
            found.cited += stated.cited
            found.positions += stated.positions
            found.unresolved += stated.unresolved
        # A list of addresses (Perplexity) is what the text's numbers point to.
        return
    for item in citations:
        _read_citation(item, found)


def _read_citation(item: dict[str, Any], found: _Found) -> None:
    kind = item.get("type")
    kind = kind if isinstance(kind, str) else ""
    if isinstance(item.get("document_ids"), list):  # Cohere v1
        for value in item["document_ids"]:
            _cohere_id(value, found)
    elif isinstance(item.get("sources"), list):  # Cohere v2
        for source in item["sources"]:
            document = source.get("document") if isinstance(source, dict) else None
            own = document.get("id") if isinstance(document, dict) else None
            _cohere_id(own or (source.get("id") if isinstance(source, dict) else None), found)
    elif isinstance(item.get("retrievedReferences"), list):  # Bedrock
        found.stated = True
        for reference in item["retrievedReferences"]:
            found.id(reference_id(reference) if isinstance(reference, dict) else None)
    elif kind == "search_result_location":  # Anthropic
        found.index(item.get("search_result_index"))
    elif kind == "web_search_result_location":
        found.id(item.get("url"), file_level=True)
    elif kind.endswith("_location") or "document_index" in item:
        found.index(item.get("document_index"))
    else:
        stated = from_json_list([item])
        found.cited += stated.cited
        found.positions += stated.positions
        found.unresolved += stated.unresolved


_COHERE_AUTO = re.compile(r"doc[_:](\d{1,4})")


def _cohere_id(value: object, found: _Found) -> None:
    automatic = _COHERE_AUTO.fullmatch(value) if isinstance(value, str) else None
    if automatic is not None:  # given per request, in the order of the documents
        found.index(int(automatic.group(1)))
    else:
        found.id(value)


def reference_id(reference: dict[str, Any]) -> str | None:
    """The chunk id of a Bedrock reference: its own, else a digest of its content."""
    content = reference.get("content")
    text = content.get("text") if isinstance(content, dict) else content
    return document_id({"content": text, "metadata": reference.get("metadata")}, Facts())


def _read_annotation(annotation: dict[str, Any], found: _Found) -> None:
    for kind in ("file_citation", "container_file_citation", "file_path", "url_citation"):
        inner = annotation.get(kind)
        source = inner if isinstance(inner, dict) else annotation if annotation.get("type") == kind else None
        if source is not None:
            found.id(source.get("url") if kind == "url_citation" else source.get("file_id"), file_level=True)
            return


def _read_grounding(grounding: dict[str, Any], found: _Found) -> None:
    chunks = grounding.get("groundingChunks", grounding.get("grounding_chunks"))
    supports = grounding.get("groundingSupports", grounding.get("grounding_supports"))
    if not isinstance(chunks, list) or not isinstance(supports, list):
        return
    found.stated = True
    for support in supports:
        indices = None
        if isinstance(support, dict):
            indices = support.get("groundingChunkIndices", support.get("grounding_chunk_indices"))
        for index in indices if isinstance(indices, list) else ():
            if type(index) is int and 0 <= index < len(chunks) and isinstance(chunks[index], dict):
                _grounding_chunk(chunks[index], found)
            else:
                found.unresolved += 1


def _grounding_chunk(chunk: dict[str, Any], found: _Found) -> None:
    context = chunk.get("retrievedContext", chunk.get("retrieved_context", chunk.get("web")))
    if not isinstance(context, dict):
        found.unresolved += 1
        return
    rag = context.get("ragChunk", context.get("rag_chunk"))
    own = rag.get("chunkId", rag.get("chunk_id")) if isinstance(rag, dict) else None
    if chunk_id(own) is not None:
        found.id(own)
    else:
        found.id(context.get("documentName", context.get("document_name")) or context.get("uri"), file_level=True)


_AZURE_MARKER = re.compile(r"\[doc(\d{1,3})\]")


def _read_azure(node: dict[str, Any], citations: list[Any], found: _Found) -> None:
    text = node.get("content")
    if not isinstance(text, str):
        return
    found.stated = True
    for match in _AZURE_MARKER.finditer(text):
        index = int(match.group(1)) - 1
        if 0 <= index < len(citations) and isinstance(citations[index], dict):
            found.id(document_id(citations[index], Facts()))
        else:
            found.unresolved += 1
