"""What a window's tally amounts to: quantiles, means and shares, each with its 95 % interval. Pure; formulas elsewhere.

Everything is None where it is not measurable, never 0. `distribution` says what the quantiles are, `intervals` how sure.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from citegauge.domain.distribution import Ordered, fraction_value, histogram_value, mean, ordered
from citegauge.domain.intervals import Interval, Moments, mean_interval, quantile_interval, weighted_moments, wilson
from citegauge.domain.pane import Tally
from citegauge.domain.recall import State

_NO_RETRIEVAL, _NO_GENERATION = int(State.no_retrieval), int(State.no_generation)
_NO_OUTPUT, _EMPTY_RETRIEVAL = int(State.no_output), int(State.empty_retrieval)


class Share(NamedTuple):
    """A part of a whole, both counted."""

    part: int
    whole: int


class WindowStats(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Statistics under the names that rows and tables have for them. `*_lower`, `*_upper`: ends of a 95 % interval."""

    n: int
    """Measured traces."""
    recall_p25: float | None
    recall_p50: float | None
    recall_p75: float | None
    recall_mean: float | None
    recall_sd: float | None
    recall_mean_lower: float | None
    recall_mean_upper: float | None
    recall_mid_p25: float | None
    recall_mid_p50: float | None
    recall_p25_lower: float | None
    recall_p25_upper: float | None
    recall_p50_lower: float | None
    recall_p50_upper: float | None
    rank_weighted_mean: float | None
    score_n: int
    """Traces with a top-1 score; 0 where several scorers are merged, as their scores do not mix."""
    score_p25: float | None
    score_p50: float | None
    score_p75: float | None
    score_mean: float | None
    score_sd: float | None
    score_p25_lower: float | None
    score_p25_upper: float | None
    score_p50_lower: float | None
    score_p50_upper: float | None
    cited_any_ratio: float | None = None
    cited_any_lower: float | None = None
    cited_any_upper: float | None = None
    cites_rank1_ratio: float | None = None
    cites_rank1_lower: float | None = None
    cites_rank1_upper: float | None = None
    cites_rank1_3_ratio: float | None = None
    cites_rank1_3_lower: float | None = None
    cites_rank1_3_upper: float | None = None
    hallucinated_ratio: float | None = None
    hallucinated_lower: float | None = None
    hallucinated_upper: float | None = None
    nonconformant_ratio: float | None = None
    nonconformant_lower: float | None = None
    nonconformant_upper: float | None = None
    zero_results_ratio: float | None = None
    zero_results_lower: float | None = None
    zero_results_upper: float | None = None
    low_confidence_ratio: float | None = None
    low_confidence_lower: float | None = None
    low_confidence_upper: float | None = None
    unjoined_ratio: float | None = None
    unjoined_lower: float | None = None
    unjoined_upper: float | None = None


def shares(tally: Tally) -> dict[str, Share]:
    """The shares of a window by name; a whole of 0 has none. The join rate is what `unjoined` leaves."""
    states, traces, measured = tally.states, tally.traces, tally.measured
    no_retrieval, no_generation = states.get(_NO_RETRIEVAL, 0), states.get(_NO_GENERATION, 0)
    return {
        "cited_any": Share(tally.cited_any, measured),
        "cites_rank1": Share(tally.cited_top1, measured),
        "cites_rank1_3": Share(tally.cited_top3, measured),
        "hallucinated": Share(tally.hallucinated, tally.citations),
        # Of traces that may have an answer.
        "nonconformant": Share(tally.nonconformant, traces - no_generation - states.get(_NO_OUTPUT, 0)),
        # Of traces whose retrieval is known.
        "zero_results": Share(states.get(_EMPTY_RETRIEVAL, 0), traces - no_retrieval),
        "low_confidence": Share(tally.low_confidence, tally.confidence_known),
        "unjoined": Share(no_retrieval + no_generation, traces),
    }


SHARES = tuple(shares(Tally()))
_SHARE_FIELDS = {name: (f"{name}_ratio", f"{name}_lower", f"{name}_upper") for name in SHARES}


def stats(tally: Tally, *, with_scores: bool) -> WindowStats:
    """Statistics of a tally. `with_scores=False` where several scorers were merged: their scores do not mix."""
    recall = ordered(tally.recall_counts, fraction_value)
    recall_moments = weighted_moments(recall.values, recall.weights)
    recall_mean = _ends(mean_interval(recall_moments))
    recall_p25, recall_p50 = _ends(quantile_interval(recall, 0.25)), _ends(quantile_interval(recall, 0.5))
    scores = tally.score_counts if with_scores else {}
    score = ordered(scores, histogram_value)
    score_moments = weighted_moments(score.values, score.weights)
    score_p25, score_p50 = _ends(quantile_interval(score, 0.25)), _ends(quantile_interval(score, 0.5))
    return WindowStats(
        n=tally.measured,
        **_centre("recall", recall, recall_moments),
        recall_mean_lower=recall_mean[0],
        recall_mean_upper=recall_mean[1],
        recall_mid_p25=recall.mid_quantile(0.25),
        recall_mid_p50=recall.mid_quantile(0.5),
        recall_p25_lower=recall_p25[0],
        recall_p25_upper=recall_p25[1],
        recall_p50_lower=recall_p50[0],
        recall_p50_upper=recall_p50[1],
        rank_weighted_mean=mean(tally.rank_weighted_counts, histogram_value),
        score_n=score.n,
        **_centre("score", score, score_moments),
        score_p25_lower=score_p25[0],
        score_p25_upper=score_p25[1],
        score_p50_lower=score_p50[0],
        score_p50_upper=score_p50[1],
        **_share_values(tally),
    )


def _centre(of: str, found: Ordered, about: Moments) -> dict[str, float | None]:
    return {
        f"{of}_p25": found.quantile(0.25),
        f"{of}_p50": found.quantile(0.5),
        f"{of}_p75": found.quantile(0.75),
        f"{of}_mean": about.mean if about.n else None,
        f"{of}_sd": math.sqrt(about.variance) if about.n > 1 else None,
    }


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else interval


def _share_values(tally: Tally) -> dict[str, float]:
    """Value and interval of each share that has a whole."""
    found: dict[str, float] = {}
    for name, (part, whole) in shares(tally).items():
        interval = wilson(part, whole)
        if interval is not None:
            value, lower, upper = _SHARE_FIELDS[name]
            found[value], found[lower], found[upper] = part / whole, interval.lower, interval.upper
    return found
