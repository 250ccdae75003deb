"""The clean native event, straight from JSON to `Span`. Not a second meaning: what is unusual goes the general path.

It carries the traffic of those who can choose their format, so it is worth a path of its own. A property test holds it
to the general path: both give the same span, or this one gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

import msgspec

from citegauge.conventions import native
from citegauge.conventions.base import GENERATION, IDS_MAX, RETRIEVAL
from citegauge.conventions.identity import TIME_NS_MAX
from citegauge.conventions.routes import RouteReader
from citegauge.conventions.users import UserReader
from citegauge.conventions.values import COUNT_MAX
from citegauge.domain.citations import CHUNK_ID_LENGTH_MAX, CITATIONS_MAX
from citegauge.domain.span import CitationForm, Span

_EXPLICIT = int(CitationForm.EXPLICIT)
_NO_SPAN, _NO_TRACE = bytes(8), bytes(16)
_TEXTS, _NUMBERS = {str}, {float}
_NO_RESOURCE: Mapping[str, Any] = {}


class _Event(msgspec.Struct, gc=False):
    """A native event whose outer fields have the right types."""

    trace_id: str
    span_id: str
    kind: str
    end_time_unix_nano: int | str
    attributes: dict[str, Any]
    start_time_unix_nano: int | str = 0
    parent_span_id: str | None = None
    parent_id: Any = None
    resource: Any = None


def fast_native(routes: RouteReader, users: UserReader) -> Callable[[bytes], Span | None]:
    """A reader of one clean native retrieval or generation event; None for everything else."""
    decode = msgspec.json.Decoder(_Event).decode
    read_route, read_user = routes.read, users.read

    def read(record: bytes) -> Span | None:
        try:
            event = decode(record)
            trace_id, span_id = bytes.fromhex(event.trace_id), bytes.fromhex(event.span_id)
            parent_id = bytes.fromhex(event.parent_span_id) if event.parent_span_id else b""
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None
        start_ns, end_ns = event.start_time_unix_nano, event.end_time_unix_nano
        if (
            # The texts are measured too: `fromhex` skips white space.
            len(event.trace_id) != 32
            or len(event.span_id) != 16
            or len(trace_id) != 16
            or len(span_id) != 8
            or trace_id == _NO_TRACE
            or span_id == _NO_SPAN
            or (
                event.parent_span_id
                and (len(parent_id) != 8 or len(event.parent_span_id) != 16 or parent_id == _NO_SPAN)
            )
            or event.parent_id is not None
            or event.resource is not None
        ):
            return None
        if type(start_ns) is not int or type(end_ns) is not int:
            start_ns, end_ns = _digits(start_ns), _digits(end_ns)
        if not (0 <= start_ns <= TIME_NS_MAX and 0 <= end_ns <= TIME_NS_MAX):
            return None
        attributes = event.attributes
        if native.KIND_KEY in attributes:
            return None
        kind = native.KINDS.get(event.kind)
        if kind == RETRIEVAL:
            facts = _retrieval(attributes)
        elif kind == GENERATION:
            facts = _generation(attributes)
        else:
            return None
        if facts is None:
            return None
        route, rank = read_route(attributes, _NO_RESOURCE)
        ids, scores, final_ids, cited, top_k, version, scorer, model = facts
        return Span(
            span_id=span_id,
            parent_id=parent_id,
            kind=kind,
            start_ns=start_ns,
            end_ns=end_ns,
            route=route,
            route_rank=rank,
            ids=ids,
            scores=scores,
            first_score=scores[0] if scores else None,
            final_ids=final_ids,
            top_k=top_k,
            retriever_version=version,
            scorer=scorer,
            model=model,
            citation_form=0 if cited is None else _EXPLICIT,
            cited=cited,
            trace_id=trace_id,
            user_hash=read_user(attributes, _NO_RESOURCE),
        )

    return read


_Facts: TypeAlias = tuple[
    list[str] | None, list[float | None] | None, list[str] | None, list[str] | None, int, str, str, str
]
"""ids, scores, final ids, cited ids, top_k, version, scorer, model."""


def _retrieval(attributes: dict[str, Any]) -> _Facts | None:
    get = attributes.get
    ids, scores, top_k = get("retrieval.retrieved_ids"), get("retrieval.scores"), get("retrieval.top_k")
    final_ids = native.first(attributes, native.FINAL_KEYS)
    if not _clean_ids(ids) or (final_ids is not None and not _clean_ids(final_ids)):
        return None
    if scores is None:
        if native.first(attributes, native.SCORE_KEYS) is not None:
            return None
    elif (
        type(scores) is not list or len(scores) != len(ids) or not scores or not _NUMBERS.issuperset(map(type, scores))
    ):
        return None
    if top_k is None:
        if native.first(attributes, native.TOP_K_KEYS) is not None:
            return None
        top_k = 0
    elif type(top_k) is not int or not 1 <= top_k <= COUNT_MAX:
        return None
    version = native.first_text(attributes, native.VERSION_KEYS)
    return ids, scores, final_ids, None, top_k, version, native.first_text(attributes, native.SCORER_KEYS), ""


def _generation(attributes: dict[str, Any]) -> _Facts | None:
    get = attributes.get
    cited = get("generation.cited_ids")
    final_ids = native.first(attributes, native.FINAL_KEYS)
    if (
        not _clean_ids(cited)
        or len(cited) > CITATIONS_MAX
        or (final_ids is not None and not _clean_ids(final_ids))
        or native.first(attributes, native.POSITION_KEYS) is not None
        or native.first(attributes, native.FORMAT_KEYS) is not None
    ):
        return None
    return None, None, final_ids, cited, 0, "", "", native.first_text(attributes, native.MODEL_KEYS)


def _clean_ids(ids: Any) -> TypeGuard[list[str]]:
    return type(ids) is list and (
        not ids
        or (
            len(ids) <= IDS_MAX
            and _TEXTS.issuperset(map(type, ids))
            and "" not in ids
            and max(map(len, ids)) <= CHUNK_ID_LENGTH_MAX
        )
    )


def _digits(value: int | str) -> int:
    """The integer, or -1 for a text that the general path has to look at."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19 else -1
