"""Laws of the detectors: order, scale, oracles, and silence where nothing is known or nothing fell."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.baseline import BLOCK_S, Baseline, Cell, baseline_of, pooled, usual
from citegauge.domain.compare import Part, like_for_like
from citegauge.domain.cusum import POLICY, cusum, decision_limit
from citegauge.domain.distribution import histogram_key, histogram_value
from citegauge.domain.intervals import Moments
from citegauge.domain.shift import EFFECT_MIN_SD, areas, shift

RATIOS = st.lists(st.floats(0, 1), min_size=1, max_size=60)
NOW_S = 1_764_460_800
SCORES = st.dictionaries(st.floats(0.01, 10).map(histogram_key), st.integers(1, 100), min_size=1, max_size=30)


def found(values: list[float]) -> Moments:
    """By NumPy."""
    array = np.array(values)
    return Moments(len(values), float(array.mean()), float(array.var(ddof=1)) if len(values) > 1 else 0.0)


def cells(rng: random.Random, mean: float, start_s: int, n: int, length_s: int, traces: int = 20) -> list[Cell]:
    """Cells of ratios around a mean, in steps of a tenth."""
    return [Cell(start_s + i * length_s, found([float(rng.random() < mean) for _ in range(traces)])) for i in range(n)]


@given(st.lists(RATIOS, min_size=1, max_size=8), st.randoms())
def test_pooling_is_writing_out(parts: list[list[float]], order: random.Random) -> None:
    """Moments of parts, in any order, are the moments of all values."""
    whole = found([value for part in parts for value in part])
    moments = [found(part) for part in parts]
    order.shuffle(moments)
    assert pooled(moments) == pytest.approx(whole, abs=1e-12)


@given(st.integers(0, 10_000))
def test_a_baseline_knows_no_order_and_no_unit(seed: int) -> None:
    """Shuffled cells give the same; values times c give c times the mean and c² times the variances."""
    rng = random.Random(seed)
    usual_cells = cells(rng, 0.4, NOW_S, 48, 900)
    one = baseline_of(usual_cells)
    assert one is not None
    shuffled = baseline_of(rng.sample(usual_cells, len(usual_cells)))
    scaled = baseline_of(
        [Cell(c.start_s, Moments(c.found.n, 8 * c.found.mean, 64 * c.found.variance)) for c in usual_cells]
    )
    assert shuffled == one
    assert scaled is not None
    assert (scaled.mean, scaled.variance, scaled.between) == pytest.approx(
        (8 * one.mean, 64 * one.variance, 64 * one.between)
    )


def test_what_is_tested_is_not_in_its_own_baseline() -> None:
    """`until_s` is exactly as if the later cells were not there."""
    rng = random.Random(1)
    past, tested = cells(rng, 0.4, NOW_S - 86_400, 72, 900), cells(rng, 0.1, NOW_S - 21_600, 24, 900)
    assert baseline_of(past + tested, until_s=NOW_S - 21_600) == baseline_of(past)
    assert baseline_of(past + tested) != baseline_of(past)


@pytest.mark.parametrize("wander", [0.0, 0.05, 0.15])
def test_how_much_a_level_wanders_is_found(wander: float) -> None:
    """On average over many weeks the estimate is the truth, for many and for few traces per hour."""
    rng = np.random.default_rng(20261130)
    for traces in (5, 50):
        estimates = []
        for _ in range(60):
            blocks = []
            for hour in range(168):
                values = rng.normal(rng.normal(0.5, wander), 0.3, traces)
                blocks.append(Cell(hour * BLOCK_S, Moments(traces, float(values.mean()), float(values.var(ddof=1)))))
            baseline = baseline_of(blocks)
            assert baseline is not None
            estimates.append(baseline.between)
        assert wander**2 * 0.85 <= np.mean(estimates) <= wander**2 * 1.15 + 0.0025


def test_little_is_no_baseline() -> None:
    """No cells, few traces or few hours: None, never a baseline of 0."""
    assert baseline_of([]) is None
    assert baseline_of([Cell(0, Moments(10_000, 0.4, 0.09))]) is None
    assert baseline_of([Cell(i * BLOCK_S, Moments(2, 0.4, 0.09)) for i in range(20)]) is None


def test_the_week_leads_where_the_day_is_short() -> None:
    """Half-way at variance / between traces; the week's `between` alone; without one of them, the other."""
    day = Baseline(n=90, mean=0.4, variance=0.08, between=0.5, blocks=18)
    week = Baseline(n=7_000, mean=0.5, variance=0.09, between=0.001, blocks=168)
    both = usual(day, week)
    assert both is not None
    assert (both.mean, both.variance, both.between) == pytest.approx((0.45, 0.085, 0.001))
    assert usual(day, None) == day
    assert usual(None, week) == week
    assert usual(None, None) is None
    assert usual(day, Baseline(n=900, mean=0.5, variance=0.1, between=0.001, blocks=20)) == day


