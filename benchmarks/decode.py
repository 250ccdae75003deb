"""Decode speed: spans per second on one core, per convention and envelope, beside the plain parser in the same run.

The plain parser is `json.loads` for JSON and `ParseFromString` + `MessageToDict` for protobuf: what a quick script
would use, before it has looked at a single attribute. Times are CPU time, the fastest of several rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from citegauge.conventions import DecodePolicy, decoder

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
TRACE, START_NS = "4bf92f3577b34da6a3ce929d0e0e4736", 1_764_460_800_000_000_000
BATCH_SPANS = 50


class Measured(NamedTuple):
    """One line of the table."""

    name: str
    encoding: str
    spans_per_s: float
    plain_spans_per_s: float

    @property
    def ratio(self) -> float:
        """How much faster than the plain parser alone."""
        return self.spans_per_s / self.plain_spans_per_s


def fastest_s(run: Callable[[], object], seconds: float) -> float:
    """CPU seconds of the fastest call of `run` within about `seconds`."""
    best = float("inf")
    until = time.process_time() + seconds
    while time.process_time() < until:
        started = time.process_time()
        for _ in range(20):
            run()
        best = min(best, (time.process_time() - started) / 20)
    return best


def plain_json(record: bytes) -> object:
    """What a script would do with JSON."""
    return json.loads(record)


def plain_proto(record: bytes) -> object:
    """What a script would do with protobuf."""
    request = ExportTraceServiceRequest()
    request.ParseFromString(record)
    return MessageToDict(request)


def measure(name: str, encoding: str, records: list[bytes], seconds: float) -> Measured:
    """Decode all records and parse them plainly."""
    decode = decoder(encoding, DecodePolicy())
    plain = plain_proto if encoding.endswith("proto") else plain_json
    spans = sum(len(decode(record)) for record in records)
    ours_s = fastest_s(lambda: [decode(record) for record in records], seconds)
    plain_s = fastest_s(lambda: [plain(record) for record in records], seconds)
    return Measured(name, encoding, spans / ours_s, spans / plain_s)


def native_records() -> list[bytes]:
    """Retrievals with ten chunks and scores, and generations with three citations, in turn."""
    ids = [f"chunk-{number}" for number in range(10)]
    scores = [0.9 - at / 100 for at in range(10)]
    common = {"trace_id": TRACE, "start_time_unix_nano": START_NS, "end_time_unix_nano": START_NS + 41_000_000}
    retrieval = {
        **common, "span_id": "00f067aa0ba902b7", "name": "retrieve", "kind": "retrieval",
        "attributes": {
            "route": "support", "retrieval.retrieved_ids": ids, "retrieval.scores": scores,
            "retrieval.top_k": 10, "retriever.version": "r7", "retrieval.scorer": "reranker:bge-v2",
        },
    }  # fmt: skip
    generation = {
        **common, "span_id": "53995c3f42cd8ad8", "parent_span_id": "00f067aa0ba902b7", "name": "answer",
        "kind": "generation",
        "attributes": {"route": "support", "generation.model": "m1", "generation.cited_ids": ids[:3]},
    }  # fmt: skip
    return [json.dumps(event).encode() for event in (retrieval, generation)] * 25


def otlp_batch() -> tuple[bytes, bytes]:
    """One batch of OpenInference spans of 20 and more attributes, as protobuf and as JSON."""
    spans: list[dict[str, Any]] = []
    for number in range(BATCH_SPANS):
        attributes: dict[str, object] = {"openinference.span.kind": "RETRIEVER", "metadata": '{"feature": "support"}'}
        for at in range(6):
            prefix = f"retrieval.documents.{at}.document."
            attributes[prefix + "id"] = f"chunk-{number + at}"
            attributes[prefix + "score"] = 0.9 - at / 100
            attributes[prefix + "content"] = "A passage of about the length that a chunk has. " * 8
        attributes |= {"input.value": "How long do refunds take?", "session.id": f"s-{number}", "user.id": "u-1"}
        spans.append(
            {
                "traceId": TRACE, "spanId": f"{number + 1:016x}", "name": "retrieve", "kind": 1,
                "startTimeUnixNano": str(START_NS), "endTimeUnixNano": str(START_NS + 41_000_000),
                "attributes": [
                    {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
                    for key, value in attributes.items()
                ],
            }
        )  # fmt: skip
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "rag-api"}}]}
    document = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]}
    return to_proto(document), json.dumps(document).encode()


def to_proto(document: dict[str, Any]) -> bytes:
    """The protobuf form of such a document."""
    request = ExportTraceServiceRequest()
    scope_spans = request.resource_spans.add().scope_spans.add()
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        made = scope_spans.spans.add(
            trace_id=bytes.fromhex(span["traceId"]),
            span_id=bytes.fromhex(span["spanId"]),
            name=span["name"],
            start_time_unix_nano=int(span["startTimeUnixNano"]),
            end_time_unix_nano=int(span["endTimeUnixNano"]),
        )
        for attribute in span["attributes"]:
            value = made.attributes.add(key=attribute["key"]).value
            if "doubleValue" in attribute["value"]:
                value.double_value = attribute["value"]["doubleValue"]
            else:
                value.string_value = attribute["value"]["stringValue"]
    return request.SerializeToString()


def main() -> None:
    """Print the table, and optionally JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.4, help="CPU time for each number")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    options = parser.parse_args()
    as_proto, as_json = otlp_batch()
    jobs = [
        ("native", "jsonl", native_records()),
        ("openinference 23 attributes", "otlp_proto", [as_proto]),
        ("openinference 23 attributes", "otlp_json", [as_json]),
    ]
    for path in sorted((GOLDEN / "traces").glob("*.otlp.*")):
        encoding = "otlp_proto" if path.suffix == ".binpb" else "otlp_json"
        jobs.append((path.name.partition(".otlp")[0], encoding, [path.read_bytes()]))
    for folder in sorted((GOLDEN / "decode").iterdir()):
        by_encoding: dict[str, list[bytes]] = {}
        for path in sorted(folder.glob("*.json")):
            encoding = path.name.removesuffix(".json").rpartition(".")[2]
            if encoding != "spans" and b"NaN" not in path.read_bytes():
                by_encoding.setdefault(encoding, []).append(path.read_bytes())
        jobs += [(folder.name + " (golden)", encoding, records) for encoding, records in by_encoding.items()]
    if not options.json:
        print(f"{'what':<44} {'encoding':<12} {'spans/s':>10} {'plain':>10} {'ratio':>6}")
    for name, encoding, records in jobs:
        found = measure(name, encoding, records, options.seconds)
        if options.json:
            print(json.dumps(found._asdict() | {"ratio": round(found.ratio, 3)}))
        else:
            speeds = f"{found.spans_per_s:>10,.0f} {found.plain_spans_per_s:>10,.0f} {found.ratio:>6.2f}"
            print(f"{name:<44} {encoding:<12} {speeds}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
