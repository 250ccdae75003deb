"""Laws of the intervals: closed forms, symmetry, and the coverage that is promised."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.distribution import fraction_key, fraction_value
from citegauge.domain.intervals import MEAN_N_MIN, Z_95, Moments, mean_interval, moments, wilson

SHARES = st.integers(1, 100_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
COUNTS = st.dictionaries(
    st.integers(1, 50).flatmap(lambda n: st.builds(fraction_key, st.integers(0, n), st.just(n))),
    st.integers(1, 500),
    min_size=1,
)


def test_the_quantile_is_the_normal_distributions() -> None:
    """1.96, to the last digit."""
    assert pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-14) == Z_95


@given(SHARES)
def test_wilsons_ends_solve_his_equation(share: tuple[int, int]) -> None:
    """At each end p, the observed share is 1.96 standard errors of p away: that is what the interval is."""
    successes, n = share
    interval = wilson(successes, n)
    assert interval is not None
    observed = successes / n
    assert 0 <= interval.lower <= observed <= interval.upper <= 1
    for end in interval:
        if 1e-9 < end < 1 - 1e-9:
            assert (observed - end) ** 2 == pytest.approx(Z_95**2 * end * (1 - end) / n, rel=1e-6, abs=1e-12)


@given(SHARES)
def test_wilson_is_symmetric(share: tuple[int, int]) -> None:
    """Counting the failures mirrors the interval."""
    successes, n = share
    one, other = wilson(successes, n), wilson(n - successes, n)
    assert one is not None
    assert other is not None
    assert one.lower == pytest.approx(1 - other.upper, abs=1e-12)


def test_wilson_as_published() -> None:
    """Newcombe (1998), table I: 81/263, 15/148, 0/20 and 1/29."""
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (successes, n), ends in published.items():
        assert wilson(successes, n) == pytest.approx(ends, abs=5e-5)
    assert wilson(0, 0) is None


@given(COUNTS)
def test_moments_are_numpys(counts: dict[int, int]) -> None:
    """Mean and unbiased variance of the values written out."""
    values = np.repeat([fraction_value(key) for key in counts], list(counts.values()))
    found = moments(counts, fraction_value)
    assert found.n == len(values)
    assert found.mean == pytest.approx(values.mean(), abs=1e-12)
    assert found.variance == pytest.approx(values.var(ddof=1) if len(values) > 1 else 0.0, abs=1e-12)


def test_no_values_have_no_moments() -> None:
    """Nothing counted: n = 0, and no interval of anything."""
    assert moments({}, fraction_value) == Moments(0, 0.0, 0.0)
    assert mean_interval(Moments(MEAN_N_MIN - 1, 0.5, 0.1)) is None


@given(st.integers(MEAN_N_MIN, 10_000), st.floats(0, 1), st.floats(0, 0.25))
def test_a_mean_lies_in_its_interval(n: int, mean: float, variance: float) -> None:
    """Closed form, cut to what a ratio can be."""
    interval = mean_interval(Moments(n, mean, variance))
    assert interval is not None
    half = Z_95 * math.sqrt(variance / n)
    assert interval == pytest.approx((max(0, mean - half), min(1, mean + half)))


@pytest.mark.parametrize("n", [50, 200])
def test_the_intervals_cover(n: int) -> None:
    """In 4,000 draws of answers with k = 5, about 95 % of the intervals of the mean hold the truth; of the shares, too."""
    rng = random.Random(20_261_130)
    hits = shares = 0
    for _ in range(4_000):
        cited = [sum(rng.random() < 0.4 for _ in range(5)) for _ in range(n)]
        counts: dict[int, int] = {}
        for each in cited:
            counts[fraction_key(each, 5)] = counts.get(fraction_key(each, 5), 0) + 1
        mean = mean_interval(moments(counts, fraction_value))
        share = wilson(cited.count(0), n)
        assert mean is not None
        assert share is not None
        hits += mean.lower <= 0.4 <= mean.upper
        shares += share.lower <= 0.6**5 <= share.upper
    assert 0.935 < hits / 4_000 < 0.965
    assert 0.93 < shares / 4_000 < 0.97
