"""MIX: why a mean changed between two windows, split into within-group, mix and interaction. Pure arithmetic.

The threefold decomposition of Kitagawa (1955) and Oaxaca and Blinder (1973), with w a group's share of its window's traces,
m its mean recall, 0 before and 1 after, over the groups that both windows have:

    within       Σ w0 (m1 - m0)            the same groups cite less (or more): retrieval, model or prompt
    mix          Σ (w1 - w0) (m0 - M0)     traffic moved to groups that always cited less (or more)
    interaction  Σ (w1 - w0) (m1 - m0)     traffic moved to (or from) just the groups that changed
    new, gone    Σ w1 (m1 - M0), -Σ w0 (m0 - M0)   groups that only one window has: a new model, version or scorer

The five add up to M1 - M0. Every mean is taken relative to M0, the whole before: where no group is new or gone this changes
no sum, because the shares of a window sum to 1; where some are, no term swallows the traffic that another one gained. For
a group of one window only there is no m0 or no m1, so nothing is attributed to a change within it.

A group is (route, top_k bucket, model, retriever version, scorer). Recall falls mechanically as k grows, so M0 and M1,
which run over several buckets, say nothing of quality: they exist only so that their difference can be taken apart, and are
never exported, alerted on or set against a threshold. `within` compares each group with itself and is safe to read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from citegauge.domain.intervals import MEAN_N_MIN, Z_95, Interval, Moments
from citegauge.domain.recall import Group

NOTHING = Moments(0, 0.0, 0.0)


class Part(NamedTuple):
    """What one group contributes. Sums of the five terms over all groups are those of the `Split`."""

    group: Group
    before: Moments
    after: Moments
    share_before: float
    share_after: float
    within: float
    mix: float
    interaction: float
    new: float
    gone: float

    @property
    def kind(self) -> Literal["both", "new", "gone"]:
        """Which windows have it."""
        if self.before.n == 0:
            return "new"
        return "both" if self.after.n else "gone"

    @property
    def change(self) -> float:
        """Its part of the change, of whatever sort."""
        return self.within + self.mix + self.interaction + self.new + self.gone


class Split(NamedTuple):
    """A change taken apart, in the unit of the mean."""

    n_before: int
    n_after: int
    mean_before: float
    """At the traffic of its own window; see the module for what it must not be used for."""
    mean_after: float
    within: float
    mix: float
    interaction: float
    new: float
    gone: float
    within_se: float | None
    """Standard error of `within`, at the shares of before; None where no group of both windows has two traces."""
    parts: tuple[Part, ...]
    """The largest contribution first."""

    @property
    def change(self) -> float:
        """What the terms add up to."""
        return self.mean_after - self.mean_before

    @property
    def within_interval(self) -> Interval | None:
        """95 % interval of `within`; None where nothing is known of its error."""
        if self.within_se is None:
            return None
        half = Z_95 * self.within_se
        return Interval(self.within - half, self.within + half)


def split(
    before: Mapping[Group, Moments], after: Mapping[Group, Moments], wander: Mapping[Group, float] | None = None
) -> Split | None:
    """The change from `before` to `after`; None unless both have values. Groups with n = 0 are as good as missing.

    `wander`: the standard deviation of a group's change that is there without any cause, beyond that of independent traces,
    because levels of hours differ (see `domain.baseline`). The groups are taken to wander together, the worst case.
    """
    n_before, n_after = (sum(one.n for one in side.values()) for side in (before, after))
    if not n_before or not n_after:
        return None
    mean_before = math.fsum(one.n * one.mean for one in before.values()) / n_before
    mean_after = math.fsum(one.n * one.mean for one in after.values()) / n_after
    parts = []
    for group in before.keys() | after.keys():
        old, new = before.get(group, NOTHING), after.get(group, NOTHING)
        if old.n or new.n:
            parts.append(_part(group, (old, old.n / n_before), (new, new.n / n_after), mean_before))
    parts.sort(key=lambda part: (-abs(part.change), part.group))
    return Split(
        n_before=n_before,
        n_after=n_after,
        mean_before=mean_before,
        mean_after=mean_after,
        within=math.fsum(part.within for part in parts),
        mix=math.fsum(part.mix for part in parts),
        interaction=math.fsum(part.interaction for part in parts),
        new=math.fsum(part.new for part in parts),
        gone=math.fsum(part.gone for part in parts),
        within_se=_within_se([part for part in parts if part.kind == "both"], wander or {}),
        parts=tuple(parts),
    )


def _part(group: Group, before: tuple[Moments, float], after: tuple[Moments, float], whole: float) -> Part:
    (old, share_old), (new, share_new) = before, after
    if old.n and new.n:
        change, moved = new.mean - old.mean, share_new - share_old
        return Part(
            group,
            old,
            new,
            share_old,
            share_new,
            share_old * change,
            moved * (old.mean - whole),
            moved * change,
            0.0,
            0.0,
        )
    only_new, only_old = (share_new * (new.mean - whole), 0.0) if new.n else (0.0, -share_old * (old.mean - whole))
    return Part(group, old, new, share_old, share_new, 0.0, 0.0, 0.0, only_new, only_old)


def _within_se(parts: list[Part], wander: Mapping[Group, float]) -> float | None:
    """A group of a few traces says little of its variance, so the pooled one stands in for it."""
    degrees = sum(side.n - 1 for part in parts for side in (part.before, part.after))
    if degrees < 1:
        return None
    pooled = math.fsum((side.n - 1) * side.variance for part in parts for side in (part.before, part.after)) / degrees
    chance = math.fsum(
        part.share_before**2 * (side.variance if side.n >= MEAN_N_MIN else pooled) / side.n
        for part in parts
        for side in (part.before, part.after)
    )
    together = math.fsum(part.share_before * wander.get(part.group, 0.0) for part in parts)
    return math.sqrt(chance + together**2)
