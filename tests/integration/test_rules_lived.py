"""The rules on traffic that was lived through: panes into a window store, a day and more of them, the detectors each minute,
their metrics into promtool. So what the workers compute and what the rules read is judged together.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from citegauge.adapters.rolling import view_of
from citegauge.adapters.rolling.detectors import Detectors
from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.domain.pane import Tally
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import Group, State
from citegauge.domain.score import score
from citegauge.domain.window import WindowStore
from citegauge.metrics import BY_NAME
from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules import rule_file
from citegauge.tools.samples import window_samples
from support.core_logs import generation, retrieval
from support.promtool import BREAK, GONE, MINUTES, PROMTOOL, expect_firing, key, pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from citegauge.domain.span import Span

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool comes with Debian's package prometheus")

RULES = rule_file(AlertSettings())
LAST = MINUTES - 5
DAY_MINUTES = 26 * 60
T0_S = 1_796_040_000
"""Of the story's first minute; a whole hour."""
M1 = Group("support", "1-5", "m1", "r7", "bge")
M2 = M1._replace(model="m2")
WIDE = M1._replace(top_k_bucket="6-10")


def placed(*spans: Span) -> tuple[Group, State]:
    """Where the core puts a trace of these spans, and as what."""
    result = score(spans, ScorePolicy())
    assert result is not None
    return result.group, State(result.state)


EMPTY, EMPTY_STATE = placed(retrieval(1, 0, []), generation(1, 1, []))
"""A retrieval that returned nothing; neither says a top_k."""
CHAT, CHAT_STATE = placed(generation(1, 1, []))
MUTE, MUTE_STATE = placed(retrieval(1, 0), generation(1, 1, None))
"""The answer was not captured."""
NAMELESS, NAMELESS_STATE = placed(retrieval(1, 0, None), generation(1, 1))
"""The retrieval says no ids."""


class Traffic(NamedTuple):
    """What one group does in a minute."""

    n: float
    recall: float
    score: float = 0.8
    state: State = State.measured
    """Of all of them; what is not measured has neither recall nor score here."""


def tally(rng: random.Random, traffic: Traffic) -> Tally:
    """Traces of five chunks, each cited with the same probability; scores with a standard deviation of 0.1."""
    made = Tally()
    n = int(traffic.n + rng.random())
    for _ in range(n if traffic.state is State.measured else 0):
        for counts, found in (
            (made.recall_counts, fraction_key(sum(rng.random() < traffic.recall for _ in range(5)), 5)),
            (made.score_counts, histogram_key(round(rng.gauss(traffic.score, 0.1), 3))),
        ):
            counts[found] = counts.get(found, 0) + 1
    made.states = {int(traffic.state): n} if n else {}
    return made


