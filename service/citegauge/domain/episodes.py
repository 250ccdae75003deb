"""EPISODES: one drop from its start to its end, whoever tells of it. Pure.

A slice (route, top_k bucket, recall or one scorer) is judged again and again by the rule for drops (`domain.drop`).
Judgements in a row at which it had fallen are one episode: when it started (estimated), when it was detected, how bad it
was at worst, and when it had ended. `follow` makes episodes of judgements, wherever these come from: the worker's windows
as they stand, a backtest's windows, or the past, which `judge` judges again from cells like this:

At each step the hour before it is set against the day before that hour, each full group against its own past
(`compare.like_for_like`), and recall is summed over hours (`cusum`). How much a level wanders is estimated from that day
alone, without what is tested (`baseline`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from citegauge.domain.baseline import DRIFT_MIN_SD, TESTED_S, Baseline, Cell, baseline_of, pooled
from citegauge.domain.compare import Compared, Part, like_for_like
from citegauge.domain.cusum import POLICY, Cusum, cusum
from citegauge.domain.drop import LIMITS, Drop, Limits, drops
from citegauge.domain.intervals import Moments
from citegauge.domain.signals import Signal
from citegauge.domain.window import MERGED
from citegauge.domain.words import day_clock

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
STEP_S = 900
"""Time between two judgements of the past, and length of its cells."""
QUARTERS = replace(POLICY, cell_s=STEP_S)
"""What is summed over hours, of those cells."""

Cells = Mapping[int, Moments]
"""Of one full group: start of a cell of `STEP_S` (unix s) to what it measured there."""


class Slice(NamedTuple):
    """What is judged."""

    route: str = ""
    top_k_bucket: str = ""
    scorer: str = MERGED
    """`*` for recall."""
    lower_is_better: bool = False
    """These scores are declared distances."""


RECALL = Slice()
"""Of no named group."""


class Judgement(NamedTuple):
    """What the rule for drops said at one time."""

    at_s: int
    """End of the hour that is judged, unix s."""
    drop: Drop | None
    """None: it had not fallen, or nothing could be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One drop."""

    started_s: int
    """Estimated start of the fall, unix s; never after `detected_s`."""
    detected_s: int
    """End of the first hour that was judged to have fallen."""
    worst: Drop
    """The deepest judgement so far, relative to what it was."""
    worst_s: int
    """End of the hour of that one."""
    newest: Drop
    """The last judgement at which it had fallen."""
    ended_s: int | None
    """End of the first hour that had not fallen any more; None: it goes on."""

    @property
    def ongoing(self) -> bool:
        """It has not ended."""
        return self.ended_s is None

    @property
    def sentence(self) -> str:
        """When it started, was detected and ended, and how bad it was."""
        worst = self.worst
        ends = "goes on" if self.ended_s is None else f"ended {day_clock(self.ended_s)}"
        return (
            f"{worst.name} {worst.by} at worst, at {day_clock(self.worst_s)} UTC, "
            f"from {worst.before:.3f} to {worst.after:.3f} (n = {worst.n}): "
            f"started about {day_clock(self.started_s)}, detected {day_clock(self.detected_s)}, {ends}"
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON; times are unix seconds."""
        return {
            "started_s": self.started_s,
            "detected_s": self.detected_s,
            "ended_s": self.ended_s,
            "worst_s": self.worst_s,
            "worst": self.worst.as_dict(),
            "sentence": self.sentence,
        }


class Followed:
    """One slice as it is judged again and again: its episodes so far."""

    def __init__(self, start_of: Callable[[int], int] = lambda at_s: at_s - HOUR_S) -> None:
        """`start_of`: where one began that was detected at that time, if no judgement tells; else its hour's beginning."""
        self._start_of = start_of
        self.ended: list[Episode] = []
        self.current: Episode | None = None

    @property
    def episodes(self) -> list[Episode]:
        """Oldest first."""
        return self.ended if self.current is None else [*self.ended, self.current]

    def add(self, judgement: Judgement) -> None:
        """One more, later than all before it."""
        at_s, drop = judgement
        known = self.current
        if drop is None:
            if known is not None:
                self.ended.append(replace(known, ended_s=at_s))
                self.current = None
            return
        if known is None:
            started_s = self._start_of(at_s) if drop.since_s is None else drop.since_s
            self.current = Episode(
                started_s=min(at_s, started_s), detected_s=at_s, worst=drop, worst_s=at_s, newest=drop, ended_s=None
            )
            return
        # The newest word on its start counts: it rests on most traces. What cannot tell takes nothing back.
        started_s = known.started_s if drop.since_s is None else min(known.detected_s, drop.since_s)
        worst, worst_s = (drop, at_s) if drop.moved > known.worst.moved else (known.worst, known.worst_s)
        self.current = replace(known, started_s=started_s, worst=worst, worst_s=worst_s, newest=drop)


