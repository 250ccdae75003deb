"""JSON objects that are not OTLP and not the native event: vendors' own span records, and two one-row-per-query forms.

Each form gives raw spans whose attributes one of the conventions claims. Not the choice of encoding (`lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from citegauge.conventions import datadog, identity, langfuse_json, langsmith, langwatch_json, native, span_json
from citegauge.conventions.base import FaultError, RawSpan, SpanFault, shown
from citegauge.conventions.native import first

Object: TypeAlias = Mapping[str, Any]
Opened: TypeAlias = Iterator[RawSpan | SpanFault]


class Form(NamedTuple):
    """One shape of object."""

    name: str
    claims: Callable[[Object], bool]
    spans: Callable[[Object], Opened]
    """Raises `FaultError` when the whole object cannot be read."""


def flexible_time_ns(value: object) -> int:
    """A time in a unit that its size tells (s, ms, µs, ns), or an ISO 8601 text. Raises `FaultError`."""
    if isinstance(value, str) and not value.isdigit():
        return identity.iso_time_ns(value)
    if isinstance(value, str):
        value = int(value) if len(value) <= 19 else value
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise FaultError("bad_time_field", value)
    if value is None:
        return 0
    for limit, unit_ns in ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3)):
        if value < limit:
            return identity.scaled_time_ns(value, unit_ns)
    return identity.time_ns(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _each(items: object, read: Callable[[Any], RawSpan]) -> Opened:
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            yield SpanFault(index=index, reason="not_a_span", detail=shown(item))
            continue
        try:
            yield read(item)
        except FaultError as fault:
            yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)


# ---------------------------------------------------------------------------------------------- native and MLflow


def _is_event(found: Object) -> bool:
    return "trace_id" in found and "span_id" in found and ("end_time_unix_nano" in found or "attributes" in found)


def is_native(found: Object) -> bool:
    """True for an event that states its kind in our own words."""
    kind = found.get("kind")
    return _is_event(found) and isinstance(kind, str) and kind.lower() in native.KINDS


def event_span(found: Object) -> RawSpan:
    """The native event, or any flat span with these names, as a raw span. Raises `FaultError`."""
    attributes = found.get("attributes")
    if not isinstance(attributes, dict):
        attributes = {}
    kind = found.get("kind")
    if isinstance(kind, str) and kind.lower() in native.KINDS and native.KIND_KEY not in attributes:
        attributes = {**attributes, native.KIND_KEY: kind}
    resource = found.get("resource")
    return RawSpan(
        trace_id=identity.trace_id(found.get("trace_id")),
        span_id=identity.span_id(found.get("span_id")),
        parent_id=identity.parent_id(found.get("parent_span_id", found.get("parent_id"))),
        name=_text(found.get("name")),
        start_ns=identity.time_ns(found.get("start_time_unix_nano")),
        end_ns=identity.time_ns(found.get("end_time_unix_nano")),
        attributes=attributes,
        resource=resource if isinstance(resource, dict) else {},
    )


def _event(found: Object) -> Opened:
    yield event_span(found)


def _is_mlflow(found: Object) -> bool:
    data = found.get("data")
    return isinstance(data, dict) and isinstance(data.get("spans"), list) and isinstance(found.get("info"), dict)


def _mlflow(found: Object) -> Opened:
    yield from _each(found["data"]["spans"], event_span)


# ---------------------------------------------------------------------------------------------- Datadog


def _is_datadog(found: Object) -> bool:
    return isinstance(found.get("meta"), dict) and "start_ns" in found and "trace_id" in found


def _is_datadog_batch(found: Object) -> bool:
    return isinstance(found.get("spans"), list) and found.get("event_type") == "span"


def _datadog_span(found: Object) -> RawSpan:
    meta = found["meta"] if isinstance(found.get("meta"), dict) else {}
    inner = meta.get("span")
    kind = meta.get("span.kind", inner.get("kind") if isinstance(inner, dict) else None)
    start_ns = identity.time_ns(found.get("start_ns"))
    attributes: dict[str, Any] = {datadog.KIND_KEY: kind, datadog.META_KEY: meta}
    tags = found.get("tags")
    for tag in tags if isinstance(tags, list) else ():
        key, _, value = _text(tag).partition(":")
        if value and key not in attributes:
            attributes[key] = value
    if found.get("ml_app"):
        attributes["ml_app"] = found["ml_app"]
    errors = found.get("collection_errors")
    attributes[datadog.DROPPED_KEY] = isinstance(errors, list) and "dropped_io" in errors
    parent = found.get("parent_id")
    return RawSpan(
        trace_id=identity.foreign_trace_id(found.get("trace_id")),
        span_id=identity.foreign_span_id(found.get("span_id")),
        parent_id=identity.foreign_parent_id(None if parent in ("undefined", "0", 0) else parent),
        name=_text(found.get("name")),
        start_ns=start_ns,
        end_ns=identity.time_ns(start_ns + identity.time_ns(found.get("duration"))),
        attributes=attributes,
    )


def _datadog(found: Object) -> Opened:
    yield _datadog_span(found)


def _datadog_batch(found: Object) -> Opened:
    yield from _each(found["spans"], _datadog_span)


# ---------------------------------------------------------------------------------------------- LangSmith


def _is_langsmith(found: Object) -> bool:
    return "run_type" in found and "id" in found


def _langsmith(found: Object) -> Opened:
    attributes: dict[str, Any] = {
        langsmith.KIND_KEY: found.get("run_type"),
        langsmith.OUTPUT_KEY: found.get("outputs"),
        langsmith.INPUT_KEY: found.get("inputs"),
        "langsmith.trace.session_name": found.get("session_name"),
    }
    extra = found.get("extra")
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    if isinstance(metadata, dict):
        attributes.update({f"langsmith.metadata.{key}": value for key, value in metadata.items()})
        attributes["model"] = metadata.get("ls_model_name")
    yield RawSpan(
        trace_id=identity.foreign_trace_id(found.get("trace_id", found["id"])),
        span_id=identity.foreign_span_id(found["id"]),
        parent_id=identity.foreign_parent_id(found.get("parent_run_id")),
        name=_text(found.get("name")),
        start_ns=flexible_time_ns(found.get("start_time")),
        end_ns=flexible_time_ns(found.get("end_time")),
        attributes=attributes,
    )


# ---------------------------------------------------------------------------------------------- one row per query


def _is_rag_row(found: Object) -> bool:
    return "chunk_ids" in found and "span_id" not in found and "ts" in found


def _row_ids(found: Object) -> tuple[bytes, bytes, bytes]:
    """Trace id, and span ids of the two halves, made from it so that a repeated row repeats them."""
    own = first(found, ("trace_id", "query_id", "request_id", "id"))
    if own is None:
        raise FaultError("bad_trace_id", own)
    trace_id = identity.foreign_trace_id(own)
    return (
        trace_id,
        identity.foreign_span_id(f"{trace_id.hex()}/retrieval"),
        identity.foreign_span_id(f"{trace_id.hex()}/generation"),
    )


_ANSWER_KEYS = ("answer", "response", "output", "answer_text")
_CITED_KEYS = ("cited_ids", "cited_chunk_ids", "citations")


def _rag_row(found: Object) -> Opened:
    """`chunk_ids`, `chunk_scores`, latencies, `ts` = when the row was written: the end of the answer."""
    trace_id, retrieval_id, generation_id = _row_ids(found)
    end_ns = flexible_time_ns(found.get("ts"))
    answered = _milliseconds(found, ("generation_latency_ms", "llm_latency_ms", "generate_ms", "llm_ms"))
    retrieved = _milliseconds(found, ("retrieval_latency_ms", "retrieve_ms", "retrieval_ms"))
    shared = {"route": first(found, ("route", "feature", "app", "endpoint"))}
    yield RawSpan(
        trace_id=trace_id,
        span_id=retrieval_id,
        start_ns=max(0, end_ns - answered - retrieved),
        end_ns=max(0, end_ns - answered),
        attributes={
            **shared,
            native.KIND_KEY: "retrieval",
            "retrieval.retrieved_ids": found.get("chunk_ids"),
            "retrieval.scores": found.get("chunk_scores"),
            "retrieval.top_k": first(found, ("top_k", "k")),
            "retrieval.final_context_ids": found.get("final_context_ids"),
            "retriever.version": first(found, ("retriever_version", "index_version")),
            "retrieval.scorer": found.get("scorer"),
        },
    )
    yield _row_answer(found, trace_id, generation_id, (max(0, end_ns - answered), end_ns), shared)


def _row_answer(
    found: Object, trace_id: bytes, span_id: bytes, times_ns: tuple[int, int], shared: Mapping[str, Any]
) -> RawSpan:
    return RawSpan(
        trace_id=trace_id,
        span_id=span_id,
        start_ns=times_ns[0],
        end_ns=times_ns[1],
        attributes={
            **shared,
            native.KIND_KEY: "generation",
            "generation.model": first(found, ("model", "llm_model", "generation_model")),
            "generation.cited_ids": first(found, _CITED_KEYS),
            "generation.output": first(found, _ANSWER_KEYS),
        },
    )


def _milliseconds(found: Object, keys: tuple[str, ...]) -> int:
    value = first(found, keys)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**9:
        return 0
    return round(value * 1_000_000)


def _is_audit(found: Object) -> bool:
    return "after_rerank" in found or ("fused" in found and ("arms" in found or "final_context_ids" in found))


def _audit(found: Object) -> Opened:
    """Retrieval audit: arms → fused → after_rerank → final_context_ids; an answer where the record has one."""
    trace_id, retrieval_id, generation_id = _row_ids(found)
    at_ns = flexible_time_ns(first(found, ("ts", "timestamp", "time", "created_at")))
    shared = {
        "route": first(found, ("route", "feature", "app")),
        "retriever.version": first(found, ("retriever_version", "index_version")),
        "langfuse.observation.type": "retriever",
    }
    fused = first(found, ("fused", "arms"))
    if isinstance(fused, dict):
        fused = [item for arm in fused.values() if isinstance(arm, list) for item in arm]
    final = {"retrieval.final_context_ids": found.get("final_context_ids")}
    stages = [("retriever", fused, retrieval_id)]
    if found.get("after_rerank") is not None:
        stages.append(("reranker", found["after_rerank"], identity.foreign_span_id(f"{trace_id.hex()}/rerank")))
    for kind, documents, span_id in stages:
        yield RawSpan(
            trace_id=trace_id,
            span_id=span_id,
            start_ns=at_ns,
            end_ns=at_ns,
            attributes={
                **shared,
                **(final if kind == stages[-1][0] else {}),
                "langfuse.observation.type": kind,
                "langfuse.observation.output": _as_documents(documents),
                "top_k": first(found, ("k_final", "top_k")) if kind == stages[-1][0] else None,
            },
        )
    if first(found, _ANSWER_KEYS + _CITED_KEYS) is not None:
        yield _row_answer(found, trace_id, generation_id, (at_ns, at_ns), {"route": shared["route"]})


def _as_documents(items: object) -> object:
    """Ids, `[id, score]` pairs and objects, all as documents."""
    if not isinstance(items, list):
        return items
    return [
        {"id": item[0], "score": item[1]}
        if isinstance(item, list) and len(item) == 2
        else item
        if isinstance(item, dict)
        else {"id": item}
        for item in items
    ]


FORMS: tuple[Form, ...] = (
    Form("native", _is_event, _event),
    Form("mlflow_trace", _is_mlflow, _mlflow),
    Form("datadog", _is_datadog, _datadog),
    Form("datadog_batch", _is_datadog_batch, _datadog_batch),
    Form("langsmith_run", _is_langsmith, _langsmith),
    Form("langwatch_trace", langwatch_json.is_trace, langwatch_json.trace),
    Form("span_json", span_json.is_span, span_json.spans),
    Form("langfuse_batch", langfuse_json.is_batch, langfuse_json.batch),
    Form("langfuse_event", langfuse_json.is_event, langfuse_json.event),
    Form("langfuse_observation", langfuse_json.is_observation, langfuse_json.observation),
    Form("rag_row", _is_rag_row, _rag_row),
    Form("retrieval_audit", _is_audit, _audit),
)
"""The first form that claims an object opens it; an object that none claims is read as a native event."""
assert len({form.name for form in FORMS}) == len(FORMS), "names in a table are unique"
