"""The traffic generator: determinism, the effects of scenarios, and what the demonstration relies on."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from citegauge.tools.simulate import TrafficSpan, generate, held_ns_max
from citegauge.tools.simulate_encode import encode_native, encode_otlp
from citegauge.tools.simulate_spec import (
    HOUR_NS,
    MINUTE_NS,
    SECOND_NS,
    RouteSpec,
    ScenarioKind,
    ScenarioSpec,
    TrafficSpec,
    demo_spec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

START_NS = 1_764_460_800 * SECOND_NS
EVERYTHING = TrafficSpec(
    seed=11,
    start_ns=START_NS,
    traces_max=300,
    traces_per_minute=600.0,
    daily_swing=0.2,
    disorder_ns=3 * SECOND_NS,
    duplicate_ratio=0.05,
    late_ratio=0.02,
    missing_retrieval_ratio=0.03,
    missing_generation_ratio=0.04,
    scenarios=(
        ScenarioSpec(kind="off-topic", route="support", from_ns=START_NS, to_ns=START_NS + 10 * SECOND_NS),
        ScenarioSpec(kind="ignores-context", route="search", from_ns=START_NS + 5 * SECOND_NS),
        ScenarioSpec(kind="hallucinated-citations", route="docs", to_ns=START_NS + 15 * SECOND_NS),
        ScenarioSpec(kind="empty-retrieval", route="*", from_ns=START_NS + 25 * SECOND_NS),
    ),
)
"""Every knob is turned, so that a change of any of them changes the pinned digests."""


def digests(spec: TrafficSpec) -> tuple[str, str]:
    """SHA-256 of all native lines with their times, and of one OTLP request with all spans."""
    spans = list(generate(spec))
    native = b"".join(b"%d %s\n" % (span.emit_ns, encode_native(span)) for span in spans)
    return hashlib.sha256(native).hexdigest(), hashlib.sha256(encode_otlp(spans)).hexdigest()


def recalls(spans: Iterable[TrafficSpan], route: str) -> list[float]:
    """Cited-chunk recall of every trace of a route that retrieved something, worked out from the spans' own lists."""
    return [
        len(set(span.cited) & set(span.retrieved)) / len(set(span.retrieved))
        for span in spans
        if span.kind == "generation" and span.route == route and span.retrieved
    ]


def top_1_scores(spans: Iterable[TrafficSpan], route: str) -> list[float]:
    """The first score of every retrieval of a route."""
    return [span.scores[0] for span in spans if span.kind == "retrieval" and span.route == route and span.scores]


def traffic(kind: ScenarioKind, route: str = "search", traces: int = 6_000) -> list[TrafficSpan]:
    """Faultless traffic of the default routes with one scenario all along."""
    return list(
        generate(
            TrafficSpec(seed=3, start_ns=START_NS, traces_max=traces, scenarios=(ScenarioSpec(kind=kind, route=route),))
        )
    )


@pytest.fixture(scope="module")
def healthy() -> list[TrafficSpan]:
    """The same traffic without any scenario."""
    return traffic("healthy")


def test_same_spec_same_bytes() -> None:
    """A specification decides every byte: these digests change only when the generator is changed on purpose."""
    assert digests(EVERYTHING) == (
        "e37fb6896c0f62e7fa9001d315b2e81c8965b580722d3cb88eae20f9c11ba45f",
        "ad769b13400437c2842638af9e2474ea75a6fcf51ae0ece1642e4d07533668ad",
    )


@pytest.mark.parametrize("changes", [{"seed": 12}, {"start_ns": START_NS + SECOND_NS}])
def test_other_seed_or_start_other_traces(changes: dict[str, int]) -> None:
    """Another seed, or the same seed at another time, shares no trace id, so two runs never mix into one trace."""
    other = dataclasses.replace(EVERYTHING, **changes)  # type: ignore[arg-type]
    assert not {span.trace_id for span in generate(EVERYTHING)} & {span.trace_id for span in generate(other)}


def test_scenario_leaves_other_routes_alone(healthy: list[TrafficSpan]) -> None:
    """A scenario on one route changes no byte of any other route's spans."""
    degraded = traffic("off-topic")
    assert [span for span in degraded if span.route != "search"] == [span for span in healthy if span.route != "search"]
    assert [span for span in degraded if span.route == "search"] != [span for span in healthy if span.route == "search"]


