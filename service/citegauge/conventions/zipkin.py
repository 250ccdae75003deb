"""The Zipkin v2 JSON envelope: a list of spans whose attributes are all texts, times in µs. Not the protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, Opened, RawEvent, RawSpan, SpanFault
from citegauge.conventions.values import loads
from citegauge.errors import DeadLetterError

_US_NS = 1_000


def spans(record: bytes) -> Opened:
    """Spans of a Zipkin record. Raises `DeadLetterError` when it is none."""
    try:
        found = loads(record)
    except ValueError as exc:
        raise DeadLetterError("not_json", str(exc)[:120]) from exc
    items = found if isinstance(found, list) else [found]
    if not all(is_span(item) for item in items):
        raise DeadLetterError("not_zipkin_json", "no traceId and id")
    return list_spans(items)


def is_span(found: object) -> bool:
    """True for an object with Zipkin's names."""
    return isinstance(found, dict) and "traceId" in found and "id" in found and "type" not in found


def list_spans(items: list[Any]) -> Iterator[RawSpan | SpanFault]:
    """Spans of parsed Zipkin JSON."""
    for index, item in enumerate(items):
        try:
            yield span(item)
        except FaultError as fault:
            yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)


def span(found: Any) -> RawSpan:
    """One span. Raises `FaultError`."""
    tags = found.get("tags")
    endpoint = found.get("localEndpoint")
    annotations = found.get("annotations")
    name = found.get("name")
    start_ns = identity.scaled_time_ns(found.get("timestamp"), _US_NS)
    return RawSpan(
        trace_id=identity.trace_id(found.get("traceId")),
        span_id=identity.span_id(found.get("id")),
        parent_id=identity.parent_id(found.get("parentId")),
        name=name if isinstance(name, str) else "",
        start_ns=start_ns,
        end_ns=identity.time_ns(start_ns + identity.scaled_time_ns(found.get("duration"), _US_NS)),
        attributes=tags if isinstance(tags, dict) else {},
        resource={"service.name": endpoint.get("serviceName")} if isinstance(endpoint, dict) else {},
        events=[_event(item) for item in annotations if isinstance(item, dict)]
        if isinstance(annotations, list)
        else None,
    )


def _event(annotation: dict[str, Any]) -> RawEvent:
    value = annotation.get("value")
    return annotated(value) if isinstance(value, str) else RawEvent("", {})


def annotated(value: str) -> RawEvent:
    """The event in an annotation: the collector writes one with attributes as `name|{json}`, or as the JSON alone."""
    name, _, rest = value.partition("|")
    if not rest.endswith("}"):
        rest = rest.rpartition("|")[0]  # the count of dropped attributes
    try:
        attributes = loads(rest) if rest.startswith("{") else {}
    except ValueError:
        attributes = {}
    return RawEvent(name, attributes if isinstance(attributes, dict) else {})
