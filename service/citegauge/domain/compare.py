"""COMPARE: the last hour against its past, like for like: each full group with its own past, at the hour's mix.

Direct standardisation (Breslow & Day 1987, §2.3): before = Σ w_g before_g and after = Σ w_g after_g over the same groups,
w_g = the group's share of the hour's traces. So a shift of the mix moves nothing, and a group without enough past (a new
model, retriever version or scorer) is left out: it has nothing to fall from.

Errors: se_before² = Σ w² variance_before / n_before; se_after² = Σ w² variance_after / n_after + (Σ w sqrt(between))². The
second sum takes the groups' levels to wander together (they share their topics), which is the largest it can be. The
variance of the hour is never taken below that of its past: that of a handful of traces is too often 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from citegauge.domain.intervals import Z_95, Interval, Moments

PAST_N_MIN = 30
"""Traces of the past below which a group is not compared."""


class Part(NamedTuple):
    """One full group."""

    before: Moments
    """Of the past, without the hour."""
    after: Moments
    """Of the hour."""
    between: float = 0.0
    """Variance of the level of an hour: `Baseline.between`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both sides at the hour's mix of groups."""

    before: float
    after: float
    se_before: float
    se_after: float
    """Both standard errors, of which only this one holds how much an hour's level wanders."""
    wander: float
    """That part of `se_after`: the levels of other slices of a route may wander with it, so there it adds up."""
    sd: float
    """Standard deviation of single values before, within groups."""
    n_before: int
    n_after: int
    """Values of the groups that were compared."""

    @property
    def se(self) -> float:
        """Standard error of after - before."""
        return math.hypot(self.se_before, self.se_after)

    @property
    def z(self) -> float:
        """Standard errors by which it fell; negative: it rose. Infinite where nothing varies."""
        fall = self.before - self.after
        if self.se > 0.0:
            return fall / self.se
        return math.copysign(math.inf, fall) if fall else 0.0

    @property
    def fall(self) -> float | None:
        """Relative fall, negative: it rose; None where there was nothing to fall from."""
        return 1.0 - self.after / self.before if self.before > 0.0 else None

    @property
    def fall_interval(self) -> Interval | None:
        """95 % of the relative fall, by the delta method; None where `fall` is."""
        if self.fall is None:
            return None
        half = Z_95 * math.hypot(self.se_after, self.after / self.before * self.se_before) / self.before
        return Interval(self.fall - half, self.fall + half)


def like_for_like(parts: Iterable[Part]) -> Compared | None:
    """Compare the groups of one slice, in any order. None where none has traces in the hour and enough past."""
    kept = [part for part in parts if part.after.n > 0 and part.before.n >= PAST_N_MIN]
    n = sum(part.after.n for part in kept)
    if n == 0:
        return None
    weights = [part.after.n / n for part in kept]
    both = list(zip(weights, kept, strict=True))
    wander = math.fsum(w * math.sqrt(part.between) for w, part in both)
    error_after = math.fsum(w * w * max(part.before.variance, part.after.variance) / part.after.n for w, part in both)
    return Compared(
        before=math.fsum(w * part.before.mean for w, part in both),
        after=math.fsum(w * part.after.mean for w, part in both),
        se_before=math.sqrt(math.fsum(w * w * part.before.variance / part.before.n for w, part in both)),
        se_after=math.sqrt(error_after + wander**2),
        wander=wander,
        sd=math.sqrt(math.fsum(w * part.before.variance for w, part in both)),
        n_before=sum(part.before.n for part in kept),
        n_after=n,
    )
