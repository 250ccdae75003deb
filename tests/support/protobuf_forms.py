"""The protobuf forms of golden records that stand in JSON: OTLP logs, Zipkin lists. Not OTLP traces, which are files."""

from __future__ import annotations

import json

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from citegauge.conventions.zipkin_proto import ListMessage


def logs_proto(record: bytes) -> bytes:
    """OTLP JSON of the logs of one scope as protobuf, whose own JSON form would have ids in base64."""
    found = json.loads(record)
    logs = found["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    ids = [(log.pop("traceId", ""), log.pop("spanId", "")) for log in logs]
    request = ParseDict(found, ExportLogsServiceRequest())
    for log, (trace_id, span_id) in zip(request.resource_logs[0].scope_logs[0].log_records, ids, strict=True):
        log.trace_id, log.span_id = bytes.fromhex(trace_id), bytes.fromhex(span_id)
    return bytes(request.SerializeToString())


def zipkin_proto(record: bytes) -> bytes:
    """A Zipkin JSON list as protobuf."""
    message = ListMessage()
    for item in json.loads(record):
        message.spans.add(
            trace_id=bytes.fromhex(item["traceId"]),
            parent_id=bytes.fromhex(item.get("parentId", "")),
            id=bytes.fromhex(item["id"]),
            name=item.get("name", ""),
            timestamp=item["timestamp"],
            duration=item.get("duration", 0),
            local_endpoint={"service_name": item.get("localEndpoint", {}).get("serviceName", "")},
            annotations=item.get("annotations", []),
            tags=[{"key": key, "value": value} for key, value in item.get("tags", {}).items()],
        )
    return bytes(message.SerializeToString())
