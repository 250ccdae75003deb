"""Reading scenarios, routes and durations from the command line, and refusing contradictions in one line."""

from __future__ import annotations

from typing import Any

import pytest

from citegauge.errors import ConfigError
from citegauge.tools.simulate_spec import (
    HOUR_NS,
    MINUTE_NS,
    SECOND_NS,
    RouteSpec,
    ScenarioSpec,
    TrafficSpec,
    demo_spec,
    parse_duration,
    parse_route,
    parse_scenario,
)

NOW_NS = 1_764_460_800 * SECOND_NS


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("90s", 90 * SECOND_NS),
        ("-40m", -40 * MINUTE_NS),
        ("24h", 24 * HOUR_NS),
        ("250ms", 250_000_000),
        ("7d", 168 * HOUR_NS),
    ],
)
def test_durations(text: str, ns: int) -> None:
    """A duration is a whole number with a unit, possibly negative."""
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        (
            "off-topic:support:-40m",
            ScenarioSpec(kind="off-topic", route="support", from_ns=NOW_NS - 40 * MINUTE_NS),
        ),
        (
            "empty-retrieval:*:-2h:-1h",
            ScenarioSpec(kind="empty-retrieval", route="*", from_ns=NOW_NS - 2 * HOUR_NS, to_ns=NOW_NS - HOUR_NS),
        ),
        ("ignores-context:docs", ScenarioSpec(kind="ignores-context", route="docs", from_ns=0, to_ns=None)),
    ],
)
def test_scenarios(text: str, scenario: ScenarioSpec) -> None:
    """A scenario is kind, route and, where given, its times as seen from the reference time."""
    assert parse_scenario(text, NOW_NS) == scenario


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("support", RouteSpec(name="support")),
        ("support:5", RouteSpec(name="support", top_ks=((5, 1.0),))),
        ("s:5,50:0.6", RouteSpec(name="s", top_ks=((5, 1.0), (50, 1.0)), cited_share=0.6)),
        ("s:5:0.6:0.7", RouteSpec(name="s", top_ks=((5, 1.0),), cited_share=0.6, score_level=0.7)),
    ],
)
def test_routes(text: str, route: RouteSpec) -> None:
    """A route is its name and, where given, its top_k values, cited share and score level."""
    assert parse_route(text) == route


@pytest.mark.parametrize(
    ("parse", "arguments", "hint"),
    [
        (parse_duration, ("40",), "40m"),
        (parse_duration, ("1.5h",), "whole number"),
        (parse_scenario, ("off-topic", NOW_NS), "KIND:ROUTE"),
        (parse_scenario, ("off-topic:a:-1h:-30m:x", NOW_NS), "KIND:ROUTE"),
        (parse_scenario, ("on-topic:support", NOW_NS), "off-topic, ignores-context"),
        (parse_scenario, ("off-topic:support:-1h:-2h", NOW_NS), "end after it starts"),
        (parse_route, ("support:five",), "NAME[:TOP_K"),
        (parse_route, ("support:5:0.6:0.7:1",), "NAME[:TOP_K"),
        (parse_route, ("support:0",), "1 to 1000"),
        (parse_route, ("support:5:1.2",), "cited share"),
        (parse_route, ("support:5:nan",), "cited share"),
        (parse_route, ("a b",), "route name"),
        (demo_spec, (1, NOW_NS, 24, "supprt"), "support, search, docs"),
    ],
)
def test_errors_are_one_line_that_says_what_to_write(parse: Any, arguments: tuple[Any, ...], hint: str) -> None:
    """A mistyped argument is a configuration error of one line that names the valid form or the valid names."""
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"end_ns": NOW_NS - 1},
        {"traces_max": -1},
        {"traces_per_minute": 0},
        {"traces_per_minute": float("nan")},
        {"daily_swing": 1.0},
        {"disorder_ns": -1},
        {"late_ratio": 1.1},
        {"duplicate_ratio": -0.1},
        {"missing_retrieval_ratio": 0.6, "missing_generation_ratio": 0.6},
        {"routes": ()},
        {"routes": (RouteSpec(name="a"), RouteSpec(name="a"))},
        {"scenarios": (ScenarioSpec(kind="off-topic", route="nowhere"),)},
    ],
)
def test_contradictions_are_refused(values: dict[str, Any]) -> None:
    """Traffic that cannot be generated is refused when it is specified, not in the middle of it."""
    with pytest.raises(ConfigError):
        TrafficSpec(seed=1, start_ns=NOW_NS, **values)
