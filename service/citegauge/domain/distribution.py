"""Whole distributions as sparse counts: exact fractions for recall, a fixed-scale exponential histogram for the rest.

Counts add, subtract and merge exactly and in any order, which is why this is neither a t-digest nor a KLL sketch.

* A *fraction key* is `retrieved << 16 | cited`; equal fractions may have several keys (1/2 and 2/4).
* A *histogram key* is 0 for 0, else `sign(x) * (ceil(log2(|x|) * 128) + 20000)`: OpenTelemetry's exponential histogram at
  scale 7 (Prometheus native-histogram schema 7), upper-inclusive buckets, |x| clamped to [1e-38, 1e38]. A bucket is
  read back as its geometric mid-point, so a single value is off by at most 2^(1/256) - 1 = 0.271 %.
* One quantile definition: R-7 (Hyndman & Fan 1996), linear interpolation, NumPy's default, ClickHouse's
  `quantilesExactInclusive` and `quantilesExactWeightedInterpolated`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    return math.fsum(value(key) * count for key, count in counts.items()) / n


def quantiles(counts: Mapping[int, int], value: Callable[[int], float], levels: Sequence[float]) -> list[float | None]:
    """R-7 quantiles at `levels` (each in [0, 1]); None for each without values."""
    n = total(counts)
    if n == 0:
        return [None] * len(levels)
    points = sorted((value(key), count) for key, count in counts.items())
    return [_quantile(points, n, level) for level in levels]


def _quantile(points: Sequence[tuple[float, int]], n: int, level: float) -> float:
    position = (n - 1) * level
    lower_rank = math.floor(position)
    lower, upper = _order_statistics(points, lower_rank)
    return lower + (upper - lower) * (position - lower_rank)


def _order_statistics(points: Iterable[tuple[float, int]], rank: int) -> tuple[float, float]:
    """The order statistics at 0-based `rank` and `rank + 1` (the last one twice at the end)."""
    seen = 0
    lower: float | None = None
    value = 0.0
    for value, count in points:
        seen += count
        if lower is None and seen > rank:
            lower = value
        if seen > rank + 1:
            break
    assert lower is not None
    return lower, value
