"""Windows by hand: what a tally amounts to, and what time it is."""

from __future__ import annotations

import pytest

from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.domain.intervals import wilson
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.summary import SHARES, shares, stats
from citegauge.domain.window import WINDOWS, AsOf, Heartbeat, WindowStore, bounds, window_end_s

S = 1_000_000_000
GROUP = Group("support", "1-5", "m1", "r7", "bge")


def measured(cited: int, retrieved: int, n: int = 1) -> Tally:
    """A tally of `n` measured traces."""
    tally = Tally()
    tally.states = {int(State.measured): n}
    tally.recall_counts = {fraction_key(cited, retrieved): n}
    return tally


def test_statistics_of_a_tally() -> None:
    """Quantiles are R-7, the mean is exact, the share counts answers with a valid citation."""
    tally = measured(0, 4)
    for cited in (1, 2, 4):
        tally.merge(measured(cited, 4))
    tally.score_counts = {histogram_key(0.5): 2}
    found = stats(tally, with_scores=True)
    assert (found.n, found.score_n) == (4, 2)
    assert (found.recall_p25, found.recall_p50, found.recall_p75) == (0.1875, 0.375, 0.625)
    assert found.recall_mean == 0.4375
    assert found.cited_any_ratio == 0.75
    assert found.score_p50 == found.score_mean == pytest.approx(0.5, rel=0.0028)
    assert found.recall_sd == pytest.approx(0.426956)
    assert (found.recall_mid_p25, found.recall_mid_p50) == (0.125, 0.375)
    assert found.recall_p25_lower is found.recall_p50_lower is found.recall_mean_lower is None, (
        "too few for an interval"
    )


def test_intervals_of_a_tally() -> None:
    """From 13 and from 6 values on quartile and median have an interval, as ranks say; the mean from 30 on."""
    tally = Tally()
    for cited in range(13):
        tally.merge(measured(cited, 12))
    found = stats(tally, with_scores=True)
    assert (found.recall_p25_lower, found.recall_p25_upper) == (0.0, 0.5)
    assert (found.recall_p50_lower, found.recall_p50_upper) == pytest.approx((2 / 12, 10 / 12))
    assert found.recall_mean_lower is None
    tally.merge(measured(6, 12, 20))
    assert stats(tally, with_scores=True).recall_mean_lower == pytest.approx(0.5 - 1.95996 * 0.1993 / 33**0.5, abs=1e-3)


def test_shares_of_a_tally() -> None:
    """Each share is of what it can be a share of; a share of nothing is None, never 0."""
    tally = Tally()
    tally.states = {
        int(state): n
        for state, n in (
            (State.measured, 10), (State.empty_retrieval, 3), (State.no_retrieval, 4), (State.no_generation, 2),
            (State.no_output, 1), (State.nonconformant, 2),
        )
    }  # fmt: skip
    tally.recall_counts = {fraction_key(1, 2): 6, fraction_key(0, 2): 4}
    tally.citations, tally.hallucinated, tally.nonconformant = 12, 3, 2
    tally.cited_top1, tally.cited_top3 = 4, 6
    assert shares(tally) == {
        "cited_any": (6, 10), "cites_rank1": (4, 10), "cites_rank1_3": (6, 10), "hallucinated": (3, 12),
        "nonconformant": (2, 19), "zero_results": (3, 18), "low_confidence": (0, 0), "unjoined": (6, 22),
    }  # fmt: skip
    found = stats(tally, with_scores=True)
    assert (found.hallucinated_ratio, found.cites_rank1_ratio) == (0.25, 0.4)
    assert (found.hallucinated_lower, found.hallucinated_upper) == wilson(3, 12)
    assert found.low_confidence_ratio is found.low_confidence_lower is found.low_confidence_upper is None
    assert set(SHARES) == set(shares(tally))


def test_nothing_measured_is_none() -> None:
    """Without measured traces every statistic is None, never 0."""
    tally = Tally()
    tally.states = {int(State.no_generation): 5}
    found = stats(tally, with_scores=True)
    assert (found.n, found.score_n) == (0, 0)
    assert {found.recall_p50, found.recall_mean, found.rank_weighted_mean, found.cited_any_ratio, found.score_p50} == {
        None
    }


def test_scores_of_several_scorers_do_not_mix() -> None:
    """Where scorers were merged, the score statistics stay out."""
    tally = measured(1, 2)
    tally.score_counts = {histogram_key(0.5): 1}
    found = stats(tally, with_scores=False)
    assert (found.score_n, found.score_p50, found.n) == (0, None, 1)


def test_bounds_of_the_three_windows() -> None:
    """The end is the minute after as-of; starts are rounded down to 1, 5 and 15 minutes."""
    end_s = window_end_s((1_764_460_800 + 7 * 60 + 3) * S)
    assert end_s == 1_764_460_800 + 8 * 60
    starts = {window.name: end_s - bounds(window, end_s)[0] for window in WINDOWS}
    assert starts == {"1h": 3_600, "6h": 6 * 3_600 + 180, "24h": 24 * 3_600 + 480}


