"""Traffic for the trust benchmark: cells of beta-binomial recalls with a daily cycle and a topic mix that wanders.

A series has two topics, an easy and a hard one, whose mean recalls lie `TOPIC_SPREAD` above and below the series' mean. The
share of the easy one follows an Ornstein-Uhlenbeck process (correlation time `WANDER_H`) plus a daily sine; traffic has a
daily sine of its own. Given the mix, the number of traces with recall j/k in a cell is Poisson with mean rate × P(j): drawn
like that for each j, cells are exact, and 2,000 traces an hour cost no more than 10. Scores likewise, over buckets.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citegauge.domain.distribution import histogram_key, histogram_value

CELL_S = 60
PER_HOUR = 3_600 // CELL_S
PER_DAY = 24 * PER_HOUR

TUNING_SEED = 1_000_003
"""What limits and defaults were chosen with. No number that is reported comes from it."""
EVALUATION_SEED = 2_000_003
"""What the reported numbers come from."""

RHO = 0.25
"""Correlation of two citations of one answer, within a topic."""
TOPIC_SPREAD = 0.2
WANDER_H = 2.0
TRAFFIC_CYCLE = 0.5

Floats = NDArray[np.float64]


class Mood(NamedTuple):
    """How much the level of a series moves without any regression, relative to its mean."""

    name: str
    wander: float
    """Standard deviation of the topic mix's part."""
    cycle: float
    """Amplitude of the daily cycle's part."""

    @property
    def level_sd(self) -> float:
        """Of both together."""
        return math.hypot(self.wander, self.cycle / math.sqrt(2))


CALM = Mood("calm", 0.0, 0.0)
USUAL = Mood("usual", 0.03, 0.03)
LIVELY = Mood("lively", 0.06, 0.06)


class Values(NamedTuple):
    """What single traces look like: the values, and how likely each is in the easy and in the hard topic."""

    values: Floats
    easy: Floats
    hard: Floats
    fallen_easy: Floats
    fallen_hard: Floats

    @property
    def mean(self) -> float:
        """At an even mix."""
        return float((self.easy + self.hard) @ self.values / 2)

    @property
    def sd(self) -> float:
        """Of single traces, at an even mix."""
        return math.sqrt(float((self.easy + self.hard) @ (self.values - self.mean) ** 2 / 2))


def recalls(k: int, mean: float, fall: float = 0.0) -> Values:
    """Beta-binomial recalls of k retrieved chunks; `fall`: relative fall of both topics' means."""
    means = [mean * (1 + side * TOPIC_SPREAD) * (1 - down) for down in (0.0, fall) for side in (1, -1)]
    return Values(np.arange(k + 1) / k, *(_beta_binomial(k, each) for each in means))


def _beta_binomial(k: int, mean: float) -> Floats:
    size = 1 / RHO - 1
    a, b = mean * size, (1 - mean) * size
    log = [
        math.lgamma(k + 1) - math.lgamma(j + 1) - math.lgamma(k - j + 1) + math.lgamma(j + a) + math.lgamma(k - j + b)
        for j in range(k + 1)
    ]
    weights = np.exp(np.array(log) - max(log))
    return weights / weights.sum()


SCORE_MEAN, SCORE_SD, SCORE_TOPIC_SD = 0.7, 0.1, 0.2
SCORE_KEYS = tuple(range(histogram_key(0.25), histogram_key(1.3), 8))
"""Buckets of the service's own histogram, every eighth: scores stand at their middles."""


def scores(fall_sd: float = 0.0) -> Values:
    """Near-normal scores of one scorer; topics `SCORE_TOPIC_SD` sd apart from the mean; `fall_sd`: fall in sd."""
    values = np.array([histogram_value(key) for key in SCORE_KEYS])
    found = []
    for down in (0.0, fall_sd):
        for side in (1, -1):
            middle = SCORE_MEAN + (side * SCORE_TOPIC_SD - down) * SCORE_SD
            weights = np.exp(-(((values - middle) / SCORE_SD) ** 2) / 2) * values  # bucket widths grow with the value
            found.append(weights / weights.sum())
    return Values(values, *found)


class Cells(NamedTuple):
    """Per series (rows) and cell (columns)."""

    n: Floats
    total: Floats
    squares: Floats
    counts: list[NDArray[np.uint16]]
    """Traces per value; shares its order with `Values.values`."""


def simulate(
    rng: np.random.Generator,
    of: Values,
    per_hour: float,
    mood: Mood,
    shape: tuple[int, int],
    fall_at: int | None = None,
) -> Cells:
    """Cells of `shape` = (series, cells); from cell `fall_at` on, the fallen distributions."""
    series, length = shape
    day = np.arange(length) * (2 * math.pi / PER_DAY)
    phases = rng.uniform(0, 2 * math.pi, (2, series, 1))
    level = mood.wander * _wander(rng, shape) + mood.cycle * np.sin(day + phases[0])
    easy = np.clip(0.5 + level / (2 * TOPIC_SPREAD), 0.0, 1.0)
    rate = per_hour / PER_HOUR * (1 + TRAFFIC_CYCLE * np.sin(day + phases[1]))
    n, total, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    counts = []
    fallen = np.arange(length) >= (length if fall_at is None else fall_at)
    for at, value in enumerate(of.values):
        p_easy = np.where(fallen, of.fallen_easy[at], of.easy[at])
        p_hard = np.where(fallen, of.fallen_hard[at], of.hard[at])
        drawn = rng.poisson(rate * (p_hard + easy * (p_easy - p_hard)))
        n += drawn
        total += drawn * value
        squares += drawn * value**2
        counts.append(drawn.astype(np.uint16))
    return Cells(n, total, squares, counts)


def _wander(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Ornstein-Uhlenbeck of variance 1, started in its stationary state."""
    keep = math.exp(-CELL_S / (WANDER_H * 3_600))
    noise = rng.normal(size=shape)
    noise[:, 1:] *= math.sqrt(1 - keep**2)
    for at in range(1, shape[1]):
        noise[:, at] += keep * noise[:, at - 1]
    return noise
