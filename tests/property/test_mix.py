"""Laws of the split of a change: it adds up, order does not matter, and each cause shows in its own term."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.intervals import MEAN_N_MIN, Z_95, Moments
from citegauge.domain.mix import Split, split
from citegauge.domain.recall import Group

if TYPE_CHECKING:
    from numpy.typing import NDArray

TERMS = ("within", "mix", "interaction", "new", "gone")
CLOSE = 1e-9

groups = st.builds(
    Group,
    st.sampled_from(["support/a", "support/b", "sales"]),
    st.sampled_from(["1-5", "6-10"]),
    st.sampled_from(["m1", "m2"]),
    st.sampled_from(["r7", "r8"]),
    st.just("bge"),
)
values = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)
sides = st.dictionaries(groups, values, min_size=1, max_size=8)


def moments_of(side: dict[Group, NDArray[np.float64]]) -> dict[Group, Moments]:
    """NumPy's moments of the values of each group."""
    return {
        group: Moments(len(xs), float(xs.mean()), float(xs.var(ddof=1)) if len(xs) > 1 else 0.0)
        for group, xs in side.items()
    }


def parted(before: dict[Group, NDArray[np.float64]], after: dict[Group, NDArray[np.float64]]) -> Split:
    """The split of two windows of values."""
    found = split(moments_of(before), moments_of(after))
    assert found is not None
    return found


@given(sides, sides)
def test_the_terms_add_up(before: dict[Group, NDArray[np.float64]], after: dict[Group, NDArray[np.float64]]) -> None:
    """Within, mix, interaction, new and gone are the whole change of NumPy's plain means, nothing more and nothing less."""
    found = parted(before, after)
    change = np.concatenate(list(after.values())).mean() - np.concatenate(list(before.values())).mean()
    assert found.change == pytest.approx(change, abs=CLOSE)
    assert sum(getattr(found, term) for term in TERMS) == pytest.approx(change, abs=CLOSE)
    assert sum(part.change for part in found.parts) == pytest.approx(change, abs=CLOSE)
    assert {part.group for part in found.parts} == before.keys() | after.keys()
    for side in ("share_before", "share_after"):
        assert sum(getattr(part, side) for part in found.parts) == pytest.approx(1, abs=CLOSE)


@given(sides, sides)
def test_each_term_is_numpys(before: dict[Group, NDArray[np.float64]], after: dict[Group, NDArray[np.float64]]) -> None:
    """The textbook's sums, by array arithmetic over the groups that both windows have; the error by its closed form."""
    found = parted(before, after)
    both = sorted(before.keys() & after.keys())
    all0, all1 = (np.concatenate(list(side.values())) for side in (before, after))
    w0, w1 = (np.array([len(side[g]) for g in both]) / len(every) for side, every in ((before, all0), (after, all1)))
    m0, m1 = (np.array([side[g].mean() for g in both]) for side in (before, after))
    assert found.within == pytest.approx((w0 * (m1 - m0)).sum(), abs=CLOSE)
    assert found.mix == pytest.approx(((w1 - w0) * (m0 - all0.mean())).sum(), abs=CLOSE)
    assert found.interaction == pytest.approx(((w1 - w0) * (m1 - m0)).sum(), abs=CLOSE)
    if before.keys() == after.keys():
        assert found.mix == pytest.approx(((w1 - w0) * m0).sum(), abs=CLOSE), "the reference mean cancels"
        assert found.new == found.gone == 0.0
    sized = [side[g] for g in both for side in (before, after)]
    degrees = sum(len(xs) - 1 for xs in sized)
    if degrees == 0:
        assert found.within_se is None
        return
    pooled = sum(((xs - xs.mean()) ** 2).sum() for xs in sized) / degrees
    variances = [(xs.var(ddof=1) if len(xs) >= MEAN_N_MIN else pooled) / len(xs) for xs in sized]
    assert found.within_se == pytest.approx(np.sqrt((np.repeat(w0, 2) ** 2 * variances).sum()), abs=CLOSE)


@given(sides, sides, st.randoms(use_true_random=False))
def test_order_does_not_matter(
    before: dict[Group, NDArray[np.float64]], after: dict[Group, NDArray[np.float64]], rng: random.Random
) -> None:
    """The same split, bit for bit, whatever the order in which the groups come."""
    shuffled = []
    for side in (before, after):
        items = list(moments_of(side).items())
        rng.shuffle(items)
        shuffled.append(dict(items))
    assert split(shuffled[0], shuffled[1]) == parted(before, after)


