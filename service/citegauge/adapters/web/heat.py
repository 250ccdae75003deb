"""A day of scores as a heat map: counts by time and by equal steps of the score. Pure; counts only, no statistic.

A histogram bucket goes where its mid-point falls (0.28 % off at most). What lies outside the drawn range is counted in two
rows of its own, below (-1) and above (`bins`): each column's counts add up to its traces, and no score is drawn at another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from citegauge.domain.distribution import histogram_value, quantiles

BINS_WANTED = 24
"""About how many steps of the score are drawn; rounding to handsome steps makes it 18 to 48."""
TAIL = 0.005
"""Share of all scores, at either end, that may lie outside the range: one wild score must not squeeze all others."""
COLUMN_TAIL = 0.1
"""The same of each column by itself: a drop of a quarter of an hour is less than a day's tail, and must be in the range."""
COLUMN_N_MIN = 13
"""Scores below which a column's own range is mostly chance."""
RECENT_COLUMNS = 4
"""The newest columns, whose extremes are in the range too; of the 24 h these are the last hour."""
REACH = 0.5
"""How far beyond the rest those extremes may widen the range at either end, in its own width."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

Counts = Mapping[int, int]


def heat(columns: Iterable[tuple[int, Counts]]) -> dict[str, Any]:
    """`low`, `step`, `bins` of the score axis, and per time `[row, count]` pairs, from (unix s, histogram counts) by time.

    `below`, `above`: whether anything lies in row -1, in row `bins`.
    """
    counted = [(t, {int(key): int(n) for key, n in counts.items()}) for t, counts in columns if counts]
    low, step, bins = axis([counts for _, counts in counted])
    cells: list[list[tuple[int, int]]] = []
    for _, counts in counted:
        found: dict[int, int] = {}
        for key, n in counts.items():
            at = min(bins, max(-1, math.floor((histogram_value(key) - low) / step)))
            found[at] = found.get(at, 0) + n
        cells.append(sorted(found.items()))
    return {
        "low": low,
        "step": step,
        "bins": bins,
        "below": any(column[0][0] < 0 for column in cells),
        "above": any(column[-1][0] == bins for column in cells),
        "t": [t for t, _ in counted],
        "n": [sum(counts.values()) for _, counts in counted],
        "cells": cells,
    }


def merged(columns: Iterable[Counts]) -> dict[int, int]:
    """All columns as one."""
    total: dict[int, int] = {}
    for counts in columns:
        for key, n in counts.items():
            total[key] = total.get(key, 0) + n
    return total


def axis(columns: Sequence[Counts]) -> tuple[float, float, int]:
    """Lower end, step and number of steps: round numbers that hold all but the tails, of all columns and of each."""
    if not columns:
        return 0.0, 1.0, 1
    low, high = _ends(merged(columns), TAIL)
    for counts in columns:
        if sum(counts.values()) >= COLUMN_N_MIN:
            first, last = _ends(counts, COLUMN_TAIL)
            low, high = min(low, first), max(high, last)
    reach = REACH * (high - low)
    first, last = _ends(merged(columns[-RECENT_COLUMNS:]), 0.0)
    low, high = min(low, max(low - reach, first)), max(high, min(high + reach, last))
    room = max(high - low, abs(high) * 0.05, 1e-9) / BINS_WANTED
    power = 10.0 ** math.floor(math.log10(room))
    step = next(size * power for size in STEPS if size * power >= room * (1 - 1e-9))
    bottom, top = math.floor(low / step), math.floor(high / step)
    return bottom * step, step, top - bottom + 1


def _ends(counts: Counts, tail: float) -> tuple[float, float]:
    low, high = quantiles(counts, histogram_value, (tail, 1 - tail))
    assert low is not None
    assert high is not None
    return low, high
