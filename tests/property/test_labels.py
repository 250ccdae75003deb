"""What becomes a label or a key of a row is short and printable, whatever was sent.

Route, model, retriever version and scorer come from other people's programs, and end in ClickHouse keys, Prometheus labels,
a web page and a terminal.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.conventions import DecodePolicy, SpanMapping, decoder
from citegauge.conventions.routes import DEFAULT_ROUTE_KEYS, ROUTE_LENGTH_MAX, cleaned
from citegauge.conventions.values import TEXT_LENGTH_MAX, text
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.score import place
from citegauge.domain.span import Span

SCORER_LENGTH_MAX = TEXT_LENGTH_MAX + len("retrieval:")
NASTY = (
    "\n", "\r\n", "\t", "\x00", "\x1b[31m", "\x7f", "\x85", "\u00a0", "\u200b", "\u202e", "\u2028", "\ufeff", "\ue000",
    "\U000e0001", '"', "\\", "{", "}", "<script>", "'; DROP TABLE panes; --", "a" * 5_000, "é", "🦉", " ",
)  # fmt: skip
names = st.one_of(
    st.text(max_size=300), st.lists(st.sampled_from(NASTY), max_size=12).map("".join), st.integers(), st.none()
)

KEYS = (
    "generation.model", "model", "retriever.version", "retrieval.scorer", "rerank.scorer", "llm.model_name",
    "embedding.model_name", "reranker.model_name", "gen_ai.request.model", "gen_ai.response.model", "ai.model.id",
    "langfuse.observation.model.name", "retriever_version", "scorer", "traceloop.entity.version", "db.collection.name",
    *(key.removeprefix("resource:").partition("#")[0] for key in DEFAULT_ROUTE_KEYS),
)  # fmt: skip
KINDS: tuple[dict[str, str], ...] = (
    {"openinference.span.kind": "RETRIEVER"}, {"openinference.span.kind": "RERANKER"}, {"openinference.span.kind": "LLM"},
    {"gen_ai.operation.name": "chat"}, {"gen_ai.operation.name": "retrieval"}, {"langfuse.observation.type": "generation"},
    {"langfuse.observation.type": "retriever"}, {"ai.operationId": "ai.rerank"}, {"x": "mine"}, {},
)  # fmt: skip
events = st.builds(
    lambda kind, base, attributes, resource: {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "kind": kind,
        "start_time_unix_nano": 1, "end_time_unix_nano": 2, "attributes": {**base, **attributes}, "resource": resource,
    },
    st.sampled_from(["retrieval", "rerank", "generation", None]),
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(KEYS), names, max_size=8),
    st.dictionaries(st.sampled_from(["service.name", "ml_app", "openinference.project.name"]), names, max_size=2),
)  # fmt: skip

MAPPING = SpanMapping(
    name="mine", kind="retrieval", has="x=mine", scorer="scorer", retriever_version="retriever_version"
)
decode = decoder("jsonl", DecodePolicy(mappings=(MAPPING,)))


def check(label: str, longest: int) -> None:
    """A label as it may be."""
    assert label.isprintable(), repr(label)
    assert len(label) <= longest
    assert label == label.strip()


@given(event=events)
def test_whatever_is_sent_labels_are_short_and_printable(event: dict[str, Any]) -> None:
    """Every convention's names, decoded and placed in a group."""
    for item in decode(json.dumps(event).encode()):
        assert isinstance(item, Span)
        check(item.route, ROUTE_LENGTH_MAX)
        check(item.model, TEXT_LENGTH_MAX)
        check(item.retriever_version, TEXT_LENGTH_MAX)
        check(item.scorer, SCORER_LENGTH_MAX)
        placed = place([item], ScorePolicy())
        if placed is not None:
            for label in placed.group:
                check(label, SCORER_LENGTH_MAX)
                assert label, "what is not known is called unknown"


@pytest.mark.parametrize(
    ("sent", "label"),
    [
        ("support", "support"),
        (" support\n", "support"),
        ("a\x00b", "a b"),
        ("line 1\r\nline 2", "line 1 line 2"),
        ("\u202egnp.exe", "gnp.exe"),
        ("zero\u200bwidth", "zero width"),
        ("\x1b[31mred", "[31mred"),
        ("Größe ☃ 検索", "Größe ☃ 検索"),
        ('"quoted"', "quoted"),
        ("\u2028", ""),
        ("x" * 1_000, "x" * TEXT_LENGTH_MAX),
    ],
)
def test_names_are_cleaned_and_not_replaced(sent: str, label: str) -> None:
    """What can be shown stays as it was sent; the rest becomes a space."""
    assert text(sent) == label
    assert cleaned(sent) == label[:ROUTE_LENGTH_MAX]
