"""The detectors of the trust benchmark over whole series at once: twins of `citegauge.domain` in NumPy.

Everything is evaluated at the end of each cell. A test holds the twins to the domain's code at sampled instants. Baselines
are taken anew each full hour, which changes nothing but the cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citegauge.domain.baseline import BASELINE_N_MIN, BLOCKS_MIN, DRIFT_MIN_SD, TESTED_S, WEEK_BLOCKS_MIN
from citegauge.domain.compare import PAST_N_MIN
from citegauge.domain.cusum import OVERSHOOT, Policy
from citegauge.domain.shift import EFFECT_MIN_SD, SHIFT_N_MIN, Z
from trust_traffic import CELL_S, PER_DAY, PER_HOUR, Cells, Floats

Bools = NDArray[np.bool_]
DAY_BLOCKS, WEEK_BLOCKS = 24, 168
TESTED = TESTED_S // CELL_S
DAY_POLICY = Policy(cell_s=900, window_s=24 * 3_600)
"""Over the 24 h window's cells, against the 7 days before that day: also finds what a few traces an hour show in a day.
No rule uses it; it is measured to know what it would be worth."""


class Usual(NamedTuple):
    """`domain.baseline.Baseline` at the end of every cell; NaN where there is none."""

    mean: Floats
    variance: Floats
    between: Floats


class Baselines(NamedTuple):
    """By hour."""

    of: Usual
    n: Floats
    blocks: Floats


class Compared(NamedTuple):
    """`domain.compare.Compared` at the end of every cell, and Welch's z, which takes traces for independent."""

    fall: Floats
    """Relative."""
    fall_sd: Floats
    """In standard deviations of single values before."""
    z: Floats
    z_welch: Floats
    n_after: Floats
    n_before: Floats


def summed(values: Floats) -> Floats:
    """Running sums along the cells, from 0 on: column t is the sum of the first t cells."""
    found = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=found[:, 1:])
    return found


def last(sums: Floats, length: int, skip: int = 0) -> Floats:
    """Sums of the last `length` cells but the newest `skip`, at the end of every cell."""
    found = np.zeros((sums.shape[0], sums.shape[1] - 1))
    found[:, skip:] = sums[:, 1 : sums.shape[1] - skip]
    found[:, length:] -= sums[:, 1:-length]
    return found


