"""OTLP log records that carry an answer (`gen_ai.choice` and its successor) as generation spans. All other logs are nothing.

Content capture of OpenTelemetry's GenAI instrumentation may write answers to the logs signal, and its span then has
none. A log record says which span it belongs to, but not that span's times, model or parent, so it is not merged into it:
it becomes a generation span of its own, whose id is made from the span's and whose parent is that span. So the span keeps
what it has, whichever of the two comes first, and a repeated record repeats the id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from citegauge.conventions import identity
from citegauge.conventions.base import FaultError, RawEvent, RawSpan, SpanFault
from citegauge.conventions.otlp_values import dicts, either, json_attributes, json_value, proto_attributes, proto_value

_ANSWERS = frozenset(("gen_ai.choice", "gen_ai.client.inference.operation.details"))
_TIME_KEYS = ("timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano")
_NAME_KEY, _OPERATION_KEY = "event.name", "gen_ai.operation.name"


def proto_request(record: bytes) -> Any:
    """The record as a logs request, None when it is none. A log record has a time where no span has one."""
    request = ExportLogsServiceRequest()
    try:
        request.ParseFromString(record)
    except DecodeError:
        return None
    for resource_logs in request.resource_logs:
        for scope_logs in resource_logs.scope_logs:
            for log in scope_logs.log_records:
                return request if log.time_unix_nano or log.observed_time_unix_nano else None
    return None


def proto_spans(request: Any) -> Iterator[RawSpan | SpanFault]:
    """The answers of a logs request."""
    index = 0
    for resource_logs in request.resource_logs:
        resource = proto_attributes(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            for log in scope_logs.log_records:
                attributes = proto_attributes(log.attributes)
                name = log.event_name or attributes.get(_NAME_KEY)
                if name in _ANSWERS:
                    times = (log.time_unix_nano, log.observed_time_unix_nano)
                    body = proto_value(log.body, 0)
                    try:
                        yield _answer(
                            name, (log.trace_id or None, log.span_id or None), times, attributes, body, resource
                        )
                    except FaultError as fault:
                        yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)
                    index += 1


def is_document(found: object) -> bool:
    """True for parsed JSON that has the shape of OTLP logs, with a first log record that has a time."""
    if not isinstance(found, dict):
        return False
    log = next(_json_logs(found), ({}, {}))[0]
    return any(log.get(key) for key in _TIME_KEYS)


def _json_logs(found: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Log records and the attributes of the resources that they come from."""
    for resource_logs in dicts(either(found, "resourceLogs", "resource_logs")):
        resource = resource_logs.get("resource")
        shared = json_attributes(resource.get("attributes")) if isinstance(resource, dict) else {}
        for scope_logs in dicts(either(resource_logs, "scopeLogs", "scope_logs")):
            for log in dicts(either(scope_logs, "logRecords", "log_records")):
                yield log, shared


def document_spans(found: Any) -> Iterator[RawSpan | SpanFault]:
    """The answers of parsed OTLP JSON logs."""
    index = 0
    for log, shared in _json_logs(found):
        attributes = json_attributes(log.get("attributes"))
        name = either(log, "eventName", "event_name") or attributes.get(_NAME_KEY)
        if not isinstance(name, str) or name not in _ANSWERS:
            continue
        try:
            ids = (either(log, "traceId", "trace_id"), either(log, "spanId", "span_id"))
            times = (
                identity.time_ns(either(log, "timeUnixNano", "time_unix_nano")),
                identity.time_ns(either(log, "observedTimeUnixNano", "observed_time_unix_nano")),
            )
            yield _answer(name, ids, times, attributes, json_value(log.get("body"), 0), shared)
        except FaultError as fault:
            yield SpanFault(index=index, reason=fault.reason, detail=fault.detail)
        index += 1


def _answer(
    name: str,
    ids: tuple[object, object],
    times_ns: tuple[int, int],
    attributes: Mapping[str, Any],
    body: object,
    resource: Mapping[str, Any],
) -> RawSpan:
    """Raises `FaultError`: an answer that no trace can be found for is worth a note."""
    of = identity.span_id(ids[1])
    found = body if isinstance(body, dict) else {}
    choice = found.get("index", attributes.get("index", 0))
    mark = f"log/{name}/{choice if type(choice) is int else 0}".encode()
    at_ns = identity.time_ns(times_ns[0] or times_ns[1])
    return RawSpan(
        trace_id=identity.trace_id(ids[0]),
        span_id=hashlib.sha256(of + mark).digest()[:8],
        parent_id=of,
        name=name,
        start_ns=at_ns,
        end_ns=at_ns,
        attributes={_OPERATION_KEY: "chat", **attributes},
        resource=resource,
        events=[RawEvent(name, {"body": body, **attributes, **found})],
    )
