"""PANE: the counters and exact counts of one group in one minute of event time. Knows nothing of spans or offsets."""

from __future__ import annotations

from collections.abc import Mapping

from citegauge.domain.distribution import Counts, add_counts, fraction_key, histogram_key
from citegauge.domain.recall import CITATIONS_JUDGED, STATE_NAMES, State, TraceResult

COUNTERS = (
    "citations",
    "hallucinated",
    "dropped_citations",
    "unresolved",
    "ids_dropped",
    "nonconformant",
    "recounted",
    "cited_top1",
    "cited_top3",
    "low_confidence",
    "confidence_known",
)
"""The plain sums of a tally, under the names that rows and tables have for them."""
HISTOGRAMS = ("recall_counts", "rank_weighted_counts", "score_counts")
"""Its counts by key."""


class Tally:
    """Mutable sums over traces. Every field adds, subtracts and merges exactly, in any order."""

    __slots__ = (
        "citations",
        "cited_top1",
        "cited_top3",
        "confidence_known",
        "dropped_citations",
        "hallucinated",
        "ids_dropped",
        "low_confidence",
        "nonconformant",
        "rank_weighted_counts",
        "recall_counts",
        "recounted",
        "score_counts",
        "states",
        "unresolved",
    )

    def __init__(self) -> None:
        self.states: Counts = {}
        self.citations = 0
        self.hallucinated = 0
        self.dropped_citations = 0
        self.unresolved = 0
        self.ids_dropped = 0
        self.nonconformant = 0
        self.recounted = 0
        self.cited_top1 = 0
        """Measured traces that cite the chunk of rank 1."""
        self.cited_top3 = 0
        """Measured traces that cite a chunk of ranks 1 to 3."""
        self.low_confidence = 0
        self.confidence_known = 0
        """Traces of which `low_confidence` is known, either way."""
        self.recall_counts: Counts = {}
        self.rank_weighted_counts: Counts = {}
        self.score_counts: Counts = {}

    def add(self, result: TraceResult, *, recounted: bool = False, sign: int = 1) -> None:
        """Count one trace (sign 1), or take back what was counted for it (sign -1)."""
        _bump(self.states, result.state, sign)
        if result.state in CITATIONS_JUDGED:
            hallucinated = len(result.hallucinated)
            self.citations += sign * (len(result.cited_ranks) + hallucinated + result.unresolved)
            self.hallucinated += sign * hallucinated
            self.dropped_citations += sign * len(result.dropped_cited)
            self.unresolved += sign * result.unresolved
        self.ids_dropped += sign * result.ids_dropped
        self.nonconformant += sign * result.nonconformant
        self.recounted += sign * recounted
        if result.state == State.measured:
            ranks = result.cited_ranks
            _bump(self.recall_counts, fraction_key(len(ranks), len(result.retrieved)), sign)
            if ranks and ranks[0] <= 3:  # ascending
                self.cited_top3 += sign
                self.cited_top1 += sign * (ranks[0] == 1)
            if result.rank_weighted_recall is not None:
                _bump(self.rank_weighted_counts, histogram_key(result.rank_weighted_recall), sign)
        if result.top1_score is not None:
            _bump(self.score_counts, histogram_key(result.top1_score), sign)
            if result.low_confidence is not None:
                self.confidence_known += sign
                self.low_confidence += sign * result.low_confidence

    def merge(self, other: Tally, sign: int = 1) -> None:
        """Add (sign 1) or subtract (sign -1) another tally."""
        add_counts(self.states, other.states, sign)
        self.citations += sign * other.citations
        self.hallucinated += sign * other.hallucinated
        self.dropped_citations += sign * other.dropped_citations
        self.unresolved += sign * other.unresolved
        self.ids_dropped += sign * other.ids_dropped
        self.nonconformant += sign * other.nonconformant
        self.recounted += sign * other.recounted
        self.cited_top1 += sign * other.cited_top1
        self.cited_top3 += sign * other.cited_top3
        self.low_confidence += sign * other.low_confidence
        self.confidence_known += sign * other.confidence_known
        add_counts(self.recall_counts, other.recall_counts, sign)
        add_counts(self.rank_weighted_counts, other.rank_weighted_counts, sign)
        add_counts(self.score_counts, other.score_counts, sign)

    def copy(self) -> Tally:
        """An independent copy."""
        twin = Tally()
        for name in Tally.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, dict) else value)
        return twin

    @property
    def traces(self) -> int:
        """Traces in any state."""
        return sum(self.states.values())

    @property
    def measured(self) -> int:
        """Traces that enter the recall ratio."""
        return self.states.get(State.measured, 0)

    @property
    def cited_any(self) -> int:
        """Measured traces with at least one valid citation."""
        return sum(n for key, n in self.recall_counts.items() if key & 0xFFFF)

    def state_counts(self) -> dict[str, int]:
        """Traces by public state name, without zeros."""
        return {STATE_NAMES[state]: n for state, n in sorted(self.states.items())}

    def set_state_counts(self, states: Mapping[str, int]) -> None:
        """Inverse of `state_counts`; KeyError for a name that is not a state."""
        self.states = {int(State[name]): n for name, n in states.items() if n}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Tally({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def _bump(counts: Counts, key: int, sign: int) -> None:
    n = counts.get(key, 0) + sign
    assert n >= 0, f"count of {key} fell below 0"
    if n:
        counts[key] = n
    else:
        del counts[key]
