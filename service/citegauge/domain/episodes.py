"""EPISODES: when a slice had dropped, judged again over its past. Pure; the same comparison as live, step by step.

At each step the hour before it is set against the day before that hour, each full group against its own past
(`compare.like_for_like`). How much a level wanders is estimated from that day alone, without what is tested (`baseline`).
Steps in a row at which it had fallen are one episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from citegauge.domain.baseline import DRIFT_MIN_SD, TESTED_S, Cell, baseline_of, pooled
from citegauge.domain.compare import Compared, Part, like_for_like
from citegauge.domain.drop import LIMITS
from citegauge.domain.intervals import Moments

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


def has_fallen(compared: Compared) -> bool:
    """By more than chance, by enough to matter, and on enough traces."""
    fall = compared.fall
    enough = compared.n_after >= LIMITS.traces_min and compared.n_before >= LIMITS.baseline_traces_min
    return fall is not None and enough and fall >= LIMITS.fall_min and compared.z >= LIMITS.z_min


def episodes(groups: Sequence[Cells], ends_s: Sequence[int]) -> list[Episode]:
    """Over the full groups of one slice, judged at `ends_s` (ascending multiples of `STEP_S`); oldest first."""
    found: list[Episode] = []
    run: list[tuple[int, Compared]] = []
    for end_s in ends_s:
        compared = compare_at(groups, end_s)
        if compared is not None and has_fallen(compared):
            run.append((end_s, compared))
        elif run:
            found.append(_episode(run, ongoing=False))
            run = []
    return [*found, _episode(run, ongoing=True)] if run else found


def compare_at(groups: Iterable[Cells], end_s: int) -> Compared | None:
    """The hour before `end_s` against the day before it; None where nothing can be compared."""
    return like_for_like(_part(cells, end_s) for cells in groups)


def _part(cells: Cells, end_s: int) -> Part:
    day = {start_s: cell for start_s, cell in cells.items() if end_s - DAY_S <= start_s < end_s}
    before = pooled(cell for start_s, cell in day.items() if start_s < end_s - HOUR_S)
    after = pooled(cell for start_s, cell in day.items() if start_s >= end_s - HOUR_S)
    usual = baseline_of((Cell(start_s, cell) for start_s, cell in day.items()), until_s=end_s - TESTED_S)
    return Part(before, after, usual.between if usual is not None else DRIFT_MIN_SD**2 * before.variance)


def _episode(run: Sequence[tuple[int, Compared]], *, ongoing: bool) -> Episode:
    worst = min((compared for _, compared in run), key=lambda compared: compared.after / compared.before)
    return Episode(from_s=run[0][0], to_s=run[-1][0], ongoing=ongoing, worst=worst)
