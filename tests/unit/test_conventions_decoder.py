"""The decoder as a whole: dead letters, faults of single spans, routes, the user's mapping."""

from __future__ import annotations

import json
from typing import Any

import pytest

from citegauge.conventions import DecodePolicy, SpanFault, SpanMapping, decoder
from citegauge.conventions.routes import RouteReader
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from citegauge.errors import DeadLetterError

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EVENT: dict[str, Any] = {
    "trace_id": TRACE,
    "span_id": "00f067aa0ba902b7",
    "kind": "retrieval",
    "end_time_unix_nano": 1764460800041000000,
    "attributes": {"retrieval.retrieved_ids": ["c1"]},
}


def _decode(
    record: bytes | object, policy: DecodePolicy | None = None, encoding: str = "auto"
) -> list[Span | SpanFault]:
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    return decoder(encoding, policy or DecodePolicy())(data)


def _span(record: object, policy: DecodePolicy | None = None) -> Span:
    (span,) = _decode(record, policy)
    assert isinstance(span, Span)
    return span


@pytest.mark.parametrize(
    ("encoding", "record", "reason"),
    [
        ("auto", b"", "empty_record"),
        ("jsonl", b"not json", "not_json"),
        ("jsonl", b'{"trace_id": "4bf', "not_json"),
        ("jsonl", b"[" * 100_000, "not_json"),
        ("jsonl", b'"text"', "not_an_object"),
        ("jsonl", b"{}", "bad_trace_id"),
        ("jsonl", json.dumps({**EVENT, "trace_id": "4bf9"}).encode(), "bad_trace_id"),
        ("jsonl", json.dumps({**EVENT, "trace_id": "0" * 32}).encode(), "bad_trace_id"),
        ("jsonl", json.dumps({**EVENT, "span_id": None}).encode(), "bad_span_id"),
        ("jsonl", json.dumps({**EVENT, "end_time_unix_nano": 1.5}).encode(), "bad_time_field"),
        ("jsonl", json.dumps({**EVENT, "end_time_unix_nano": 2**63}).encode(), "bad_time_field"),
        ("otlp_proto", b"\xff\xff\xff", "not_protobuf"),
        ("otlp_proto", b"\x12\x00", "not_protobuf"),
        ("otlp_json", b"[1", "not_json"),
        ("otlp_json", b"{}", "not_otlp_json"),
        ("zipkin_json", b"{}", "not_zipkin_json"),
        ("jaeger_json", b"{}", "not_jaeger_json"),
        ("jaeger_proto", b"\x0a\x01x", "bad_trace_id"),
        ("auto", b"\x00\x01", "not_protobuf"),
    ],
)
def test_an_unreadable_record_is_a_dead_letter(encoding: str, record: bytes, reason: str) -> None:
    """The reason is short and stable: it becomes a metric label."""
    with pytest.raises(DeadLetterError) as caught:
        _decode(record, encoding=encoding)
    assert caught.value.reason == reason


def test_several_lines_in_one_record_fail_one_by_one() -> None:
    """A line that is not JSON costs its neighbours nothing, and positions count over the record."""
    record = json.dumps(EVENT).encode() + b"\nnot json\n\n" + json.dumps({**EVENT, "trace_id": "x"}).encode() + b"\n"
    first, second, third = _decode(record)
    assert isinstance(first, Span)
    assert second == SpanFault(index=1, reason="not_json", detail="")
    assert isinstance(third, SpanFault)
    assert (third.index, third.reason) == (2, "bad_trace_id")


def test_leading_line_feeds_do_not_hide_json() -> None:
    """A line feed is also how protobuf begins."""
    assert _span(b"\n\n " + json.dumps(EVENT).encode()).ids == ["c1"]


def test_unpaired_surrogates_are_refused() -> None:
    """They could not be written to any database."""
    record = json.dumps({**EVENT, "attributes": {"retrieval.retrieved_ids": ["\ud800"], "x": float("nan")}}).encode()
    with pytest.raises(DeadLetterError):
        _decode(record)


def test_an_unknown_encoding_is_refused_at_once() -> None:
    """A spelling mistake in the settings does not wait for the first record."""
    with pytest.raises(ValueError, match="otlp_proto"):
        decoder("otlp", DecodePolicy())


@pytest.mark.parametrize(
    ("attributes", "resource", "route", "rank"),
    [
        ({"route": "a", "http.route": "/b"}, {}, "a", 0),
        ({"route": "", "rag.route": "b"}, {}, "b", 2),
        ({"metadata": '{"route": "c"}'}, {"service.name": "s"}, "c", 3),
        ({"metadata": '{"route"'}, {"service.name": "s"}, "s", 29),
        ({"langfuse.trace.metadata.feature": '"bot"'}, {}, "bot", 10),
        ({}, {"service.name": "unknown_service:python"}, "", 255),
        ({"route": 7}, {}, "7", 0),
        ({"route": True}, {}, "", 255),
        ({"route": " two\nlines "}, {}, "two lines", 0),
        ({"route": "x" * 500}, {}, "x" * 128, 0),
    ],
)
def test_routes(attributes: dict[str, Any], resource: dict[str, Any], route: str, rank: int) -> None:
    """The first key that has a route gives it, cleaned; its position is the rank."""
    assert RouteReader(DecodePolicy().route_keys).read(attributes, resource) == (route, rank)


