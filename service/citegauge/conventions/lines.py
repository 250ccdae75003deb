"""The JSON envelope: one object per record or line, or a list of them. Not OTLP JSON (`otlp`).

Clean native events do not come here (`fast`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from citegauge.conventions import identity, native, otlp
from citegauge.conventions.base import FaultError, Opened, RawSpan, SpanFault
from citegauge.conventions.values import loads
from citegauge.errors import DeadLetterError


def spans(record: bytes) -> Opened:
    """Spans of a JSON record in any flat form. Raises `DeadLetterError` when nothing in it can be read."""
    try:
        found = loads(record)
    except ValueError as exc:
        return _lines(record, exc)
    if isinstance(found, list):
        return _list(found)
    try:
        return list(_opened(found))
    except FaultError as fault:
        raise DeadLetterError(fault.reason, fault.detail) from None


def _lines(record: bytes, reason: ValueError) -> list[RawSpan | SpanFault]:
    """Several JSON lines in one record, as some shippers send them; one line that is not JSON is a fault of its own."""
    lines = [line for line in record.split(b"\n") if line.strip()]
    if len(lines) < 2 or not lines[0].rstrip().endswith(b"}"):
        raise DeadLetterError("not_json", str(reason)[:120]) from reason
    items: list[Any] = []
    for line in lines:
        try:
            items.append(loads(line))
        except ValueError:
            items.append(_NOT_JSON)
    if all(item is _NOT_JSON for item in items):
        raise DeadLetterError("not_json", str(reason)[:120]) from reason
    return _list(items)


_NOT_JSON = object()


def _list(items: list[Any]) -> list[RawSpan | SpanFault]:
    opened: list[RawSpan | SpanFault] = []
    for item in items:
        if item is _NOT_JSON:
            opened.append(SpanFault(index=len(opened), reason="not_json", detail=""))
            continue
        try:
            for span in _opened(item):
                if isinstance(span, SpanFault):
                    span = replace(span, index=len(opened))  # noqa: PLW2901  # counted over the whole record
                opened.append(span)
        except (FaultError, DeadLetterError) as fault:
            opened.append(SpanFault(index=len(opened), reason=fault.reason, detail=fault.detail))
    return opened


def _opened(found: Any) -> Iterator[RawSpan | SpanFault]:
    """The spans of one parsed object. Raises `FaultError` or `DeadLetterError` when it is none of the known forms."""
    if otlp.is_document(found):
        yield from otlp.document_spans(found)
    elif isinstance(found, dict):
        yield event_span(found)
    else:
        raise FaultError("not_an_object", found)


def event_span(found: Mapping[str, Any]) -> RawSpan:
    """A native event, or any flat JSON span with these names, as a raw span. Raises `FaultError`."""
    attributes = found.get("attributes")
    if not isinstance(attributes, dict):
        attributes = {}
    kind = found.get("kind")
    if isinstance(kind, str) and kind.lower() in native.KINDS and native.KIND_KEY not in attributes:
        attributes = {**attributes, native.KIND_KEY: kind}
    name, resource = found.get("name"), found.get("resource")
    return RawSpan(
        trace_id=identity.trace_id(found.get("trace_id")),
        span_id=identity.span_id(found.get("span_id")),
        parent_id=identity.parent_id(found.get("parent_span_id", found.get("parent_id"))),
        name=name if isinstance(name, str) else "",
        start_ns=identity.time_ns(found.get("start_time_unix_nano")),
        end_ns=identity.time_ns(found.get("end_time_unix_nano")),
        attributes=attributes,
        resource=resource if isinstance(resource, dict) else {},
    )
