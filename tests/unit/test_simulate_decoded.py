"""Simulated bytes through the real decoders and the score: both encodings say what the generator meant."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State, TraceResult
from citegauge.domain.score import score
from citegauge.domain.span import Span
from citegauge.tools.simulate import TrafficSpan, generate
from citegauge.tools.simulate_output import Encoding, records
from citegauge.tools.simulate_spec import SECOND_NS, ScenarioSpec, TrafficSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

START_NS = 1_764_460_800 * SECOND_NS
SPEC = TrafficSpec(
    seed=21,
    start_ns=START_NS,
    traces_max=1_200,
    traces_per_minute=600.0,
    disorder_ns=2 * SECOND_NS,
    duplicate_ratio=0.05,
    missing_retrieval_ratio=0.05,
    missing_generation_ratio=0.05,
    scenarios=(
        ScenarioSpec(kind="hallucinated-citations", route="docs"),
        ScenarioSpec(kind="empty-retrieval", route="search", from_ns=START_NS + 60 * SECOND_NS),
    ),
)
DECODERS = {"native": "jsonl", "otlp_proto": "otlp_proto"}


def results(encoding: Encoding, *, decoded_as: str, keyed: bool = True) -> dict[bytes, TraceResult]:
    """The result of every trace of the traffic, by trace id, read back from its records."""
    decode = decoder(decoded_as, DecodePolicy())
    spans: dict[bytes, dict[bytes, Span]] = defaultdict(dict)
    for record in records(SPEC, encoding, keyed=keyed):
        for span in decode(record.value):
            assert isinstance(span, Span)
            spans[span.trace_id][span.span_id] = span
    scored = {trace_id: score(list(found.values()), ScorePolicy()) for trace_id, found in spans.items()}
    return {trace_id: result for trace_id, result in scored.items() if result is not None}


def produced(spans: Iterable[TrafficSpan]) -> dict[bytes, dict[str, TrafficSpan]]:
    """What was produced of every trace: its spans by kind."""
    traces: dict[bytes, dict[str, TrafficSpan]] = defaultdict(dict)
    for span in spans:
        traces[span.trace_id][span.kind] = span
    return traces


@pytest.mark.parametrize("encoding", ["native", "otlp_proto"])
@pytest.mark.parametrize("sniffed", [False, True])
def test_decoded_traces_are_what_was_meant(encoding: Encoding, sniffed: bool) -> None:
    """Ids, scores, citations, group and state of every decoded trace are those that the generator drew."""
    found = results(encoding, decoded_as="auto" if sniffed else DECODERS[encoding])
    meant = produced(generate(SPEC))
    assert found.keys() == meant.keys()
    states: set[int] = set()
    for trace_id, spans in meant.items():
        result, span = found[trace_id], next(iter(spans.values()))
        states.add(result.state)
        assert result.group.route == span.route
        assert result.event_ns == max(part.end_ns for part in spans.values())
        if "retrieval" in spans:
            assert result.retrieved == span.retrieved
            assert result.scores == span.scores
            assert result.top1_score == (span.scores[0] if span.scores else None)
            assert (result.top_k, result.group.retriever_version) == (span.top_k, span.retriever_version)
            assert result.group.scorer == span.scorer
        if "generation" in spans:
            assert result.group.model == span.model
        if len(spans) == 2:
            assert result.cited == span.cited
            assert result.hallucinated == [chunk for chunk in span.cited if chunk not in span.retrieved]
            assert result.unresolved == 0
            assert not result.nonconformant
            assert result.state == (State.measured if span.retrieved else State.empty_retrieval)
    assert states == {State.measured, State.empty_retrieval, State.no_retrieval, State.no_generation}


def test_batching_does_not_matter() -> None:
    """One trace a record or a whole batch a record: the decoded traces are equal."""
    assert results("otlp_proto", decoded_as="otlp_proto", keyed=False) == results("otlp_proto", decoded_as="otlp_proto")


def test_encodings_agree() -> None:
    """Native and OTLP of one specification give equal traces, wherever both halves were produced."""
    native, otlp = results("native", decoded_as="jsonl"), results("otlp_proto", decoded_as="otlp_proto")
    assert native.keys() == otlp.keys()
    for trace_id, spans in produced(generate(SPEC)).items():
        if len(spans) == 2:
            assert native[trace_id] == otlp[trace_id]
