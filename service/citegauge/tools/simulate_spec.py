"""What simulated traffic looks like: frozen specifications, their defaults and their parsers. Generates nothing itself.

A `TrafficSpec` is the whole input of `simulate.generate`: the same specification gives the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf
from typing import Literal, get_args

from citegauge.errors import ConfigError

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS

TOP_K_MAX = 1_000
TRACES_PER_MINUTE_MAX = 10_000_000.0
ROUTES_MAX = 100

AnswerForm = Literal["ids", "positions", "json"]
"""How an answer cites in OTLP text: `[c17]`, `[2]`, or a JSON object with `citations`. Native events list the ids."""

ScenarioKind = Literal["healthy", "off-topic", "ignores-context", "hallucinated-citations", "empty-retrieval"]
SCENARIO_KINDS: tuple[str, ...] = get_args(ScenarioKind)
EVERY_ROUTE = "*"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,63}")
_DURATION = re.compile(r"(-?)(\d{1,9})(ms|s|m|h|d)")
_UNIT_NS = {"ms": SECOND_NS // 1_000, "s": SECOND_NS, "m": MINUTE_NS, "h": HOUR_NS, "d": 24 * HOUR_NS}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _require_ratio(name: str, value: float) -> None:
    _require(0.0 <= value <= 1.0, f"{name} must lie between 0 and 1, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """One route: who asks, what is retrieved, and how much of it a healthy answer cites."""

    name: str
    weight: float = 1.0
    """Share of the traffic, relative to the other routes."""
    top_ks: tuple[tuple[int, float], ...] = ((10, 1.0),)
    """(top_k, weight) pairs."""
    models: tuple[str, ...] = ("gpt-4.1-mini", "claude-haiku-4")
    """Generation models, equally likely."""
    retriever_versions: tuple[str, ...] = ("r7", "r8")
    """Equally likely."""
    scorer: str = "reranker:bge-v2"
    cited_share: float = 0.4
    """Mean cited-chunk recall of a healthy answer, between 0 and 1 exclusively."""
    score_level: float = 0.8
    """Mean top-1 score of a healthy retrieval, above 0 and below 1."""
    hallucinated_share: float = 0.005
    """Share of a healthy answer's citations that name a chunk which was not retrieved."""
    answer_forms: tuple[AnswerForm, ...] = get_args(AnswerForm)
    """Equally likely; only OTLP shows them."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value outside its range."""
        name = self.name
        _require(bool(_NAME.fullmatch(name)), f"route name {name!r} must be 1-64 of A-Z a-z 0-9 _ . / -")
        _require(0 < self.weight < inf, f"route {name}: weight must be above 0 and finite, not {self.weight}")
        _require(0 < self.cited_share < 1, f"route {name}: cited share must be between 0 and 1, not {self.cited_share}")
        _require(0 < self.score_level < 1, f"route {name}: score level must be between 0 and 1, not {self.score_level}")
        _require_ratio(f"route {name}: hallucinated share", self.hallucinated_share)
        _require(
            bool(self.models and self.retriever_versions and self.answer_forms and self.top_ks),
            f"route {name}: needs at least one top_k, model, retriever version and answer form",
        )
        for top_k, weight in self.top_ks:
            _require(1 <= top_k <= TOP_K_MAX, f"route {name}: top_k must be 1 to {TOP_K_MAX}, not {top_k}")
            _require(0 < weight < inf, f"route {name}: top_k {top_k}: weight must be above 0 and finite, not {weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSpec:
    """What goes wrong on one route (or `*`) for traces that start in [from_ns, to_ns). The last that matches wins.

    `off-topic`: citations and scores fall. `ignores-context`: citations fall, scores stay. `hallucinated-citations`:
    about half of the citations name chunks that were not retrieved. `empty-retrieval`: nothing is retrieved. `healthy`:
    as usual.
    """

    kind: ScenarioKind
    route: str
    from_ns: int = 0
    to_ns: int | None = None
    """None: for good."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an unknown kind or an empty stretch of time."""
        _require(
            self.kind in SCENARIO_KINDS,
            f"unknown scenario {self.kind!r}: choose one of {', '.join(SCENARIO_KINDS)}",
        )
        _require(
            self.to_ns is None or self.from_ns < self.to_ns,
            f"scenario {self.kind} on {self.route} must end after it starts",
        )

    def applies(self, route: str, at_ns: int) -> bool:
        """Whether a trace of this route that starts then is affected."""
        return (
            self.route in (route, EVERY_ROUTE) and self.from_ns <= at_ns and (self.to_ns is None or at_ns < self.to_ns)
        )


DEFAULT_ROUTES: tuple[RouteSpec, ...] = (
    RouteSpec(name="support", weight=10.0, top_ks=((5, 1.0),), cited_share=0.60, score_level=0.82),
    RouteSpec(name="search", weight=9.0, top_ks=((10, 1.0),), cited_share=0.42, score_level=0.76),
    RouteSpec(name="docs", weight=7.0, top_ks=((20, 1.0),), cited_share=0.30, score_level=0.70),
)
"""Three routes, one top_k bucket each. Shares fall as k grows, as they do in production."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSpec:
    """A stretch of traffic. Traces start in [start_ns, end_ns); their spans may be produced after end_ns.

    The seed and start_ns together decide the ids, so two runs with one seed and different starts never share a trace.
    """

    seed: int
    start_ns: int
    end_ns: int | None = None
    """None: no end in time."""
    traces_max: int | None = None
    """None: no limit by number. With neither limit the traffic is endless."""
    traces_per_minute: float = 26.0
    """Mean over a whole day."""
    daily_swing: float = 0.0
    """0 is even traffic; 0.3 is 30 % more at 14:00 UTC and 30 % less at 02:00. Below 1."""
    routes: tuple[RouteSpec, ...] = DEFAULT_ROUTES
    disorder_ns: int = 0
    """Each span is produced up to so long after its end, so records are out of order by up to as much."""
    duplicate_ratio: float = 0.0
    """Share of spans produced a second time, within `disorder_ns` of the first."""
    late_ratio: float = 0.0
    """Share of spans held back for `late_by_ns` on top."""
    late_by_ns: int = 10 * MINUTE_NS
    missing_retrieval_ratio: float = 0.0
    """Share of traces whose retrieval span is never produced."""
    missing_generation_ratio: float = 0.0
    scenarios: tuple[ScenarioSpec, ...] = field(default=())

    def __post_init__(self) -> None:
        """Raise `ConfigError` for contradictions, in one line that names what to change."""
        _require(self.start_ns >= 0, "start_ns must not be negative")
        _require(self.end_ns is None or self.end_ns >= self.start_ns, "the traffic must not end before it starts")
        _require(self.traces_max is None or self.traces_max >= 0, "traces_max must not be negative")
        _require(
            0 < self.traces_per_minute <= TRACES_PER_MINUTE_MAX,
            f"traces_per_minute must be above 0 and at most {TRACES_PER_MINUTE_MAX:.0f}, not {self.traces_per_minute}",
        )
        _require(0 <= self.daily_swing < 1, f"daily_swing must be at least 0 and below 1, not {self.daily_swing}")
        _require(self.disorder_ns >= 0 and self.late_by_ns >= 0, "disorder_ns and late_by_ns must not be negative")
        for name in ("duplicate_ratio", "late_ratio", "missing_retrieval_ratio", "missing_generation_ratio"):
            _require_ratio(name, getattr(self, name))
        _require(
            self.missing_retrieval_ratio + self.missing_generation_ratio <= 1,
            "missing_retrieval_ratio and missing_generation_ratio must not exceed 1 together",
        )
        names = [route.name for route in self.routes]
        _require(1 <= len(names) <= ROUTES_MAX, f"there must be 1 to {ROUTES_MAX} routes, not {len(names)}")
        _require(len(set(names)) == len(names), "route names must differ")
        for scenario in self.scenarios:
            _require(
                scenario.route in (*names, EVERY_ROUTE),
                f"scenario {scenario.kind} names the route {scenario.route!r}: choose one of {', '.join(names)} or *",
            )


def demo_spec(
    seed: int,
    end_ns: int,
    hours: int = 24,
    degraded_route: str = "support",
    degrade_minutes: int = 40,
    *,
    live: bool = False,
) -> TrafficSpec:
    """About 75,000 spans over 24 h; one route retrieves off-topic chunks from `degrade_minutes` before `end_ns` on.

    With `live`, the traffic does not stop at `end_ns`: produced in real time it catches up at once, then goes on for
    good.
    """
    return TrafficSpec(
        seed=seed,
        start_ns=end_ns - hours * HOUR_NS,
        end_ns=None if live else end_ns,
        traces_per_minute=26.0,
        daily_swing=0.25,
        disorder_ns=5 * SECOND_NS,
        duplicate_ratio=0.01,
        late_ratio=0.001,
        missing_retrieval_ratio=0.005,
        missing_generation_ratio=0.01,
        scenarios=(ScenarioSpec(kind="off-topic", route=degraded_route, from_ns=end_ns - degrade_minutes * MINUTE_NS),),
    )


def parse_duration(text: str) -> int:
    """`90s`, `-40m`, `24h`, `250ms`, `7d` in ns. Raises `ConfigError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"cannot read the duration {text!r}: write a whole number and ms, s, m, h or d, such as 40m or -2h"
        )
    sign, number, unit = match.groups()
    return (-1 if sign else 1) * int(number) * _UNIT_NS[unit]


def parse_scenario(text: str, reference_ns: int) -> ScenarioSpec:
    """`KIND:ROUTE[:FROM[:TO]]`, FROM and TO as durations from `reference_ns`, such as `off-topic:support:-40m`.

    Without FROM the scenario holds from the start, without TO for good. `*` is every route. Raises `ConfigError`.
    """
    parts = text.split(":")
    if not 2 <= len(parts) <= 4 or not all(parts):
        raise ConfigError(
            f"cannot read the scenario {text!r}: write KIND:ROUTE[:FROM[:TO]], such as off-topic:support:-40m"
        )
    kind, route, *times = parts
    from_ns, to_ns, *_ = [reference_ns + parse_duration(time) for time in times] + [None, None]
    # An unknown kind is refused by ScenarioSpec itself, which also knows the list to name.
    return ScenarioSpec(kind=kind, route=route, from_ns=from_ns or 0, to_ns=to_ns)  # type: ignore[arg-type]


def parse_route(text: str) -> RouteSpec:
    """`NAME[:TOP_K[,TOP_K…][:CITED_SHARE[:SCORE_LEVEL]]]`, such as `support:5:0.6:0.8`; the rest is default.

    Raises `ConfigError`.
    """
    parts = text.split(":")
    try:
        name, top_ks, cited_share, score_level = parts + [""] * (4 - len(parts))
        return RouteSpec(
            name=name,
            top_ks=tuple((int(top_k), 1.0) for top_k in (top_ks or "10").split(",")),
            cited_share=float(cited_share or 0.4),
            score_level=float(score_level or 0.8),
        )
    except ValueError as exc:
        raise ConfigError(
            f"cannot read the route {text!r}: write NAME[:TOP_K[:CITED_SHARE[:SCORE]]], such as support:5:0.6:0.8"
        ) from exc
