"""The Jaeger envelopes: the model's protobuf, its JSON form (base64 ids), and the query API's JSON. Not Thrift.

The protobuf schema is small and has not changed in years, so it is described here instead of adding a dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, Opened, RawEvent, RawSpan, SpanFault
from citegauge.conventions.protobuf import FieldType, Schema, message_class
from citegauge.conventions.values import loads, text
from citegauge.errors import DeadLetterError

_SCHEMA: Schema = {
    "KeyValue": (
        ("key", 1, FieldType.TYPE_STRING, False), ("v_type", 2, FieldType.TYPE_INT32, False),
        ("v_str", 3, FieldType.TYPE_STRING, False), ("v_bool", 4, FieldType.TYPE_BOOL, False),
        ("v_int64", 5, FieldType.TYPE_INT64, False), ("v_float64", 6, FieldType.TYPE_DOUBLE, False),
        ("v_binary", 7, FieldType.TYPE_BYTES, False),
    ),
    "Log": (("timestamp", 1, "google.protobuf.Timestamp", False), ("fields", 2, "KeyValue", True)),
    "SpanRef": (
        ("trace_id", 1, FieldType.TYPE_BYTES, False), ("span_id", 2, FieldType.TYPE_BYTES, False),
        ("ref_type", 3, FieldType.TYPE_INT32, False),
    ),
    "Process": (("service_name", 1, FieldType.TYPE_STRING, False), ("tags", 2, "KeyValue", True)),
    "Span": (
        ("trace_id", 1, FieldType.TYPE_BYTES, False), ("span_id", 2, FieldType.TYPE_BYTES, False),
        ("operation_name", 3, FieldType.TYPE_STRING, False), ("references", 4, "SpanRef", True),
        ("flags", 5, FieldType.TYPE_UINT32, False), ("start_time", 6, "google.protobuf.Timestamp", False),
        ("duration", 7, "google.protobuf.Duration", False), ("tags", 8, "KeyValue", True), ("logs", 9, "Log", True),
        ("process", 10, "Process", False), ("process_id", 11, FieldType.TYPE_STRING, False),
    ),
}  # fmt: skip


SpanMessage = message_class("citegauge.jaeger", _SCHEMA, "Span")
_SECOND_NS = 1_000_000_000
_VALUES = ("v_str", "v_bool", "v_int64", "v_float64", "v_binary")
_CHILD_OF = 0


def proto_spans(record: bytes) -> Opened:
    """The span of a `jaeger_proto` record, of which each holds one. Raises `DeadLetterError`."""
    span = SpanMessage()
    try:
        span.ParseFromString(record)
    except DecodeError as exc:
        raise DeadLetterError("not_protobuf", str(exc)[:120]) from exc
    start_ns = span.start_time.seconds * _SECOND_NS + span.start_time.nanos
    length_ns = span.duration.seconds * _SECOND_NS + span.duration.nanos
    try:
        trace_id = identity.trace_id(span.trace_id)
        raw = RawSpan(
            trace_id=trace_id,
            span_id=identity.span_id(span.span_id),
            parent_id=_parent([(ref.trace_id, ref.span_id, ref.ref_type) for ref in span.references], trace_id),
            name=span.operation_name,
            start_ns=identity.time_ns(start_ns),
            end_ns=identity.time_ns(start_ns + length_ns),
            attributes={tag.key: _proto_value(tag) for tag in span.tags},
            resource={
                "service.name": span.process.service_name,
                **{tag.key: _proto_value(tag) for tag in span.process.tags},
            },
            events=[_event({field.key: _proto_value(field) for field in log.fields}) for log in span.logs],
        )
    except FaultError as fault:
        raise DeadLetterError(fault.reason, fault.detail) from None
    return (raw,)


def _proto_value(tag: Any) -> object:
    kind = tag.v_type
    return getattr(tag, _VALUES[kind]) if 0 <= kind < len(_VALUES) else None


def _parent(references: list[tuple[object, object, object]], trace_id: bytes) -> bytes:
    """The span that this one is a child of, in the same trace."""
    for ref_trace, ref_span, ref_type in references:
        if ref_type in (None, _CHILD_OF, "CHILD_OF"):
            try:
                if not ref_trace or identity.trace_id(ref_trace) == trace_id:
                    return identity.parent_id(ref_span)
            except FaultError:
                continue
    return b""


def _event(fields: dict[str, Any]) -> RawEvent:
    name = fields.pop("event", fields.pop("message", ""))
    return RawEvent(name if isinstance(name, str) else "", fields)


# ---------------------------------------------------------------------------------------------- JSON


def json_spans(record: bytes) -> Opened:
    """Spans of a `jaeger_json` record, or of a query API answer. Raises `DeadLetterError`."""
    try:
        found = loads(record)
    except ValueError as exc:
        raise DeadLetterError("not_json", str(exc)[:120]) from exc
    if not is_document(found):
        raise DeadLetterError("not_jaeger_json", "no operationName")
    return document_spans(found)


def is_document(found: object) -> bool:
    """True for an object with Jaeger's names: a span, a trace, or a query answer."""
    if not isinstance(found, dict):
        return False
    data = found.get("data")
    return (
        "operationName" in found
        or ("traceID" in found and isinstance(found.get("spans"), list))
        or (isinstance(data, list) and all(isinstance(item, dict) and "traceID" in item for item in data))
    )


