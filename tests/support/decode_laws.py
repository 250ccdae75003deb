"""What holds for decode whatever comes in: the records to start from, and the check of an outcome. No generator."""

from __future__ import annotations

import math

import msgspec

from citegauge.conventions import ENVELOPES, DecodePolicy, SpanFault, decoder
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError
from support.golden import DECODE, cases
from support.protobuf_forms import logs_proto, zipkin_proto

DECODERS = {envelope.name: decoder(envelope.name, DecodePolicy()) for envelope in ENVELOPES}
RECORDS = [(case.encoding, case.record.read_bytes()) for case in cases()]
RECORDS += [("otlp_proto", path.read_bytes()) for path in sorted((DECODE.parent / "traces").glob("*.binpb"))]
RECORDS += [
    ("otlp_proto", logs_proto((DECODE / "otel_genai" / "answers_in_log_records.otlp_json.json").read_bytes())),
    ("zipkin_proto", zipkin_proto((DECODE / "envelopes" / "zipkin.zipkin_json.json").read_bytes())),
]


def check(encoding: str, record: bytes) -> None:
    """Decode a record: it gives spans that can be kept, numbered faults, or a dead letter, and raises nothing else."""
    try:
        found = DECODERS[encoding](record)
    except DeadLetterError as error:
        found = [SpanFault(index=0, reason=error.reason, detail=error.detail)]
    for index, span in enumerate(found):
        if isinstance(span, SpanFault):
            assert span.index == index
            assert span.reason.isidentifier()
            continue
        _check_span(span)


def _check_span(span: Span) -> None:
    assert (len(span.trace_id), len(span.span_id)) == (16, 8)
    assert len(span.parent_id) in (0, 8)
    assert 0 <= span.start_ns < 2**63
    assert 0 <= span.end_ns < 2**63
    assert len(span.route) <= 128
    for ids in (span.ids, span.final_ids, span.cited):
        assert all(0 < len(item) <= 700 for item in ids or ())
    assert all(value is None or math.isfinite(value) for value in (*(span.scores or ()), span.first_score))
    if span.scores is not None:
        assert len(span.scores) == len(span.ids or ())
    assert all(type(position) is int for position in span.positions or ())
    assert 0 <= span.top_k < 2**31
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(span), type=Span) == span
