"""What bytes look like from outside: the form of ids, the envelope, and what an unreadable record may be instead.

Guesses for people. What counts as readable is decided by `conventions` alone.
"""

from __future__ import annotations

import re
from collections import Counter

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError

LOOKED_AT_BYTES_MAX = 64 * 1024
"""Bytes of a record that are searched for ids."""
_JSON_IDS = re.compile(rb'"(trace_?[iI][dD]|span_?[iI][dD])"\s*:\s*(?:"([^"\\]{1,128})"|(\d{1,40}))')
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")


def is_json(record: bytes) -> bool:
    """True when the record's first character begins a JSON object or list."""
    return record[:64].lstrip()[:1] in (b"{", b"[")


def envelope_name(record: bytes) -> str:
    """The envelope as a person would name it."""
    if not is_json(record):
        return "Jaeger protobuf" if record[:2] == b"\x0a\x10" and record[18:20] == b"\x12\x08" else "OTLP protobuf"
    head = record[:LOOKED_AT_BYTES_MAX]
    if b'"resourceSpans"' in head or b'"resource_spans"' in head:
        return "OTLP JSON"
    if b'"localEndpoint"' in head:
        return "Zipkin JSON"
    if b'"traceID"' in head or (b'"operationName"' in head and b'"startTime"' in head):
        return "Jaeger JSON"
    return "JSON"


def add_id_forms(record: bytes, trace_ids: Counter[str], span_ids: Counter[str]) -> None:
    """Count the forms of the ids that a JSON record holds; protobuf ids are bytes, whose form is certain."""
    for name, text, digits in _JSON_IDS.findall(record[:LOOKED_AT_BYTES_MAX]):
        is_trace = name[:1] == b"t"
        found = trace_ids if is_trace else span_ids
        found[id_form((text or digits).decode("utf-8", "replace"), 16 if is_trace else 8)] += 1


def id_form(text: str, size: int) -> str:
    """The form of an id that should have `size` bytes."""
    if text.startswith("tr-"):
        return "tr- and hex"
    if _UUID.fullmatch(text):
        return "UUID"
    if text.isdigit() and len(text) != 2 * size:
        return "decimal"
    if _HEX.fullmatch(text):
        bare = text[2:] if text[:2] in ("0x", "0X") else text
        if len(bare) in (16, 2 * size):
            form = "0x and hex" if bare is not text else "hex" if bare == bare.lower() else "upper-case hex"
            return form + (" of 64 bits" if len(bare) < 2 * size else "")
    if _BASE64.fullmatch(text) and len(text.rstrip("=")) == (8 * size + 5) // 6:
        return "base64"
    return "free text"


READABLE = "a record that the encoding auto reads"

_read = decoder("auto", DecodePolicy())


def guess(record: bytes) -> str:
    """What a record that cannot be read may be; empty when nothing comes to mind."""
    try:
        if any(isinstance(one, Span) for one in _read(record)):
            return f"{READABLE}: {envelope_name(record)}"
    except DeadLetterError:
        pass
    for start, name in _MAGIC:
        if record.startswith(start):
            return name
    if len(record) > 5 and record[0] == 0:
        return "a schema registry's frame (a zero byte and a schema id stand first)"
    if is_json(record):
        head = record[:LOOKED_AT_BYTES_MAX]
        for mark, name in ((b'"resourceLogs"', "OTLP logs"), (b'"resourceMetrics"', "OTLP metrics")):
            if mark in head:
                return f"{name}, not traces"
        return ""
    return _other_signal(record)


_MAGIC = (
    (b"\x1f\x8b", "gzip inside the record"),
    (b"\x28\xb5\x2f\xfd", "zstd inside the record"),
    (b"\x04\x22\x4d\x18", "lz4 inside the record"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy inside the record"),
    (b"\x82SNAPPY", "snappy inside the record"),
    (b"Obj\x01", "an Avro file"),
    (b"PAR1", "a Parquet file"),
    (b"<", "XML or HTML"),
)


def _other_signal(record: bytes) -> str:
    logs = ExportLogsServiceRequest()
    metrics = ExportMetricsServiceRequest()
    try:
        logs.ParseFromString(record)
        if any(one.severity_text or one.HasField("body") for each in _scopes(logs, "logs") for one in each.log_records):
            return "OTLP logs, not traces"
        metrics.ParseFromString(record)
    except DecodeError:
        return ""
    named = any(one.WhichOneof("data") for each in _scopes(metrics, "metrics") for one in each.metrics)
    return "OTLP metrics, not traces" if named else ""


def _scopes(request: object, signal: str) -> list:  # type: ignore[type-arg]  # of two generated types
    return [
        scope for resource in getattr(request, f"resource_{signal}") for scope in getattr(resource, f"scope_{signal}")
    ]
