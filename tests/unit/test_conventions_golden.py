"""Every golden case of DECODE is claimed by its convention and gives the spans that stand beside it."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from citegauge.conventions import CONVENTIONS, ENVELOPES, DecodePolicy, convention_of, decoder, opener
from citegauge.conventions.base import RawSpan
from citegauge.conventions.flat import FORMS
from citegauge.conventions.jaeger import SpanMessage
from citegauge.domain.span import Span
from support.golden import DECODE, Case, cases, outcome
from support.protobuf_forms import zipkin_proto

CASES = cases()
# Cases in which the other spans of a trace, or the point itself, need a second convention.
MIXED = {"explicit_ids_beside_openinference"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.convention}/{case.name}")
def test_a_record_gives_the_spans_beside_it(case: Case) -> None:
    """A published shape keeps its meaning."""
    assert outcome(case) == json.loads(case.expected.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.convention}/{case.name}")
def test_a_case_is_claimed_by_exactly_its_convention(case: Case) -> None:
    """The folder names the convention that reads every span of the case; `envelopes` is about something else."""
    raws = [raw for raw in opener(case.encoding)(case.record.read_bytes()) if isinstance(raw, RawSpan)]
    assert raws
    claimed = {convention.name for raw in raws if (convention := convention_of(raw)) is not None}
    assert len(claimed) >= 1
    if case.convention != "envelopes" and case.name not in MIXED:
        assert claimed == {case.convention}


def test_every_convention_and_envelope_has_a_case() -> None:
    """A line in the table without a golden case is a promise that nobody keeps."""
    assert {convention.name for convention in CONVENTIONS} <= {case.convention for case in CASES}
    tested = {case.encoding for case in CASES} | {"auto", "otlp_proto", "jaeger_proto", "zipkin_proto"}
    assert {envelope.name for envelope in ENVELOPES} == tested


def test_every_expectation_has_its_record() -> None:
    """A renamed record does not leave an expectation behind."""
    expected = {case.expected for case in CASES}
    assert set(DECODE.glob("*/*.spans.json")) == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.convention}/{case.name}")
def test_sniffing_finds_the_same(case: Case) -> None:
    """`auto` means the encoding that the record has."""
    record = case.record.read_bytes()
    assert decoder("auto", DecodePolicy())(record) == decoder(case.encoding, DecodePolicy())(record)


def test_a_flat_record_is_claimed_by_one_form() -> None:
    """The order of the forms decides nothing for the published shapes."""
    for case in CASES:
        found = json.loads(case.record.read_bytes())
        if case.encoding == "jsonl" and isinstance(found, dict):
            assert len([form.name for form in FORMS if form.claims(found)]) == 1, case.name


def test_jaeger_protobuf_and_json_give_equal_spans() -> None:
    """The two forms of one Jaeger span agree, and the protobuf one is recognised among OTLP."""
    record = (DECODE / "envelopes" / "jaeger_protobuf_as_json.jaeger_json.json").read_bytes()
    span = SpanMessage(
        trace_id=bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736"),
        span_id=bytes.fromhex("00f067aa0ba902b7"),
        operation_name="retrieve",
        references=[
            {
                "trace_id": bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736"),
                "span_id": bytes.fromhex("53995c3f42cd8ad8"),
            }
        ],
        start_time={"seconds": 1764460800},
        duration={"nanos": 41_000_000},
        tags=[
            {"key": "openinference.span.kind", "v_str": "RETRIEVER"},
            {"key": "retrieval.documents.0.document.id", "v_str": "a"},
            {"key": "retrieval.documents.0.document.score", "v_type": 3, "v_float64": 0.5},
            {"key": "retrieval.top_k", "v_type": 2, "v_int64": 1},
        ],
        process={"service_name": "rag-api"},
    )
    expected = decoder("jaeger_json", DecodePolicy())(record)
    assert decoder("jaeger_proto", DecodePolicy())(span.SerializeToString()) == expected
    assert decoder("auto", DecodePolicy())(span.SerializeToString()) == expected


def test_zipkin_protobuf_and_json_give_equal_spans() -> None:
    """The two forms of a Zipkin list agree, and the protobuf one is recognised among OTLP and Jaeger."""
    record = (DECODE / "envelopes" / "zipkin.zipkin_json.json").read_bytes()
    expected = decoder("zipkin_json", DecodePolicy())(record)
    assert expected
    assert decoder("zipkin_proto", DecodePolicy())(zipkin_proto(record)) == expected
    assert decoder("auto", DecodePolicy())(zipkin_proto(record)) == expected


def test_protobuf_batches_are_not_taken_for_zipkin() -> None:
    """A resource of 16 bytes begins an OTLP batch as a trace id begins a Zipkin list."""
    request = ExportTraceServiceRequest()
    batch = request.resource_spans.add()
    batch.resource.attributes.add(key="a", value={"string_value": "1234567"})
    assert batch.resource.ByteSize() == 16
    span = {"trace_id": b"t" * 16, "span_id": b"s" * 8, "name": "x", "end_time_unix_nano": 10**18}
    batch.scope_spans.add().spans.add(**span)
    (found,) = decoder("auto", DecodePolicy())(request.SerializeToString())
    assert isinstance(found, Span)
    assert found.trace_id == b"t" * 16


def _rows() -> list[dict[str, Any]]:
    found = tomllib.loads((DECODE / "COVERAGE.toml").read_text(encoding="utf-8"))
    return [{"section": section, **row} for section, rows in found.items() for row in rows]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row['section']}: {row['shape']}")
def test_a_published_shape_has_what_shows_it(row: dict[str, Any]) -> None:
    """The table of shapes names golden cases with expectations, and tests, that exist."""
    shown = row.get("cases", []) + row.get("tests", [])
    assert shown
    for case in row.get("cases", []):
        folder, _, name = case.partition("/")
        beside = DECODE.parent / folder if folder in ("traces", "mapping") else DECODE / folder
        files = {path.name.removeprefix(name + ".") for path in beside.glob(f"{name}.*")}
        assert len(files) >= 2, f"{case}: no record or no expectation"
    for test in row.get("tests", []):
        path, _, function = test.partition("::")
        assert f"def {function}(" in (DECODE.parents[1] / path).read_text(encoding="utf-8"), test


def test_every_case_shows_a_shape() -> None:
    """No golden case that the table of shapes does not know."""
    named = {case for row in _rows() for case in row.get("cases", [])}
    assert {f"{case.convention}/{case.name}" for case in CASES} <= named
