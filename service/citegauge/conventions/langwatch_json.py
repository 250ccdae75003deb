"""The trace that LangWatch's own SDKs send to its collector, as JSON → raw spans with the names of its OTel form."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, RawSpan, SpanFault
from citegauge.conventions.langwatch import TYPE_KEY

Object = Mapping[str, Any]
_MS_NS = 1_000_000


def is_trace(found: Object) -> bool:
    """`{"trace_id", "spans": [{"span_id", "type", "timestamps"}]}`."""
    spans = found.get("spans")
    return (
        "trace_id" in found
        and isinstance(spans, list)
        and any(isinstance(span, dict) and "timestamps" in span and "type" in span for span in spans)
    )


def trace(found: Object) -> Iterator[RawSpan | SpanFault]:
    """Spans of such a trace. The route keys of its metadata stand on every span."""
    metadata = found.get("metadata")
    shared: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
    for index, span in enumerate(found["spans"]):
        try:
            yield _span(span, found.get("trace_id"), shared)
        except FaultError as fault:
            yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)


def _span(span: Any, trace_id: object, shared: dict[str, Any]) -> RawSpan:
    if not isinstance(span, dict):
        raise FaultError("not_a_span", span)
    times = span.get("timestamps")
    times = times if isinstance(times, dict) else {}
    params, name = span.get("params"), span.get("name")
    attributes: dict[str, Any] = {
        **(params if isinstance(params, dict) else {}),
        TYPE_KEY: span.get("type"),
        "langwatch.rag.contexts": span.get("contexts"),
        "langwatch.output": span.get("output", span.get("outputs")),
        "model": span.get("model"),
    }
    return RawSpan(
        trace_id=identity.foreign_trace_id(span.get("trace_id") or trace_id),
        span_id=identity.foreign_span_id(span.get("span_id", span.get("id"))),
        parent_id=identity.foreign_parent_id(span.get("parent_id")),
        name=name if isinstance(name, str) else "",
        start_ns=identity.scaled_time_ns(times.get("started_at"), _MS_NS),
        end_ns=identity.scaled_time_ns(times.get("finished_at"), _MS_NS),
        attributes=ChainMap(attributes, shared),  # a copy of the metadata for each span would be quadratic
    )