def document_spans(found: Any) -> Iterator[RawSpan | SpanFault]:
    """Spans of parsed Jaeger JSON."""
    traces = found["data"] if isinstance(found.get("data"), list) else [found]
    index = 0
    for trace in traces:
        spans = trace.get("spans")
        processes = trace.get("processes")
        # Once for each: a process has tags of its own, and many spans.
        resources = {key: _resource(value) for key, value in processes.items()} if isinstance(processes, dict) else {}
        for span in spans if isinstance(spans, list) else [trace]:
            try:
                yield _json_span(span, resources)
            except FaultError as fault:
                yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)
            index += 1


def _json_span(span: Any, resources: Mapping[str, Mapping[str, Any]]) -> RawSpan:
    if not isinstance(span, dict):
        raise FaultError("not_a_span", span)
    trace_id = identity.trace_id(span.get("traceID", span.get("traceId")))
    start_ns = _json_time(span.get("startTime"))
    process = span.get("process")
    if isinstance(process, dict):
        resource = _resource(process)
    else:
        resource = resources.get(text(span.get("processID", span.get("processId"))), {})
    references, logs, name = span.get("references"), span.get("logs"), span.get("operationName")
    return RawSpan(
        trace_id=trace_id,
        span_id=identity.span_id(span.get("spanID", span.get("spanId"))),
        parent_id=_parent(
            [
                (ref.get("traceID", ref.get("traceId")), ref.get("spanID", ref.get("spanId")), ref.get("refType"))
                for ref in references
                if isinstance(ref, dict)
            ]
            if isinstance(references, list)
            else [],
            trace_id,
        ),
        name=name if isinstance(name, str) else "",
        start_ns=start_ns,
        end_ns=identity.time_ns(start_ns + _json_length(span.get("duration"))),
        attributes=_tags(span.get("tags")),
        resource=resource,
        events=[_event(_tags(log.get("fields"))) for log in logs if isinstance(log, dict)]
        if isinstance(logs, list)
        else None,
    )


def _resource(process: Any) -> Mapping[str, Any]:
    return (
        {"service.name": process.get("serviceName"), **_tags(process.get("tags"))} if isinstance(process, dict) else {}
    )


def _json_time(value: object) -> int:
    """µs in the query API, an ISO time in the protobuf's JSON form."""
    return identity.iso_time_ns(value) if isinstance(value, str) else identity.scaled_time_ns(value, 1_000)


def _json_length(value: object) -> int:
    """µs in the query API, `0.041s` in the protobuf's JSON form."""
    if isinstance(value, str):
        try:
            return round(float(value.removesuffix("s")) * _SECOND_NS) if len(value) <= 32 else 0
        except (ValueError, OverflowError):
            raise FaultError("bad_time_field", value) from None
    return identity.scaled_time_ns(value, 1_000)


def _tags(tags: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, dict) and isinstance(tag.get("key"), str):
            key = "value" if "value" in tag else _JSON_VALUES.get(text(tag.get("vType", "STRING")).upper(), "vStr")
            value = tag.get(key, _JSON_DEFAULTS.get(key))
            if key == "vInt64" and isinstance(value, str) and value.removeprefix("-").isdigit() and len(value) < 21:
                value = int(value)
            found[tag["key"]] = value
    return found


_JSON_VALUES = {"STRING": "vStr", "BOOL": "vBool", "INT64": "vInt64", "FLOAT64": "vFloat64", "BINARY": "vBinary"}
_JSON_DEFAULTS: Mapping[str, object] = {"vStr": "", "vBool": False, "vInt64": 0, "vFloat64": 0.0}
"""The JSON form leaves out a value that is the type's zero."""
