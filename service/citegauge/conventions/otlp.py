"""The OTLP envelopes, protobuf and JSON: one record is a batch of resources, scopes and spans. Not their meaning."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, Opened, RawEvent, RawSpan, SpanFault
from citegauge.conventions.values import loads
from citegauge.errors import DeadLetterError

VALUE_DEPTH_MAX = 32
"""Attribute values nested deeper than this are read as missing."""


def proto_spans(record: bytes) -> Opened:
    """Spans of an `ExportTraceServiceRequest`. Raises `DeadLetterError` when the bytes are none."""
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(record)
    except DecodeError as exc:
        raise DeadLetterError("not_protobuf", str(exc)[:120]) from exc
    if not request.resource_spans:
        # Many byte strings parse as nothing but unknown fields.
        raise DeadLetterError("not_protobuf", "no resource_spans")
    return _proto_batch(request)


def _proto_batch(request: Any) -> Iterator[RawSpan | SpanFault]:
    index = 0
    for resource_spans in request.resource_spans:
        resource = _proto_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            scope = scope_spans.scope.name
            for span in scope_spans.spans:
                try:
                    yield _proto_span(span, resource, scope)
                except FaultError as fault:
                    yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)
                index += 1


def _proto_span(span: Any, resource: Mapping[str, Any], scope: str) -> RawSpan:
    events = span.events
    return RawSpan(
        trace_id=_wire_id(span.trace_id, 16),
        span_id=_wire_id(span.span_id, 8),
        parent_id=_wire_parent(span.parent_span_id),
        name=span.name,
        start_ns=identity.time_ns(span.start_time_unix_nano),
        end_ns=identity.time_ns(span.end_time_unix_nano),
        attributes=_proto_attributes(span.attributes),
        resource=resource,
        scope=scope,
        events=[RawEvent(event.name, _proto_attributes(event.attributes)) for event in events] if events else None,
        dropped=span.dropped_attributes_count + span.dropped_events_count,
    )


def _wire_id(value: bytes, size: int) -> bytes:
    if len(value) == size and any(value):
        return value
    return identity.trace_id(value) if size == 16 else identity.span_id(value)


def _wire_parent(value: bytes) -> bytes:
    return value if len(value) == 8 and any(value) else identity.parent_id(value)


def _proto_attributes(attributes: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in attributes:
        value = attribute.value
        # Most values are texts, and asking for the text is cheaper than asking which it is.
        found[attribute.key] = value.string_value or _proto_value(value, 0)
    return found


def _proto_value(value: Any, depth: int) -> Any:
    which = value.WhichOneof("value")
    if which is None or depth > VALUE_DEPTH_MAX:
        return None
    if which == "array_value":
        return [_proto_value(item, depth + 1) for item in value.array_value.values]
    if which == "kvlist_value":
        return {item.key: _proto_value(item.value, depth + 1) for item in value.kvlist_value.values}
    return getattr(value, which)


# ---------------------------------------------------------------------------------------------- JSON


def json_spans(record: bytes) -> Opened:
    """Spans of the same request as JSON. Raises `DeadLetterError` when it is not that."""
    try:
        found = loads(record)
    except ValueError as exc:
        raise DeadLetterError("not_json", str(exc)[:120]) from exc
    return document_spans(found)


def is_document(found: object) -> bool:
    """True for parsed JSON that has the shape of OTLP traces, camelCase or snake_case."""
    return isinstance(found, dict) and ("resourceSpans" in found or "resource_spans" in found)


def document_spans(found: object) -> Opened:
    """Spans of parsed OTLP JSON. Raises `DeadLetterError` when it is not that."""
    if not is_document(found):
        raise DeadLetterError("not_otlp_json", "no resourceSpans")
    batch = _get(found, "resourceSpans", "resource_spans")
    if not isinstance(batch, list):
        raise DeadLetterError("not_otlp_json", "resourceSpans is not a list")
    return _json_batch(batch)


def _get(found: Any, camel: str, snake: str) -> Any:
    value = found.get(camel)
    return found.get(snake) if value is None else value


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _json_batch(batch: list[Any]) -> Iterator[RawSpan | SpanFault]:
    index = 0
    for resource_spans in _dicts(batch):
        resource = resource_spans.get("resource")
        shared = _json_attributes(resource.get("attributes")) if isinstance(resource, dict) else {}
        scopes = _get(resource_spans, "scopeSpans", "scope_spans")
        if scopes is None:  # before OTLP 0.19
            scopes = _get(resource_spans, "instrumentationLibrarySpans", "instrumentation_library_spans")
        for scope_spans in _dicts(scopes):
            scope = scope_spans.get("scope")
            name = scope.get("name") if isinstance(scope, dict) else ""
            spans = scope_spans.get("spans")
            for span in spans if isinstance(spans, list) else ():
                try:
                    yield _json_span(span, shared, name if isinstance(name, str) else "")
                except FaultError as fault:
                    yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)
                index += 1


def _json_span(span: Any, resource: Mapping[str, Any], scope: str) -> RawSpan:
    if not isinstance(span, dict):
        raise FaultError("not_a_span", span)
    name, events = span.get("name"), span.get("events")
    return RawSpan(
        trace_id=identity.trace_id(_get(span, "traceId", "trace_id")),
        span_id=identity.span_id(_get(span, "spanId", "span_id")),
        parent_id=identity.parent_id(_get(span, "parentSpanId", "parent_span_id")),
        name=name if isinstance(name, str) else "",
        start_ns=identity.time_ns(_get(span, "startTimeUnixNano", "start_time_unix_nano")),
        end_ns=identity.time_ns(_get(span, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_json_attributes(span.get("attributes")),
        resource=resource,
        scope=scope,
        events=[_json_event(event) for event in _dicts(events)] if events else None,
        dropped=_dropped(_get(span, "droppedAttributesCount", "dropped_attributes_count"))
        + _dropped(_get(span, "droppedEventsCount", "dropped_events_count")),
    )


def _json_event(event: dict[str, Any]) -> RawEvent:
    name = event.get("name")
    return RawEvent(name if isinstance(name, str) else "", _json_attributes(event.get("attributes")))


def _dropped(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 11:
        return int(value)
    return value if type(value) is int and value > 0 else 0


def _json_attributes(attributes: object) -> dict[str, Any]:
    if isinstance(attributes, dict):  # not OTLP, but the obvious slip
        return attributes
    found: dict[str, Any] = {}
    if isinstance(attributes, list):
        for attribute in attributes:
            if isinstance(attribute, dict) and isinstance(key := attribute.get("key"), str):
                value = attribute.get("value")
                text = value.get("stringValue") if isinstance(value, dict) else None
                found[key] = text if type(text) is str else _json_value(value, 0)
    return found


def _json_value(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > VALUE_DEPTH_MAX:
        return None
    for key, item in value.items():
        if key in ("stringValue", "string_value", "boolValue", "bool_value"):
            return item
        if key in ("intValue", "int_value"):
            return _json_int(item)
        if key in ("doubleValue", "double_value"):
            return _json_double(item)
        if key in ("arrayValue", "array_value"):
            values = item.get("values") if isinstance(item, dict) else None
            return [_json_value(inner, depth + 1) for inner in values] if isinstance(values, list) else []
        if key in ("kvlistValue", "kvlist_value"):
            return {
                inner["key"]: _json_value(inner.get("value"), depth + 1)
                for inner in _dicts(item.get("values") if isinstance(item, dict) else None)
                if isinstance(inner.get("key"), str)
            }
        if key in ("bytesValue", "bytes_value"):
            return _json_bytes(item)
    return None


def _json_int(item: object) -> object:
    if isinstance(item, str):
        digits = item.removeprefix("-")
        return int(item) if digits.isascii() and digits.isdigit() and len(digits) < 20 else item
    if type(item) is float and item.is_integer():
        return int(item)
    return item


def _json_double(item: object) -> object:
    if isinstance(item, str):
        try:
            return float(item) if len(item) < 40 else item
        except ValueError:
            return item
    return float(item) if type(item) is int and item.bit_length() < 1000 else item


def _json_bytes(item: object) -> object:
    try:
        return base64.b64decode(item) if isinstance(item, str) else None
    except ValueError:
        return None
