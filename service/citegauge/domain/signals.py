"""SIGNALS: what the detectors say of each roll-up. Puts one slice's full groups through `compare`, `cusum` and `shift`.

Everything is a pure function of the panes of the last 24 h (and of the 7 days, where ClickHouse told them), so a restart
rebuilds it from the windows that it restores. Every full group is set against its own past; nothing here pools two models,
retriever versions or scorers before it has compared each with itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from citegauge.domain.baseline import BLOCK_S, DRIFT_MIN_SD, TESTED_S, Baseline, Cell, baseline_of, usual
from citegauge.domain.compare import PAST_N_MIN, Compared, Part, like_for_like
from citegauge.domain.cusum import Cusum, cusum
from citegauge.domain.distribution import Counts, add_counts, fraction_value, histogram_value
from citegauge.domain.intervals import Moments, moments
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group
from citegauge.domain.shift import Shift, shift
from citegauge.domain.window import MERGED, CellValues

BASELINES = ("24h", "7d")


class Usual(NamedTuple):
    """What is usual for one full group over some time; None where too little is known."""

    recall: Baseline | None = None
    score: Baseline | None = None


UNKNOWN = Usual()


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One full group, with all that is asked of it."""

    group: Group
    hour: Tally
    """The 1 h window."""
    day: Tally
    """The 24 h window, which holds that hour."""
    recent: Sequence[CellValues]
    """5-minute cells of the last 6 h."""
    usual_day: Usual
    """Of the 24 h window, without what is tested."""
    usual_week: Usual
    """Of the 7 days, without what is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What is said of one roll-up."""

    route: str
    top_k_bucket: str
    scorer: str
    """`*` for recall, else the scorer whose scores these are."""
    compared: Compared | None
    """The last hour against the day before it; None where nothing has a past."""
    cusum: Cusum | None = None
    """Of recall alone."""
    shift: Shift | None = None
    """Of scores alone."""
    baselines: Mapping[str, Moments] = field(default_factory=dict)
    """By `BASELINES`: what is usual at the hour's mix of groups; missing where too little is known. Of recall alone."""
    lower_is_better: bool = False
    """These scores are declared distances: what rose got worse. `compared` tells them as they are."""
    low_confidence: Compared | None = None
    """The share of traces whose top-1 score lies below its threshold, compared as recall is. Of all scorers together: a
    share of low scores is the same thing in each, and each is set against its own past."""


def usual_of(cells: Iterable[CellValues]) -> Usual:
    """What is usual, of these cells."""
    known = list(cells)
    return Usual(
        baseline_of(Cell(cell.start_s, cell.recall) for cell in known),
        baseline_of(Cell(cell.start_s, cell.score) for cell in known),
    )


