"""What dropped: the newest hour against the day before it."""

from __future__ import annotations

from citegauge.domain.distribution import fraction_key
from citegauge.domain.drop import drops
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.window import WINDOWS, RollUp

GROUP = Group("support", "1-5", "*", "*", "*")


def tally(counts: dict[tuple[int, int], int]) -> Tally:
    """A tally of measured traces by (cited, retrieved)."""
    made = Tally()
    made.recall_counts = {fraction_key(*key): n for key, n in counts.items()}
    made.states = {State.measured: sum(counts.values())}
    return made


def windows(hour: Tally, before: Tally) -> list[RollUp]:
    """The 1 h and 24 h windows of one roll-up."""
    day = hour.copy()
    day.merge(before)
    return [RollUp(WINDOWS[0], 0, 3_600, GROUP, hour, 0), RollUp(WINDOWS[2], 0, 86_400, GROUP, day, 0)]


def test_a_fall_is_named_with_its_numbers() -> None:
    """Means are those of the hour and of the day without that hour."""
    found = drops(windows(tally({(1, 5): 200, (2, 5): 200}), tally({(3, 5): 2_000, (4, 5): 2_000})))
    assert [(drop.what, drop.route, drop.n) for drop in found] == [("recall", "support", 400)]
    assert abs(found[0].before - 0.7) < 1e-12
    assert abs(found[0].after - 0.3) < 1e-12
    assert "support" in found[0].sentence


def test_no_fall_no_word() -> None:
    """The same distribution, a rise, and a fall below the effect that matters are not reported."""
    usual = tally({(3, 5): 2_000, (4, 5): 2_000})
    assert not drops(windows(tally({(3, 5): 200, (4, 5): 200}), usual))
    assert not drops(windows(tally({(5, 5): 400}), usual))
    assert not drops(windows(tally({(3, 5): 40_000, (4, 5): 20_000}), usual))


def test_few_traces_never_fire() -> None:
    """Low traffic is not a drop, and no traffic is not one either."""
    usual = tally({(3, 5): 2_000, (4, 5): 2_000})
    assert not drops(windows(tally({(0, 5): 49}), usual))
    assert not drops(windows(Tally(), usual))
    assert not drops(windows(tally({(0, 5): 500}), tally({(5, 5): 49})))
