"""Lists of retrieved documents in every shape they are recorded in → ids, scores and truncation evidence.

Not which attribute holds them: that is each convention's knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from citegauge.conventions.base import DISTANCE, MALFORMED, SYNTHETIC_IDS, TRUNCATED, Facts
from citegauge.conventions.values import chunk_id, digest_id, embedded, loads, score

Document = Mapping[str, Any]

DOCUMENT_INDEX_MAX = 100_000
"""A flat key with a larger index is not a document."""
KEY_LENGTH_MAX = 200
"""A longer flat key is not a document's."""
KEYS_MAX = 16_384
"""Flat keys whose parts are remembered: the same few come with every span."""


def flat_documents(attributes: Mapping[str, Any], prefix: str, facts: Facts) -> list[Document]:
    """Documents from keys `<prefix>{i}.document.<field>` in integer order of i; indices must run 0, 1, 2, …"""
    found: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        place = _place(prefix, key) if len(key) <= KEY_LENGTH_MAX else None
        if place is not None:
            index, name = place
            document = found.get(index)
            if document is None:
                document = found[index] = {}
            document[name] = value
    if not found:
        return []
    order = sorted(found)
    if order[-1] != len(order) - 1:
        facts.flags |= TRUNCATED
    return [found[index] for index in order]


@lru_cache(maxsize=KEYS_MAX)
def _place(prefix: str, key: str) -> tuple[int, str] | None:
    """Index and field of a flat key."""
    if not key.startswith(prefix):
        return None
    index, _, name = key[len(prefix) :].partition(".")
    if not (index.isascii() and index.isdigit()) or len(index) > 6 or int(index) > DOCUMENT_INDEX_MAX:
        return None
    return int(index), name.removeprefix("document.")


_LIST_KEYS = ("documents", "results", "matches", "hits", "chunks", "nodes", "source_nodes", "output", "docs", "data")


def documents_in(value: object, facts: Facts, *, keys: Sequence[str] = _LIST_KEYS) -> list[Document] | None:
    """Documents of a structured value or of JSON text: a list of objects, or an object that holds one (`keys`).

    None where there is no list of objects: nothing is known then. An empty list means that nothing was returned.
    """
    before = facts.flags
    found = embedded(value, facts)
    if found is None:
        if facts.flags & MALFORMED and not before & MALFORMED and isinstance(value, str):
            facts.flags |= TRUNCATED  # it began as JSON and does not end as JSON
        return None
    if isinstance(found, dict):
        found = next((found[key] for key in keys if isinstance(found.get(key), list)), None)
    if not isinstance(found, list):
        return None
    if not found:
        return []
    documents = [_unwrapped(item) for item in found]
    # Texts such as `Document(id=…)` are for people.
    return [item or {} for item in documents] if any(documents) else None


def _unwrapped(item: object) -> Document | None:
    if isinstance(item, str) and item[:1] == "{":
        try:
            item = loads(item)
        except ValueError:
            return None
    if not isinstance(item, dict):
        return None
    for key in ("document", "node", "chunk"):
        inner = item.get(key)
        if isinstance(inner, dict):
            item = {**item, **inner}
            break
    return {key.removeprefix("document."): value for key, value in item.items() if isinstance(key, str)}


def merged(flat: list[Document], other: list[Document] | None) -> list[Document]:
    """Flat documents completed by position from another list of the same length; flat values win."""
    if other is None or len(flat) != len(other) or all(item.get("id") not in (None, "") for item in flat):
        return flat
    return [
        {**extra, **{key: value for key, value in item.items() if value is not None and value != ""}}
        for item, extra in zip(flat, other, strict=True)
    ]


_SCORE_KEYS = ("score", "relevance_score", "similarity_score", "similarity", "relevance", "_score")


def read_documents(documents: Sequence[Document], facts: Facts) -> None:
    """Set ids, scores and first score from documents in rank order."""
    ids: list[str] = []
    scores: list[float | None] = []
    for position, document in enumerate(documents):
        metadata = _metadata(document)
        value = _score(document, metadata, facts)
        if position == 0:
            facts.first_score = value
        found = _chunk_id(document, metadata, facts)
        if found is None:
            facts.ids_dropped += 1
        else:
            ids.append(found)
            scores.append(value)
    # Documents without a single id are not an empty retrieval.
    facts.ids = ids if ids or not documents else None
    facts.scores = scores if any(value is not None for value in scores) else None


def _metadata(document: Document) -> Mapping[str, Any]:
    value = document.get("metadata", document.get("meta"))
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _score(document: Document, metadata: Mapping[str, Any], facts: Facts) -> float | None:
    for source in (document, metadata):
        for key in _SCORE_KEYS:
            value = source.get(key)
            if value is not None and value != "":
                return score(value, facts)
        value = source.get("distance")
        if value is not None and value != "":
            found = score(value, facts)
            if found is not None:
                facts.flags |= DISTANCE
            return found
    return None


_DOCUMENT_ID_KEYS = ("id", "chunk_id", "chunkId", "node_id", "id_", "_id")
_METADATA_ID_KEYS = ("chunk_id", "chunkId", "node_id", "segment_id")
_METADATA_LATE_ID_KEYS = ("_id", "pk", "x-amz-bedrock-kb-chunk-id", "id")
_FILE_KEYS = ("source", "doc_uri", "url", "uri", "filepath", "file_path", "file_name", "filename", "title")
_PLACE_KEYS = ("page", "page_label", "page_number", "chunk", "chunk_index", "start_index")
_CONTENT_KEYS = ("content", "page_content", "text", "chunk_text", "snippet")


def _chunk_id(document: Document, metadata: Mapping[str, Any], facts: Facts) -> str | None:
    """The first of: own id, an id in the metadata, file and place in it, digest of the content. Never a file alone."""
    for key in _DOCUMENT_ID_KEYS:
        value = document.get(key)
        if value is not None and value != "":
            found = chunk_id(value)
            if found is not None:
                return _scoped(found, document) if key in _METADATA_ID_KEYS else found
            facts.flags |= MALFORMED
    found = _id_in(metadata, _METADATA_ID_KEYS)
    if found is not None:
        return _scoped(found, metadata)
    whole = _id_in(metadata, ("doc_id", "document_id"))
    place = _id_in(metadata, ("chunk_index", "chunk", "chunk_number", "segment_position", "seq"))
    if whole is not None and place is not None:
        return f"{whole}#{place}"
    found = _id_in(metadata, _METADATA_LATE_ID_KEYS)
    if found is not None:
        return found
    for source in (metadata, document):
        file, place = _id_in(source, _FILE_KEYS), _id_in(source, _PLACE_KEYS)
        if file is not None and place is not None:
            return f"{file}#{place}"
    content = next((document[key] for key in _CONTENT_KEYS if isinstance(document.get(key), str)), "")
    if content.strip():
        facts.flags |= SYNTHETIC_IDS
        return digest_id(content)
    return None


def document_id(document: Document, facts: Facts) -> str | None:
    """The chunk id of one document by the chain of `read_documents`; None where it has none."""
    return _chunk_id(document, _metadata(document), facts)


def _id_in(source: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((found for key in keys if (found := chunk_id(source.get(key))) is not None), None)


def _scoped(found: str, source: Mapping[str, Any]) -> str:
    """Small numbers count chunks within one file, so the file belongs to the id."""
    if len(found) > 5 or not found.isdigit():
        return found
    file = _id_in(source, _FILE_KEYS)
    return found if file is None else f"{file}#{found}"
