"""DROP: what fell, in words, from what the detectors say of each roll-up. Pure.

A fall is named under the conditions under which a ticket is raised (`Limits`), so that page, demo and alerts tell the same:

* the mean of the hour lies below that of the day before it (of declared distances: above), like for like, by enough to
  matter and beyond chance, or
* recall has been low for hours (`domain.cusum` alarms), and the hour is still below the day.

A new model, retriever version or scorer has no past and is no drop, and neither is a shift of the mix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from citegauge.domain.compare import Compared
from citegauge.domain.intervals import Interval
from citegauge.domain.signals import Signal
from citegauge.domain.window import MERGED
from citegauge.domain.words import between, clock, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a fall must exceed to be named."""

    traces_min: int = 50
    """Values of the hour."""
    baseline_traces_min: int = 200
    """Values of the day."""
    fall_min: float = 0.10
    """Of recall, relative to the day."""
    score_fall_sd_min: float = 0.5
    """Of scores, in standard deviations of the day."""
    z_min: float = 4.25
    """Standard errors."""


LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """One fall."""

    route: str
    top_k_bucket: str
    scorer: str
    """`*` for recall."""
    what: Literal["recall", "score"]
    before: float
    """Mean of the day before the hour, at the hour's mix of groups."""
    after: float
    """Mean of the newest hour, of the same groups."""
    n: int
    """Values in the hour."""
    z: float
    """Standard errors by which it got worse."""
    since_s: int | None
    """Estimated start in unix seconds; None where none can be told, such as one that lies further back than is looked."""
    fall_lower: float | None
    fall_upper: float | None
    """95 % of the relative fall (of declared distances: rise); None where `before` is not above 0."""
    lower_is_better: bool = False
    """A declared distance, which is worse where it rose."""
    lasting: float | None
    """Of recall: what it fell short of its baseline in the last 6 hours, over the decision limit; an alarm from 1 on."""

    @property
    def moved(self) -> float:
        """By how much it got worse, relative to what it was."""
        return abs(self.before - self.after) / abs(self.before)

    @property
    def by(self) -> str:
        """That, in words: `fell by 27 % (95 %: 20 to 34 %)`."""
        verb, at_most = ("rose", math.inf) if self.lower_is_better else ("fell", 1.0)
        sure = ""
        if self.fall_lower is not None and self.fall_upper is not None:
            sure = f" {between(max(0.0, self.fall_lower), min(at_most, self.fall_upper))}"
        return f"{verb} by {percent(self.moved)}{sure}"

    @property
    def name(self) -> str:
        """What it is of."""
        name = "cited-chunk recall" if self.what == "recall" else f"top-1 score ({self.scorer})"
        return f"{self.route} (top_k {self.top_k_bucket}): mean {name}"

    @property
    def sentence(self) -> str:
        """What fell, by how much, since when, how sure."""
        since = "" if self.since_s is None else f" since about {clock(self.since_s)} UTC"
        return (
            f"{self.name} {self.by}{since}, from {self.before:.3f} in the day before to {self.after:.3f} in the last hour "
            f"(n = {self.n}, {self.z:.1f} standard errors)"
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "sentence": self.sentence}


def drops(signals: Iterable[Signal], limits: Limits = LIMITS) -> list[Drop]:
    """Every fall, steepest evidence first."""
    found = [drop for signal in signals if (drop := _drop(signal, limits)) is not None]
    return sorted(found, key=lambda drop: -drop.z)


def _drop(signal: Signal, limits: Limits) -> Drop | None:
    compared, cusum = signal.compared, signal.cusum
    if compared is None or compared.before == 0.0:
        return None
    sign = -1.0 if signal.lower_is_better else 1.0
    worse, z = sign * (compared.before - compared.after), sign * compared.z
    if worse <= 0.0:
        return None
    if compared.n_after < limits.traces_min or compared.n_before < limits.baseline_traces_min:
        return None
    lasting = cusum is not None and cusum.ratio >= 1.0
    if not lasting and (z < limits.z_min or not _matters(signal, compared, worse, limits)):
        return None
    interval = compared.fall_interval
    if interval is not None and signal.lower_is_better:
        interval = Interval(-interval.upper, -interval.lower)
    return Drop(
        route=signal.route,
        top_k_bucket=signal.top_k_bucket,
        scorer=signal.scorer,
        what="recall" if signal.scorer == MERGED else "score",
        before=compared.before,
        after=compared.after,
        n=compared.n_after,
        z=z,
        since_s=None if cusum is None or cusum.began_before else cusum.since_s,
        fall_lower=None if interval is None else interval.lower,
        fall_upper=None if interval is None else interval.upper,
        lower_is_better=signal.lower_is_better,
        lasting=None if cusum is None else cusum.ratio,
    )


def _matters(signal: Signal, compared: Compared, worse: float, limits: Limits) -> bool:
    if signal.scorer == MERGED:
        return worse >= limits.fall_min * compared.before
    return compared.sd > 0.0 and worse >= limits.score_fall_sd_min * compared.sd
