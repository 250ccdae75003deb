"""How sure a window's numbers are: moments of counts, and 95 % intervals of means and shares. Pure arithmetic.

Intervals treat traces as independent. Topics come in runs, so the truth is a little less sure than what stands here: who
alerts on it asks for a minimum effect as well.

* Share: Wilson's score interval (Wilson 1927; Brown, Cai & DasGupta 2001). It keeps its level at small n and near 0 and 1,
  where the usual p ± 1.96 sqrt(p (1 - p) / n) has no width at all.
* Mean: mean ± 1.96 sd / sqrt(n), from `MEAN_N_MIN` values on; below, a bounded and lumpy ratio is no normal variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import mul
from typing import NamedTuple

Z_95 = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""
MEAN_N_MIN = 30


class Moments(NamedTuple):
    """Number, mean and unbiased variance; the variance of fewer than two values is 0."""

    n: int
    mean: float
    variance: float


class Interval(NamedTuple):
    """Both ends belong to it."""

    lower: float
    upper: float


def moments(counts: Mapping[int, int], value: Callable[[int], float]) -> Moments:
    """Of the values behind `counts`; all 0 without any."""
    n = sum(counts.values())
    if n == 0:
        return Moments(0, 0.0, 0.0)
    values, weights = [value(key) for key in counts], counts.values()
    mean = math.fsum(map(mul, values, weights)) / n
    if n == 1:
        return Moments(1, mean, 0.0)
    squares = [(x - mean) ** 2 for x in values]
    return Moments(n, mean, math.fsum(map(mul, squares, weights)) / (n - 1))


def wilson(successes: int, n: int) -> Interval | None:
    """95 % interval of a share, inside [0, 1]; None for n = 0, where nothing is known."""
    assert 0 <= successes <= n
    if n == 0:
        return None
    share, z2 = successes / n, Z_95 * Z_95
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # The share itself belongs to its interval; at 0 and 1 rounding would put it just outside.
    return Interval(max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def mean_interval(found: Moments) -> Interval | None:
    """95 % interval of a mean of ratios, cut to [0, 1]; None below `MEAN_N_MIN` values."""
    if found.n < MEAN_N_MIN:
        return None
    half = Z_95 * math.sqrt(found.variance / found.n)
    return Interval(max(0.0, found.mean - half), min(1.0, found.mean + half))
