"""Intervals of quantiles, and mid-distribution quantiles: SciPy and NumPy as the oracle, laws, and seen coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from citegauge.domain.distribution import fraction_key, fraction_value, ordered
from citegauge.domain.intervals import EXACT_N_MAX, quantile_interval, quantile_ranks

QUARTILES = (0.25, 0.5, 0.75)
N_CHECKED = 200_000
COUNTS = st.dictionaries(
    st.integers(1, 8).flatmap(lambda n: st.builds(fraction_key, st.integers(0, n), st.just(n))),
    st.integers(1, 40),
    min_size=1,
)


@pytest.mark.parametrize("level", QUARTILES)
def test_no_interval_misses_more_than_it_may(level: float) -> None:
    """For every n to 200,000 and a few beyond, each end misses by at most 2.5 % whatever the distribution: binomial."""
    sizes = [*range(1, 2_001), *range(2_001, N_CHECKED, 97), 10**6, 3 * 10**6 + 1, 10**9]
    found = [(n, *ranks) for n in sizes if (ranks := quantile_ranks(n, level)) is not None]
    n, lower, upper = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
    assert (binom.cdf(lower - 1, n, level) <= 0.025 + 1e-12).all()
    assert (binom.sf(upper - 1, n, level) <= 0.025 + 1e-12).all()
    # Not wider than need be: exact to `EXACT_N_MAX`, at most two ranks at an end above.
    slack = np.where(n <= EXACT_N_MAX, 0, 2)
    assert (binom.cdf(lower + slack, n, level) > 0.025 - 1e-12).all()
    assert (binom.sf(upper - 2 - slack, n, level) > 0.025 - 1e-12).all()


def test_the_normal_approximation_is_never_too_narrow() -> None:
    """The closed form alone, for every single n above the switch."""
    n = np.arange(EXACT_N_MAX + 1, N_CHECKED)
    for level in QUARTILES:
        half = 1.959963984540054 * np.sqrt(n * level * (1 - level))
        assert (binom.cdf(np.floor(n * level - half) - 1, n, level) <= 0.025).all()
        assert (binom.sf(np.ceil(n * level + half), n, level) <= 0.025).all()


@pytest.mark.parametrize(("level", "least"), [(0.25, 13), (0.5, 6), (0.75, 13)])
def test_few_values_have_no_interval(level: float, least: int) -> None:
    """Below, not even the extremes are sure enough: 0.75 ** 12 and 0.5 ** 5 exceed 2.5 %."""
    assert all(quantile_ranks(n, level) is None for n in range(least))
    assert all(quantile_ranks(n, level) is not None for n in range(least, 500))


@given(st.integers(6, 10**7))
def test_ranks_are_symmetric_and_hold_the_quantile(n: int) -> None:
    """Counting from the other end mirrors the ranks; the sample's own R-7 quantile lies between them."""
    for level in QUARTILES:
        ranks, mirrored = quantile_ranks(n, level), quantile_ranks(n, 1 - level)
        if ranks is not None and mirrored is not None:
            assert ranks == (n + 1 - mirrored[1], n + 1 - mirrored[0])
            rank = (n - 1) * level + 1
            assert 1 <= ranks[0] <= math.floor(rank) <= math.ceil(rank) <= ranks[1] <= n


@given(COUNTS)
def test_an_interval_is_two_of_the_values(counts: dict[int, int]) -> None:
    """They are the order statistics of those ranks in the values written out, and hold the quantile."""
    values = np.sort(np.repeat([fraction_value(key) for key in counts], list(counts.values())))
    found = ordered(counts, fraction_value)
    assert [found.at(rank) for rank in range(1, found.n + 1)] == list(values)
    for level in QUARTILES:
        interval, ranks, quantile = (
            quantile_interval(found, level),
            quantile_ranks(found.n, level),
            found.quantile(level),
        )
        assert (interval is None) == (ranks is None)
        if interval is not None and ranks is not None and quantile is not None:
            assert interval.lower - 1e-12 <= quantile <= interval.upper + 1e-12
            assert list(interval) == [values[ranks[0] - 1], values[ranks[1] - 1]]


@given(COUNTS, st.lists(st.floats(0, 1), max_size=5))
def test_mid_quantiles_are_numpys_interpolation(counts: dict[int, int], levels: list[float]) -> None:
    """Linear through (F(x) - p(x) / 2, x), clamped at the ends, as the paper defines it."""
    values = np.repeat([fraction_value(key) for key in counts], list(counts.values()))
    distinct, weights = np.unique(values, return_counts=True)
    middle = (np.cumsum(weights) - weights / 2) / len(values)
    found = ordered(counts, fraction_value)
    for level in (0.0, *QUARTILES, 1.0, *levels):
        assert found.mid_quantile(level) == pytest.approx(np.interp(level, middle, distinct), abs=1e-9)


@given(COUNTS)
def test_mid_quantiles_rise_and_mirror(counts: dict[int, int]) -> None:
    """They rise with the level, and counting what is not cited mirrors them."""
    found = ordered(counts, fraction_value)
    mirrored = ordered({key >> 16 << 16 | (key >> 16) - (key & 0xFFFF): n for key, n in counts.items()}, fraction_value)
    values = [found.mid_quantile(level / 20) for level in range(21)]
    others = [mirrored.mid_quantile(1 - level / 20) for level in range(21)]
    assert all(one is not None and other is not None and one == pytest.approx(1 - other, abs=1e-9)
               for one, other in zip(values, others, strict=True))  # fmt: skip
    assert all(a is not None and b is not None and a <= b + 1e-12 for a, b in itertools.pairwise(values))


def test_mid_quantiles_move_where_quantiles_stand_still() -> None:
    """On a lattice, a fall of a tenth of the answers from 2/5 to 1/5 leaves the median and moves its mid quantile."""
    before = ordered({fraction_key(1, 5): 30, fraction_key(2, 5): 50, fraction_key(3, 5): 20}, fraction_value)
    after = ordered({fraction_key(1, 5): 40, fraction_key(2, 5): 40, fraction_key(3, 5): 20}, fraction_value)
    one, other = before.mid_quantile(0.5), after.mid_quantile(0.5)
    assert before.quantile(0.5) == after.quantile(0.5) == 0.4
    assert one is not None
    assert other is not None
    assert other < one - 0.02
    assert ordered({}, fraction_value).mid_quantile(0.5) is None


@pytest.mark.parametrize("n", [13, 40, 300])
@pytest.mark.parametrize("level", QUARTILES)
def test_the_intervals_cover(n: int, level: float) -> None:
    """In 4,000 samples of a lattice (k = 5) and of a smooth distribution at least 95 % of them hold the true quantile."""
    rng = np.random.default_rng(20_261_130)
    ranks = quantile_ranks(n, level)
    assert ranks is not None
    lattice = np.sort(rng.binomial(5, 0.4, size=(4_000, n)) / 5, axis=1)
    smooth = np.sort(rng.random(size=(4_000, n)), axis=1)
    for samples, truth in ((lattice, binom.ppf(level, 5, 0.4) / 5), (smooth, level)):
        held = (samples[:, ranks[0] - 1] <= truth) & (truth <= samples[:, ranks[1] - 1])
        assert held.mean() > 0.95 - 0.007  # two standard errors
