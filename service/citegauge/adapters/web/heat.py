"""A day of scores as a heat map: counts by time and by equal steps of the score. Pure; counts only, no statistic.

A histogram bucket goes where its mid-point falls (0.28 % off at most). What lies outside the drawn range is counted in the
outermost step rather than left out, so each column's counts add up to its traces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from citegauge.domain.distribution import histogram_value, quantiles

BINS_WANTED = 24
"""About how many steps of the score are drawn; rounding to handsome steps makes it 18 to 48."""
TAIL = 0.005
"""Share at either end that may lie outside the drawn range: one wild score must not squeeze all others into a line."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

Counts = Mapping[int, int]


def heat(columns: Iterable[tuple[int, Counts]]) -> dict[str, Any]:
    """`low`, `step` and `bins` of the score axis, and per time `[bin, count]` pairs, from (unix s, histogram counts)."""
    counted = [(t, {int(key): int(n) for key, n in counts.items()}) for t, counts in columns if counts]
    low, step, bins = axis(merged(counts for _, counts in counted))
    cells: list[list[tuple[int, int]]] = []
    for _, counts in counted:
        found: dict[int, int] = {}
        for key, n in counts.items():
            at = min(bins - 1, max(0, math.floor((histogram_value(key) - low) / step)))
            found[at] = found.get(at, 0) + n
        cells.append(sorted(found.items()))
    return {
        "low": low,
        "step": step,
        "bins": bins,
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


def axis(counts: Counts) -> tuple[float, float, int]:
    """Lower end, step and number of steps: round numbers that hold all but the tails."""
    low, high = quantiles(counts, histogram_value, (TAIL, 1 - TAIL))
    if low is None or high is None:
        return 0.0, 1.0, 1
    room = max(high - low, abs(high) * 0.05, 1e-9) / BINS_WANTED
    power = 10.0 ** math.floor(math.log10(room))
    step = next(size * power for size in STEPS if size * power >= room * (1 - 1e-9))
    first, last = math.floor(low / step), math.floor(high / step)
    return first * step, step, last - first + 1
