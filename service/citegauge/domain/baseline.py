"""BASELINE: what is usual for one full group, and how much its level wanders by itself. Pure arithmetic over cells.

Traces of one hour are not independent draws around a fixed mean: topics come in runs and days have cycles. So the mean of
an hour of n traces varies by more than variance / n. The excess, `between`, does not shrink as n grows: with 2,000 traces
an hour it is nearly all of the error. It is estimated by the one-way random-effects analysis of variance over blocks of an
hour (Searle, Casella & McCulloch 1992, §3.5): with K blocks, N traces and n0 = (N - Σn²/N) / (K - 1),

    between = (mean square between blocks - mean square within) / n0, never below `DRIFT_MIN_SD`² × variance.

Negative estimates mean that chance hid it, not that it is not there; hence the floor.

A baseline must not hold what is tested against it: give `until_s`. A drop that lasts then stays out of its own yardstick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from citegauge.domain.intervals import Moments

BLOCK_S = 3_600
"""Length of the blocks whose means are set against one another: that of the window that is tested."""
TESTED_S = 6 * 3_600
"""What a baseline leaves out before now, so that a drop of up to this age does not become usual."""
BASELINE_N_MIN = 100
"""Traces below which nothing is usual yet."""
BLOCKS_MIN = 6
"""Blocks with traces below which nothing is usual yet."""
WEEK_BLOCKS_MIN = 48
"""Blocks from which on the 7 days say more of `between` than the day does."""
DRIFT_MIN_SD = 0.03
"""Floor of the standard deviation of an hour's level, in standard deviations of single traces."""


class Cell(NamedTuple):
    """What one group measured in one cell of event time."""

    start_s: int
    found: Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is usual."""

    n: int
    mean: float
    variance: float
    """Of single traces."""
    between: float
    """Variance of the level of an hour, beyond what `variance` explains."""
    blocks: int
    """Hours with traces."""

    def error(self, n: float) -> float:
        """Standard deviation of the mean of n > 0 traces of one hour."""
        return math.sqrt(self.variance / n + self.between)

    def inflation(self, n: float) -> float:
        """Times by which the variance of the mean of n traces of one hour exceeds that of independent ones, >= 1."""
        return 1.0 + n * self.between / self.variance if self.variance > 0.0 else 1.0


def pooled(parts: Iterable[Moments]) -> Moments:
    """The moments of all values of disjoint parts (Chan, Golub & LeVeque 1983), in any order."""
    kept = [part for part in parts if part.n > 0]
    n = sum(part.n for part in kept)
    if n == 0:
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(part.n * part.mean for part in kept) / n
    if n == 1:
        return Moments(1, mean, 0.0)
    squares = math.fsum((part.n - 1) * part.variance + part.n * (part.mean - mean) ** 2 for part in kept)
    return Moments(n, mean, squares / (n - 1))


def baseline_of(cells: Iterable[Cell], *, until_s: int | None = None) -> Baseline | None:
    """Of the cells that start before `until_s` (unix s; None: all). None where too little is known.

    Cells are at most an hour long, disjoint, of one full group, in any order.
    """
    blocks: dict[int, list[Moments]] = {}
    for cell in cells:
        if cell.found.n > 0 and (until_s is None or cell.start_s < until_s):
            blocks.setdefault(cell.start_s // BLOCK_S, []).append(cell.found)
    means = [pooled(parts) for parts in blocks.values()]
    whole = pooled(means)
    if whole.n < BASELINE_N_MIN or len(means) < BLOCKS_MIN:
        return None
    return Baseline(
        n=whole.n,
        mean=whole.mean,
        variance=whole.variance,
        between=max(DRIFT_MIN_SD**2 * whole.variance, _between(means, whole)),
        blocks=len(means),
    )


def usual(day: Baseline | None, week: Baseline | None) -> Baseline | None:
    """What to test against: the day, led by the 7 days as far as the day is too short to know its own level.

    The day's weight is n / (n + variance / between), the credibility of n traces (Bühlmann 1967): it follows slow changes
    where traffic is high, and does not take the chance of a few hundred traces for a new level where it is low. How much
    the level wanders is the week's alone: it has seen seven daily cycles and up to 168 hours.
    """
    if day is None:
        return week
    if week is None or week.blocks < WEEK_BLOCKS_MIN or week.between <= 0.0:
        return day
    weight = day.n / (day.n + week.variance / week.between)
    return Baseline(
        n=week.n,
        mean=weight * day.mean + (1.0 - weight) * week.mean,
        variance=weight * day.variance + (1.0 - weight) * week.variance,
        between=week.between,
        blocks=week.blocks,
    )


def _between(blocks: list[Moments], whole: Moments) -> float:
    """The analysis of variance; 0 where every block has one trace, or chance hides it."""
    k, n = len(blocks), whole.n
    if n <= k:
        return 0.0
    squares_between = math.fsum(block.n * (block.mean - whole.mean) ** 2 for block in blocks)
    squares_within = math.fsum((block.n - 1) * block.variance for block in blocks)
    n0 = (n - sum(block.n**2 for block in blocks) / n) / (k - 1)
    return max(0.0, (squares_between / (k - 1) - squares_within / (n - k)) / n0)