def moments(n: Floats, total: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Mean and unbiased variance."""
    mean = total / n
    return mean, np.maximum(squares - n * mean**2, 0) / (n - 1)


def usual(cells: Cells, tested: int = TESTED, day: bool = True) -> Usual:
    """`baseline.usual(day, week)` of the hours that end `tested` cells ago; `day=False`: the week alone."""
    series, length = cells.n.shape
    hours = length // PER_HOUR
    n, total, squares = (
        each[:, : hours * PER_HOUR].reshape(series, hours, PER_HOUR).sum(axis=2)
        for each in (cells.n, cells.total, cells.squares)
    )
    week = _baseline(n, total, squares, WEEK_BLOCKS - tested // PER_HOUR if not day else WEEK_BLOCKS)
    found = week[0]
    if day:
        found = _blend(_baseline(n, total, squares, DAY_BLOCKS - tested // PER_HOUR), week)
    at = (np.arange(1, length + 1) - tested) // PER_HOUR
    return Usual(*(np.where(at >= 0, each[:, np.maximum(at, 0)], np.nan) for each in found))


def _baseline(n: Floats, total: Floats, squares: Floats, blocks: int) -> Baselines:
    """Of the `blocks` hours before each hour."""
    with np.errstate(divide="ignore", invalid="ignore"):
        by_mean = np.where(n > 0, total**2 / n, 0.0)
    kinds = (n, total, squares, by_mean, n**2, (n > 0).astype(float))
    sums = [summed(each) for each in kinds]
    ends = np.arange(sums[0].shape[1])
    whole, s, q, m, n2, k = (each - each[:, np.maximum(ends - blocks, 0)] for each in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, variance = moments(whole, s, q)
        squares_between = m - s**2 / whole
        n0 = (whole - n2 / whole) / (k - 1)
        between = (squares_between / (k - 1) - (q - m) / (whole - k)) / n0
        between = np.maximum(np.where(whole > k, between, 0.0), DRIFT_MIN_SD**2 * variance)
    none = (whole < BASELINE_N_MIN) | (k < BLOCKS_MIN)
    return Baselines(Usual(*(np.where(none, np.nan, each) for each in (mean, variance, between))), whole, k)


def _blend(day: Baselines, week: Baselines) -> Usual:
    known = ~np.isnan(week.of.mean) & (week.blocks >= WEEK_BLOCKS_MIN)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(known, day.n / (day.n + week.of.variance / week.of.between), 1.0)
    mean, variance = (
        np.where(known, weight * one + (1 - weight) * other, one)
        for one, other in zip(day.of[:2], week.of[:2], strict=True)
    )
    blended = Usual(mean, variance, np.where(known, week.of.between, day.of.between))
    return Usual(*(np.where(np.isnan(day.of.mean), other, one) for one, other in zip(blended, week.of, strict=True)))


def compared(cells: Cells, between: Floats) -> Compared:
    """`compare.like_for_like` of one group: the last hour against the day before it."""
    sums = [summed(each) for each in (cells.n, cells.total, cells.squares)]
    n1, s1, q1 = (last(each, PER_HOUR) for each in sums)
    n0, s0, q0 = (last(each, PER_DAY, PER_HOUR) for each in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        after, variance_after = s1 / n1, np.where(n1 > 1, moments(n1, s1, q1)[1], 0.0)
        before, variance_before = moments(n0, s0, q0)
        error = variance_before / n0 + np.fmax(variance_before, variance_after) / n1 + between
        welch = variance_before / n0 + variance_after / n1
        fall = before - after
        of = (before, np.sqrt(variance_before), np.sqrt(error), np.sqrt(welch))
        found = [fall / each for each in of]
    known = (n0 >= PAST_N_MIN) & (n1 > 0)
    return Compared(*(np.where(known, each, 0.0) for each in found), n1, n0)


def cusum(cells: Cells, baseline: Usual, policy: Policy) -> Floats:
    """`cusum.cusum(...).ratio`; 0 where there is none."""
    step, window = policy.cell_s // CELL_S, policy.window_s // CELL_S
    n, s = summed(cells.n), summed(cells.total)
    full = np.arange(1, n.shape[1]) // step * step  # the policy's own cells stand at the full step, the newest is open
    traces = n[:, 1:] - n[:, np.maximum(full - window, 0)]
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = policy.fall * baseline.mean
        inflation = 1 + traces * 3_600 / policy.window_s * baseline.between / baseline.variance
        variance = baseline.variance * inflation
        information = traces * fall**2 / (2 * variance) * policy.cell_s / policy.window_s
        reference = fall / 2 + policy.wander * np.sqrt(baseline.between)
        per_n, per_total = fall * (baseline.mean - reference) / variance, fall / variance
        limit = _limits(information, policy)
    starts = [np.maximum(full - back, 0) for back in range(0, window + 1, step)]
    ratio = _statistic(n, s, per_n, per_total, starts) / limit
    return np.where((traces >= policy.traces_min) & np.isfinite(ratio), ratio, 0.0)


def _statistic(n: Floats, s: Floats, per_n: Floats, per_total: Floats, starts: Sequence[NDArray[np.int64]]) -> Floats:
    """The largest likelihood ratio from one of `starts` on, and 0. One row at a time: it stays in the cache."""
    found = np.zeros_like(per_n)
    for row in range(len(found)):
        level = per_n[row] / per_total[row]
        now = s[row, 1:] - level * n[row, 1:]
        best = now.copy()
        for start in starts:
            np.fmax(best, s[row, start] - level * n[row, start], out=best)
        found[row] = np.fmax(0.0, per_total[row] * (best - now))
    return found


def _limits(information: Floats, policy: Policy) -> Floats:
    target = policy.run_length_s / policy.cell_s * information
    b = np.log1p(target)
    for _ in range(8):
        b = np.log(target + b + 1)
    return np.maximum(1.0, b - OVERSHOOT * np.sqrt(2 * information))


def median(cells: Cells, values: Floats, length: int | None = PER_HOUR) -> Floats:
    """R-7 median of the last `length` cells; None: of all cells, one per series. NaN without values."""
    running = [summed(count.astype(float)) for count in cells.counts]
    sums = [last(each, length) if length else each[:, -1:] for each in running]
    whole = sum(sums)
    assert not isinstance(whole, int)
    ends = []
    for rank in (np.floor((whole - 1) / 2), np.ceil((whole - 1) / 2)):
        below, at = np.zeros_like(whole), np.zeros(whole.shape, dtype=np.int64)
        for each in sums[:-1]:
            below = below + each
            at += below <= rank
        ends.append(values[at])
    return np.where(whole > 0, (ends[0] + ends[1]) / 2, np.nan)


def shift(cells: Cells, values: Floats, between: Floats) -> Floats:
    """`shift.shift(...).ratio`; 0 where there is none."""
    n, s, q = (summed(each) for each in (cells.n, cells.total, cells.squares))
    n1, n0 = last(n, PER_HOUR), last(n, PER_DAY, PER_HOUR)
    with np.errstate(divide="ignore", invalid="ignore"):
        _, variance = moments(n0, last(s, PER_DAY, PER_HOUR), last(q, PER_DAY, PER_HOUR))
        distance, spread = np.zeros_like(n1), np.zeros_like(n1)
        f, g = np.zeros_like(n1), np.zeros_like(n1)
        for count, width in zip(cells.counts, np.diff(values), strict=False):
            sums = summed(count.astype(float))
            f, g = f + last(sums, PER_DAY, PER_HOUR), g + last(sums, PER_HOUR)
            h = (f + g) / (n0 + n1)
            distance += np.abs(f / n0 - g / n1) * width
            spread += np.sqrt(h * (1 - h)) * width
        error = np.sqrt(1 / n0 + 1 / n1 + between / variance)
        sd = np.sqrt(variance)
        limit = np.maximum(EFFECT_MIN_SD, error * (math.sqrt(2 / math.pi) * spread / sd + Z))
        ratio = distance / sd / limit
    return np.where((np.fmin(n0, n1) >= SHIFT_N_MIN) & np.isfinite(ratio), ratio, 0.0)


def alerts(condition: Bools, hold_s: int, keep_s: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Series and cells at whose end an alert begins to fire, by Prometheus's `for` and `keep_firing_for`."""
    hold, keep = hold_s // CELL_S, keep_s // CELL_S
    held = condition.copy()
    for back in range(1, hold + 1):
        held[:, back:] &= condition[:, :-back]
        held[:, :back] = False
    series, at = np.nonzero(condition)
    apart = np.ones(len(at), dtype=bool)
    apart[1:] = (np.diff(series) != 0) | (np.diff(at) > keep + 1)
    run = np.cumsum(apart)
    fires = held[series, at]
    _, first = np.unique(run[fires], return_index=True)
    return series[fires][first], at[fires][first]
