"""How sure a window's numbers are: moments of counts, and 95 % intervals of means and shares. Pure arithmetic.

Intervals treat traces as independent. Topics come in runs, so the truth is a little less sure than what stands here: who
alerts on it asks for a minimum effect as well.

* Share: Wilson's score interval (Wilson 1927; Brown, Cai & DasGupta 2001). It keeps its level at small n and near 0 and 1,
  where the usual p ± 1.96 sqrt(p (1 - p) / n) has no width at all.
* Quantile: two order statistics (Scheffé & Tukey 1945; David & Nagaraja 2003, 7.1). How many values lie below a quantile is
  binomial whatever the distribution is, so the ranks depend on n and the level alone, and ties only make it surer. Each
  end misses by at most 2.5 %: exactly up to `EXACT_N_MAX` values; above, the normal approximation, rounded outwards by so
  much that it is never too narrow (tested for every n to 200,000) and at most two ranks wider at an end. Below 6 values
  (the median) or 13 (the quartiles) no pair of order statistics is sure enough, and there is none.
* Mean: mean ± 1.96 sd / sqrt(n), from `MEAN_N_MIN` values on; below, a bounded and lumpy ratio is no normal variable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from operator import mul
from typing import NamedTuple

from citegauge.domain.distribution import Ordered

Z_95 = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""
MEAN_N_MIN = 30
TAIL = 0.025
"""What an interval may miss at either end."""
EXACT_N_MAX = 100
RANKS_REMEMBERED_MAX = 16_384


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
    return weighted_moments([value(key) for key in counts], counts.values())


def weighted_moments(values: Collection[float], weights: Collection[int]) -> Moments:
    """Of values that occur so many times each; all 0 without any."""
    n = sum(weights)
    if n == 0:
        return Moments(0, 0.0, 0.0)
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


def quantile_interval(found: Ordered, level: float) -> Interval | None:
    """95 % interval of the quartile at `level`, two of the values themselves; None below 13 values (the median: 6)."""
    ranks = quantile_ranks(found.n, level)
    return None if ranks is None else Interval(found.at(ranks[0]), found.at(ranks[1]))


@functools.lru_cache(maxsize=RANKS_REMEMBERED_MAX)
def quantile_ranks(n: int, level: float) -> tuple[int, int] | None:
    """Ranks (1…n) of the order statistics that hold the quartile at `level` between them in 95 % of samples of n."""
    assert level in (0.25, 0.5, 0.75)
    if n <= EXACT_N_MAX:
        return _exact_ranks(n, level)
    middle, half = n * level, Z_95 * math.sqrt(n * level * (1 - level))
    return math.floor(middle - half), math.ceil(middle + half) + 1


def _exact_ranks(n: int, level: float) -> tuple[int, int] | None:
    lower, upper, at_most = 0, n + 1, 0.0
    for below in range(n):
        at_most += math.comb(n, below) * level**below * (1 - level) ** (n - below)
        if at_most <= TAIL:  # the order statistic of the next rank is above the quantile as seldom
            lower = below + 1
        if at_most >= 1 - TAIL:
            upper = below + 1
            break
    return (lower, upper) if lower > 0 and upper <= n else None