def test_healthy_levels_and_spread(healthy: list[TrafficSpan]) -> None:
    """A healthy route has the recall and the score that it was given, and recall varies between traces."""
    for route, cited_share, score_level in (("support", 0.60, 0.82), ("search", 0.42, 0.76), ("docs", 0.30, 0.70)):
        measured = recalls(healthy, route)
        assert statistics.mean(measured) == pytest.approx(cited_share, abs=0.03)
        assert 0.24 < statistics.stdev(measured) < 0.36
        assert statistics.mean(top_1_scores(healthy, route)) == pytest.approx(score_level, abs=0.01)


def test_better_ranks_are_cited_more_often(healthy: list[TrafficSpan]) -> None:
    """Citations differ by rank: the first chunk is cited clearly more often than the last."""
    cited_at = [0] * 10
    answers = [span for span in healthy if span.kind == "generation" and span.route == "search"]
    for span in answers:
        for rank, chunk in enumerate(span.retrieved):
            cited_at[rank] += chunk in span.cited
    assert cited_at[0] > cited_at[4] + 0.03 * len(answers) > cited_at[9] + 0.06 * len(answers)


@pytest.mark.parametrize(
    ("kind", "recall_factor", "score_factor"),
    [("off-topic", 0.3, 0.6), ("ignores-context", 0.3, 1.0), ("hallucinated-citations", 0.5, 1.0)],
)
def test_scenario_moves_what_it_says(
    healthy: list[TrafficSpan], kind: ScenarioKind, recall_factor: float, score_factor: float
) -> None:
    """Off-topic retrieval lowers recall and score; ignored context and hallucinated citations lower recall alone."""
    degraded = traffic(kind)
    recall_ratio = statistics.mean(recalls(degraded, "search")) / statistics.mean(recalls(healthy, "search"))
    score_ratio = statistics.mean(top_1_scores(degraded, "search")) / statistics.mean(top_1_scores(healthy, "search"))
    assert recall_ratio == pytest.approx(recall_factor, abs=0.05)
    assert score_ratio == pytest.approx(score_factor, abs=0.02)


def test_hallucinated_citations_name_chunks_that_no_route_has(healthy: list[TrafficSpan]) -> None:
    """In that scenario about half of the citations were not retrieved; otherwise next to none are."""

    def hallucinated_share(spans: list[TrafficSpan]) -> float:
        answers = [span for span in spans if span.kind == "generation" and span.route == "search"]
        cited = sum(len(span.cited) for span in answers)
        return sum(len(set(span.cited) - set(span.retrieved)) for span in answers) / cited

    degraded = traffic("hallucinated-citations")
    everything_retrieved = {chunk for span in degraded for chunk in span.retrieved}
    assert hallucinated_share(degraded) == pytest.approx(0.5, abs=0.03)
    assert hallucinated_share(healthy) == pytest.approx(0.005, abs=0.004)
    cited = {chunk for span in degraded for chunk in span.cited if chunk not in span.retrieved}
    assert cited
    assert not cited & everything_retrieved


def test_empty_retrieval_returns_and_cites_nothing() -> None:
    """In that scenario the route's retriever runs and returns nothing, so nothing can be cited."""
    degraded = [span for span in traffic("empty-retrieval", traces=200) if span.route == "search"]
    assert degraded
    assert not any(span.retrieved or span.scores or span.cited for span in degraded)
    assert {span.top_k for span in degraded} == {10}


