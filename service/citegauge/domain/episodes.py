"""EPISODES: when a slice had dropped, judged again over its past. Pure; the same comparison as live, step by step.

At each step the hour before it is set against the day before that hour, each full group against its own past
(`compare.like_for_like`). How much a level wanders is estimated from that day alone, without what is tested (`baseline`).
Steps in a row at which it had fallen are one episode. That recall has been low for hours (`cusum`) is not judged again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from citegauge.domain.baseline import DRIFT_MIN_SD, TESTED_S, Cell, baseline_of, pooled
from citegauge.domain.compare import Compared, Part, like_for_like
from citegauge.domain.drop import LIMITS, Limits, drops
from citegauge.domain.intervals import Moments
from citegauge.domain.signals import Signal
from citegauge.domain.window import MERGED

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
STEP_S = 900
"""Time between two judgements, and length of the cells."""

Cells = Mapping[int, Moments]
"""Of one full group: start of a cell of `STEP_S` (unix s) to what it measured there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One drop."""

    from_s: int
    """End of the first hour that was judged to have fallen, unix s."""
    to_s: int
    """End of the last one."""
    ongoing: bool
    """The newest hour is one of them."""
    worst: Compared
    """The deepest of them."""


def has_fallen(
    compared: Compared, scorer: str = MERGED, limits: Limits = LIMITS, *, lower_is_better: bool = False
) -> bool:
    """Whether the rule for drops names it: by more than chance, by enough to matter, on enough values."""
    signal = Signal(route="", top_k_bucket="", scorer=scorer, compared=compared, lower_is_better=lower_is_better)
    return bool(drops([signal], limits))


def episodes(
    groups: Sequence[Cells],
    ends_s: Sequence[int],
    scorer: str = MERGED,
    limits: Limits = LIMITS,
    *,
    lower_is_better: bool = False,
) -> list[Episode]:
    """Over the full groups of one slice, judged at `ends_s` (ascending multiples of `STEP_S`); oldest first.

    `scorer`: whose scores the cells are of; `*` for recall. `lower_is_better`: they are distances.
    """
    found: list[Episode] = []
    run: list[tuple[int, Compared]] = []
    for end_s in ends_s:
        compared = compare_at(groups, end_s)
        if compared is not None and has_fallen(compared, scorer, limits, lower_is_better=lower_is_better):
            run.append((end_s, compared))
        elif run:
            found.append(_episode(run, ongoing=False, lower_is_better=lower_is_better))
            run = []
    return [*found, _episode(run, ongoing=True, lower_is_better=lower_is_better)] if run else found


def compare_at(groups: Iterable[Cells], end_s: int) -> Compared | None:
    """The hour before `end_s` against the day before it; None where nothing can be compared."""
    return like_for_like(_part(cells, end_s) for cells in groups)


def _part(cells: Cells, end_s: int) -> Part:
    day = {start_s: cell for start_s, cell in cells.items() if end_s - DAY_S <= start_s < end_s}
    before = pooled(cell for start_s, cell in day.items() if start_s < end_s - HOUR_S)
    after = pooled(cell for start_s, cell in day.items() if start_s >= end_s - HOUR_S)
    usual = baseline_of((Cell(start_s, cell) for start_s, cell in day.items()), until_s=end_s - TESTED_S)
    return Part(before, after, usual.between if usual is not None else DRIFT_MIN_SD**2 * before.variance)


def _episode(run: Sequence[tuple[int, Compared]], *, ongoing: bool, lower_is_better: bool) -> Episode:
    sign = -1.0 if lower_is_better else 1.0
    worst = min((compared for _, compared in run), key=lambda compared: sign * (compared.after - compared.before))
    return Episode(from_s=run[0][0], to_s=run[-1][0], ongoing=ongoing, worst=worst)
