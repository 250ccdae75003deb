"""Counts and quantiles against NumPy and plain lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.distribution import (
    MAGNITUDE_MAX,
    MAGNITUDE_MIN,
    RETRIEVED_MAX,
    Counts,
    add_counts,
    fraction_key,
    fraction_value,
    histogram_key,
    histogram_value,
    mean,
    quantiles,
    total,
)

LEVELS = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@st.composite
def fractions(draw: st.DrawFn) -> tuple[int, int]:
    """(cited, retrieved)."""
    retrieved = draw(st.integers(1, 12) | st.integers(1, RETRIEVED_MAX))
    return draw(st.integers(0, retrieved)), retrieved


def magnitudes() -> st.SearchStrategy[float]:
    """Positive values that the histogram covers, bucket edges included."""
    edges = st.builds(lambda k: 2.0 ** (k / 128), st.integers(-16_000, 16_000))
    return st.floats(MAGNITUDE_MIN, MAGNITUDE_MAX) | st.floats(1e-3, 1e3) | edges


def values() -> st.SearchStrategy[float]:
    """Values of either sign, and zero."""
    return magnitudes() | magnitudes().map(lambda x: -x) | st.just(0.0)


def counted(keys: list[int]) -> Counts:
    """How often each key occurs."""
    counts: Counts = {}
    for key in keys:
        add_counts(counts, {key: 1})
    return counts


@given(fractions())
def test_fraction_keys_are_exact(fraction: tuple[int, int]) -> None:
    """A key is read back as the very quotient, and different fractions of one denominator have different keys."""
    cited, retrieved = fraction
    key = fraction_key(cited, retrieved)
    assert fraction_value(key) == cited / retrieved
    assert (key >> 16, key & 0xFFFF) == (retrieved, cited)
    assert 0 < key < 1 << 32


@given(st.lists(fractions(), min_size=1, max_size=200), st.lists(st.floats(0, 1), max_size=5))
def test_recall_quantiles_equal_numpy(found: list[tuple[int, int]], levels: list[float]) -> None:
    """Quantiles of counts are R-7, NumPy's default, within 1e-12."""
    counts = counted([fraction_key(*fraction) for fraction in found])
    asked = [*LEVELS, *levels]
    expected = np.quantile([cited / retrieved for cited, retrieved in found], asked, method="linear")
    assert quantiles(counts, fraction_value, asked) == pytest.approx(expected, abs=1e-12)
    plain = [cited / retrieved for cited, retrieved in found]
    assert mean(counts, fraction_value) == pytest.approx(math.fsum(plain) / len(plain), abs=1e-12)


@given(st.lists(values(), min_size=1, max_size=200), st.lists(st.floats(0, 1), max_size=5))
def test_score_quantiles_equal_numpy_on_mid_points(found: list[float], levels: list[float]) -> None:
    """Quantiles of a histogram are R-7 of its mid-points, within 1e-12 relative to the largest of them."""
    keys = [histogram_key(value) for value in found]
    points = [histogram_value(key) for key in keys]
    asked = [*LEVELS, *levels]
    expected = np.quantile(points, asked, method="linear")
    found_values = quantiles(counted(keys), histogram_value, asked)
    assert found_values == pytest.approx(expected, rel=1e-12, abs=1e-12 * max(abs(point) for point in points))


@given(values())
def test_a_histogram_value_is_within_its_bound(value: float) -> None:
    """A value is read back within 0.271 %, with its sign; zero exactly."""
    back = histogram_value(histogram_key(value))
    assert abs(back - value) <= 0.002_711_3 * abs(value)
    assert math.copysign(1, back) == math.copysign(1, value) or value == 0.0


@given(values(), values())
def test_histogram_keys_keep_the_order(one: float, other: float) -> None:
    """A larger value never has a smaller bucket, so order statistics of values and of buckets agree."""
    if one <= other:
        assert histogram_value(histogram_key(one)) <= histogram_value(histogram_key(other))


@given(st.lists(values(), min_size=1, max_size=60))
def test_every_order_statistic_is_within_the_bound(found: list[float]) -> None:
    """At the level of each order statistic the histogram's quantile is within 0.28 % of the raw one."""
    counts = counted([histogram_key(value) for value in found])
    n = len(found)
    levels = [rank / (n - 1) for rank in range(n)] if n > 1 else [0.5]
    for back, value, level in zip(quantiles(counts, histogram_value, levels), sorted(found), levels, strict=True):
        assert back is not None
        # rank / (n - 1) * (n - 1) may miss the rank by a rounding error: then the neighbours mix in by as much.
        slack = abs((n - 1) * level - round((n - 1) * level)) * 4 * max(abs(x) for x in found)
        assert abs(back - value) <= 0.0028 * abs(value) + slack


@pytest.mark.parametrize(
    ("value", "clamped"), [(1e-300, MAGNITUDE_MIN), (5e-324, MAGNITUDE_MIN), (1e300, MAGNITUDE_MAX), (-1e300, -1e38)]
)
def test_extreme_magnitudes_are_clamped(value: float, clamped: float) -> None:
    """What lies outside [1e-38, 1e38] counts at the edge."""
    assert histogram_key(value) == histogram_key(clamped)


@given(st.lists(st.integers(-5, 5)), st.lists(st.integers(-5, 5)))
def test_counts_subtract_exactly(mine: list[int], theirs: list[int]) -> None:
    """Subtracting undoes adding, and no zero stays behind."""
    counts, more = counted(mine), counted(theirs)
    before = dict(counts)
    add_counts(counts, more)
    assert total(counts) == len(mine) + len(theirs)
    add_counts(counts, more, -1)
    assert counts == before
    assert all(n > 0 for n in counts.values())


def test_counts_never_fall_below_zero() -> None:
    """Taking out what was never put in is a programming error."""
    with pytest.raises(AssertionError):
        add_counts({1: 1}, {1: 2}, -1)
    with pytest.raises(AssertionError):
        add_counts({}, {1: 1}, -1)


def test_without_values_there_is_nothing() -> None:
    """Nothing measured is None, never 0."""
    assert quantiles({}, fraction_value, (0.25, 0.5)) == [None, None]
    assert mean({}, fraction_value) is None


@pytest.mark.parametrize("fraction", [(0, 0), (-1, 2), (3, 2), (1, RETRIEVED_MAX + 1)])
def test_impossible_fractions_are_programming_errors(fraction: tuple[int, int]) -> None:
    """0 <= cited <= retrieved <= 65535, and something was retrieved."""
    with pytest.raises(AssertionError):
        fraction_key(*fraction)
