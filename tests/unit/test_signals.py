"""Signals by hand: what falls is told, and what only looks like a fall is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.baseline import Baseline
from citegauge.domain.distribution import fraction_key, histogram_key, histogram_value
from citegauge.domain.intervals import moments
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.signals import UNKNOWN, Past, Signal, Usual, signals_of, thinned, usual_bounds, without
from citegauge.domain.window import cell_of

if TYPE_CHECKING:
    from collections.abc import Iterable

END_S = 1_764_460_800
GROUP = Group("support", "1-5", "m1", "r7", "bge")
USUAL = Usual(
    recall=Baseline(n=4_000, mean=0.6, variance=0.06, between=0.0001, blocks=18),
    score=Baseline(n=4_000, mean=0.8, variance=0.01, between=0.0001, blocks=18),
)


def tally(n: int, recall: float, score: float = 0.8) -> Tally:
    """`n` traces that cite 2 or 4 of 5 chunks, a share that makes this mean; scores around `score`."""
    made = Tally()
    many = round(n * (recall - 0.4) / 0.4) if recall >= 0.4 else 0
    made.recall_counts = {key: k for key, k in ((fraction_key(4, 5), many), (fraction_key(2, 5), n - many)) if k}
    if recall < 0.4:
        made.recall_counts = {fraction_key(1, 5): n}
    made.states = {int(State.measured): n}
    made.score_counts = {}
    for part in (0.9, 1.0, 1.1):
        made.score_counts[histogram_key(score * part)] = n // 3
    return made


def past(group: Group, hour: Tally, before: Tally, usual: Usual = USUAL) -> Past:
    """A group whose last six hours are six times its hour."""
    day = hour.copy()
    day.merge(before)
    recent = [cell_of(END_S - 300 * (i + 1), hour) for i in range(72)]
    return Past(group=group, hour=hour, day=day, recent=recent, usual_day=usual, usual_week=UNKNOWN)


def signal(pasts: Iterable[Past], scorer: str = "*") -> Signal:
    """What is said of one scorer."""
    return next(each for each in signals_of(list(pasts), END_S) if each.scorer == scorer)


def test_a_fall_is_told_by_both() -> None:
    """The hour is compared, and the cells of the last six hours alarm, with a start."""
    found = signal([past(GROUP, tally(300, 0.4), tally(6_000, 0.6))])
    assert found.compared is not None
    assert (found.compared.before, found.compared.after) == pytest.approx((0.6, 0.4))
    assert (found.compared.n_before, found.compared.n_after) == (6_000, 300)
    assert found.cusum is not None
    assert found.cusum.ratio > 1
    assert found.cusum.since_s == END_S - 72 * 300
    assert found.baselines["24h"].mean == pytest.approx(0.6)
    assert "7d" not in found.baselines


def test_a_new_model_has_nothing_to_fall_from() -> None:
    """A model that came within the hour, and answers worse, is in no comparison and in no detector."""
    old = past(GROUP, tally(300, 0.6), tally(6_000, 0.6))
    new = past(GROUP._replace(model="m2"), tally(3_000, 0.1), Tally(), UNKNOWN)
    both, alone = signal([old, new]), signal([old])
    assert both.compared == alone.compared
    assert both.cusum == alone.cusum
    assert signal([new]).compared is None
    assert signal([new]).cusum is None


def test_a_new_scorer_starts_anew() -> None:
    """Another scorer has another group: recall of the old one is not set against it, nor are scores."""
    old = past(GROUP, Tally(), tally(6_000, 0.6))
    new = past(GROUP._replace(scorer="other"), tally(300, 0.4, score=0.1), Tally(), UNKNOWN)
    found = signals_of([old, new], END_S)
    assert [(each.scorer, each.compared, each.shift) for each in found] == [("*", None, None), ("other", None, None)]


def test_a_shift_of_the_mix_moves_nothing() -> None:
    """Two models of different levels, each as ever, whose shares change places within a bucket."""
    assert USUAL.recall is not None
    low = USUAL._replace(recall=replace(USUAL.recall, mean=0.4))
    high = past(GROUP, tally(60, 0.6, 0.9), tally(6_000, 0.6, 0.9))
    weak = past(GROUP._replace(model="m2"), tally(900, 0.4, 0.3), tally(600, 0.4, 0.3), low)
    found = signals_of([high, weak], END_S)
    assert found[0].compared is not None
    assert found[0].compared.before == pytest.approx(found[0].compared.after)
    assert found[0].cusum is not None
    assert found[0].cusum.ratio < 1
    assert found[1].shift is not None
    assert found[1].shift.ratio < 0.2
    pooled = {key: n + weak.day.score_counts.get(key, 0) for key, n in high.day.score_counts.items()}
    assert moments(pooled, histogram_value).mean > 0.8, "pooled, the mean would have fallen by half"


def test_scores_that_move_shift() -> None:
    """Within one scorer a score that moves by two standard deviations is an alarm."""
    found = signal([past(GROUP, tally(300, 0.6, 0.6), tally(6_000, 0.6, 0.8))], "bge")
    assert found.shift is not None
    assert found.shift.ratio > 1
    assert found.compared is not None
    assert found.compared.after == pytest.approx(0.6, rel=0.01)


def test_scores_know_their_direction_and_recall_has_none() -> None:
    """What a declared distance means is told beside it; its values, and recall, stay as they are."""
    asked = [past(GROUP, tally(300, 0.6, 0.9), tally(6_000, 0.6, 0.8))]
    plain, distances = signals_of(asked, END_S), signals_of(asked, END_S, lower_is_better=True)
    assert [each.lower_is_better for each in plain] == [False, False]
    assert [each.lower_is_better for each in distances] == [False, True]
    assert [each.compared for each in plain] == [each.compared for each in distances]
    assert [each.shift for each in plain] == [each.shift for each in distances]


def test_low_confidence_is_compared_within_each_scorer() -> None:
    """A scorer whose threshold calls a half of its scores low, and that is new, raises no share; one that changed does."""
    hour, before, new = tally(300, 0.6), tally(6_000, 0.6), tally(300, 0.6)
    hour.confidence_known, hour.low_confidence = 300, 30
    before.confidence_known, before.low_confidence = 6_000, 300
    new.confidence_known, new.low_confidence = 300, 150
    found = signal([past(GROUP, hour, before), past(GROUP._replace(scorer="other"), new, Tally())]).low_confidence
    assert found is not None
    assert (found.before, found.after, found.n_before, found.n_after) == (0.05, 0.1, 6_000, 300)
    assert found.z < -2
    assert signal([past(GROUP, tally(300, 0.6), tally(6_000, 0.6))]).low_confidence is None, "no threshold, no share"


def test_what_is_usual_moves_by_whole_hours() -> None:
    """So that a restart at any minute finds the same baselines as who ran on; and nothing that is tested is in them."""
    within = {usual_bounds(86_400, END_S + 1_800 + minute * 60) for minute in range(30)}
    assert within == {(END_S - 23 * 3_600, END_S - 6 * 3_600)}
    assert usual_bounds(86_400, END_S + 3_600) == (END_S - 22 * 3_600, END_S - 5 * 3_600)


counts = st.dictionaries(st.integers(-40_000, 40_000), st.integers(1, 40), min_size=1, max_size=30)


@given(counts, st.data())
def test_thinning_keeps_the_distribution(whole: dict[int, int], data: st.DataObject) -> None:
    """So many values are left, none is more than there was, and no share below a value moves by more than 1 / n."""
    total = sum(whole.values())
    n = data.draw(st.integers(1, total))
    kept = thinned(whole, n)
    assert sum(kept.values()) == n
    assert all(0 < k <= whole[key] for key, k in kept.items())
    for limit in whole:
        shares = [sum(k for key, k in c.items() if key <= limit) for c in (whole, kept)]
        assert abs(shares[0] / total - shares[1] / n) <= 1 / n


@given(counts, st.data())
def test_the_hour_is_taken_out_exactly(day: dict[int, int], data: st.DataObject) -> None:
    """Day minus hour plus hour is the day."""
    hour = {key: k for key, n in day.items() if (k := data.draw(st.integers(0, n)))}
    left = without(day, hour)
    assert {key: left.get(key, 0) + hour.get(key, 0) for key in day} == day
    assert all(left.values())