def test_a_closed_pane_never_changes() -> None:
    """After the marker neither a higher version nor a repeat counts."""
    store = WindowStore(end_s=600)
    assert store.upsert("t/0", 60, GROUP, 5, measured(1, 2))
    assert not store.upsert("t/0", 60, GROUP, 4, measured(2, 2))
    store.close("t/0", 60)
    assert not store.upsert("t/0", 60, GROUP, 9, measured(2, 2))
    assert store.is_closed("t/0", 60)
    assert not store.is_closed("t/1", 60)
    assert {one.tally.measured for one in store.group_windows()} == {1}
    assert store.open_panes == 0


def test_a_pane_of_the_future_waits() -> None:
    """What lies at or after the end counts once the end has passed it, open or closed."""
    store = WindowStore(end_s=60)
    store.upsert("t/0", 60, GROUP, 1, measured(1, 2))
    assert list(store.group_windows()) == []
    store.upsert("t/0", 120, GROUP, 2, measured(2, 2))
    store.close("t/0", 120)
    assert list(store.group_windows()) == []
    store.advance(120)
    assert {(one.window.name, one.tally.traces) for one in store.group_windows()} == {("1h", 1), ("6h", 1), ("24h", 1)}


def test_panes_of_a_source_that_stopped_are_forgotten() -> None:
    """A pane that nobody closes leaves memory when it leaves the longest window, and is not taken again."""
    store = WindowStore(end_s=60)
    store.upsert("gone/0", 0, GROUP, 1, measured(1, 2))
    store.advance(86_400)
    assert store.open_panes == 1
    store.advance(2 * 86_400)
    assert store.open_panes == 0
    assert not store.upsert("gone/0", 0, GROUP, 2, measured(1, 2))


def test_a_lost_group_disappears() -> None:
    """A group without traces in any window has no windows."""
    store = WindowStore(end_s=600)
    store.upsert("t/0", 60, GROUP, 1, measured(1, 2))
    store.close("t/0", 60)
    store.advance(3_600 + 120)
    assert {one.window.name for one in store.group_windows()} == {"6h", "24h"}
    store.advance(30 * 3_600)
    assert list(store.group_windows()) == []
    assert not store._groups


def test_as_of_is_the_wall_clock_only_while_all_are_caught_up() -> None:
    """One source that lags, or fell silent, holds as-of at the newest watermark."""
    as_of = AsOf(stale_after_ns=15 * S)
    assert as_of.update(100 * S) == 0
    as_of.beat("a", Heartbeat(0, 90 * S, True, 100 * S))
    assert as_of.update(101 * S) == 101 * S
    assert as_of.caught_up(101 * S)
    as_of.beat("b", Heartbeat(0, 102 * S, False, 102 * S))
    assert as_of.update(110 * S) == 102 * S
    assert not as_of.caught_up(110 * S)
    as_of.beat("b", Heartbeat(0, 103 * S, True, 111 * S))
    assert as_of.update(112 * S) == 112 * S
    assert as_of.update(130 * S) == 112 * S, "a silent source is not taken for caught up"


def test_as_of_waits_for_the_stage_in_front() -> None:
    """Nothing is caught up before the re-key stage has spoken of each of its topics, and while one partition is not."""
    as_of = AsOf(stale_after_ns=15 * S, topics=["spans"], rekeyed=["traces", "logs"])
    as_of.beat("spans/0", Heartbeat(0, 90 * S, True, 100 * S))
    as_of.beat("traces/0", Heartbeat(-1, 0, True, 100 * S))
    assert as_of.update(101 * S) == 90 * S, "nobody has said anything of the logs"
    as_of.beat("logs/0", Heartbeat(-1, 0, True, 100 * S))
    assert as_of.update(101 * S) == 101 * S
    assert set(as_of.sources) == {"spans/0"}
    as_of.beat("traces/1", Heartbeat(-1, 0, False, 102 * S))
    assert as_of.update(103 * S) == 101 * S, "unread spans in the source: the windows stand still"
    assert not as_of.caught_up(103 * S)
    as_of.beat("traces/1", Heartbeat(-1, 0, True, 104 * S))
    assert as_of.update(105 * S) == 105 * S
    as_of.beat("spans/0", Heartbeat(0, 110 * S, True, 130 * S))
    assert as_of.update(131 * S) == 110 * S, "the stage is silent"


def test_as_of_does_not_wait_for_a_topic_that_nobody_reads() -> None:
    """A topic taken out of the settings is silent for good; one that is read and silent holds as-of back, for ever."""
    as_of = AsOf(stale_after_ns=15 * S, topics=["new", "other"])
    as_of.beat("old/0", Heartbeat(0, 90 * S, True, 100 * S))
    assert as_of.update(101 * S) == 101 * S, "until one of its topics is heard, any counts"
    assert not as_of.ignores("old/0")
    as_of.beat("new/0", Heartbeat(0, 95 * S, True, 200 * S))
    assert as_of.ignores("old/0")
    assert not as_of.ignores("other/3"), "a topic that is read is not ignored before it is heard"
    assert (set(as_of.sources), set(as_of.ignored)) == ({"new/0"}, {"old/0"})
    assert as_of.update(201 * S) == 201 * S
    as_of.beat("other/3", Heartbeat(0, 96 * S, True, 201 * S))
    for hours in (1, 24, 24 * 365):
        wall_ns = (201 + 3_600 * hours) * S
        as_of.beat("new/0", Heartbeat(0, 95 * S, True, wall_ns))
        assert as_of.update(wall_ns) == 201 * S, "nobody knows what is in the partition that fell silent"
