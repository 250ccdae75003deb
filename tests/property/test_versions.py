"""Laws of before and after: NumPy's numbers, honest doubt, the same hours for canaries, no scores across scorers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.distribution import fraction_key, histogram_key, histogram_value
from citegauge.domain.intervals import Z_95
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.versions import EFFECT_MIN, N_MIN, Cell, compare, comparisons

if TYPE_CHECKING:
    from collections.abc import Sequence

K = 5
HOUR_S = 3_600
OLD = Group("support", "1-5", "m1", "r7", "bge")
NEW = OLD._replace(retriever_version="r8")
RNG_SEED = 20_261_130

cited_lists = st.lists(st.integers(0, K), min_size=1, max_size=60)
series = st.dictionaries(st.integers(0, 9), cited_lists, min_size=1, max_size=8)


def cell(group: Group, hour: int, cited: Sequence[int], score: float | None = None) -> Cell:
    """Answers of one hour that cite so many of K chunks."""
    tally = Tally()
    tally.states = {int(State.measured): len(cited)}
    for n in cited:
        key = fraction_key(int(n), K)
        tally.recall_counts[key] = tally.recall_counts.get(key, 0) + 1
    tally.citations = int(sum(cited)) + 1
    tally.hallucinated = 1
    if score is not None:
        tally.score_counts = {histogram_key(score): len(cited)}
    return Cell(group, hour * HOUR_S, hour * HOUR_S + 60, hour * HOUR_S + 3_540, tally)


def cells(group: Group, hours: dict[int, list[int]]) -> list[Cell]:
    """A series in order of time."""
    return [cell(group, hour, cited) for hour, cited in sorted(hours.items())]


@given(series, series)
def test_the_numbers_are_numpys(old: dict[int, list[int]], new: dict[int, list[int]]) -> None:
    """The same hours at Cochran's weights where both have enough there; else plain means and Welch's error."""
    found = compare(cells(OLD, old), cells(NEW, new))
    shared = sorted(old.keys() & new.keys())
    sizes = [(len(old[h]), len(new[h])) for h in shared]
    if shared and min(np.sum(sizes, axis=0)) >= N_MIN:
        assert found.over == "the same time"
        w = np.array([a * b / (a + b) for a, b in sizes])
        d = np.array([np.mean(new[h]) / K - np.mean(old[h]) / K for h in shared])
        v = [np.var(np.concatenate([side[h] for h in shared]) / K, ddof=1) for side in (old, new)]
        var = np.array([v[0] / a + v[1] / b for a, b in sizes])
        difference, error = (w * d).sum() / w.sum(), np.sqrt((w**2 * var).sum()) / w.sum()
        counted = [[n for h in shared for n in side[h]] for side in (old, new)]
        excess = (d - difference) ** 2 / var if var.all() else np.array([])
        degrees = len(excess) - 1
    else:
        assert found.over == "before and after"
        kept = {h: xs for h, xs in old.items() if h <= min(new)}
        sides = (kept, new)
        counted = [[n for xs in side.values() for n in xs] for side in sides]
        assert (found.old.n, found.new.n) == tuple(map(len, counted))
        if not counted[0]:
            assert (found.difference, found.interval, found.old.recall_mean) == (None, None, None)
            assert found.verdict == "undecided"
            return
        means = [np.mean(xs) / K for xs in counted]
        difference = means[1] - means[0]
        if min(map(len, counted)) < 2:
            assert found.interval is None
            return
        v = [np.var(np.array(xs) / K, ddof=1) for xs in counted]
        error = np.sqrt(v[0] / len(counted[0]) + v[1] / len(counted[1]))
        moving = [i for i in (0, 1) if v[i] > 0]
        excess = np.array(
            [len(xs) * (np.mean(xs) / K - means[i]) ** 2 / v[i] for i in moving for xs in sides[i].values()]
        )
        degrees = len(excess) - len(moving)
    inflation = max(1.0, excess.sum() / degrees) if degrees >= 4 else 1.0
    half = Z_95 * error * np.sqrt(inflation)
    assert found.difference == pytest.approx(difference, abs=1e-9)
    assert found.inflation == pytest.approx(inflation, rel=1e-6)
    assert found.interval == pytest.approx((difference - half, difference + half), abs=1e-9)
    assert found.new.recall_mean is not None
    assert found.old.recall_mean is not None
    assert found.new.recall_mean - found.old.recall_mean == pytest.approx(difference, abs=1e-9)
    for side, xs in zip((found.old, found.new), counted, strict=True):
        assert side.n == len(xs)
        assert side.cited_any_ratio == pytest.approx(np.mean(np.array(xs) > 0))
        assert side.hallucinated_ratio == pytest.approx(side.hallucinated / side.citations)


@given(series, series)
def test_the_verdict_follows_from_what_is_shown(old: dict[int, list[int]], new: dict[int, list[int]]) -> None:
    """Better or worse only beyond chance, by what matters, and on enough traces; there is always a reason for doubt."""
    found = compare(cells(OLD, old), cells(NEW, new))
    decided = (
        min(found.old.n, found.new.n) >= N_MIN
        and found.interval is not None
        and found.difference is not None
        and (found.interval.lower > 0 or found.interval.upper < 0)
        and abs(found.difference) >= EFFECT_MIN
    )
    assert (found.undecided_because is None) == decided
    assert (found.verdict != "undecided") == decided
    if decided:
        assert found.difference is not None
        assert found.verdict == ("better" if found.difference > 0 else "worse")


@given(series, series)
def test_swapping_two_canaries_turns_the_sign(old: dict[int, list[int]], new: dict[int, list[int]]) -> None:
    """Over the same hours nothing but the sign depends on which of the two is called new."""
    one, other = compare(cells(OLD, old), cells(NEW, new)), compare(cells(NEW, new), cells(OLD, old))
    assert (one.over == "the same time") == (other.over == "the same time")
    if one.over == "the same time":
        assert one.difference is not None
        assert other.difference == pytest.approx(-one.difference, abs=1e-12)
        assert other.inflation == pytest.approx(one.inflation)
        assert {one.verdict, other.verdict} in ({"undecided"}, {"better", "worse"})


def draw(rng: np.random.Generator, level: float, n: int) -> list[int]:
    """`n` answers that cite each of K chunks with this probability."""
    return [int(x) for x in rng.binomial(K, level, size=n)]


def test_a_ramp_over_a_drifting_day_is_no_difference() -> None:
    """A canary that takes over while recall drifts for all: plain means would differ by far more than what matters."""
    rng = np.random.default_rng(RNG_SEED)
    old, new = [], []
    for hour in range(20):
        level, share = 0.7 - 0.02 * hour, (hour + 1) / 21
        old.append(cell(OLD, hour, draw(rng, level, round(600 * (1 - share)))))
        new.append(cell(NEW, hour, draw(rng, level, round(600 * share))))
    found = compare(old, new)
    plain = [np.mean([n for one in side for n in _cited(one)]) / K for side in (old, new)]
    assert plain[1] - plain[0] < -4 * EFFECT_MIN
    assert found.over == "the same time"
    assert found.interval is not None
    assert found.interval.lower <= 0 <= found.interval.upper
    assert found.undecided_because == "the interval contains 0"


def _cited(one: Cell) -> list[int]:
    return [key & 0xFFFF for key, n in one.tally.recall_counts.items() for _ in range(n)]


@pytest.mark.parametrize(("spread", "overlap"), [(0.0, False), (0.05, False), (0.0, True), (0.05, True)])
def test_two_versions_alike_are_seldom_told_apart(spread: float, overlap: bool) -> None:
    """In 400 draws of equal versions, about 1 in 20 verdicts or fewer are wrong, also where hours differ beyond chance."""
    rng = np.random.default_rng(RNG_SEED)
    wrong = 0
    for _ in range(400):
        levels = np.clip(0.5 + spread * rng.standard_normal(24), 0.05, 0.95)
        old = [cell(OLD, h, draw(rng, levels[h], 80)) for h in range(24 if overlap else 16)]
        new = [cell(NEW, h, draw(rng, levels[h], 40)) for h in range(12 if overlap else 16, 24)]
        found = compare(old, new)
        assert found.over == ("the same time" if overlap else "before and after")
        wrong += found.verdict != "undecided"
    assert wrong <= 0.075 * 400


def test_a_real_difference_is_found() -> None:
    """0.50 against 0.40 on a few hundred traces, among hours that differ: worse, in 100 draws hardly ever missed."""
    rng = np.random.default_rng(RNG_SEED)
    seen = 0
    for _ in range(100):
        levels = np.clip(0.5 + 0.03 * rng.standard_normal(24), 0.05, 0.95)
        old = [cell(OLD, h, draw(rng, levels[h], 60)) for h in range(16)]
        new = [cell(NEW, h, draw(rng, levels[h] - 0.1, 60)) for h in range(16, 24)]
        seen += compare(old, new).verdict == "worse"
    assert seen >= 95


def test_hours_that_differ_widen_the_interval() -> None:
    """The same traces in hours of their own levels, and shuffled over the hours: only the first cast doubt."""
    old = [cell(OLD, h, [K] * 40 if h % 2 else [0] * 40) for h in range(8)]
    new = [cell(NEW, 8 + h, [K] * 44 + [0] * 36 if h % 2 else [0] * 36 + [K] * 44) for h in range(4)]
    lumpy = compare(old, new)
    even = compare([cell(OLD, h, [0, K] * 20) for h in range(8)], new)
    assert even.inflation == 1.0
    assert lumpy.inflation > 10.0
    assert lumpy.interval is not None
    assert even.interval is not None
    assert lumpy.interval.upper - lumpy.interval.lower > 3 * (even.interval.upper - even.interval.lower)


def test_a_new_version_is_found_and_an_old_or_rare_one_is_not() -> None:
    """What was there all along is no version change, and neither is a group so rare that it just did not come before."""
    rng = np.random.default_rng(RNG_SEED)
    always = [cell(OLD, h, draw(rng, 0.5, 50)) for h in range(24)]
    twin = [cell(OLD._replace(model="m2"), h, draw(rng, 0.5, 50)) for h in range(24)]
    rare = [cell(OLD._replace(model="m3"), 20, [1])]
    canary = [cell(NEW, h, draw(rng, 0.5, 30)) for h in range(18, 24)]
    elsewhere = [cell(NEW._replace(route="sales"), h, [1] * 50) for h in range(24)]
    found = comparisons([*always, *twin, *rare, *canary, *elsewhere])
    assert [(one.old.group, one.new.group, one.changed) for one in found] == [(OLD, NEW, ("retriever_version",))]
    (one,) = found
    assert one.over == "the same time"
    assert (one.old.n, one.new.n) == (300, 180)
    assert (one.new.first_s, one.new.last_s) == (18 * HOUR_S + 60, 23 * HOUR_S + 3_540)
    assert (one.old.first_s, one.old.last_s) == (60, 23 * HOUR_S + 3_540)


def test_the_nearest_group_is_what_was_there_before() -> None:
    """A new retriever version of m2 is set against m2 before, though m1 had more traces."""
    many = [cell(OLD, h, [2] * 90) for h in range(20)]
    near = [cell(OLD._replace(model="m2"), h, [2] * 30) for h in range(10)]
    new = [cell(NEW._replace(model="m2"), h, [2] * 30) for h in range(10, 20)]
    (one,) = comparisons([*many, *near, *new])
    assert one.old.group == OLD._replace(model="m2")
    assert one.over == "before and after"


def test_what_lost_its_traffic_is_what_was_there_before() -> None:
    """m3 takes the place of m2 while m1 goes on: it is set against m2, though m1 has more traces, and runs beside it."""
    stays = [cell(OLD, h, [2] * 90) for h in range(20)]
    replaced = [cell(OLD._replace(model="m2"), h, [2] * 30) for h in range(10)]
    new = [cell(OLD._replace(model="m3"), h, [2] * 30) for h in range(10, 20)]
    (one,) = comparisons([*stays, *replaced, *new])
    assert one.old.group == OLD._replace(model="m2")


def test_the_hour_of_a_switch_is_not_the_same_time() -> None:
    """Within one hour the old version ends before the new one begins: they never ran at once."""
    old = [cell(OLD, h, [2] * 90) for h in range(11)]
    new = [cell(NEW, h, [1] * 90) for h in range(10, 12)]
    switched = [*old[:-1], old[-1]._replace(last_s=10 * HOUR_S + 1_800)]
    later = [new[0]._replace(first_s=10 * HOUR_S + 1_860), new[1]]
    assert compare(old, new).over == "the same time"
    found = compare(switched, later)
    assert found.over == "before and after"
    assert (found.old.n, found.new.n) == (11 * 90, 2 * 90)


def test_a_new_bucket_or_route_has_nothing_before_it() -> None:
    """Recall falls with k and differs by route, so nothing else stands in for what was not there."""
    old = [cell(OLD, h, [2] * 90) for h in range(20)]
    assert comparisons([*old, *(cell(OLD._replace(top_k_bucket="6-10"), h, [2] * 90) for h in range(10, 20))]) == []


def test_scores_of_two_scorers_are_not_comparable() -> None:
    """The same scorer: two means of its scores. Another one: each has its own, and nobody sets them side by side."""
    old = [cell(OLD, h, [2] * 90, 0.8) for h in range(10)]
    same = compare(old, [cell(NEW, h, [2] * 90, 0.7) for h in range(10, 20)])
    assert same.scores_comparable
    for side, score in ((same.old, 0.8), (same.new, 0.7)):
        assert side.score_mean == pytest.approx(histogram_value(histogram_key(score)))
    other = compare(old, [cell(NEW._replace(scorer="other"), h, [2] * 90, 7.0) for h in range(10, 20)])
    assert not other.scores_comparable
    assert other.changed == ("retriever_version", "scorer")
    assert not compare(old, [cell(NEW, h, [2] * 90) for h in range(10, 20)]).scores_comparable


def test_no_order_of_the_cells_matters() -> None:
    """Cells come from a database, in any order."""
    rng = np.random.default_rng(RNG_SEED)
    every = [cell(OLD, h, draw(rng, 0.5, 50)) for h in range(24)] + [
        cell(NEW, h, draw(rng, 0.4, 50)) for h in range(18, 24)
    ]
    expected = comparisons(every)
    assert [one.verdict for one in expected] == ["worse"]
    shuffled = [every[i] for i in rng.permutation(len(every))]
    assert comparisons(shuffled) == expected


def test_too_few_traces_are_undecided() -> None:
    """All of 49 against none of 1,000: it looks clear, and is not said."""
    found = compare([cell(OLD, h, [0] * 100) for h in range(10)], [cell(NEW, 10, [K] * (N_MIN - 1))])
    assert found.verdict == "undecided"
    assert found.undecided_because == f"fewer than {N_MIN} traces"


def test_a_difference_that_does_not_matter_is_undecided() -> None:
    """Beyond chance, and yet less than what anybody should act on."""
    old = [cell(OLD, h, [2, 3] * 5_000) for h in range(2)]
    new = [cell(NEW, h, ([2, 3] * 5_000)[:-300] + [3] * 300) for h in range(2)]
    found = compare(old, new)
    assert found.interval is not None
    assert found.interval.lower > 0
    assert found.undecided_because == f"less than {EFFECT_MIN:g}"
