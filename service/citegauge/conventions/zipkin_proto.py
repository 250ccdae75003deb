"""The Zipkin v2 protobuf envelope: a list of spans whose attributes are all texts, times in µs. Not its JSON (`zipkin`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, Opened, RawSpan, SpanFault
from citegauge.conventions.protobuf import FieldType, Schema, message_class
from citegauge.conventions.zipkin import annotated
from citegauge.errors import DeadLetterError

_SCHEMA: Schema = {
    "Endpoint": (("service_name", 1, FieldType.TYPE_STRING, False),),
    "Annotation": (("timestamp", 1, FieldType.TYPE_FIXED64, False), ("value", 2, FieldType.TYPE_STRING, False)),
    "Tag": (("key", 1, FieldType.TYPE_STRING, False), ("value", 2, FieldType.TYPE_STRING, False)),  # a map's entry
    "Span": (
        ("trace_id", 1, FieldType.TYPE_BYTES, False), ("parent_id", 2, FieldType.TYPE_BYTES, False),
        ("id", 3, FieldType.TYPE_BYTES, False), ("kind", 4, FieldType.TYPE_INT32, False),
        ("name", 5, FieldType.TYPE_STRING, False), ("timestamp", 6, FieldType.TYPE_FIXED64, False),
        ("duration", 7, FieldType.TYPE_UINT64, False), ("local_endpoint", 8, "Endpoint", False),
        ("annotations", 10, "Annotation", True), ("tags", 11, "Tag", True),
    ),
    "ListOfSpans": (("spans", 1, "Span", True),),
}  # fmt: skip
ListMessage = message_class("citegauge.zipkin", _SCHEMA, "ListOfSpans")
_US_NS = 1_000


def spans(record: bytes) -> Opened:
    """Spans of a `zipkin_proto` record. Raises `DeadLetterError` when it is none."""
    found = _parsed(record)
    if found is None:
        raise DeadLetterError("not_zipkin_proto", "no list of spans")
    return _list(found)


def is_record(record: bytes) -> bool:
    """True for a list of Zipkin spans, which differs from an OTLP batch in that the first has an id and a time."""
    # Its first bytes: field 1, a length, and in it field 1 with 8 or 16 bytes.
    start = 1
    while start < 6 and record[start : start + 1] >= b"\x80":
        start += 1
    if record[:1] != b"\x0a" or record[start + 1 : start + 3] not in (b"\x0a\x10", b"\x0a\x08"):
        return False
    found = _parsed(record)
    return found is not None and len(found.spans[0].id) == 8 and found.spans[0].timestamp > 0


def _parsed(record: bytes) -> Any:
    found = ListMessage()
    try:
        found.ParseFromString(record)
    except DecodeError:
        return None
    return found if found.spans else None


def _list(found: Any) -> Iterator[RawSpan | SpanFault]:
    for index, span in enumerate(found.spans):
        try:
            yield _span(span)
        except FaultError as fault:
            yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)


def _span(span: Any) -> RawSpan:
    start_ns = identity.scaled_time_ns(span.timestamp, _US_NS)
    return RawSpan(
        trace_id=identity.trace_id(span.trace_id),
        span_id=identity.span_id(span.id),
        parent_id=identity.parent_id(span.parent_id),
        name=span.name,
        start_ns=start_ns,
        end_ns=identity.time_ns(start_ns + identity.scaled_time_ns(span.duration, _US_NS)),
        attributes={tag.key: tag.value for tag in span.tags},
        resource={"service.name": span.local_endpoint.service_name},
        events=[annotated(item.value) for item in span.annotations],
    )
