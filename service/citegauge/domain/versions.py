"""VERSIONS: before and after a new model, retriever version or scorer, within one route and top_k bucket. Pure.

A new version starts a new series: it raises no alert, because there is nothing that it fell from. What it did is a question
for a report, with an honest `undecided`.

* *New* is a group that came up in the period: had it had its present share of the (route, bucket) all along, at least
  `EXPECTED_MIN` traces of it would have come before its first one. (Under Poisson traffic 0 of 5 has e^-5 = 0.7 %.)
* It is compared with the group of the same route and bucket that was there before and differs from it in the fewest of
  model, retriever version and scorer; among equals with the one that lost the largest share of the traffic when it came. If
  several of the three differ, they are judged together.
* A canary that runs beside the old version is compared *in the same cells* of time (hours, as a rule), each cell's
  difference weighted by n0 n1 / (n0 + n1) (Cochran 1954), so that a ramp over a day is not taken for a difference.
  Otherwise it is *before and after*: the old version up to the first trace of the new one, and the new one since.
* The interval is difference ± 1.96 SE (Welch), where SE² grows by the cells' chi-square over its degrees of freedom where
  that exceeds 1: hours differ by more than chance, and so would two versions of different hours that are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from citegauge.domain.distribution import fraction_value, histogram_value, mean, total
from citegauge.domain.intervals import Z_95, Interval, Moments, moments
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group

EFFECT_MIN = 0.02
"""Difference of mean recall below which it is nobody's business."""
N_MIN = 50
"""Measured traces of each side below which there is no verdict."""
EXPECTED_MIN = 5.0
CELLS_MIN = 5
"""Cells from which on they say how much cells differ beyond chance."""
VERSION_FIELDS = ("model", "retriever_version", "scorer")

Verdict = Literal["better", "worse", "undecided"]


class Cell(NamedTuple):
    """A group's traces in one stretch of time; all cells have the same length."""

    group: Group
    at_s: int
    """Start of the stretch, unix seconds."""
    first_s: int
    """Start of its oldest and of its newest minute with traces."""
    last_s: int
    tally: Tally


class Side(NamedTuple):
    """One version. None where it cannot be measured."""

    group: Group
    first_s: int
    """Start of its first and of its last minute in the whole period, unix seconds."""
    last_s: int
    n: int
    """Measured traces that are compared; so are the numbers below."""
    recall_mean: float | None
    """Over the same cells: at the cells' common weights."""
    cited_any_ratio: float | None
    citations: int
    hallucinated: int
    score_n: int
    score_mean: float | None
    """Of the scorer of its group."""

    @property
    def hallucinated_ratio(self) -> float | None:
        """Of its citations."""
        return self.hallucinated / self.citations if self.citations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A new version and the one before it."""

    old: Side
    new: Side
    over: Literal["the same time", "before and after"]
    difference: float | None
    """New minus old mean recall."""
    interval: Interval | None
    """95 % of the difference; None where a side has fewer than two traces."""
    inflation: float
    """By how much cells vary beyond chance (variance ratio, at least 1); it is in the interval."""

    @property
    def changed(self) -> tuple[str, ...]:
        """In which of model, retriever version and scorer they differ."""
        return _differing(self.old.group, self.new.group)

    @property
    def scores_comparable(self) -> bool:
        """Scores of different scorers are not."""
        return self.old.group.scorer == self.new.group.scorer and bool(self.old.score_n and self.new.score_n)

    @property
    def undecided_because(self) -> str | None:
        """None: there is a verdict."""
        if min(self.old.n, self.new.n) < N_MIN:
            return f"fewer than {N_MIN} traces"
        if self.interval is None or self.difference is None or self.interval.lower <= 0.0 <= self.interval.upper:
            return "the interval contains 0"
        if abs(self.difference) < EFFECT_MIN:
            return f"less than {EFFECT_MIN:g}"
        return None

    @property
    def verdict(self) -> Verdict:
        """On mean recall."""
        if self.undecided_because is not None or self.difference is None:
            return "undecided"
        return "better" if self.difference > 0.0 else "worse"


def comparisons(cells: Iterable[Cell]) -> list[Comparison]:
    """Every new version among the cells, each with what was there before it; in order of their groups."""
    found = []
    ordered = sorted(cells, key=lambda cell: (cell.group, cell.at_s))
    for _, of_bucket in groupby(ordered, key=lambda cell: cell.group[:2]):
        series = [list(of_group) for _, of_group in groupby(of_bucket, key=lambda cell: cell.group)]
        for own in series:
            old = _predecessor(own, series) if _is_new(own, series) else None
            if old is not None:
                found.append(compare(old, own))
    return found


def compare(old: Sequence[Cell], new: Sequence[Cell]) -> Comparison:
    """Two groups, each as its cells in order of time, at least one."""
    shared = [(one, other) for one, other in _same_time(old, new) if one.tally.measured and other.tally.measured]
    sides = [[pair[i] for pair in shared] for i in (0, 1)]
    if min(_measured(side) for side in sides) >= N_MIN:
        difference, error, inflation, means = _paired(*sides)
        over: Literal["the same time", "before and after"] = "the same time"
    else:
        sides = [[cell for cell in old if cell.at_s <= new[0].at_s], list(new)]
        difference, error, inflation, means = _unpaired(*sides)
        over = "before and after"
    return Comparison(
        old=_side(old, sides[0], means[0]),
        new=_side(new, sides[1], means[1]),
        over=over,
        difference=difference,
        interval=None
        if difference is None or error is None
        else Interval(difference - Z_95 * error, difference + Z_95 * error),
        inflation=inflation,
    )


def _differing(one: Group, other: Group) -> tuple[str, ...]:
    return tuple(name for name in VERSION_FIELDS if getattr(one, name) != getattr(other, name))


def _measured(cells: Iterable[Cell]) -> int:
    return sum(cell.tally.measured for cell in cells)


def _is_new(own: Sequence[Cell], series: Sequence[Sequence[Cell]]) -> bool:
    since = own[0].at_s
    earlier = sum(_measured(cell for cell in cells if cell.at_s < since) for cells in series)
    later = sum(_measured(cell for cell in cells if cell.at_s >= since) for cells in series)
    return later > 0 and earlier * _measured(own) / later >= EXPECTED_MIN


def _predecessor(own: Sequence[Cell], series: Sequence[Sequence[Cell]]) -> Sequence[Cell] | None:
    group, since = own[0].group, own[0].at_s

    def parts(cells: Sequence[Cell]) -> tuple[int, int]:
        earlier = _measured(cell for cell in cells if cell.at_s < since)
        return earlier, _measured(cells) - earlier

    every = [parts(cells) for cells in series]
    earlier, later = (max(1, sum(side)) for side in zip(*every, strict=True))
    older = [(cells, part) for cells, part in zip(series, every, strict=True) if part[0]]

    def order(known: tuple[Sequence[Cell], tuple[int, int]]) -> tuple[int, float, Group]:
        cells, (before, after) = known
        return len(_differing(cells[0].group, group)), after / later - before / earlier, cells[0].group

    return min(older, key=order)[0] if older else None


def _same_time(old: Sequence[Cell], new: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Cells in which both ran at once: one that a switch of versions falls into is none of them."""
    at = {cell.at_s: cell for cell in old}
    pairs = [(at[cell.at_s], cell) for cell in new if cell.at_s in at]
    return [(a, b) for a, b in pairs if a.last_s >= b.first_s and b.last_s >= a.first_s]


