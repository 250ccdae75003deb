"""What dropped: the newest hour against the day before it, like for like, and what has been low for hours."""

from __future__ import annotations

from citegauge.domain.compare import Part, like_for_like
from citegauge.domain.cusum import Cusum
from citegauge.domain.drop import Limits, drops
from citegauge.domain.intervals import Moments
from citegauge.domain.signals import Signal

QUIET = Cusum(ratio=0.0, since_s=None, n=0, fall=None)


def signal(
    before: Moments,
    after: Moments,
    scorer: str = "*",
    cusum: Cusum | None = QUIET,
    *,
    lower_is_better: bool = False,
) -> Signal:
    """Of one group."""
    return Signal(
        route="support",
        top_k_bucket="1-5",
        scorer=scorer,
        compared=like_for_like([Part(before, after)]),
        cusum=cusum,
        lower_is_better=lower_is_better,
    )


DAY = Moments(4_000, 0.6, 0.09)


def test_a_fall_is_named_with_its_numbers() -> None:
    """What fell, by how much, since when and how sure stand in one sentence."""
    since = Cusum(ratio=3.0, since_s=1_764_425_100, n=300, fall=0.3)
    (drop,) = drops([signal(DAY, Moments(400, 0.42, 0.09), cusum=since)])
    assert (drop.what, drop.route, drop.n, drop.before, drop.after) == ("recall", "support", 400, 0.6, 0.42)
    assert drop.since_s == 1_764_425_100
    assert drop.fall_lower is not None
    assert drop.fall_upper is not None
    assert 0.24 < drop.fall_lower < 0.3 < drop.fall_upper < 0.36
    assert drop.sentence == (
        "support (top_k 1-5): mean cited-chunk recall fell by 30 % (95 %: 25 to 35 %) since about 14:05 UTC, from 0.600 in "
        "the day before to 0.420 in the last hour (n = 400, 11.4 standard errors)"
    )


def test_no_fall_no_word() -> None:
    """The same level, a rise, and a fall below the effect that matters are not reported."""
    assert not drops([signal(DAY, Moments(400, 0.6, 0.09))])
    assert not drops([signal(DAY, Moments(400, 0.9, 0.02))])
    assert not drops([signal(DAY, Moments(60_000, 0.55, 0.09))])
    assert not drops([signal(DAY, Moments(60, 0.5, 0.09))]), "within chance"
    assert drops([signal(DAY, Moments(60_000, 0.53, 0.09))])


def test_few_traces_never_fire() -> None:
    """Low traffic is not a drop, and no traffic is not one either; a short past is nothing to fall from."""
    alarm = Cusum(ratio=9.0, since_s=0, n=40, fall=0.9)
    assert not drops([signal(DAY, Moments(49, 0.1, 0.01), cusum=alarm)])
    assert not drops([signal(DAY, Moments(0, 0.0, 0.0), cusum=alarm)])
    assert not drops([signal(Moments(199, 0.6, 0.09), Moments(500, 0.1, 0.01), cusum=alarm)])


def test_what_is_new_is_no_drop() -> None:
    """A roll-up whose groups have no past has nothing to compare, whatever its level."""
    assert not drops([signal(Moments(0, 0.0, 0.0), Moments(900, 0.1, 0.01))])


def test_a_fall_that_is_too_small_for_an_hour_is_named_while_it_lasts() -> None:
    """The sum of hours alarms; it is over when the hour is as the day, although the sum remembers it."""
    low = Cusum(ratio=1.2, since_s=1_764_425_100, n=900, fall=0.08)
    (drop,) = drops([signal(DAY, Moments(400, 0.57, 0.09), cusum=low)])
    assert drop.lasting == 1.2
    assert "since about 14:05 UTC" in drop.sentence
    assert not drops([signal(DAY, Moments(400, 0.6, 0.09), cusum=low)])
    long_ago = Cusum(ratio=1.2, since_s=1_764_425_100, n=900, fall=0.08, began_before=True)
    (drop,) = drops([signal(DAY, Moments(400, 0.57, 0.09), cusum=long_ago)])
    assert drop.since_s is None, "the window's own beginning is no start"
    assert not drops([signal(DAY, Moments(400, 0.57, 0.09), cusum=Cusum(ratio=0.9, since_s=0, n=900, fall=0.08))])


def test_scores_fall_in_standard_deviations() -> None:
    """By half of one, also below zero, where a share of the level says nothing."""
    (drop,) = drops([signal(Moments(4_000, 0.8, 0.01), Moments(200, 0.74, 0.01), "bge", cusum=None)])
    assert (drop.what, drop.scorer, drop.since_s, drop.lasting) == ("score", "bge", None, None)
    assert "top-1 score (bge) fell by" in drop.sentence
    assert not drops([signal(Moments(4_000, 0.8, 0.01), Moments(2_000, 0.76, 0.01), "bge", cusum=None)])
    (distance,) = drops([signal(Moments(4_000, -0.3, 0.01), Moments(200, -0.4, 0.01), "l2", cusum=None)])
    assert distance.fall_lower is None
    assert "fell by 33 %, from -0.300" in distance.sentence


def test_declared_distances_get_worse_by_rising() -> None:
    """A rise is named as one, with an interval that may pass 100 %; a fall of them is good news."""
    usual = Moments(4_000, 0.5, 0.0025)
    far, near = Moments(300, 0.6, 0.0025), Moments(300, 0.4, 0.0025)
    (drop,) = drops([signal(usual, far, "l2", None, lower_is_better=True)])
    assert (drop.before, drop.after, drop.what) == (0.5, 0.6, "score")
    assert drop.z > 30
    assert drop.fall_lower is not None
    assert drop.fall_upper is not None
    assert 0.18 < drop.fall_lower < 0.2 < drop.fall_upper < 0.22
    assert "mean top-1 score (l2) rose by 20 % (95 %: 19 to 21 %), from 0.500" in drop.sentence
    assert not drops([signal(usual, near, "l2", None, lower_is_better=True)])
    assert not drops([signal(usual, far, "l2", None)])
    (doubled,) = drops([signal(usual, Moments(300, 1.5, 0.0025), "l2", None, lower_is_better=True)])
    assert "rose by 200 % (95 %: 199 to 201 %)" in doubled.sentence
    assert not drops([signal(usual, Moments(300, 0.52, 0.0025), "l2", None, lower_is_better=True)]), "too small"


def test_limits_can_be_set() -> None:
    """They are those of the alerts: whoever asks for a larger fall is told of none."""
    fallen = [signal(DAY, Moments(400, 0.42, 0.09))]
    assert drops(fallen)
    for limits in (Limits(fall_min=0.4), Limits(z_min=20.0), Limits(traces_min=500), Limits(baseline_traces_min=5_000)):
        assert not drops(fallen, limits)


def test_the_steepest_comes_first() -> None:
    """By evidence, not by size."""
    few, many = signal(DAY, Moments(60, 0.3, 0.09)), signal(DAY, Moments(900, 0.45, 0.09))
    assert [drop.n for drop in drops([few, many])] == [900, 60]
