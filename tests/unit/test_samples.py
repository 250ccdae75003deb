"""What /metrics shows of the windows when there are more groups than it may show."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from citegauge.adapters.prometheus import Exporter
from citegauge.adapters.rolling import View, window_row
from citegauge.domain.compare import Part, like_for_like
from citegauge.domain.intervals import Moments
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.signals import Signal
from citegauge.domain.window import WINDOWS, RollUp, roll_up
from citegauge.metrics import Sample
from citegauge.tools.samples import SCORERS_PER_PAIR_MAX, window_samples


def seen(route: str, n: int, scorer: str = "s") -> list[RollUp]:
    """A day of n measured traces of a route, all of them in the last hour."""
    tally = Tally()
    tally.states = {State.measured: n}
    tally.score_counts = {20_000: n}
    tally.recall_counts = {(3 << 16) + 1: n}
    group = Group(route, "1-5", "m", "v", scorer)
    return [RollUp(window, 0, window.length_s, group, tally, 1) for window in WINDOWS]


def test_past_the_cap_the_routes_with_most_traces_are_shown() -> None:
    """Not the first ones of the alphabet; how many are left out is said."""
    found = [item for route, n in (("a", 1), ("b", 30), ("c", 20)) for item in seen(route, n)]
    view = View(rows=tuple(window_row(item, 1) for item in roll_up(found)))
    samples = list(window_samples(view, 2))
    assert {sample.labels[0] for sample in samples if sample.name == "citegauge_window_traces"} == {"b", "c"}
    (dropped,) = [sample.value for sample in samples if sample.name == "citegauge_window_series_dropped"]
    assert dropped == 1


def test_past_the_cap_the_scorers_with_most_scores_are_shown() -> None:
    """Whoever names scorers after requests makes neither series nor comparisons without bound; recall stays whole."""
    many = SCORERS_PER_PAIR_MAX + 30
    found = [item for n in range(many) for item in seen("a", 1 + n, f"s{n}")] + seen("b", 5)
    scorers = [f"s{n}" for n in range(many)]
    compared = like_for_like([Part(Moments(400, 0.6, 0.04), Moments(100, 0.5, 0.05))])
    signals = [Signal(route="a", top_k_bucket="1-5", scorer=name, compared=compared) for name in ("*", *scorers)]
    view = View(rows=tuple(window_row(item, 1) for item in roll_up(found)), signals=tuple(signals))
    samples = list(window_samples(view, 2))
    shown = {
        name: {each.labels[-2] for each in samples if each.name == name and each.labels[0] == "a"}
        for name in ("citegauge_top1_score", "citegauge_compared_top1_score")
    }
    assert shown == {name: set(scorers[30:]) for name in shown}
    assert {each.labels[0] for each in samples if each.name == "citegauge_top1_score"} == {"a", "b"}
    assert sum(each.name == "citegauge_compared_recall_traces" for each in samples) == 2
    (dropped,) = [each.value for each in samples if each.name == "citegauge_window_series_dropped"]
    assert dropped == 30
    measured = {each.value for each in samples if each.name == "citegauge_window_traces" and each.labels[0] == "a"}
    assert measured == {0, many * (many + 1) // 2}, "scorers that are left out count in recall"


def test_who_asks_while_metrics_are_rendered_shares_the_next_rendering() -> None:
    """Ten who ask during the first rendering do not cost ten more, and nobody gets what is older than the question."""
    entered, released = threading.Event(), threading.Event()
    renderings: list[None] = []

    def samples() -> list[Sample]:
        renderings.append(None)
        entered.set()
        assert released.wait(30)
        return [Sample("citegauge_windows_ready", (), len(renderings))]

    exporter = Exporter(samples)
    with ThreadPoolExecutor(11) as pool:
        first = pool.submit(exporter.render)
        assert entered.wait(30)
        asking = threading.Barrier(11)

        def ask() -> bytes:
            asking.wait(30)
            return exporter.render()[0]

        others = [pool.submit(ask) for _ in range(10)]
        asking.wait(30)
        released.set()
        assert b"citegauge_windows_ready 1.0" in first.result(30)[0]
        texts = [other.result(30) for other in others]
    assert len(renderings) < 11, "as a rule two; who was late to ask shares one more"
    assert all(b"citegauge_windows_ready 1.0" not in text for text in texts)
