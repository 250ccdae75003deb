"""Laws of the native event's decoding, over events with every kind of wrong value in them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from citegauge.conventions import DecodePolicy, SpanFault, decoder
from citegauge.domain.span import Kind, Span
from citegauge.errors import DeadLetterError

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "0.5", "NaN", "5", "x" * 600, '["c1"]', '[{"id": "c1"', "{}", "c1"]),
    st.lists(st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["c1", "c2", "", 0.5])), max_size=3),
    st.dictionaries(st.sampled_from(["id", "score", "citations"]), st.integers(0, 5), max_size=2),
    st.just([0.5, 0.25, 0.125]), st.just(["c1", ""]),
)  # fmt: skip
IDS = st.lists(st.sampled_from(["c1", "c2", "c3", "ü"]), min_size=2, max_size=2)
NAMES = st.sampled_from(["m1", "m2", ' "m2" ', "a\tb", "x" * 300, "unknown_service:x"])
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "route": NAMES,
    "http.route": NAMES,
    "retrieval.retrieved_ids": IDS,
    "retrieval.ids": IDS,
    "retrieval.scores": st.lists(st.floats(-2, 2), min_size=2, max_size=2),
    "scores": st.just([0.5, 0.25]),
    "retrieval.top_k": st.integers(1, 5),
    "rag.top_k": st.integers(1, 5),
    "retrieval.final_context_ids": IDS,
    "retriever.version": NAMES,
    "index.version": NAMES,
    "retrieval.scorer": NAMES,
    "generation.model": NAMES,
    "generation.cited_ids": IDS,
    "generation.cited_positions": st.just([1, 3]),
    "generation.output": st.sampled_from(["cites [c1] and [2]", '{"citations": ["c1", 2]}', '{"a": [']),
    "generation.output_format": st.sampled_from(["json", "text"]),
    "citegauge.kind": st.sampled_from(["retrieval", "other"]),
}
OUTER: dict[str, st.SearchStrategy[Any]] = {
    "trace_id": st.sampled_from(["4BF92F3577B34DA6A3CE929D0E0E4736", "00" * 16, "4b f92f3577b34d", "1" * 20]),
    "span_id": st.sampled_from(["00" * 8, "00f067aa0ba902  ", "00f067aa"]),
    "kind": st.sampled_from(["rerank", "other", "LLM", "chat"]),
    "end_time_unix_nano": st.sampled_from(["1764460800041000000", 2**63, -1, "-1", 1.5e18]),
    "start_time_unix_nano": st.sampled_from(["", "1", None]),
    "parent_span_id": st.sampled_from(["53995c3f42cd8ad8", None, "", "00" * 8, "5399"]),
    "parent_id": st.just("53995c3f42cd8ad8"),
    "resource": st.just({"service.name": "s"}),
    "name": ODD,
}


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """A clean event of either kind with some usual attributes, then up to two odd things done to it."""
    names = draw(st.sets(st.sampled_from(sorted(USUAL)), max_size=6))
    kind = draw(st.sampled_from(["retrieval", "generation"]))
    names |= {"retrieval.retrieved_ids"} if kind == "retrieval" else {"generation.cited_ids"}
    event: dict[str, Any] = {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "kind": kind,
        "end_time_unix_nano": 1764460800041000000,
        "attributes": {name: draw(USUAL[name]) for name in sorted(names)},
    }
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            name = draw(st.sampled_from(sorted(names)))
            if draw(st.booleans()):
                event["attributes"][name] = draw(ODD)
            else:
                event["attributes"].pop(name, None)
        else:
            name = draw(st.sampled_from(sorted(OUTER)))
            event[name] = draw(st.one_of(OUTER[name], ODD))
    return event


def _outcome(record: bytes) -> Span | SpanFault | str:
    try:
        found = decoder("jsonl", DecodePolicy())(record)
    except DeadLetterError as error:
        return error.reason
    assert len(found) == 1
    return found[0]


@settings(max_examples=1500, deadline=None)
@given(event=events())
@example(event={"trace_id": "4b" * 16, "span_id": "4c" * 8, "kind": "retrieval", "parent_span_id": " "})
def test_the_fast_path_never_disagrees_with_the_general_path(event: dict[str, Any]) -> None:
    """A record alone may take the fast path, the same record in a list never does; both mean the same."""
    record = msgspec.json.encode(event)
    alone = _outcome(record)
    listed = decoder("jsonl", DecodePolicy())(b"[" + record + b"]")[0]
    assert alone == (listed.reason if isinstance(listed, SpanFault) else listed)


@settings(max_examples=1000, deadline=None)
@given(event=events())
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
