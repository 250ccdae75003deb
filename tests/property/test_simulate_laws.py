"""Laws of simulated traffic that hold for every specification."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from citegauge.tools.simulate import TrafficSpan, generate, held_ns_max
from citegauge.tools.simulate_encode import encode_native
from citegauge.tools.simulate_spec import (
    MINUTE_NS,
    SCENARIO_KINDS,
    SECOND_NS,
    RouteSpec,
    ScenarioSpec,
    TrafficSpec,
)

START_NS = 1_764_460_800 * SECOND_NS
ratios = st.sampled_from([0.0, 0.1, 0.5])

routes = st.builds(
    RouteSpec,
    name=st.sampled_from(["support", "search", "a/b"]),
    weight=st.floats(0.1, 10),
    top_ks=st.lists(st.tuples(st.integers(1, 1_000), st.floats(0.1, 5)), min_size=1, max_size=3).map(tuple),
    cited_share=st.floats(0.01, 0.99),
    score_level=st.floats(0.01, 0.99),
    hallucinated_share=ratios,
)
scenarios = st.builds(
    ScenarioSpec,
    kind=st.sampled_from(SCENARIO_KINDS),
    route=st.just("*"),
    from_ns=st.integers(START_NS, START_NS + MINUTE_NS),
)
specs = st.builds(
    TrafficSpec,
    seed=st.integers(),
    start_ns=st.integers(0, START_NS),
    traces_max=st.integers(0, 40),
    traces_per_minute=st.floats(1, 10_000),
    daily_swing=st.floats(0, 0.9),
    routes=st.lists(routes, min_size=1, max_size=3, unique_by=lambda route: route.name).map(tuple),
    disorder_ns=st.integers(0, 30 * SECOND_NS),
    duplicate_ratio=ratios,
    late_ratio=ratios,
    late_by_ns=st.integers(0, 20 * MINUTE_NS),
    missing_retrieval_ratio=ratios,
    missing_generation_ratio=ratios,
    scenarios=st.lists(scenarios, max_size=2).map(tuple),
)


def content(span: TrafficSpan) -> TrafficSpan:
    """The span without the time of its production."""
    return msgspec.structs.replace(span, emit_ns=0)


def faultless(spec: TrafficSpec) -> TrafficSpec:
    """The same traffic over a perfect transport."""
    return dataclasses.replace(
        spec,
        disorder_ns=0,
        duplicate_ratio=0.0,
        late_ratio=0.0,
        missing_retrieval_ratio=0.0,
        missing_generation_ratio=0.0,
    )


@given(specs)
def test_order_of_production(spec: TrafficSpec) -> None:
    """Spans come in the order of production, none before its end, none after the bound on what is held."""
    spans = list(generate(spec))
    assert [span.emit_ns for span in spans] == sorted(span.emit_ns for span in spans)
    for span in spans:
        assert spec.start_ns <= span.start_ns < span.end_ns <= span.emit_ns
        assert span.emit_ns <= span.start_ns + held_ns_max(spec)


@given(specs)
def test_whole_traces(spec: TrafficSpec) -> None:
    """Without faults every trace is a retrieval and a generation of one id, the first over before the second starts."""
    traces: dict[bytes, list[TrafficSpan]] = defaultdict(list)
    for span in generate(faultless(spec)):
        assert span.emit_ns == span.end_ns
        traces[span.trace_id].append(span)
    assert len(traces) == spec.traces_max
    for spans in traces.values():
        retrieval, generation = spans
        assert (retrieval.kind, generation.kind) == ("retrieval", "generation")
        assert retrieval.end_ns < generation.start_ns
        assert retrieval.span_id != generation.span_id
        assert {len(span.trace_id) for span in spans} == {16}
        assert {len(span.span_id) for span in spans} == {8}


@given(specs)
def test_what_is_retrieved_and_cited(spec: TrafficSpec) -> None:
    """A retrieval is top_k distinct chunks with falling scores in [0, 1], or nothing; citations are distinct."""
    for span in generate(spec):
        assert len(span.retrieved) in {0, span.top_k}
        assert len(set(span.retrieved)) == len(span.retrieved) == len(span.scores)
        assert len(set(span.cited)) == len(span.cited) <= len(span.retrieved)
        assert sorted(span.scores, reverse=True) == span.scores
        assert all(0 <= score <= 1 for score in span.scores)


@given(specs)
def test_transport_changes_no_content(spec: TrafficSpec) -> None:
    """Faults of the transport lose, delay and repeat spans, but leave every byte of their content as it was."""
    intended = {encode_native(span) for span in generate(faultless(spec))}
    assert {encode_native(span) for span in generate(spec)} <= intended


@given(specs)
def test_duplicates_are_identical(spec: TrafficSpec) -> None:
    """A span id occurs at most twice; the second copy is byte-identical and within the disorder bound of the first."""
    copies: dict[bytes, list[TrafficSpan]] = defaultdict(list)
    for span in generate(spec):
        copies[span.span_id].append(span)
    for first, *repeats in copies.values():
        assert len(repeats) <= (1 if spec.duplicate_ratio else 0)
        for repeat in repeats:
            assert encode_native(repeat) == encode_native(first)
            assert repeat.emit_ns - first.emit_ns <= spec.disorder_ns


@given(specs)
def test_nothing_is_lost_or_late_unless_asked(spec: TrafficSpec) -> None:
    """With ratios of 0 every span is produced, within the disorder bound of its end, and once."""
    spec = dataclasses.replace(faultless(spec), disorder_ns=spec.disorder_ns)
    spans = list(generate(spec))
    assert len(spans) == len({span.span_id for span in spans}) == 2 * (spec.traces_max or 0)
    assert all(span.emit_ns - span.end_ns <= spec.disorder_ns for span in spans)


@given(specs)
def test_late_spans_are_late(spec: TrafficSpec) -> None:
    """A late span is produced at least as late as asked; with a ratio of 1 all are."""
    spec = dataclasses.replace(spec, late_ratio=1.0)
    assert all(span.emit_ns - span.end_ns >= spec.late_by_ns for span in generate(spec))


@given(specs)
def test_missing_halves(spec: TrafficSpec) -> None:
    """A trace loses one half at most, and with a ratio of 1 all lose the same half."""
    spec = dataclasses.replace(spec, missing_retrieval_ratio=1.0, missing_generation_ratio=0.0)
    assert {span.kind for span in generate(spec)} <= {"generation"}
    spec = dataclasses.replace(spec, missing_retrieval_ratio=0.5, missing_generation_ratio=0.5)
    assert len({span.trace_id for span in generate(spec)}) == spec.traces_max


@settings(max_examples=10)
@given(st.integers(), ratios, ratios)
def test_ratios_are_met(seed: int, duplicate_ratio: float, late_ratio: float) -> None:
    """Over 4,000 spans the shares of repeated, late and lost spans are those asked for, whatever the seed."""
    spec = TrafficSpec(
        seed=seed,
        start_ns=START_NS,
        traces_max=2_000,
        duplicate_ratio=duplicate_ratio,
        late_ratio=late_ratio,
        missing_retrieval_ratio=0.1,
        missing_generation_ratio=0.2,
    )
    spans = list(generate(spec))
    firsts = {span.span_id: span for span in reversed(spans)}
    kinds = [span.kind for span in firsts.values()]
    late = sum(span.emit_ns - span.end_ns >= spec.late_by_ns for span in firsts.values())
    # 5 standard deviations of a share of 2,000 at most: about one run in a million would fail by chance.
    tolerance = 5 * 0.5 / 2_000**0.5
    assert abs(1 - kinds.count("retrieval") / 2_000 - 0.1) < tolerance
    assert abs(1 - kinds.count("generation") / 2_000 - 0.2) < tolerance
    assert abs(len(spans) / len(firsts) - 1 - duplicate_ratio) < tolerance
    assert abs(late / len(firsts) - late_ratio) < tolerance
