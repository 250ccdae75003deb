"""Laws of the native event's decoding, over events with every kind of wrong value in them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from citegauge.conventions import DecodePolicy, SpanFault, decoder
from citegauge.domain.span import Kind, Span
from citegauge.errors import DeadLetterError

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "0.5", "NaN", "5", "x" * 600, '["c1"]', '[{"id": "c1"', "{}", "c1"]),
    st.lists(st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["c1", "c2", ""])), max_size=3),
    st.dictionaries(st.sampled_from(["id", "score", "citations"]), st.integers(0, 5), max_size=2),
)  # fmt: skip
IDS = st.lists(st.sampled_from(["c1", "c2", "c3", "ü"]), max_size=4)
SCORES = st.lists(st.floats(-2, 2), max_size=4)
NAMES = st.sampled_from(["", "m1", ' "m2" ', "a\tb", "x" * 300, "unknown_service:x"])


def _or_odd(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, ODD)


ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "route": _or_odd(NAMES),
        "http.route": NAMES,
        "retrieval.retrieved_ids": _or_odd(IDS),
        "retrieval.ids": _or_odd(IDS),
        "retrieval.scores": _or_odd(SCORES),
        "scores": SCORES,
        "retrieval.top_k": _or_odd(st.integers(0, 5)),
        "rag.top_k": st.integers(1, 5),
        "retrieval.final_context_ids": _or_odd(IDS),
        "retriever.version": _or_odd(NAMES),
        "index.version": NAMES,
        "retrieval.scorer": _or_odd(NAMES),
        "generation.model": _or_odd(NAMES),
        "generation.cited_ids": _or_odd(IDS),
        "generation.cited_positions": _or_odd(st.lists(st.integers(0, 5), max_size=3)),
        "generation.output": _or_odd(st.sampled_from(["cites [c1] and [2]", '{"citations": ["c1", 2]}', '{"a": ['])),
        "generation.output_format": _or_odd(st.sampled_from(["json", "text"])),
        "citegauge.kind": st.sampled_from(["retrieval", "other"]),
    },
)  # fmt: skip
HEX = st.sampled_from(
    ["4bf92f3577b34da6a3ce929d0e0e4736", "4BF92F3577B34DA6A3CE929D0E0E4736", "00" * 16, "4b f92f3577b34d"]
)
EVENTS = st.fixed_dictionaries(
    {
        "trace_id": _or_odd(HEX),
        "span_id": _or_odd(st.sampled_from(["00f067aa0ba902b7", "00" * 8, "00f067aa0ba902  "])),
        "kind": _or_odd(st.sampled_from([*("retrieval", "generation") * 3, "rerank", "other", "LLM"])),
        "end_time_unix_nano": _or_odd(st.sampled_from([1764460800041000000, "1764460800041000000", 2**63])),
        "attributes": ATTRIBUTES,
    },
    optional={
        "parent_span_id": _or_odd(st.sampled_from(["53995c3f42cd8ad8", None, "", "00" * 8])),
        "start_time_unix_nano": _or_odd(st.just(1764460800000000000)),
        "resource": st.just({"service.name": "s"}),
        "name": ODD,
    },
)


def _outcome(record: bytes) -> Span | SpanFault | str:
    try:
        found = decoder("jsonl", DecodePolicy())(record)
    except DeadLetterError as error:
        return error.reason
    assert len(found) == 1
    return found[0]


@settings(max_examples=1500, deadline=None)
@given(event=EVENTS)
def test_the_fast_path_never_disagrees_with_the_general_path(event: dict[str, Any]) -> None:
    """A record alone may take the fast path, the same record in a list never does; both mean the same."""
    record = msgspec.json.encode(event)
    alone = _outcome(record)
    listed = decoder("jsonl", DecodePolicy())(b"[" + record + b"]")[0]
    assert alone == (listed.reason if isinstance(listed, SpanFault) else listed)


@settings(max_examples=1000, deadline=None)
@given(event=EVENTS)
def test_a_span_holds_only_what_the_join_can_pack(event: dict[str, Any]) -> None:
    """Ids are non-empty and short, scores are finite and aligned, times fit 64 bits, counts are positive."""
    span = _outcome(msgspec.json.encode(event))
    if not isinstance(span, Span):
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(span), type=Span) == span
    for ids in (span.ids, span.final_ids, span.cited):
        assert all(0 < len(item) <= 512 for item in ids or ())
    if span.scores is not None:
        assert span.ids is not None
        assert len(span.scores) == len(span.ids)
        assert any(value is not None for value in span.scores)
    assert span.top_k >= 0
    assert span.ids_dropped >= 0
    assert span.kind in list(Kind)
    if span.kind != Kind.GENERATION:
        assert (span.citation_form, span.cited, span.positions) == (0, None, None)
