"""What a verdict is, and what all verdicts share. The verdicts themselves stand in `recall` and `splits`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from citegauge.domain.policy import ScorePolicy
from citegauge.tools.doctor.causes import Cause
from citegauge.tools.doctor.counts import SourceCounts
from citegauge.tools.doctor.hints import Hints
from citegauge.tools.doctor.traces import Traces

Answer = Literal["can", "partly", "cannot"]
CAN_SHARE = 0.95
"""From this share on a metric can be measured; the rest is noise of real systems."""
CAUSES_SHOWN_MAX = 4
EXAMPLE_LENGTH_MAX = 40
ROUTES_SENSIBLE_MAX = 200


class Counted(NamedTuple):
    """A cause and how many traces share it."""

    traces: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the sample says of one metric."""

    metric: str
    """Stable name for `--json`."""
    title: str
    answer: Answer
    traces: int
    """Traces for which the question makes sense."""
    good: int
    """Of them: measured."""
    because: str
    change: str = ""
    """The one change that would help most; empty where nothing has to change."""
    causes: tuple[Counted, ...] = ()

    @property
    def share(self) -> float | None:
        """Measured / traces; None without traces."""
        return self.good / self.traces if self.traces else None


class Context(NamedTuple):
    """What every verdict may look at."""

    traces: Traces
    policy: ScorePolicy
    hints: Hints
    sources: list[SourceCounts]


def share_text(good: int, of: int) -> str:
    """`62%`, never rounded up to 100 or down to 0."""
    if not of:
        return "–"
    percent = 100 * good / of
    rounded = 100 if good == of else min(99, max(1, round(percent))) if good else 0
    return f"{rounded}%"


def decide(good: int, of: int) -> Answer:
    """The answer for a share of traces; cannot where there are none."""
    return "can" if of and good / of >= CAN_SHARE else "partly" if good else "cannot"


def counted(causes: Iterable[Cause]) -> tuple[Counted, ...]:
    """Equal causes with their number, the most frequent first."""
    found = Counter(causes)
    return tuple(Counted(n, cause) for cause, n in sorted(found.items(), key=lambda item: (-item[1], item[0].code)))


def shortened(text: str) -> str:
    """A name from the data, fit for a sentence on a terminal."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:EXAMPLE_LENGTH_MAX])
    return shown + ("…" if len(text) > EXAMPLE_LENGTH_MAX else "")


def plural(count: int, word: str) -> str:
    """`1 trace`, `1,200 traces`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
