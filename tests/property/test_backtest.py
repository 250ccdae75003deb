"""Laws of the alert states that a backtest replays: the closed form is the machine, step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citegauge.tools.backtest.alerting import firings

STEP_S = 60


def stepped(true: list[bool], hold_s: int, keep_s: int) -> list[bool]:
    """Prometheus' own machine, one evaluation at a time: whether the alert fires at each."""
    since: int | None = None
    firing, false_since = False, -1
    found = []
    for index, holds in enumerate(true):
        now = index * STEP_S
        if holds:
            false_since = -1
            since = now if since is None else since
            firing = firing or now - since >= hold_s
        elif firing:
            false_since = now if false_since < 0 else false_since
            if now - false_since >= keep_s:
                firing, since, false_since = False, None, -1
        else:
            since = None
        found.append(firing)
    return found


@given(
    true=st.lists(st.booleans(), max_size=60),
    hold_s=st.sampled_from([0, 30, 60, 120, 300]),
    keep_s=st.sampled_from([0, 30, 60, 150, 300]),
)
def test_stretches_are_what_the_machine_does(true: list[bool], hold_s: int, keep_s: int) -> None:
    """For every pattern, `for` and `keep_firing_for`, also such that are no multiple of the step."""
    points = [(index * STEP_S, float(index)) for index, holds in enumerate(true) if holds]
    told = firings(points, hold_s=hold_s, keep_s=keep_s, step_s=STEP_S, end_s=len(true) * STEP_S)
    fires = [any(one.from_s <= at and (one.to_s is None or at < one.to_s) for one in told) for at in times(true)]
    assert fires == stepped(true, hold_s, keep_s)
    for one in told:
        inside = [value for at, value in points if one.from_s <= at and (one.to_s is None or at < one.to_s)]
        assert (one.value_min, one.value_max) == (min(inside), max(inside))


def times(true: list[bool]) -> range:
    """When it is evaluated."""
    return range(0, len(true) * STEP_S, STEP_S)
