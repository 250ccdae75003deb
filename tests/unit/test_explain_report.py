"""What an explanation says, and how seldom it is wrong about what changed within groups."""

from __future__ import annotations

import numpy as np
import pytest

from citegauge.domain.distribution import fraction_key
from citegauge.domain.intervals import Moments
from citegauge.domain.mix import split
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.versions import Cell
from citegauge.ports import SqlReader
from citegauge.tools.explain import Arguments, Explanation, asked_of, explain
from citegauge.tools.explain.read import CELLS

HOUR_S = 3_600
ASKED = asked_of(Arguments(), now_ns=25 * HOUR_S * 1_000_000_000)
EASY, HARD, NEW = (Group(route, "1-5", "m1", "r7", "bge") for route in ("easy", "hard", "new"))
GROUPS = [Group("support", "1-5", model, version, "bge") for model in ("m1", "m2", "m3") for version in ("r7", "r8")]


def said(before: dict[Group, tuple[int, float]], after: dict[Group, tuple[int, float]]) -> str:
    """The sentence on windows of (n, mean) by group."""
    old, new = ({group: Moments(n, mean, 0.04) for group, (n, mean) in side.items()} for side in (before, after))
    found = split(old, new)
    assert found is not None
    return Explanation(asked=ASKED, split=found, versions=[], suspect=EASY, worst=[]).sentence


def test_only_the_traffic_moved() -> None:
    """Mix stands first, and the same groups are said to be what they were."""
    assert said({EASY: (900, 0.7), HARD: (100, 0.3)}, {EASY: (100, 0.7), HARD: (900, 0.3)}) == (
        "Mean recall of all routes fell by 48 %, from 0.660 to 0.340; in absolute terms -0.320: traffic moved "
        "to groups that always cited less (-0.320); within the same groups there is no change that is beyond chance "
        "and matters (+0.000, 95 %: -0.037 to +0.037)."
    )


def test_only_retrieval_got_worse() -> None:
    """Within stands first and alone."""
    assert said({EASY: (900, 0.7), HARD: (900, 0.3)}, {EASY: (900, 0.6), HARD: (900, 0.2)}) == (
        "Mean recall of all routes fell by 20 %, from 0.500 to 0.400; in absolute terms -0.100: the same groups cite less "
        "than before (-0.100, 95 %: -0.113 to -0.087)."
    )


def test_a_fall_that_the_mix_hides_is_told() -> None:
    """The mean stays where it was, because traffic moved to the easy route while every route got worse."""
    sentence = said({EASY: (500, 0.7), HARD: (500, 0.3)}, {EASY: (750, 0.6), HARD: (250, 0.2)})
    assert sentence.startswith(
        "Mean recall of all routes is about what it was, from 0.500 to 0.500: the same groups cite less"
    )
    assert "traffic moved to groups that always cited more (+0.100)" in sentence


def test_a_change_that_lies_in_new_groups_is_no_guess() -> None:
    """With nothing to compare within, it says so, and names what is new and what is gone."""
    sentence = said({EASY: (500, 0.7)}, {NEW: (500, 0.4)})
    assert "groups that are new cite less than the rest did (-0.300)" in sentence
    assert sentence.endswith("no group has enough traces in both periods to say whether it changed in itself.")
    assert "gone cited less" in said({EASY: (500, 0.7), HARD: (500, 0.3)}, {EASY: (500, 0.7)})


class Cells:
    """A reader that answers with these cells: the statement itself is run on a real engine elsewhere."""

    def __init__(self, cells: list[tuple[bool, Cell]]) -> None:
        self.cells = cells

    def query(self, sql: str, parameters: object = None) -> list[dict[str, object]]:
        """Cells, and no trace."""
        if sql != CELLS.format(database="d"):
            return []
        return [
            {
                **cell.group._asdict(),
                "is_after": is_after,
                "at_s": cell.at_s,
                "first_s": cell.first_s,
                "last_s": cell.last_s,
                "all_states": cell.tally.state_counts(),
                "all_citations": 0,
                "all_hallucinated": 0,
                "recall": cell.tally.recall_counts,
                "score": {},
            }
            for is_after, cell in self.cells
        ]


def day(rng: np.random.Generator, n: int, spread: float, fall: float = 0.0) -> SqlReader:
    """25 hours of six groups whose level wanders by `spread` from hour to hour, together; the last hour falls."""
    cells = []
    for hour in range(25):
        level = spread * rng.standard_normal() - (fall if hour == 24 else 0.0)
        for number, group in enumerate(GROUPS):
            tally = Tally()
            tally.states = {int(State.measured): n}
            cited, times = np.unique(
                rng.binomial(5, np.clip(0.3 + 0.06 * number + level, 0.02, 0.98), n), return_counts=True
            )
            tally.recall_counts = {fraction_key(int(c), 5): int(t) for c, t in zip(cited, times, strict=True)}
            cells.append((hour == 24, Cell(group, hour * HOUR_S, hour * HOUR_S, hour * HOUR_S + 3_540, tally)))
    return Cells(cells)


@pytest.mark.parametrize(("n", "spread"), [(20, 0.0), (20, 0.05), (200, 0.05)])
def test_an_hour_like_others_is_seldom_a_change(n: int, spread: float) -> None:
    """Where levels wander by 0.05 an hour, about one hour in 20 is called a change; independent traces would say half."""
    rng = np.random.default_rng(20_261_130)
    wrong = sum(explain(day(rng, n, spread), "d", ASKED).within_decided for _ in range(100))
    assert wrong <= 12


def test_a_fall_is_found_among_hours_that_wander() -> None:
    """0.12 less within every group, where hours wander by 0.03: found four times in five."""
    rng = np.random.default_rng(20_261_130)
    assert sum(explain(day(rng, 60, 0.03, fall=0.12), "d", ASKED).within_decided for _ in range(50)) >= 40
