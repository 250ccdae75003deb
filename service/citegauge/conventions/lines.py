"""The JSON envelope: one object per record or line, a list, or several lines. Not the shapes of the objects (`flat`).

Clean native events do not come here (`fast`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from citegauge.conventions import flat, jaeger, otlp, zipkin
from citegauge.conventions.base import FaultError, Opened, RawSpan, SpanFault
from citegauge.conventions.mapping import CompiledMapping
from citegauge.conventions.values import loads
from citegauge.errors import DeadLetterError

_NOT_JSON = object()


def spans(record: bytes, mappings: tuple[CompiledMapping, ...] = ()) -> Opened:
    """Spans of a JSON record in any known shape. Raises `DeadLetterError` when nothing in it can be read."""
    try:
        found = loads(record)
    except ValueError as exc:
        return _numbered(_list(_lines(record, exc), mappings))
    if isinstance(found, list):
        return _numbered(_list(found, mappings))
    try:
        return list(_numbered(_opened(found, mappings)))
    except FaultError as fault:
        raise DeadLetterError(fault.reason, fault.detail) from None


def _numbered(opened: Iterable[RawSpan | SpanFault]) -> Iterator[RawSpan | SpanFault]:
    """The same, faults numbered by their position in the record."""
    for at, span in enumerate(opened):
        yield replace(span, index=at) if isinstance(span, SpanFault) else span


def _lines(record: bytes, reason: ValueError) -> list[Any]:
    """The objects of several JSON lines in one record, as some shippers send them."""
    lines = [line for line in record.split(b"\n") if line.strip()]
    items: list[Any] = []
    # A pretty-printed object that is broken is not a list of broken lines.
    if len(lines) > 1 and lines[0].rstrip().endswith(b"}"):
        for line in lines:
            try:
                items.append(loads(line))
            except ValueError:
                items.append(_NOT_JSON)
    if all(item is _NOT_JSON for item in items):
        raise DeadLetterError("not_json", str(reason)[:120]) from reason
    return items


def _list(items: list[Any], mappings: tuple[CompiledMapping, ...]) -> Iterator[RawSpan | SpanFault]:
    for item in items:
        if item is _NOT_JSON:
            yield SpanFault(index=0, reason="not_json", detail="")
            continue
        try:
            yield from _opened(item, mappings)
        except (FaultError, DeadLetterError) as fault:
            yield SpanFault(index=0, reason=fault.reason, detail=fault.detail)


def _opened(found: Any, mappings: tuple[CompiledMapping, ...]) -> Iterator[RawSpan | SpanFault]:
    """The spans of one parsed object. Raises `FaultError` or `DeadLetterError` when it is none of the known shapes."""
    if not isinstance(found, dict):
        raise FaultError("not_an_object", found)
    if not flat.is_native(found):
        for mapping in mappings:
            if mapping.claims_record(found):
                yield mapping.open_record(found)
                return
    if otlp.is_document(found):
        yield from otlp.document_spans(found)
    elif jaeger.is_document(found):
        yield from jaeger.document_spans(found)
    else:
        for form in flat.FORMS:
            if form.claims(found):
                yield from form.spans(found)
                return
        yield zipkin.span(found) if zipkin.is_span(found) else flat.event_span(found)
