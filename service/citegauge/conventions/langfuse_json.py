"""Langfuse's own JSON: ingestion batches (`retriever-create` and its kin) and exported observations → raw spans.

The attributes take the names of the OpenTelemetry form, so that `langfuse` reads both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, RawSpan, SpanFault, shown
from citegauge.conventions.langfuse import TYPE_KEY
from citegauge.conventions.values import unquoted

Object = Mapping[str, Any]


def is_batch(found: Object) -> bool:
    """An ingestion request: `{"batch": [{id, timestamp, type, body}]}`."""
    batch = found.get("batch")
    return isinstance(batch, list) and all(isinstance(item, dict) and "body" in item for item in batch)


def is_event(found: Object) -> bool:
    """One event of such a request."""
    return isinstance(found.get("body"), dict) and isinstance(found.get("type"), str)


def is_observation(found: Object) -> bool:
    """An exported observation."""
    return "traceId" in found and "type" in found and ("startTime" in found or "parentObservationId" in found)


def batch(found: Object) -> Iterator[RawSpan | SpanFault]:
    """Spans of a request; a later event about an observation completes the earlier ones."""
    merged: dict[object, dict[str, Any]] = {}
    for index, event in enumerate(found["batch"]):
        body = event["body"]
        if not isinstance(body, dict) or not isinstance(event.get("type"), str):
            yield SpanFault(index=index, reason="not_a_span", detail=shown(event.get("type")))
            continue
        own = body.get("id")
        key = (_is_trace(event["type"]), own if isinstance(own, str) else index)
        known = merged.setdefault(key, {})
        known.update({name: value for name, value in body.items() if value is not None})
        known.setdefault("type", _type(event["type"], body))
        known.setdefault("_timestamp", event.get("timestamp"))
    for index, body in enumerate(merged.values()):
        try:
            yield _span(body)
        except FaultError as fault:
            yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)


def event(found: Object) -> Iterator[RawSpan | SpanFault]:
    """The span of one event."""
    yield from batch({"batch": [found]})


def observation(found: Object) -> Iterator[RawSpan | SpanFault]:
    """The span of an exported observation. Raises `FaultError`."""
    yield _span(dict(found))


def _is_trace(kind: str) -> bool:
    return kind == "trace-create"


def _type(kind: str, body: Object) -> str:
    own = body.get("type")
    if kind.startswith("observation-") and isinstance(own, str):
        return own
    return kind.rsplit("-", 1)[0]


def _span(body: dict[str, Any]) -> RawSpan:
    kind = body.get("type")
    is_trace = kind == "trace"
    attributes: dict[str, Any] = {TYPE_KEY: kind}
    for part in ("input", "output"):
        if part in body:
            attributes[f"langfuse.observation.{part}"] = body[part]
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        prefix = "langfuse.trace.metadata." if is_trace else "langfuse.observation.metadata."
        attributes.update({prefix + key: value for key, value in metadata.items()})
    if isinstance(body.get("model"), str):
        attributes["langfuse.observation.model.name"] = unquoted(body["model"])
    if is_trace and isinstance(body.get("name"), str):
        attributes["langfuse.trace.name"] = body["name"]
    trace = body.get("id") if is_trace else body.get("traceId")
    stamp = body.get("timestamp", body.get("_timestamp"))
    start_ns = identity.iso_time_ns(body.get("startTime", stamp))
    name = body.get("name")
    return RawSpan(
        trace_id=identity.foreign_trace_id(trace),
        span_id=identity.foreign_span_id(f"trace/{trace}" if is_trace else body.get("id")),
        parent_id=b"" if is_trace else identity.foreign_parent_id(body.get("parentObservationId")),
        name=name if isinstance(name, str) else "",
        start_ns=start_ns,
        end_ns=identity.iso_time_ns(body.get("endTime")) or start_ns,
        attributes=attributes,
    )
