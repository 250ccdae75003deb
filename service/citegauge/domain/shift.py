"""SHIFT: did the distribution of a score change, beyond chance and by enough to matter? Within one scorer; pure.

The Wasserstein-1 distance, the area between the two distribution functions, in standard deviations of the past: 0.5 means
that values moved by half a standard deviation on average, wherever in the distribution. It is set against

    limit = max(`EFFECT_MIN_SD`, expected + `Z` × error),     error² = 1 / n_before + 1 / n_after + between / variance

expected = sqrt(2 / π) × error × ∫ sqrt(F (1 - F)) dx / sd is its mean without any change (each point of the difference of
two empirical functions is normal), and the second term bounds its spread: the distance is the largest difference of
means of a function of slope <= 1 (Kantorovich), none of which varies more than the values do, so its normal limit
exceeds its mean by Z × error with at most a normal variable's probability, exp(-Z² / 2) (Borell 1975; Tsirelson,
Ibragimov & Sudakov 1976).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from citegauge.domain.distribution import histogram_value
from citegauge.domain.intervals import moments

EFFECT_MIN_SD = 0.25
"""Distance below which a shift does not matter, in standard deviations of the past."""
Z = 5.0
"""Standard errors beyond the expected distance."""
SHIFT_N_MIN = 50
"""Values on each side below which nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far two distributions are apart."""

    ratio: float
    """Distance ÷ its decision limit, >= 0; an alarm from 1 on."""
    distance_sd: float
    """Wasserstein-1 in standard deviations of the past."""
    fall_sd: float
    """Fall of the mean, in the same unit; negative: it rose. Never more than `distance_sd`."""
    n: int
    """Values of the hour."""


def shift(before: Mapping[int, int], after: Mapping[int, int], *, between: float = 0.0) -> Shift | None:
    """Histogram counts of one scorer: the past without the hour, and the hour. None where too little or no spread.

    `between`: variance of the level of an hour (`Baseline.between` of the same scores).
    """
    past, now = moments(before, histogram_value), moments(after, histogram_value)
    if min(past.n, now.n) < SHIFT_N_MIN or past.variance <= 0.0:
        return None
    sd = math.sqrt(past.variance)
    distance, spread = areas(before, after)
    error = math.sqrt(1.0 / past.n + 1.0 / now.n + between / past.variance)
    limit = max(EFFECT_MIN_SD, error * (math.sqrt(2.0 / math.pi) * spread / sd + Z))
    return Shift(
        ratio=distance / sd / limit,
        distance_sd=distance / sd,
        fall_sd=(past.mean - now.mean) / sd,
        n=now.n,
    )


def areas(before: Mapping[int, int], after: Mapping[int, int]) -> tuple[float, float]:
    """∫ |F - G| dx, the Wasserstein-1 distance of two non-empty counts, and ∫ sqrt(H (1 - H)) dx of both together."""
    n, m = sum(before.values()), sum(after.values())
    points = sorted((histogram_value(key), key) for key in before.keys() | after.keys())
    distance, spread = [], []
    f = g = 0
    for (x, key), (following, _) in itertools.pairwise(points):
        f += before.get(key, 0)
        g += after.get(key, 0)
        width, h = following - x, (f + g) / (n + m)
        distance.append(abs(f / n - g / m) * width)
        spread.append(math.sqrt(h * (1.0 - h)) * width)
    return math.fsum(distance), math.fsum(spread)