def test_route_keys_are_a_setting() -> None:
    """A source names its own keys, most specific first."""
    policy = DecodePolicy(route_keys=("tenant", "metadata#app", "resource:service.name"))
    span = _span({**EVENT, "attributes": {"route": "no", "metadata": {"app": "yes"}}}, policy)
    assert (span.route, span.route_rank) == ("yes", 1)
    with pytest.raises(ValueError, match="route keys"):
        RouteReader(("a", "a"))


SEARCH = SpanMapping(
    name="tool search",
    kind="retrieval",
    span_name="execute_tool search.*",
    documents="gen_ai.tool.call.result#results[*].chunk",
    top_k="gen_ai.tool.call.arguments#limit",
    scorer="search.engine",
)


def _tool_span(name: str) -> dict[str, Any]:
    return {
        **{key: value for key, value in EVENT.items() if key != "kind"},
        "name": name,
        "attributes": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.call.arguments": '{"limit": 2}',
            "gen_ai.tool.call.result": '{"results": [{"chunk": {"id": "a", "score": 0.5}}, {"chunk": {"id": "b"}}]}',
            "search.engine": "bm25",
        },
    }


def test_a_mapping_reads_what_no_convention_knows() -> None:
    """A tool call becomes a retrieval by settings alone, before any convention that calls it something else."""
    policy = DecodePolicy(mappings=(SEARCH,))
    span = _span(_tool_span("execute_tool search_kb"), policy)
    assert (span.kind, span.ids, span.scores, span.top_k, span.scorer) == (
        Kind.RETRIEVAL, ["a", "b"], [0.5, None], 2, "bm25",
    )  # fmt: skip
    assert _span(_tool_span("execute_tool weather"), policy).kind == Kind.OTHER
    assert _span(_tool_span("execute_tool search_kb")).kind == Kind.OTHER


def test_a_mapping_opens_flat_records() -> None:
    """A home-grown record needs only to say where its ids and times stand."""
    mapping = SpanMapping(
        name="home-grown", kind="retrieval", has="hits", trace_id="req", span_id="step", start="t0", end="t1",
        ids="hits#[*].key", distances="hits#[*].dist",
    )  # fmt: skip
    record = {"req": "r-1", "step": 4, "t0": 1764460800.5, "t1": 1764460801, "hits": [{"key": 7, "dist": 0.1}]}
    span = _span(record, DecodePolicy(mappings=(mapping,)))
    assert (span.ids, span.scores, span.flags) == (["7"], [0.1], Flag.DISTANCE)
    assert (span.start_ns, span.end_ns) == (1764460800500000000, 1764460801000000000)


def test_a_mapped_generation_cites() -> None:
    """Answers are read from a mapped attribute like any other."""
    mapping = SpanMapping(name="g", kind="generation", has="step=answer", output="out#final", model="llm")
    attributes = {"step": "answer", "llm": "m1", "out": '{"final": "five days [chunk_3]"}'}
    record = {**EVENT, "kind": "custom", "attributes": attributes}
    span = _span(record, DecodePolicy(mappings=(mapping,)))
    assert (span.model, span.citation_form, span.cited) == ("m1", CitationForm.INLINE, ["chunk_3"])


def test_a_mapping_leaves_native_events_alone() -> None:
    """What states its kind in our own words needs no mapping, with or without the fast path."""
    mapping = SpanMapping(name="all", kind="other", has="retrieval.retrieved_ids")
    policy = DecodePolicy(mappings=(mapping,))
    assert _span(EVENT, policy).kind == Kind.RETRIEVAL
    (listed,) = _decode([EVENT], policy)
    assert isinstance(listed, Span)
    assert listed.kind == Kind.RETRIEVAL


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "search", "has": "x"}, "kind must be one of"),
        ({"kind": "retrieval"}, "would claim every span"),
        ({"kind": "retrieval", "span_name": "("}, "unterminated"),
        ({"kind": "retrieval", "has": "x", "ids": "a#b[c]"}, "bad path"),
    ],
)
def test_a_bad_mapping_is_refused(fields: dict[str, Any], message: str) -> None:
    """The message names the mapping and what is wrong with it."""
    with pytest.raises(ValueError, match=message) as caught:
        SpanMapping(name="mine", **fields)
    assert "'mine'" in str(caught.value)