PARTS = st.lists(st.tuples(RATIOS, RATIOS, st.floats(0, 0.01)), max_size=6)


@given(PARTS, st.randoms())
def test_a_comparison_knows_no_order(parts: list[tuple[list[float], list[float], float]], order: random.Random) -> None:
    """The groups of a slice in any order; the fall lies in its interval; groups without a past are not there."""
    given_parts = [Part(found(a), found(b), between) for a, b, between in parts]
    compared = like_for_like(given_parts)
    with_past = [part for part in given_parts if part.before.n >= 30]
    assert (compared is None) == (not with_past)
    assert compared == like_for_like(with_past)
    order.shuffle(given_parts)
    assert compared == like_for_like(given_parts)
    if compared is not None and compared.fall is not None:
        assert compared.fall_interval is not None
        assert compared.fall_interval.lower <= compared.fall <= compared.fall_interval.upper


def test_a_shift_of_the_mix_moves_nothing() -> None:
    """Two groups that stay as they were: whatever the hour's mix, nothing fell."""
    high, low = Moments(900, 0.8, 0.05), Moments(100, 0.2, 0.05)
    compared = like_for_like(
        [Part(high, high._replace(n=10)), Part(low, low._replace(n=90)), Part(Moments(5, 1, 0), high)]
    )
    assert compared is not None
    assert compared.before == compared.after == pytest.approx(0.26)
    assert compared.z == 0
    assert (compared.n_before, compared.n_after) == (1_000, 100)


def test_one_group_is_welch() -> None:
    """One group whose level does not wander: the standard errors of Welch's test."""
    compared = like_for_like([Part(Moments(4_600, 0.4, 0.09), Moments(200, 0.3, 0.10))])
    assert compared is not None
    assert compared.se == pytest.approx(math.sqrt(0.09 / 4_600 + 0.10 / 200))
    assert compared.z == pytest.approx(0.1 / compared.se)
    assert compared.fall == pytest.approx(0.25)


BASELINE = Baseline(n=4_800, mean=0.4, variance=0.09, between=0.0001, blocks=24)


def fallen(fall: float, since: int, traces: int = 17) -> list[Cell]:
    """72 cells without noise that fall at cell `since`."""
    level = [0.4 if at < since else 0.4 * (1 - fall) for at in range(72)]
    return [Cell(NOW_S + (at - 72) * 300, Moments(traces, mean, 0.09)) for at, mean in enumerate(level)]


@pytest.mark.parametrize("since", [20, 50, 65])
def test_the_start_of_a_drop_is_found(since: int) -> None:
    """Without noise the estimated start, the traces since and the fall are exact."""
    seen = cusum([(BASELINE, fallen(0.25, since))], NOW_S)
    assert seen is not None
    assert seen.since_s == NOW_S + (since - 72) * 300
    assert seen.n == 17 * (72 - since)
    assert seen.fall == pytest.approx(0.25)
    assert seen.ratio > 0


@pytest.mark.parametrize("fall", [-0.5, 0.0, 0.12])
def test_a_rise_and_a_small_fall_never_alarm(fall: float) -> None:
    """However many traces: what fell by less than half of `Policy.fall` is not reported."""
    seen = cusum([(BASELINE, fallen(fall, 0, traces=100_000))], NOW_S)
    assert seen is not None
    assert (seen.ratio, seen.since_s, seen.n) == (0, None, 0)


@given(st.integers(0, 10_000))
def test_a_cusum_knows_no_order_and_no_unit(seed: int) -> None:
    """Shuffled groups and cells, and values in another unit, give the same ratio and start."""
    rng = random.Random(seed)
    groups = [(BASELINE, cells(rng, 0.3, NOW_S - 21_600, 72, 300)), (BASELINE, cells(rng, 0.4, NOW_S - 9_000, 30, 300))]
    one = cusum(groups, NOW_S)
    assert one is not None
    other = cusum([(b, rng.sample(list(c), len(c))) for b, c in reversed(groups)], NOW_S)
    scaled = Baseline(n=4_800, mean=3.2, variance=64 * 0.09, between=64 * 0.0001, blocks=24)
    eightfold = cusum(
        [
            (scaled, [Cell(c.start_s, Moments(c.found.n, 8 * c.found.mean, 64 * c.found.variance)) for c in group])
            for _, group in groups
        ],
        NOW_S,
    )
    for twin in (other, eightfold):
        assert twin is not None
        assert twin.ratio == pytest.approx(one.ratio)
        assert (twin.since_s, twin.n) == (one.since_s, one.n)