def usual_bounds(length_s: int, end_s: int) -> tuple[int, int]:
    """[start, end) of what is usual when windows end at `end_s`: whole hours of the last `length_s`, less what is tested.

    It moves by hours, so that who was restarted finds the same as who ran on.
    """
    return ((end_s - length_s) // BLOCK_S + 1) * BLOCK_S, (end_s - TESTED_S) // BLOCK_S * BLOCK_S


def signals_of(slice_: Sequence[Past], end_s: int, *, lower_is_better: bool = False) -> list[Signal]:
    """Of the full groups of one (route, top_k bucket): recall, then each scorer that has scores in the hour.

    `lower_is_better`: the route's scores are distances.
    """
    if not slice_:
        return []
    assert len({(past.group.route, past.group.top_k_bucket) for past in slice_}) == 1
    found = [_recall(slice_, end_s)]
    by_scorer: dict[str, list[Past]] = {}
    for past in slice_:
        if past.hour.score_counts:
            by_scorer.setdefault(past.group.scorer, []).append(past)
    return found + [_score(scorer, by_scorer[scorer], lower_is_better) for scorer in sorted(by_scorer)]


def _recall(slice_: Sequence[Past], end_s: int) -> Signal:
    known = [(past, usual(past.usual_day.recall, past.usual_week.recall)) for past in slice_]
    tested = [
        (base, [Cell(cell.start_s, cell.recall) for cell in past.recent]) for past, base in known if base is not None
    ]
    sides = [_sides(past.day.recall_counts, past.hour.recall_counts, fraction_value) for past in slice_]
    weights = [(after.n, past) for (_, after), past in zip(sides, slice_, strict=True)]
    baselines = {
        "24h": _mixed((n, past.usual_day.recall) for n, past in weights),
        "7d": _mixed((n, past.usual_week.recall) for n, past in weights),
    }
    return Signal(
        route=slice_[0].group.route,
        top_k_bucket=slice_[0].group.top_k_bucket,
        scorer=MERGED,
        compared=like_for_like(
            Part(before, after, _between(base, before)) for (before, after), (_, base) in zip(sides, known, strict=True)
        ),
        cusum=cusum(tested, end_s),
        baselines={name: each for name, each in baselines.items() if each is not None},
        low_confidence=like_for_like(_confidence(past.day, past.hour) for past in slice_),
    )


def _confidence(day: Tally, hour: Tally) -> Part:
    """A share is the mean of zeros and ones."""
    known, low = day.confidence_known - hour.confidence_known, day.low_confidence - hour.low_confidence
    before, after = _share(low, known), _share(hour.low_confidence, hour.confidence_known)
    return Part(before, after, DRIFT_MIN_SD**2 * before.variance)


def _share(part: int, whole: int) -> Moments:
    share = part / whole if whole else 0.0
    return Moments(whole, share, share * (1.0 - share) * whole / (whole - 1) if whole > 1 else 0.0)


def _score(scorer: str, groups: Sequence[Past], lower_is_better: bool) -> Signal:
    parts = []
    for past in groups:
        before, after = _sides(past.day.score_counts, past.hour.score_counts, histogram_value)
        parts.append(Part(before, after, _between(usual(past.usual_day.score, past.usual_week.score), before)))
    return Signal(
        route=groups[0].group.route,
        top_k_bucket=groups[0].group.top_k_bucket,
        scorer=scorer,
        compared=like_for_like(parts),
        lower_is_better=lower_is_better,
        shift=_shift(groups, parts),
    )


def _sides(day: Counts, hour: Counts, value: Callable[[int], float]) -> tuple[Moments, Moments]:
    """The day without the hour, and the hour. Counts subtract exactly."""
    return moments(without(day, hour), value), moments(hour, value)


def without(day: Mapping[int, int], hour: Mapping[int, int]) -> Counts:
    """The day's counts without those of the hour that it holds."""
    return {key: left for key, n in day.items() if (left := n - hour.get(key, 0))}


def _between(base: Baseline | None, before: Moments) -> float:
    """How much an hour's level wanders; the least that is ever believed where nothing is known."""
    return base.between if base is not None else DRIFT_MIN_SD**2 * before.variance


def _mixed(parts: Iterable[tuple[int, Baseline | None]]) -> Moments | None:
    """Baselines at the hour's mix: mean and variance weighted by the hour's traces; n: all that they rest on."""
    kept = [(n, base) for n, base in parts if n > 0 and base is not None]
    total = sum(n for n, _ in kept)
    if total == 0:
        return None
    return Moments(
        sum(base.n for _, base in kept),
        math.fsum(n * base.mean for n, base in kept) / total,
        math.fsum(n * base.variance for n, base in kept) / total,
    )


def _shift(groups: Sequence[Past], parts: Sequence[Part]) -> Shift | None:
    """The past at the hour's mix of groups: of each as large a share of its values as the scarcest group allows."""
    both = [
        (past, part) for past, part in zip(groups, parts, strict=True) if part.after.n and part.before.n >= PAST_N_MIN
    ]
    if not both:
        return None
    n_after = sum(part.after.n for _, part in both)
    n_before = min(part.before.n * n_after / part.after.n for _, part in both)
    before: Counts = {}
    after: Counts = {}
    for past, part in both:
        counts = without(past.day.score_counts, past.hour.score_counts)
        add_counts(before, thinned(counts, int(n_before * part.after.n / n_after + 1e-9)))
        add_counts(after, past.hour.score_counts)
    wander = math.fsum(part.after.n / n_after * math.sqrt(part.between) for _, part in both)
    return shift(before, after, between=wander**2)


def thinned(counts: Mapping[int, int], n: int) -> Counts:
    """`n` of the values behind histogram counts, taken evenly along them: no share differs by more than 1 / n."""
    total = sum(counts.values())
    assert 0 <= n <= total
    if n == total:
        return dict(counts)
    found: Counts = {}
    seen = taken = 0
    for key in sorted(counts):  # the order of keys is that of their values
        seen += counts[key]
        upto = seen * n // total
        if upto > taken:
            found[key] = upto - taken
        taken = upto
    return found