def test_scenario_holds_for_its_time_and_the_last_one_wins() -> None:
    """A scenario affects the traces that start in its time; a later one in the list overrides an earlier one."""
    minutes = [START_NS + minute * MINUTE_NS for minute in range(4)]
    spec = TrafficSpec(
        seed=1,
        start_ns=START_NS,
        end_ns=START_NS + 4 * MINUTE_NS,
        traces_per_minute=600.0,
        scenarios=(
            ScenarioSpec(kind="empty-retrieval", route="docs", from_ns=minutes[1], to_ns=minutes[2]),
            ScenarioSpec(kind="empty-retrieval", route="search"),
            ScenarioSpec(kind="healthy", route="*", from_ns=minutes[2], to_ns=minutes[3]),
        ),
    )
    retrievals = [span for span in generate(spec) if span.kind == "retrieval"]
    empty = {(span.route, (span.start_ns - START_NS) // MINUTE_NS) for span in retrievals if not span.retrieved}
    full = {(span.route, (span.start_ns - START_NS) // MINUTE_NS) for span in retrievals if span.retrieved}
    assert empty == {("docs", 1), ("search", 0), ("search", 1), ("search", 3)}
    assert full == {(route, minute) for route in ("support", "search", "docs") for minute in range(4)} - empty


def test_weights_and_choices_are_followed() -> None:
    """Routes and top_k values come in the proportion of their weights; every model and version occurs."""
    routes = (
        RouteSpec(
            name="a", weight=3.0, top_ks=((5, 1.0), (1, 3.0)), models=("m1", "m2"), retriever_versions=("v1", "v2")
        ),
        RouteSpec(name="b", weight=1.0, answer_forms=("json",)),
    )
    spans = list(generate(TrafficSpec(seed=5, start_ns=START_NS, traces_max=4_000, routes=routes)))
    of_a = [span for span in spans if span.route == "a"]
    assert len(of_a) / len(spans) == pytest.approx(0.75, abs=0.03)
    assert sum(span.top_k == 1 for span in of_a) / len(of_a) == pytest.approx(0.75, abs=0.03)
    assert {(span.model, span.retriever_version) for span in of_a} == set(itertools.product(("m1", "m2"), ("v1", "v2")))
    assert {span.answer_form for span in spans if span.route == "b"} == {"json"}


def test_rate_follows_the_day() -> None:
    """Over a day the mean rate is the given one, and with a swing the afternoon has more traffic than the night."""
    spec = TrafficSpec(seed=9, start_ns=START_NS, end_ns=START_NS + 24 * HOUR_NS, traces_per_minute=20, daily_swing=0.5)
    per_hour = [0] * 24
    for span in generate(spec):
        if span.kind == "retrieval":
            per_hour[(span.start_ns - START_NS) // HOUR_NS] += 1
    assert START_NS % (24 * HOUR_NS) == 0
    assert sum(per_hour) == pytest.approx(20 * 60 * 24, rel=0.03)
    assert per_hour[14] == pytest.approx(20 * 60 * 1.5, rel=0.12)
    assert per_hour[2] == pytest.approx(20 * 60 * 0.5, rel=0.15)


def test_endless_traffic_is_lazy() -> None:
    """Traffic without an end yields spans at once and keeps to its bound on what it holds."""
    spec = TrafficSpec(seed=2, start_ns=START_NS, disorder_ns=2 * SECOND_NS, late_ratio=0.1)
    started_ns: dict[bytes, int] = {}
    for span in itertools.islice(generate(spec), 5_000):
        started_ns.setdefault(span.trace_id, span.start_ns)
        assert span.emit_ns - started_ns[span.trace_id] <= held_ns_max(spec)


@pytest.mark.parametrize("seed", range(3))
def test_demo_degrades_one_route_plainly(seed: int) -> None:
    """The demonstration's last hour shows the fall of one route, far outside chance, and of no other."""
    end_ns = START_NS + 9 * HOUR_NS
    spans = list(generate(demo_spec(seed, end_ns)))
    assert 60_000 <= len(spans) <= 90_000
    last_hour: dict[str, list[float]] = defaultdict(list)
    before: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        if span.kind == "generation" and span.retrieved:
            recall = len(set(span.cited) & set(span.retrieved)) / len(span.retrieved)
            (last_hour if span.end_ns >= end_ns - HOUR_NS else before)[span.route].append(recall)
    fall = {}
    for route, recall_before in before.items():
        spread = statistics.stdev(recall_before) / math.sqrt(len(last_hour[route]))
        fall[route] = (statistics.mean(recall_before) - statistics.mean(last_hour[route])) / spread
    assert fall["support"] > 10
    assert all(abs(deviations) < 4 for route, deviations in fall.items() if route != "support")


def test_live_demo_starts_with_the_same_history() -> None:
    """The endless form of the demonstration begins with the finite one's traces, and goes on past the end."""
    end_ns = START_NS + 9 * HOUR_NS
    history = demo_spec(1, end_ns, hours=1)
    live = demo_spec(1, end_ns, hours=1, live=True)
    started_before_end = itertools.takewhile(lambda span: span.emit_ns < end_ns + MINUTE_NS, generate(live))
    at_first = [span for span in started_before_end if span.start_ns < end_ns - MINUTE_NS]
    past = [
        span for span in generate(history) if span.start_ns < end_ns - MINUTE_NS and span.emit_ns < end_ns + MINUTE_NS
    ]
    assert at_first == past
    assert any(span.start_ns > end_ns for span in itertools.islice(generate(live), 20_000))
