"""A past for ClickHouse: a pane a minute for some groups, in which a stretch of time may go wrong. Same seed, same past."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from citegauge.domain.distribution import fraction_key, histogram_key
from support.clickhouse_rows import pane_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from citegauge.ports import PaneRow


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Minutes in which a group's recall differs, or in which it has no traffic (`recall=None`); unix seconds."""

    from_s: int
    to_s: int
    recall: float | None


@dataclass(frozen=True, kw_only=True)
class Habit:
    """What one group does every minute."""

    route: str
    top_k_bucket: str = "1-5"
    model: str = "m1"
    per_minute: int = 4
    retrieved: int = 5
    recall: float = 0.6
    score: float = 0.8
    wrong: Sequence[Stretch] = ()


def past(habits: Sequence[Habit], first_s: int, to_s: int, seed: int = 1) -> Iterator[PaneRow]:
    """Closed panes of [first, to), minute by minute."""
    rng = random.Random(seed)
    for pane_s in range(first_s, to_s, 60):
        for habit in habits:
            recall: float | None = habit.recall
            for stretch in habit.wrong:
                if stretch.from_s <= pane_s < stretch.to_s:
                    recall = stretch.recall
            if recall is not None:
                yield _pane(rng, pane_s, habit, recall)


def _pane(rng: random.Random, pane_s: int, habit: Habit, recall: float) -> PaneRow:
    n, k = habit.per_minute, habit.retrieved
    cited = [sum(rng.random() < recall for _ in range(k)) for _ in range(n)]
    scores = [min(1.0, max(0.01, rng.gauss(habit.score, 0.08))) for _ in range(n)]
    changes: dict[str, Any] = {
        "route": habit.route,
        "top_k_bucket": habit.top_k_bucket,
        "model": habit.model,
        "final": True,
        "states": {"measured": n},
        "citations": sum(cited),
        "recall_counts": dict(Counter(fraction_key(one, k) for one in cited)),
        "rank_weighted_counts": dict(Counter(histogram_key(one / k) for one in cited)),
        "score_counts": dict(Counter(histogram_key(score) for score in scores)),
    }
    return pane_row(pane_s, **changes)
