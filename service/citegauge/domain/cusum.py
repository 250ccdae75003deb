"""CUSUM: the sum of what the last cells fell short of their baseline. Finds drops that one hour is too short to show.

Page's CUSUM (1954) on the log-likelihood ratio of a fall of `Policy.fall` (relative) against no change, limited to a window
(Lai 1998): a pure function of the cells of the last 6 h and the baselines, so nothing has to be kept or restored. In cell t

    l_t = Σ_g d_g (n_gt (m_g - d_g / 2 - a_g) - x_gt) / v_g,   S = max over s of Σ_{t >= s} l_t,   d_g = fall × m_g

over the full groups g with n_gt traces that sum to x_gt, baseline mean m_g, v_g = variance × inflation, and allowance a_g =
`Policy.wander` × sqrt(between): levels wander for hours without a drop, and without the allowance it is such hours that
alarm (measured: benchmarks/trust.py). A group is set against its own baseline only: mix and new versions move nothing.
Cells that fell by less than d / 2 + a pull S down: a lasting alarm stands for at least such a fall, a rise never alarms.

The decision limit h follows from how rarely a series may alarm without a drop, its average run length (Siegmund 1985,
eq. 2.57, for normal sums, with his correction 1.166 for looking at cells instead of all the time):

    run length in cells = (exp(b) - b - 1) / i,    b = h + 1.166 sqrt(2 i),    i = Σ_g n_g d_g² / (2 v_g) per mean cell.

Window and allowance can only lengthen it; i: the information of a cell; a drop of `fall` is found after about
h / i × d / (d - 2a) cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from citegauge.domain.baseline import BLOCK_S, Baseline, Cell

OVERSHOOT = 1.166
"""Twice the mean overshoot of a normal random walk over a far limit, in steps' standard deviations (Siegmund 1985)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to find and how rarely to be wrong."""

    fall: float = 0.25
    """The fall it is quickest at, relative to the baseline; half of it is the smallest that it can ever report."""
    wander: float = 1.0
    """Standard deviations of an hour's level by which it may be down for a while without a drop."""
    run_length_s: int = 360 * 7 * 86_400
    """Mean time between false alarms of one series: over 360 series, one a week."""
    cell_s: int = 300
    window_s: int = 6 * 3_600
    traces_min: int = 30
    """Traces in the window below which nothing is said."""


POLICY = Policy()
"""Over the 6 h window's cells, against `baseline.usual`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cusum:
    """What the last cells say."""

    ratio: float
    """Statistic ÷ its decision limit, >= 0; an alarm from 1 on."""
    since_s: int | None
    """Estimated start of the drop, in unix seconds, at a cell's start; None where the statistic is 0."""
    n: int
    """Traces since then; 0 without a start."""
    fall: float | None
    """Relative fall since then; None without a start."""
    began_before: bool = False
    """The start is that of the first cell: it may have begun before, and moves on with the window."""


def cusum(groups: Iterable[tuple[Baseline, Sequence[Cell]]], end_s: int, policy: Policy = POLICY) -> Cusum | None:
    """Of the full groups of one slice: each with its baseline and its cells of [end_s - window_s, end_s), in any order.

    Cells outside are ignored. None where too few traces have a baseline, or nothing varies.
    """
    start_s = (end_s - policy.window_s) // policy.cell_s * policy.cell_s
    steps: dict[int, _Step] = {}
    information = 0.0
    for baseline, cells in groups:
        inside = [cell for cell in cells if start_s <= cell.start_s < end_s and cell.found.n > 0]
        n = sum(cell.found.n for cell in inside)
        if n == 0 or baseline.mean <= 0.0 or baseline.variance <= 0.0:
            continue
        fall = policy.fall * baseline.mean
        reference = fall / 2.0 + policy.wander * math.sqrt(baseline.between)
        variance = baseline.variance * baseline.inflation(n * BLOCK_S / policy.window_s)
        information += n * fall**2 / (2.0 * variance)
        for cell in inside:
            step = steps.setdefault(cell.start_s // policy.cell_s * policy.cell_s, _Step())
            missing = cell.found.n * (baseline.mean - cell.found.mean)
            step.add(fall * (missing - cell.found.n * reference) / variance, cell.found.n, missing, baseline.mean)
    traces = sum(step.n for step in steps.values())
    if traces < policy.traces_min:
        return None
    return _walk(steps, decision_limit(information * policy.cell_s / policy.window_s, policy))


def decision_limit(information: float, policy: Policy = POLICY) -> float:
    """The limit h for the run length asked for, at `information` > 0 per cell (see above). Never below 1."""
    target = policy.run_length_s / policy.cell_s * information
    b = math.log1p(target)
    for _ in range(8):  # exp(b) - b - 1 = target: the map contracts by 1 / (target + b + 1)
        b = math.log(target + b + 1.0)
    return max(1.0, b - OVERSHOOT * math.sqrt(2.0 * information))


class _Step:
    """One cell over all groups."""

    __slots__ = ("expected", "likelihood", "missing", "n")

    def __init__(self) -> None:
        self.likelihood = 0.0
        self.n = 0
        self.missing = 0.0
        self.expected = 0.0

    def add(self, likelihood: float, n: int, missing: float, mean: float) -> None:
        """One group's share."""
        self.likelihood += likelihood
        self.n += n
        self.missing += missing
        self.expected += n * mean


def _walk(steps: dict[int, _Step], limit: float) -> Cusum:
    statistic, since_s = 0.0, None
    n, missing, expected = 0, 0.0, 0.0
    for start_s in sorted(steps):
        step = steps[start_s]
        if statistic == 0.0:
            since_s, n, missing, expected = start_s, 0, 0.0, 0.0
        statistic = max(0.0, statistic + step.likelihood)
        n, missing, expected = n + step.n, missing + step.missing, expected + step.expected
    if statistic == 0.0:
        return Cusum(ratio=0.0, since_s=None, n=0, fall=None)
    return Cusum(
        ratio=statistic / limit,
        since_s=since_s,
        n=n,
        fall=missing / expected,
        began_before=since_s == min(steps),
    )