def follow(
    judgements: Iterable[Judgement], start_of: Callable[[int], int] = lambda at_s: at_s - HOUR_S
) -> list[Episode]:
    """The episodes of one slice's judgements (by time), oldest first; `start_of` as in `Followed`."""
    followed = Followed(start_of)
    for judgement in judgements:
        followed.add(judgement)
    return followed.episodes


def judge(
    groups: Sequence[Cells], ends_s: Iterable[int], of: Slice = RECALL, limits: Limits = LIMITS
) -> list[Judgement]:
    """The past of one slice, from the cells of its full groups, at `ends_s` (ascending multiples of `STEP_S`)."""
    return [judged_at(groups, end_s, of, limits) for end_s in ends_s]


def judged_at(groups: Sequence[Cells], end_s: int, of: Slice = RECALL, limits: Limits = LIMITS) -> Judgement:
    """The hour before `end_s` against the day before it, and what has been low for hours."""
    days = [{at_s: cell for at_s, cell in cells.items() if end_s - DAY_S <= at_s < end_s} for cells in groups]
    usual = [baseline_of((Cell(*item) for item in day.items()), until_s=end_s - TESTED_S) for day in days]
    known = list(zip(days, usual, strict=True))
    signal = Signal(
        route=of.route,
        top_k_bucket=of.top_k_bucket,
        scorer=of.scorer,
        compared=like_for_like(_part(day, base, end_s) for day, base in known),
        cusum=_low_for_hours(known, end_s) if of.scorer == MERGED else None,
        lower_is_better=of.lower_is_better,
    )
    return Judgement(end_s, next(iter(drops([signal], limits)), None))


def compare_at(groups: Iterable[Cells], end_s: int) -> Compared | None:
    """The hour before `end_s` against the day before it; None where nothing can be compared."""
    days = [{at_s: cell for at_s, cell in cells.items() if end_s - DAY_S <= at_s < end_s} for cells in groups]
    until_s = end_s - TESTED_S
    return like_for_like(
        _part(day, baseline_of((Cell(*i) for i in day.items()), until_s=until_s), end_s) for day in days
    )


def change_point(groups: Iterable[Cells], end_s: int, *, lower_is_better: bool = False) -> int:
    """Where the fall most likely began that was detected at `end_s`: at the start of which of the cells tested then.

    The most likely change of a normal mean to an unknown one (Hinkley 1970): of all starts the one with the largest
    D² / N, D: what the cells since then fell short of each group's own past, N: their values.
    """
    sign, first_s = (-1.0 if lower_is_better else 1.0), end_s - TESTED_S
    missing: dict[int, float] = {}
    n: dict[int, int] = {}
    for cells in groups:
        past = pooled(cell for at_s, cell in cells.items() if end_s - DAY_S <= at_s < first_s)
        if not past.n:
            continue
        for at_s, cell in cells.items():
            if first_s <= at_s < end_s:
                missing[at_s] = missing.get(at_s, 0.0) + sign * cell.n * (past.mean - cell.mean)
                n[at_s] = n.get(at_s, 0) + cell.n
    best, best_s, short, values = 0.0, end_s - HOUR_S, 0.0, 0
    for at_s in sorted(missing, reverse=True):
        short, values = short + missing[at_s], values + n[at_s]
        if short > 0.0 and short**2 / values > best:
            best, best_s = short**2 / values, at_s
    return best_s


def _part(day: Cells, usual: Baseline | None, end_s: int) -> Part:
    before = pooled(cell for at_s, cell in day.items() if at_s < end_s - HOUR_S)
    after = pooled(cell for at_s, cell in day.items() if at_s >= end_s - HOUR_S)
    return Part(before, after, usual.between if usual is not None else DRIFT_MIN_SD**2 * before.variance)


def _low_for_hours(known: Iterable[tuple[Cells, Baseline | None]], end_s: int) -> Cusum | None:
    parts = [(base, [Cell(*item) for item in day.items()]) for day, base in known if base is not None]
    return cusum(parts, end_s, QUARTERS)
