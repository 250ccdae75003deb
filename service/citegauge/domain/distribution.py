"""Whole distributions as sparse counts: exact fractions for recall, a fixed-scale exponential histogram for the rest.

Counts add, subtract and merge exactly and in any order, which is why this is neither a t-digest nor a KLL sketch.

* A *fraction key* is `retrieved << 16 | cited`; equal fractions may have several keys (1/2 and 2/4).
* A *histogram key* is 0 for 0, else `sign(x) * (ceil(log2(|x|) * 128) + 20000)`: OpenTelemetry's exponential histogram at
  scale 7 (Prometheus native-histogram schema 7), upper-inclusive buckets, |x| clamped to [1e-38, 1e38]. A bucket is
  read back as its geometric mid-point, so a single value is off by at most 2^(1/256) - 1 = 0.271 %.
* One quantile definition: R-7 (Hyndman & Fan 1996), linear interpolation, NumPy's default, ClickHouse's
  `quantilesExactInclusive` and `quantilesExactWeightedInterpolated`. Beside it the mid-distribution quantile (Ma, Genton &
  Parzen 2011, Annals of the Institute of Statistical Mathematics 63), for distributions that are mostly ties.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

Counts = dict[int, int]
"""Key to count. Counts are positive: a key whose count falls to 0 is removed."""

CITED_MASK = 0xFFFF
RETRIEVED_MAX = 0xFFFF
HISTOGRAM_SCALE = 128
HISTOGRAM_OFFSET = 20_000
KEYS_REMEMBERED_MAX = 16_384
MAGNITUDE_MIN = 1e-38
MAGNITUDE_MAX = 1e38


def fraction_key(cited: int, retrieved: int) -> int:
    """Key of the fraction cited/retrieved, 0 <= cited <= retrieved <= 65535, retrieved >= 1."""
    assert retrieved > 0
    assert 0 <= cited <= retrieved <= RETRIEVED_MAX
    return retrieved << 16 | cited


@functools.lru_cache(maxsize=KEYS_REMEMBERED_MAX)
def fraction_value(key: int) -> float:
    """The fraction of a key, in [0, 1]."""
    return (key & CITED_MASK) / (key >> 16)


@functools.lru_cache(maxsize=KEYS_REMEMBERED_MAX)
def histogram_key(value: float) -> int:
    """Bucket of a finite value. Ratios and rounded scores come again and again, so keys are remembered."""
    if value == 0.0:
        return 0
    magnitude = min(max(abs(value), MAGNITUDE_MIN), MAGNITUDE_MAX)
    key = math.ceil(math.log2(magnitude) * HISTOGRAM_SCALE) + HISTOGRAM_OFFSET
    return key if value > 0.0 else -key


@functools.lru_cache(maxsize=KEYS_REMEMBERED_MAX)
def histogram_value(key: int) -> float:
    """Geometric mid-point of a bucket."""
    if key == 0:
        return 0.0
    magnitude: float = 2.0 ** ((abs(key) - HISTOGRAM_OFFSET - 0.5) / HISTOGRAM_SCALE)
    return magnitude if key > 0 else -magnitude


def add_counts(into: Counts, counts: Mapping[int, int], sign: int = 1) -> None:
    """Add (sign 1) or subtract (sign -1) `counts`; a count must not fall below 0."""
    for key, n in counts.items():
        total = into.get(key, 0) + sign * n
        assert total >= 0, f"count of {key} fell below 0"
        if total:
            into[key] = total
        else:
            into.pop(key, None)


def total(counts: Mapping[int, int]) -> int:
    """How many values were counted."""
    return sum(counts.values())


def mean(counts: Mapping[int, int], value: Callable[[int], float]) -> float | None:
    """Arithmetic mean, exact up to the final rounding (`math.fsum`); None without values."""
    n = total(counts)
    if n == 0:
        return None
    return math.fsum(map(mul, map(value, counts), counts.values())) / n


class Ordered(NamedTuple):
    """The distinct values behind counts, ascending: what order statistics ask for."""

    values: list[float]
    weights: list[int]
    """How often each occurs."""
    through: list[int]
    """How many values there are up to each."""

    @property
    def n(self) -> int:
        """How many values were counted."""
        return self.through[-1] if self.through else 0

    def at(self, rank: int) -> float:
        """The order statistic of a rank in 1…n."""
        return self.values[bisect_left(self.through, rank)]

    def quantile(self, level: float) -> float | None:
        """R-7 quantile at a level in [0, 1]; None without values."""
        if not self.through:
            return None
        position = (self.n - 1) * level
        rank = math.floor(position)
        lower, upper = self.at(rank + 1), self.at(min(rank + 2, self.n))
        return lower + (upper - lower) * (position - rank)

    def mid_quantile(self, level: float) -> float | None:
        """Mid-distribution quantile at a level in [0, 1] (Ma, Genton & Parzen 2011); None without values.

        Linear between the points (F(x) - p(x) / 2, x) of the distinct values x, flat beyond the first and the last. Where
        ties are many, as on a lattice of fractions, it moves with the shares of the values; a plain quantile stands still.
        """
        values, through = self.values, self.through
        if not through:
            return None
        target = 2 * level * self.n
        # 2 n (F(x) - p(x) / 2) is how many are below x plus how many are up to it.
        index = bisect_left(range(len(through)), target, key=lambda at: through[at] + (through[at - 1] if at else 0))
        if index == 0:
            return values[0]
        if index == len(values):
            return values[-1]
        before = through[index - 1] + (through[index - 2] if index > 1 else 0)
        share = (target - before) / (through[index] + through[index - 1] - before)
        return values[index - 1] + (values[index] - values[index - 1]) * share


def ordered(counts: Mapping[int, int], value: Callable[[int], float]) -> Ordered:
    """The values behind counts, in order. Equal fractions of different keys become one."""
    merged = dict(zip(map(value, counts), counts.values(), strict=True))
    if len(merged) < len(counts):
        merged = {}
        for key, count in counts.items():
            point = value(key)
            merged[point] = merged.get(point, 0) + count
    values = sorted(merged)
    weights = [merged[point] for point in values]
    return Ordered(values, weights, list(accumulate(weights)))


def quantiles(counts: Mapping[int, int], value: Callable[[int], float], levels: Sequence[float]) -> list[float | None]:
    """R-7 quantiles at `levels` (each in [0, 1]); None for each without values."""
    found = ordered(counts, value)
    return [found.quantile(level) for level in levels]