def test_a_new_group_moves_no_cusum() -> None:
    """A version without a baseline is not handed in; one with its own, lower baseline adds nothing."""
    lower = Baseline(n=500, mean=0.2, variance=0.09, between=0.0, blocks=18)
    new = [Cell(c.start_s, Moments(c.found.n, 0.2, 0.09)) for c in fallen(0, 0)]
    seen = cusum([(BASELINE, fallen(0, 0)), (lower, new)], NOW_S)
    assert seen is not None
    assert seen.ratio == 0


def test_nothing_is_no_cusum() -> None:
    """No groups, too few traces, cells outside the window: None, never a ratio of 0."""
    assert cusum([], NOW_S) is None
    assert cusum([(BASELINE, fallen(0.5, 0)[:1])], NOW_S) is None
    assert cusum([(BASELINE, fallen(0.5, 0))], NOW_S + 86_400) is None
    assert cusum([(BASELINE, fallen(0.5, 0))], NOW_S - 21_600) is None


def test_the_run_length_is_what_is_promised() -> None:
    """Plain CUSUMs of normal cells without a drop alarm about as rarely as the limit was asked for."""
    rng = np.random.default_rng(20261130)
    information, cells_mean = 0.04, 1_000
    limit = decision_limit(information, type(POLICY)(run_length_s=cells_mean * 300))
    delta = math.sqrt(2 * information)
    statistic, alarms = np.zeros(2_000), 0
    for _ in range(3_000):
        statistic = np.maximum(0, statistic + delta * rng.normal(size=2_000) - delta**2 / 2)
        alarms += int((statistic >= limit).sum())
        statistic[statistic >= limit] = 0
    assert 2_000 * 3_000 / alarms == pytest.approx(cells_mean, rel=0.1)


@given(SCORES, SCORES)
def test_the_distance_is_a_metric_in_standard_deviations(a: dict[int, int], b: dict[int, int]) -> None:
    """Symmetric, 0 to itself, never less than the difference of means; SciPy's definition, by its quantile form."""
    one, _ = areas(a, b)
    assert areas(b, a)[0] == pytest.approx(one)
    assert areas(a, a)[0] == 0
    n, m = sum(a.values()), sum(b.values())
    xs = np.sort(np.repeat([histogram_value(key) for key in a], list(a.values())))
    ys = np.sort(np.repeat([histogram_value(key) for key in b], list(b.values())))
    assert abs(xs.mean() - ys.mean()) <= one + 1e-9
    assert np.abs(np.repeat(xs, m) - np.repeat(ys, n)).mean() == pytest.approx(one, abs=1e-9)


def scores(rng: np.random.Generator, mean: float, n: int) -> dict[int, int]:
    """Counts of normal scores."""
    counts: dict[int, int] = {}
    for value in rng.normal(mean, 0.1, n):
        key = histogram_key(float(value))
        counts[key] = counts.get(key, 0) + 1
    return counts


def test_scores_that_stay_do_not_alarm_and_those_that_move_do() -> None:
    """Without a change no hour in 500 comes near; half a standard deviation is found among 300 scores, either way."""
    rng = np.random.default_rng(20261130)
    before = scores(rng, 0.7, 5_000)
    still = [shift(before, scores(rng, 0.7, 300)) for _ in range(500)]
    assert all(item is not None and item.ratio < 0.7 for item in still)
    fell, rose = shift(before, scores(rng, 0.65, 300)), shift(before, scores(rng, 0.75, 300))
    assert fell is not None
    assert rose is not None
    assert min(fell.ratio, rose.ratio) >= 1
    assert fell.fall_sd == pytest.approx(0.5, abs=0.15)
    assert rose.fall_sd == pytest.approx(-0.5, abs=0.15)


def test_a_shift_that_does_not_matter_is_silent() -> None:
    """However many scores: a tenth of a standard deviation is below the effect that matters."""
    rng = np.random.default_rng(20261130)
    seen = shift(scores(rng, 0.7, 60_000), scores(rng, 0.69, 60_000))
    assert seen is not None
    assert 0 < seen.distance_sd < EFFECT_MIN_SD
    assert seen.ratio < 1


def test_few_scores_are_no_shift() -> None:
    """Little on one side, or no spread in the past: None."""
    rng = np.random.default_rng(20261130)
    many, few = scores(rng, 0.7, 500), scores(rng, 0.2, 20)
    assert shift(many, few) is None
    assert shift(few, many) is None
    assert shift({}, {}) is None
    assert shift({histogram_key(0.5): 500}, many) is None
