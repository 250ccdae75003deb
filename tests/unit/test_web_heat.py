"""The heat map's rows: a drop of the newest quarter of an hour is drawn where it is, and overflow is called overflow."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.adapters.web.heat import heat
from citegauge.domain.distribution import histogram_key, histogram_value

START_S = 1_796_000_400
STEP_S = 900
BINS_MAX = 48


def _counts(values: list[float]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for value in values:
        counts[histogram_key(value)] = counts.get(histogram_key(value), 0) + 1
    return counts


def _day(last: list[float], usual: float = 0.8, columns: int = 95) -> list[tuple[int, dict[int, int]]]:
    """A day at the usual level, and a newest column with these scores."""
    rng = random.Random(1)
    days = [_counts([rng.gauss(usual, 0.05) for _ in range(100)]) for _ in range(columns)]
    return [(START_S + at * STEP_S, counts) for at, counts in enumerate([*days, _counts(last)])]


def _in_row(drawn: dict[str, Any], row: int, counts: dict[int, int]) -> int:
    """Values that belong into a row, counted by hand."""
    low = drawn["low"] + row * drawn["step"]
    return sum(n for key, n in counts.items() if low <= histogram_value(key) < low + drawn["step"])


@pytest.mark.parametrize("size", [20, 60, 100])
def test_a_drop_of_the_newest_column_is_drawn_where_it_is(size: int) -> None:
    """Far fewer than the day's tails hold, and still every row says what lies in it: nothing is folded into the edge."""
    rng = random.Random(2)
    days = _day([rng.uniform(0.2, 0.45) for _ in range(size)])
    drawn = heat(days)
    column = dict(days[-1][1])
    assert sum(n for _, n in drawn["cells"][-1]) == size
    for row, n in drawn["cells"][-1]:
        assert 0 <= row < drawn["bins"], "inside the range, not beyond it"
        assert n == _in_row(drawn, row, column)
    assert drawn["low"] <= 0.2 + drawn["step"]


def test_one_wild_score_does_not_squeeze_the_others() -> None:
    """It is counted in a row of its own beyond the range, and the usual scores keep at least half of the picture."""
    drawn = heat(_day([0.8] * 30 + [1_000.0, -1_000.0]))
    high = drawn["low"] + drawn["bins"] * drawn["step"]
    assert drawn["low"] > 0.3
    assert high < 1.3
    assert dict(drawn["cells"][-1])[-1] == 1, "below the range"
    assert dict(drawn["cells"][-1])[drawn["bins"]] == 1, "above it"
    assert (drawn["below"], drawn["above"]) == (True, True)
    assert sum(n for _, n in drawn["cells"][-1]) == 32


def test_an_older_drop_of_one_quarter_is_in_the_range_too() -> None:
    """Not only what is new: a column whose most scores lie elsewhere is drawn there, whenever it was."""
    days = _day([0.8] * 100)
    days[40] = (days[40][0], _counts([0.3] * 40))
    drawn = heat(days)
    ((row, n),) = drawn["cells"][40]
    assert n == 40
    assert (
        drawn["low"] + row * drawn["step"]
        <= histogram_value(histogram_key(0.3))
        < drawn["low"] + (row + 1) * drawn["step"]
    )


def test_without_overflow_there_is_no_such_row() -> None:
    """The range alone is drawn where it holds everything."""
    drawn = heat([(START_S, _counts([0.1, 0.2, 0.3]))])
    assert (drawn["below"], drawn["above"]) == (False, False)
    assert heat([])["cells"] == []


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=40).map(_counts), min_size=1, max_size=12
    )
)
def test_every_score_is_in_the_row_that_its_number_names(columns: list[dict[int, int]]) -> None:
    """Whatever comes: counts add up, rows are bounded, a row inside holds its own values, the rest is beyond."""
    drawn = heat((START_S + at * STEP_S, counts) for at, counts in enumerate(columns))
    high = drawn["low"] + drawn["bins"] * drawn["step"]
    assert 1 <= drawn["bins"] <= BINS_MAX + 1
    for counts, cells, n in zip(columns, drawn["cells"], drawn["n"], strict=True):
        assert sum(found for _, found in cells) == n == sum(counts.values())
        beyond = {-1: 0, drawn["bins"]: 0}
        for key, found in counts.items():
            row = math.floor((histogram_value(key) - drawn["low"]) / drawn["step"])
            if row < 0:
                beyond[-1] += found
            elif row >= drawn["bins"]:
                beyond[drawn["bins"]] += found
        told = dict(cells)
        assert {row: told.get(row, 0) for row in beyond} == beyond
        assert all(-1 <= row <= drawn["bins"] for row in told)
    rows = {row for cells in drawn["cells"] for row, _ in cells}
    assert drawn["below"] == (-1 in rows)
    assert drawn["above"] == (drawn["bins"] in rows)
    assert high > drawn["low"]
