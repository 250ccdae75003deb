"""What dropped: the newest hour against the day before it, per roll-up. Pure; a first, plain rule.

An hour is reported when its mean fell by more than chance and by enough to matter:

* z = (before - after) / sqrt(var_before / n_before + var_after / n_after) > `Z_MIN` (Welch), and
* (before - after) / |before| > `EFFECT_MIN`, with at least `N_MIN` values on both sides.

The day is the 24 h window without the 1 h window (counts subtract exactly), so a fall is not compared with itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from citegauge.domain.distribution import fraction_value, histogram_value
from citegauge.domain.intervals import moments
from citegauge.domain.recall import Group
from citegauge.domain.window import MERGED, RollUp

Z_MIN = 5.0
EFFECT_MIN = 0.10
N_MIN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """One fall."""

    route: str
    top_k_bucket: str
    scorer: str
    """`*` for recall."""
    what: Literal["recall", "score"]
    before: float
    """Mean of the day before the hour."""
    after: float
    """Mean of the newest hour."""
    n: int
    """Values in the hour."""
    z: float

    @property
    def sentence(self) -> str:
        """In words."""
        name = "cited-chunk recall" if self.what == "recall" else f"top-1 score ({self.scorer})"
        fall = (self.before - self.after) / abs(self.before)
        return (
            f"{self.route} (top_k {self.top_k_bucket}): mean {name} fell by {fall:.0%} in the last hour, from "
            f"{self.before:.3f} to {self.after:.3f} (n = {self.n})"
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "sentence": self.sentence}


def drops(roll_ups: Iterable[RollUp]) -> list[Drop]:
    """Every fall among the roll-ups, steepest evidence first."""
    hours: dict[Group, RollUp] = {}
    days: dict[Group, RollUp] = {}
    for item in roll_ups:
        if item.window.name == "1h":
            hours[item.group] = item
        elif item.window.name == "24h":
            days[item.group] = item
    found = []
    for group, hour in hours.items():
        day = days.get(group)
        if day is None:
            continue
        before = day.tally.copy()
        before.merge(hour.tally, sign=-1)
        if group.scorer == MERGED:
            drop = _compare(group, "recall", before.recall_counts, hour.tally.recall_counts, fraction_value)
        else:
            drop = _compare(group, "score", before.score_counts, hour.tally.score_counts, histogram_value)
        if drop is not None:
            found.append(drop)
    return sorted(found, key=lambda drop: -drop.z)


def _compare(
    group: Group,
    what: Literal["recall", "score"],
    before: Mapping[int, int],
    after: Mapping[int, int],
    value: Callable[[int], float],
) -> Drop | None:
    n_before, mean_before, variance_before = moments(before, value)
    n_after, mean_after, variance_after = moments(after, value)
    if min(n_before, n_after) < N_MIN or mean_before == 0.0:
        return None
    fall = mean_before - mean_after
    error = math.sqrt(variance_before / n_before + variance_after / n_after)
    z = fall / error if error > 0.0 else math.copysign(math.inf, fall)
    if fall <= EFFECT_MIN * abs(mean_before) or z <= Z_MIN:
        return None
    return Drop(
        route=group.route,
        top_k_bucket=group.top_k_bucket,
        scorer=group.scorer,
        what=what,
        before=mean_before,
        after=mean_after,
        n=n_after,
        z=z,
    )
