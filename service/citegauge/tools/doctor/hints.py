"""What could help but is not used yet: spans that look like a retrieval or an answer, attributes that could be routes.

Guesses from names and values, shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from citegauge.conventions.base import Facts, RawSpan
from citegauge.conventions.documents import documents_in
from citegauge.conventions.routes import cleaned
from citegauge.conventions.values import embedded, loads
from citegauge.domain.span import Kind
from citegauge.tools.doctor.look import UNCLAIMED, Seen

NAMES_MAX = 500
KEYS_SHOWN_MAX = 8
KEYS_MAX = 300
ROUTES_MAX = 40
"""An attribute with more values is no route."""
TRACES_MAX = 2_000
"""Traces whose attributes are looked at."""
TRACES_MIN = 10
TRACES_PER_ROUTE_MIN = 3
COVERAGE_MIN = 0.9
VALUE_LENGTH_MAX = 80
METADATA_LENGTH_MAX = 4_000

_RETRIEVAL = re.compile(
    r"retriev|rerank|vector|similarity|knn|semantic.?search|search.?(?:doc|index|chunk)|lookup", re.IGNORECASE
)
_GENERATION = re.compile(r"\bllm\b|generat|completion|chat|answer|synthes|invoke.?model|converse", re.IGNORECASE)


class Suspect(NamedTuple):
    """A span name that no convention takes for what it seems to be."""

    name: str
    kind: str
    """`retrieval` or `generation`."""
    spans: int
    keys: tuple[str, ...]
    """Some attribute names of the first such span."""
    fields: Mapping[str, str]
    """Fields of a mapping that could read it: which attribute holds documents, ids, scores or the answer."""


class Hints:
    """Collects; bounded in every direction."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], Suspect] = {}
        self._values: dict[str, dict[bytes, str | None]] = {}
        """Attribute → trace → its value there; None: it has several."""
        self._traces: set[bytes] = set()

    def add(self, seen: Seen) -> None:
        """Look at one span."""
        raw = seen.raw
        if raw is None:
            return
        if seen.span.kind == Kind.OTHER and _says_nothing(seen):
            self._suspect(raw)
        if len(self._traces) < TRACES_MAX or seen.span.trace_id in self._traces:
            self._traces.add(seen.span.trace_id)
            for key, value in _texts(raw):
                self._note_value(key, value, seen.span.trace_id)

    def _suspect(self, raw: RawSpan) -> None:
        kind = "retrieval" if _RETRIEVAL.search(raw.name) else "generation" if _GENERATION.search(raw.name) else ""
        name = raw.name[:VALUE_LENGTH_MAX]
        if not name.isprintable():
            return
        known = self._names.get((kind, name))
        if known is not None:
            self._names[kind, name] = known._replace(spans=known.spans + 1, fields=known.fields or fields_of(raw, kind))
        elif kind and len(self._names) < NAMES_MAX:
            keys = tuple(key for key in list(raw.attributes)[:KEYS_SHOWN_MAX] if key.isprintable())
            self._names[kind, name] = Suspect(name, kind, 1, keys, fields_of(raw, kind))

    def _note_value(self, key: str, value: str, trace_id: bytes) -> None:
        values = self._values.get(key)
        if values is None:
            if len(self._values) >= KEYS_MAX:
                return
            values = self._values[key] = {}
        values[trace_id] = value if values.get(trace_id, value) == value else None

    def suspects(self, kind: str) -> list[Suspect]:
        """The names that look like this kind, the likeliest first."""
        found = [suspect for suspect in self._names.values() if suspect.kind == kind]
        return sorted(found, key=lambda one: (not one.fields, -one.spans, one.name))

    def route_keys(self) -> list[tuple[str, int]]:
        """Attributes that could be routes, and how many values they have, the likeliest first."""
        found: list[tuple[tuple[bool, float, str], str, int]] = []
        if len(self._traces) < TRACES_MIN:
            return []
        for key, values in self._values.items():
            known = [value for value in values.values() if value is not None]
            routes = len(set(known))
            coverage = len(known) / len(self._traces)
            if 2 <= routes <= min(ROUTES_MAX, len(known) // TRACES_PER_ROUTE_MIN) and coverage >= COVERAGE_MIN:
                found.append(((not _LIKELY.search(key), -coverage, key), key, routes))
        return [(key, routes) for _, key, routes in sorted(found)]


_VAGUE = frozenset(("tool", "span", "unknown", "task", "execute_tool", "event", ""))
_KIND_KEYS = ("openinference.span.kind", "langfuse.observation.type", "gen_ai.operation.name", "traceloop.span.kind")


def _says_nothing(seen: Seen) -> bool:
    """A span that no convention claims, or whose kind is a general word; a chain or an agent knows that it is one."""
    if seen.convention == UNCLAIMED or seen.raw is None:
        return True
    stated = [value for key in _KIND_KEYS if (value := seen.raw.attributes.get(key)) is not None]
    return bool(stated) and all(isinstance(value, str) and value.lower() in _VAGUE for value in stated)


def fields_of(raw: RawSpan, kind: str) -> dict[str, str]:
    """Which attributes could be the documents, ids and scores of a retrieval, or the text of an answer."""
    found: dict[str, str] = {}
    for key, value in raw.attributes.items():
        if len(key) > VALUE_LENGTH_MAX or not key.isprintable():
            continue
        if kind == "generation":
            if isinstance(value, str) and value and _ANSWER_KEY.search(key):
                found.setdefault("output", key)
            continue
        documents = documents_in(value, Facts())
        items = embedded(value, Facts())
        if documents:
            found.setdefault("documents", key)
        elif isinstance(items, list) and items:
            if all(type(item) in (int, float) for item in items) and "score" in key.lower():
                found.setdefault("scores", key)
            elif all(type(item) in (int, str) for item in items) and _IDS_KEY.search(key):
                found.setdefault("ids", key)
    if "documents" in found:
        return {"documents": found["documents"]}
    return found if kind == "generation" or "ids" in found else {}


_ANSWER_KEY = re.compile(r"output|answer|response|completion|reply|result", re.IGNORECASE)
_IDS_KEY = re.compile(r"id|doc|chunk|hit|source|context|node|match|result", re.IGNORECASE)

_LIKELY = re.compile(
    r"route|feature|app|tenant|project|collection|endpoint|workflow|agent|tag|data_source|index|pipeline|team|tool",
    re.IGNORECASE,
)
_NEVER = re.compile(
    r"kind|type|model|version|\bid$|[._]id$|role|mime|operation|system|provider|reason|language|sdk|method|status|host|pid"
    r"|thread|process|telemetry|url|query|input|output|content|prompt|message|error|exception|temperature|scorer|format",
    re.IGNORECASE,
)


@lru_cache(maxsize=KEYS_MAX)
def _is_never(key: str) -> bool:
    return _NEVER.search(key) is not None


def _texts(raw: RawSpan) -> Iterator[tuple[str, str]]:
    for prefix, attributes in (("", raw.attributes), ("resource:", raw.resource)):
        for key, value in attributes.items():
            if not isinstance(value, str) or not key.isprintable() or _is_never(key):
                continue
            if len(value) <= VALUE_LENGTH_MAX and value[:1] not in ("{", "["):
                if route := cleaned(value):
                    yield prefix + key, route
            elif not prefix and key.endswith("metadata") and value[:1] == "{" and len(value) <= METADATA_LENGTH_MAX:
                yield from _fields(key, value)


def _fields(key: str, value: str) -> Iterator[tuple[str, str]]:
    try:
        found: Mapping[str, Any] = loads(value)
    except ValueError:
        return
    for field, inner in found.items() if isinstance(found, dict) else ():
        if (
            isinstance(inner, str)
            and field.isprintable()
            and len(inner) <= VALUE_LENGTH_MAX
            and not _NEVER.search(field)
        ):
            yield f"{key}#{field}", inner