@given(sides)
def test_nothing_changed(side: dict[Group, NDArray[np.float64]]) -> None:
    """Two equal windows: every term is 0."""
    found = parted(side, side)
    assert [getattr(found, term) for term in TERMS] == [0.0] * len(TERMS)
    assert found.change == 0.0


@given(sides, st.data())
def test_a_pure_mix_shift_is_mix_alone(side: dict[Group, NDArray[np.float64]], data: st.DataObject) -> None:
    """Traffic moves, no group changes: all of it is mix, and nothing is blamed on retrieval."""
    moved = {group: Moments(data.draw(st.integers(1, 400)), *one[1:]) for group, one in moments_of(side).items()}
    found = split(moments_of(side), moved)
    assert found is not None
    assert found.within == found.interaction == found.new == found.gone == 0.0
    assert found.mix == pytest.approx(found.change, abs=CLOSE)


@given(sides, st.floats(-0.5, 0.5))
def test_a_pure_fall_is_within_alone(side: dict[Group, NDArray[np.float64]], by: float) -> None:
    """Every group changes by the same, the shares stay: all of it is within, and its interval is around it."""
    found = parted(side, {group: xs + by for group, xs in side.items()})
    assert found.within == pytest.approx(by, abs=CLOSE)
    assert [found.mix, found.interaction, found.new, found.gone] == pytest.approx([0.0] * 4, abs=CLOSE)
    interval = found.within_interval
    if interval is not None and found.within_se is not None:
        assert interval == pytest.approx((by - Z_95 * found.within_se, by + Z_95 * found.within_se), abs=CLOSE)


@given(st.dictionaries(groups, st.tuples(values, values), min_size=1, max_size=8))
def test_swapping_the_windows(side: dict[Group, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> None:
    """Seen from the other window, interaction is the same and moves over into the two others, whose signs turn."""
    before, after = ({group: pair[i] for group, pair in side.items()} for i in (0, 1))
    one, other = parted(before, after), parted(after, before)
    assert other.change == pytest.approx(-one.change, abs=CLOSE)
    assert other.interaction == pytest.approx(one.interaction, abs=CLOSE)
    assert other.within == pytest.approx(-one.within - one.interaction, abs=CLOSE)
    assert other.mix == pytest.approx(-one.mix - one.interaction, abs=CLOSE)


@given(sides, sides)
def test_a_group_of_one_window_is_never_guessed_at(
    before: dict[Group, NDArray[np.float64]], after: dict[Group, NDArray[np.float64]]
) -> None:
    """What is new or gone stands in its own term and in no other."""
    for part in parted(before, after).parts:
        if part.kind == "both":
            assert part.new == part.gone == 0.0
            continue
        assert part.within == part.mix == part.interaction == 0.0
        assert (part.gone if part.kind == "new" else part.new) == 0.0


def test_a_model_that_replaces_another_at_equal_recall_is_no_change() -> None:
    """New and gone are relative to the whole before, so a swap of models that cite alike is not two large terms."""
    old, new = (Group("support", "1-5", model, "r7", "bge") for model in ("m1", "m2"))
    found = split({old: Moments(100, 0.5, 0.04)}, {new: Moments(80, 0.5, 0.04)})
    assert found is not None
    assert [getattr(found, term) for term in TERMS] == [0.0] * len(TERMS)
    assert found.within_se is None
    assert found.within_interval is None


@pytest.mark.parametrize("empty", [{}, {Group("a", "1-5", "m", "r", "s"): Moments(0, 0.0, 0.0)}])
def test_nothing_to_compare_with(empty: dict[Group, Moments]) -> None:
    """A window without values has no mean: there is no change to speak of, and not one of 0."""
    some = {Group("a", "1-5", "m", "r", "s"): Moments(5, 0.5, 0.1)}
    assert split(empty, some) is None
    assert split(some, empty) is None


def test_the_interval_of_within_covers() -> None:
    """In 2,000 draws of two windows of three groups, about 95 % of the intervals hold the true change within groups."""
    rng = np.random.default_rng(20_261_130)
    sizes, levels, fall = ((60, 200, 12), (50, 30, 90)), (0.6, 0.4, 0.2), 0.05
    keys = [Group("support", bucket, "m1", "r7", "bge") for bucket in ("1-5", "6-10", "11-20")]
    hits = 0
    for _ in range(2_000):
        before, after = (
            {
                key: rng.binomial(5, level - (fall if side else 0.0), size=n) / 5
                for key, level, n in zip(keys, levels, sizes[side], strict=True)
            }
            for side in (0, 1)
        )
        interval = parted(before, after).within_interval
        assert interval is not None
        hits += interval.lower <= -fall <= interval.upper
    assert 0.935 < hits / 2_000 < 0.965
