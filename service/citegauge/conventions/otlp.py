"""The OTLP envelopes, protobuf and JSON: one record is a batch of resources, scopes and spans. Not their meaning.

The logs signal comes in the same envelopes (`otlp_logs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from citegauge.conventions import identity, otlp_logs
from citegauge.conventions.base import FaultError, Opened, RawEvent, RawSpan, SpanFault
from citegauge.conventions.otlp_values import dicts, either, json_attributes, proto_attributes
from citegauge.conventions.values import loads
from citegauge.errors import DeadLetterError


def proto_spans(record: bytes) -> Opened:
    """Spans of an `ExportTraceServiceRequest`, answers of an `ExportLogsServiceRequest`. Raises `DeadLetterError`.

    The encoding has one name for both signals, and so has each of our settings.
    """
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(record)
    except DecodeError as exc:
        logs = otlp_logs.proto_request(record)
        if logs is None:
            raise DeadLetterError("not_protobuf", str(exc)[:120]) from exc
        return otlp_logs.proto_spans(logs)
    if not request.resource_spans:
        # Many byte strings parse as nothing but unknown fields.
        raise DeadLetterError("not_protobuf", "no resource_spans")
    first = next(
        (span for batch in request.resource_spans for scope in batch.scope_spans for span in scope.spans), None
    )
    if first is not None and not first.trace_id and (logs := otlp_logs.proto_request(record)) is not None:
        return otlp_logs.proto_spans(logs)
    return _proto_batch(request)


def _proto_batch(request: Any) -> Iterator[RawSpan | SpanFault]:
    index = 0
    for resource_spans in request.resource_spans:
        resource = proto_attributes(resource_spans.resource.attributes)
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
        attributes=proto_attributes(span.attributes),
        resource=resource,
        scope=scope,
        events=[RawEvent(event.name, proto_attributes(event.attributes)) for event in events] if events else None,
        dropped=span.dropped_attributes_count + span.dropped_events_count,
    )


def _wire_id(value: bytes, size: int) -> bytes:
    if len(value) == size and any(value):
        return value
    return identity.trace_id(value) if size == 16 else identity.span_id(value)


def _wire_parent(value: bytes) -> bytes:
    return value if len(value) == 8 and any(value) else identity.parent_id(value)


# ---------------------------------------------------------------------------------------------- JSON


def json_spans(record: bytes) -> Opened:
    """Spans of the same request as JSON. Raises `DeadLetterError` when it is not that."""
    try:
        found = loads(record)
    except ValueError as exc:
        raise DeadLetterError("not_json", str(exc)[:120]) from exc
    return document_spans(found)


def is_document(found: object) -> bool:
    """True for parsed JSON that has the shape of OTLP traces or logs, camelCase or snake_case."""
    return isinstance(found, dict) and (
        "resourceSpans" in found or "resource_spans" in found or otlp_logs.is_document(found)
    )


def document_spans(found: object) -> Opened:
    """Spans of parsed OTLP JSON. Raises `DeadLetterError` when it is not that."""
    if otlp_logs.is_document(found):
        return otlp_logs.document_spans(found)
    if not is_document(found):
        raise DeadLetterError("not_otlp_json", "no resourceSpans")
    batch = either(found, "resourceSpans", "resource_spans")
    if not isinstance(batch, list):
        raise DeadLetterError("not_otlp_json", "resourceSpans is not a list")
    return _json_batch(batch)


def _json_batch(batch: list[Any]) -> Iterator[RawSpan | SpanFault]:
    index = 0
    for resource_spans in dicts(batch):
        resource = resource_spans.get("resource")
        shared = json_attributes(resource.get("attributes")) if isinstance(resource, dict) else {}
        scopes = either(resource_spans, "scopeSpans", "scope_spans")
        if scopes is None:  # before OTLP 0.19
            scopes = either(resource_spans, "instrumentationLibrarySpans", "instrumentation_library_spans")
        for scope_spans in dicts(scopes):
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
        trace_id=identity.trace_id(either(span, "traceId", "trace_id")),
        span_id=identity.span_id(either(span, "spanId", "span_id")),
        parent_id=identity.parent_id(either(span, "parentSpanId", "parent_span_id")),
        name=name if isinstance(name, str) else "",
        start_ns=identity.time_ns(either(span, "startTimeUnixNano", "start_time_unix_nano")),
        end_ns=identity.time_ns(either(span, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=json_attributes(span.get("attributes")),
        resource=resource,
        scope=scope,
        events=[_json_event(event) for event in dicts(events)] if events else None,
        dropped=_dropped(either(span, "droppedAttributesCount", "dropped_attributes_count"))
        + _dropped(either(span, "droppedEventsCount", "dropped_events_count")),
    )


def _json_event(event: dict[str, Any]) -> RawEvent:
    name = event.get("name")
    return RawEvent(name if isinstance(name, str) else "", json_attributes(event.get("attributes")))


def _dropped(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 11:
        return int(value)
    return value if type(value) is int and value > 0 else 0
