"""Spans as JSON with a `context`: what the OpenTelemetry SDK's console exporter prints and what Phoenix exports.

Phoenix keeps attributes nested (`{"retrieval": {"documents": [{"document": …}]}}`); they become flat keys again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from citegauge.conventions import identity
from citegauge.conventions.base import RawEvent, RawSpan

Object = Mapping[str, Any]
DEPTH_MAX = 12
"""Attributes nested deeper than this stay as they are."""
NAME_LENGTH_MAX = 200
"""Below a longer name nothing is flattened: it would be repeated for every value in it."""
_ROOTS = ("openinference", "retrieval", "reranker", "llm", "input", "output", "embedding", "tag", "session", "user")
_WHOLE = ("metadata", "prompt_template", "invocation_parameters", "parameters", "value")
"""Objects that are values, not names."""


def is_span(found: Object) -> bool:
    """`{"context": {"trace_id", "span_id"}, …}`."""
    context = found.get("context")
    return isinstance(context, dict) and "trace_id" in context and "span_id" in context


def spans(found: Object) -> Iterator[RawSpan]:
    """The span. Raises `FaultError`."""
    context, name, events = found["context"], found.get("name"), found.get("events")
    own, resource = found.get("attributes"), found.get("resource")
    attributes = flattened(own) if isinstance(own, dict) else {}
    kind = found.get("span_kind")  # Phoenix
    if isinstance(kind, str) and "openinference.span.kind" not in attributes:
        attributes["openinference.span.kind"] = kind
    shared = resource.get("attributes") if isinstance(resource, dict) else None
    yield RawSpan(
        trace_id=identity.trace_id(context["trace_id"]),
        span_id=identity.span_id(context["span_id"]),
        parent_id=identity.parent_id(found.get("parent_id")),
        name=name if isinstance(name, str) else "",
        start_ns=identity.iso_time_ns(found.get("start_time")),
        end_ns=identity.iso_time_ns(found.get("end_time")),
        attributes=attributes,
        resource=shared if isinstance(shared, dict) else {},
        events=[_event(item) for item in events if isinstance(item, dict)] if isinstance(events, list) else None,
    )


def _event(event: Object) -> RawEvent:
    name, attributes = event.get("name"), event.get("attributes")
    return RawEvent(name if isinstance(name, str) else "", attributes if isinstance(attributes, dict) else {})


def flattened(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys from nested ones, lists of objects by index. Values that are objects stay whole."""
    found: dict[str, Any] = {}
    for key, value in attributes.items():
        if key in _ROOTS and isinstance(value, dict):
            _flatten(key, value, found, 1)
        else:
            found[key] = value
    return found


def _flatten(prefix: str, value: Any, found: dict[str, Any], depth: int) -> None:
    can = depth <= DEPTH_MAX and len(prefix) <= NAME_LENGTH_MAX and bool(value)
    if can and isinstance(value, dict) and prefix.rpartition(".")[2] not in _WHOLE:
        for key, inner in value.items():
            _flatten(f"{prefix}.{key}", inner, found, depth + 1)
    elif can and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        for index, inner in enumerate(value):
            _flatten(f"{prefix}.{index}", inner, found, depth + 1)
    else:
        found[prefix] = value