def lived(
    world: Callable[[int], Mapping[Group, Traffic]], distance_routes: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Series of the story; `world` tells each minute's traffic, the break is minute `BREAK`, the day before is negative."""
    rng, store, detectors = random.Random(7), WindowStore(T0_S - DAY_MINUTES * 60), Detectors(distance_routes)
    shown: list[dict[str, float]] = []

    async def minute(at: int) -> None:
        pane_s = T0_S + at * 60
        store.advance(pane_s + 60)
        for group, traffic in world(at).items():
            store.upsert("spans/0", pane_s, group, 1, tally(rng, traffic))
        store.close("spans/0", pane_s - 360)
        if at < 0:
            return
        groups = list(store.group_windows())
        view = await view_of(groups, pane_s * 10**9, caught_up=True)
        view = replace(view, signals=await detectors.signals(store, groups))
        found = {}
        for sample in window_samples(view, 100):
            if BY_NAME[sample.name].labels:
                labels = dict(zip(BY_NAME[sample.name].labels, sample.labels, strict=True))
                found[key(sample.name, **labels)] = float(sample.value)
        shown.append(found)

    async def live() -> None:
        for at in range(-DAY_MINUTES, MINUTES):
            await minute(at)

    asyncio.run(live())
    names = {name for found in shown for name in found}
    return pipeline() | {
        name: " ".join(repr(found[name]) if name in found else GONE for found in shown) for name in names
    }


def steady(traffic: Traffic) -> Callable[[int], Mapping[Group, Traffic]]:
    """One group, always the same."""
    return lambda _: {M1: traffic}


def broken(before: Mapping[Group, Traffic], after: Mapping[Group, Traffic]) -> Callable[[int], Mapping[Group, Traffic]]:
    """One world, then another."""
    return lambda at: before if at < BREAK else after


NORMAL = Traffic(6, 0.6)
STORIES: dict[str, tuple[Callable[[int], Mapping[Group, Traffic]], dict[str, int]]] = {
    "recall falls by a third": (
        broken({M1: NORMAL}, {M1: Traffic(6, 0.4)}),
        {"CitegaugeRouteRecallDrop": 1, "CitegaugeRecallDrop": 1, "CitegaugeRecallCusum": 1},
    ),
    "scores fall by three quarters of their spread": (
        broken({M1: NORMAL}, {M1: Traffic(6, 0.6, 0.72)}),
        {"CitegaugeTop1ScoreDrop": 1, "CitegaugeScoreShift": 1},
    ),
    "the retriever returns nothing at all": (
        broken({M1: NORMAL}, {EMPTY: Traffic(6, 0, state=EMPTY_STATE)}),
        {"CitegaugeZeroResults": 1},
    ),
    "one retrieval in four returns nothing": (
        broken({M1: NORMAL}, {M1: NORMAL, EMPTY: Traffic(2, 0, state=EMPTY_STATE)}),
        {"CitegaugeZeroResults": 1},
    ),
    "one retrieval in fifty returns nothing, and one turn in fifteen is chat": (
        lambda _: {
            M1: Traffic(15, 0.6),
            EMPTY: Traffic(0.3, 0, state=EMPTY_STATE),
            CHAT: Traffic(1, 0, state=CHAT_STATE),
        },
        {},
    ),
    "retrievals no longer meet their generations": (
        broken({M1: NORMAL}, {M1: NORMAL, CHAT: Traffic(2, 0, state=CHAT_STATE)}),
        {"CitegaugeUnjoinedTraces": 1},
    ),
    "answers are no longer captured": (
        broken({M1: NORMAL}, {MUTE: Traffic(6, 0, state=MUTE_STATE)}),
        {"CitegaugeUnmeasurable": 1},
    ),
    "half of the retrievals no longer say ids": (
        broken({M1: NORMAL}, {M1: Traffic(3, 0.6), NAMELESS: Traffic(3, 0, state=NAMELESS_STATE)}),
        {"CitegaugeUnmeasurable": 1},
    ),
    "a third was never captured, and traffic stops": (
        broken({M1: Traffic(4, 0.6), MUTE: Traffic(2, 0, state=MUTE_STATE)}, {}),
        {},
    ),
    "nothing happens": (steady(NORMAL), {}),
    "low traffic falls": (broken({M1: Traffic(0.5, 0.6)}, {M1: Traffic(0.5, 0.2, 0.5)}), {}),
    "traffic stops": (broken({M1: NORMAL}, {}), {}),
    "a new model cites less": (broken({M1: NORMAL}, {M1: Traffic(3, 0.6), M2: Traffic(3, 0.2, 0.5)}), {}),
    "a new retriever version replaces the old one": (
        broken({M1: NORMAL}, {M1._replace(retriever_version="r8"): Traffic(6, 0.3, 0.5)}),
        {},
    ),
    "a new scorer on another scale": (broken({M1: NORMAL}, {M1._replace(scorer="other"): Traffic(6, 0.6, 12.0)}), {}),
    "traffic moves to the weaker model": (
        broken(
            {M1: Traffic(8, 0.7, 0.9), M2: Traffic(1, 0.3, 0.5)},
            {M1: Traffic(1, 0.7, 0.9), M2: Traffic(8, 0.3, 0.5)},
        ),
        {},
    ),
    "traffic moves to the wider bucket": (
        broken({M1: Traffic(8, 0.7), WIDE: Traffic(1, 0.2)}, {M1: Traffic(1, 0.7), WIDE: Traffic(8, 0.2)}),
        {},
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_lived_stories(name: str, tmp_path: Path) -> None:
    """What the workers say of the traffic makes these alerts fire, and no others, at no minute."""
    world, expected = STORIES[name]
    series = lived(world)
    quiet: dict[int, dict[str, int]] = {minute: {} for minute in range(0, BREAK + 1 if expected else LAST, 10)}
    expect_firing(tmp_path, RULES, series, {**quiet, LAST: expected})


@pytest.mark.parametrize(("distance", "worse"), [(0.88, True), (0.72, False)])
def test_lived_distances(distance: float, worse: bool, tmp_path: Path) -> None:
    """Declared distances that rise are a drop, those that fall are none; that they moved is told either way."""
    series = lived(broken({M1: NORMAL}, {M1: Traffic(6, 0.6, distance)}), frozenset({"support"}))
    expected = {"CitegaugeScoreShift": 1} | ({"CitegaugeTop1ScoreDrop": 1} if worse else {})
    expect_firing(tmp_path, RULES, series, {BREAK: {}, LAST: expected})