def _recall(cells: Iterable[Cell]) -> tuple[list[Moments], Moments]:
    """Of each cell, and of all together."""
    whole = Tally()
    each = []
    for cell in cells:
        each.append(moments(cell.tally.recall_counts, fraction_value))
        whole.merge(cell.tally)
    return each, moments(whole.recall_counts, fraction_value)


Numbers = tuple[float | None, float | None, float, tuple[float | None, float | None]]
"""Difference, its standard error, inflation, and the two means that the difference is of."""


def _paired(old: Sequence[Cell], new: Sequence[Cell]) -> Numbers:
    (olds, whole_old), (news, whole_new) = _recall(old), _recall(new)
    weights = [a.n * b.n / (a.n + b.n) for a, b in zip(olds, news, strict=True)]
    weight = math.fsum(weights)
    mean_old, mean_new = (
        math.fsum(w * one.mean for w, one in zip(weights, side, strict=True)) / weight for side in (olds, news)
    )
    difference = mean_new - mean_old
    variances = [whole_old.variance / a.n + whole_new.variance / b.n for a, b in zip(olds, news, strict=True)]
    error = math.sqrt(math.fsum(w * w * v for w, v in zip(weights, variances, strict=True))) / weight
    excess = [(b.mean - a.mean - difference) ** 2 / v for a, b, v in zip(olds, news, variances, strict=True) if v > 0.0]
    inflation = _inflation(excess, len(excess) - 1)
    return difference, error * math.sqrt(inflation), inflation, (mean_old, mean_new)


def _unpaired(old: Sequence[Cell], new: Sequence[Cell]) -> Numbers:
    error, excess, degrees, means = 0.0, [], 0, []
    known = True
    for side in (old, new):
        each, whole = _recall(side)
        means.append(whole.mean if whole.n else None)
        known = known and whole.n > 1
        if not whole.n:
            continue
        error += whole.variance / whole.n
        if whole.variance > 0.0:
            own = [one.n * (one.mean - whole.mean) ** 2 / whole.variance for one in each if one.n]
            excess += own
            degrees += len(own) - 1
    inflation = _inflation(excess, degrees)
    if means[0] is None or means[1] is None:
        return None, None, inflation, (means[0], means[1])
    return means[1] - means[0], math.sqrt(error * inflation) if known else None, inflation, (means[0], means[1])


def _inflation(excess: Sequence[float], degrees: int) -> float:
    """Pearson's chi-square over its degrees of freedom (McCullagh & Nelder 1989, 4.5), where there are enough of them."""
    return max(1.0, math.fsum(excess) / degrees) if degrees >= CELLS_MIN - 1 else 1.0


def _side(every: Sequence[Cell], compared: Sequence[Cell], recall_mean: float | None) -> Side:
    whole = Tally()
    for cell in compared:
        whole.merge(cell.tally)
    return Side(
        every[0].group,
        min(cell.first_s for cell in every),
        max(cell.last_s for cell in every),
        whole.measured,
        recall_mean,
        whole.cited_any / whole.measured if whole.measured else None,
        whole.citations,
        whole.hallucinated,
        total(whole.score_counts),
        mean(whole.score_counts, histogram_value),
    )
