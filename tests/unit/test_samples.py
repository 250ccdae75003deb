"""What /metrics shows of the windows when there are more groups than it may show."""

from __future__ import annotations

from citegauge.adapters.rolling import View, window_row
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.window import WINDOWS, RollUp, roll_up
from citegauge.tools.samples import window_samples


def seen(route: str, n: int) -> list[RollUp]:
    """A day of n measured traces of a route, all of them in the last hour."""
    tally = Tally()
    tally.states = {State.measured: n}
    tally.recall_counts = {(3 << 16) + 1: n}
    group = Group(route, "1-5", "m", "v", "s")
    return [RollUp(window, 0, window.length_s, group, tally, 1) for window in WINDOWS]


def test_past_the_cap_the_routes_with_most_traces_are_shown() -> None:
    """Not the first ones of the alphabet; how many are left out is said."""
    found = [item for route, n in (("a", 1), ("b", 30), ("c", 20)) for item in seen(route, n)]
    view = View(rows=tuple(window_row(item, 1) for item in roll_up(found)))
    samples = list(window_samples(view, 2))
    assert {sample.labels[0] for sample in samples if sample.name == "citegauge_window_traces"} == {"b", "c"}
    (dropped,) = [sample.value for sample in samples if sample.name == "citegauge_window_series_dropped"]
    assert dropped == 1
