"""Drops of the past, judged again step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.adapters.web import Health, WebSources
from citegauge.adapters.web.judged import Judged
from citegauge.adapters.web.params import GroupParams
from citegauge.domain.drop import LIMITS, Drop, Limits
from citegauge.domain.episodes import (
    DAY_S,
    STEP_S,
    Cells,
    Episode,
    Judgement,
    Slice,
    change_point,
    compare_at,
    follow,
    judge,
)
from citegauge.domain.intervals import Moments

END_S = 1_796_000_400 // STEP_S * STEP_S
ENDS = range(END_S - DAY_S + STEP_S, END_S + 1, STEP_S)
USUAL = 0.6


def _cells(*falls: tuple[int, int, float], n: int = 40, hours: int = 48) -> dict[int, Moments]:
    """Cells of `hours` up to END_S at the usual mean; `falls`: (from, to, mean) in cells before the end."""
    found = {}
    for number in range(hours * 4):
        mean = next((mean for first, last, mean in falls if last <= number < first), USUAL)
        found[END_S - (number + 1) * STEP_S] = Moments(n, mean, 0.04)
    return found


def episodes(
    groups: Sequence[Cells], scorer: str = "*", limits: Limits = LIMITS, *, lower_is_better: bool = False
) -> list[Episode]:
    """Of the last day of these groups."""
    of = Slice("support", "1-5", scorer, lower_is_better)
    return follow(judge(groups, ENDS, of, limits), partial(change_point, groups, lower_is_better=lower_is_better))


def _fall(after: float, since_s: int | None = None, before: float = 0.6) -> Drop:
    return Drop(
        route="support",
        top_k_bucket="1-5",
        scorer="*",
        what="recall",
        before=before,
        after=after,
        n=400,
        z=9.0,
        since_s=since_s,
        fall_lower=1 - after / before - 0.05,
        fall_upper=1 - after / before + 0.05,
        lasting=None,
    )


def _judged(*drops: Drop | None) -> list[Judgement]:
    """One a minute, from 600 on."""
    return [Judgement(600 + 60 * at, drop) for at, drop in enumerate(drops)]


def test_an_episode_is_all_that_is_told_of_a_drop() -> None:
    """Started, detected, worst so far with its time, newest, ended: one thing, in one sentence."""
    (found,) = follow(_judged(None, _fall(0.5), _fall(0.3, since_s=540), _fall(0.42), None, None))
    assert (found.started_s, found.detected_s, found.worst_s, found.ended_s) == (540, 660, 720, 840)
    assert (found.worst.after, found.newest.after, found.ongoing) == (0.3, 0.42, False)
    assert found.sentence == (
        "support (top_k 1-5): mean cited-chunk recall fell by 50 % (95 %: 45 to 55 %) at worst, at 1 Jan 00:12 UTC, "
        "from 0.600 to 0.300 (n = 400): started about 1 Jan 00:09, detected 1 Jan 00:11, ended 1 Jan 00:14"
    )
    (going,) = follow(_judged(_fall(0.3), _fall(0.42)))
    assert going.sentence.endswith("goes on")
    assert going.ongoing


def test_the_worst_is_the_largest_relative_fall() -> None:
    """The day before an hour moves too: what fell to a third of 0.6 is worse than what fell by more from 0.9."""
    (found,) = follow(_judged(_fall(0.2, before=0.6), _fall(0.45, before=0.9)))
    assert (found.worst.before, found.worst_s) == (0.6, 600)


def test_the_newest_word_on_the_start_counts_and_a_start_is_never_after_its_detection() -> None:
    """A judgement that cannot tell takes nothing back; without any the hour's beginning is the start, or what is given."""
    (found,) = follow(_judged(_fall(0.4, since_s=300), _fall(0.4, since_s=240), _fall(0.4)))
    assert found.started_s == 240
    assert follow(_judged(_fall(0.4, since_s=9_999)))[0].started_s == 600
    assert follow(_judged(_fall(0.4)))[0].started_s == 600 - 3_600
    assert follow(_judged(_fall(0.4)), lambda at_s: at_s - 120)[0].started_s == 480


@given(st.lists(st.one_of(st.none(), st.floats(0.05, 0.55)), max_size=60))
def test_episodes_keep_their_order(levels: list[float | None]) -> None:
    """Whatever is judged: as many as there are runs; started <= detected <= worst < ended <= the next one's detection."""
    judged = _judged(*(None if level is None else _fall(level) for level in levels))
    found = follow(judged)
    runs = [fallen for fallen, _ in groupby(level is not None for level in levels)]
    assert len(found) == sum(runs)
    for one in found:
        run = [drop.after for at_s, drop in judged if drop and one.detected_s <= at_s < (one.ended_s or 10**9)]
        assert (one.worst.after, one.newest.after) == (min(run), run[-1])
        assert one.started_s <= one.detected_s <= one.worst_s
        assert one.ended_s is None or one.ended_s > one.worst_s
    for one, after in pairwise(found):
        assert one.ended_s is not None
        assert one.ended_s < after.detected_s
    assert all(one.ended_s is not None for one in found[:-1])


@pytest.mark.parametrize("scorer", ["*", "l2"])
@pytest.mark.parametrize("quarters", [2, 5, 9])
def test_the_start_is_where_it_fell(scorer: str, quarters: int) -> None:
    """Recall by the sum over hours, scores by the most likely change: to the quarter of an hour for a clear fall."""
    (found,) = episodes([_cells((quarters, 0, 0.3)), _cells((quarters, 0, 0.35))], scorer)
    assert found.started_s == END_S - quarters * STEP_S
    assert found.started_s < found.detected_s <= found.started_s + 4 * STEP_S


def test_what_is_low_for_hours_is_an_episode_too() -> None:
    """A fall too small for one hour is found by its sum, here as live."""
    slow = [_cells((20, 0, 0.5), n=14)]
    assert [one.worst.lasting is not None and one.worst.lasting >= 1 for one in episodes(slow)] == [True]


def test_without_a_fall_there_is_no_episode() -> None:
    """A level that stands still tells nothing."""
    assert episodes([_cells()]) == []


def test_a_fall_that_ended_and_one_that_goes_on_are_two() -> None:
    """Each has its own time, and only the one that holds the newest hour goes on; the deepest hour is kept."""
    found = episodes([_cells((60, 56, 0.3), (4, 0, 0.1))])
    assert [one.ongoing for one in found] == [False, True]
    first, second = found
    # Named within the hour in which it fell, and until the last hour that holds enough of it.
    assert END_S - 60 * STEP_S < first.detected_s <= END_S - 56 * STEP_S
    assert first.ended_s is not None
    assert END_S - 56 * STEP_S < first.ended_s <= END_S - 52 * STEP_S
    assert first.started_s == END_S - 60 * STEP_S
    assert first.worst.after == pytest.approx(0.3)
    assert second.worst_s == END_S
    assert second.worst.after == pytest.approx(0.1)


def test_a_rise_and_few_traces_are_no_drops() -> None:
    """More recall is no alarm, and neither is a handful of traces, however bad."""
    assert episodes([_cells((4, 0, 0.9))]) == []
    assert episodes([_cells((4, 0, 0.0), n=2)]) == []


def test_the_limits_are_those_that_are_given() -> None:
    """What the settings call a drop, and not what the defaults do."""
    fall = _cells((4, 0, 0.45))
    assert len(episodes([fall], "l2")) == 1
    assert episodes([fall], "l2", limits=Limits(score_fall_sd_min=1.0)) == []
    few = _cells((4, 0, 0.1), n=10)
    assert episodes([few]) == []
    assert len(episodes([few], limits=Limits(traces_min=20))) == 1


def test_traffic_that_stopped_is_no_drop() -> None:
    """Nothing to compare is not a quality of 0."""
    quiet = {start_s: cell for start_s, cell in _cells().items() if start_s < END_S - 7200}
    assert episodes([quiet]) == []
    assert compare_at([quiet], END_S) is None


def test_a_shift_of_the_mix_is_no_drop() -> None:
    """Two groups at different levels: the hour's traffic goes to the lower one, and each is as good as it was."""
    high, low = _cells(), {start_s: Moments(5, 0.2, 0.04) for start_s in _cells()}
    hour = [END_S - (number + 1) * STEP_S for number in range(4)]
    mixed: list[Cells] = [
        {start_s: cell for start_s, cell in high.items() if start_s not in hour},
        {**low, **dict.fromkeys(hour, Moments(45, 0.2, 0.04))},
    ]
    assert episodes(mixed) == []


def test_a_new_version_has_nothing_to_fall_from() -> None:
    """A group without a past is left out, and does not drag the others down."""
    new: Cells = {END_S - STEP_S: Moments(200, 0.1, 0.04)}
    compared = compare_at([_cells(), new], END_S)
    assert compared is not None
    assert compared.after == pytest.approx(USUAL)
    assert episodes([_cells(), new]) == []


def test_scores_of_any_sign_can_fall() -> None:
    """Log-probabilities and logits are negative: they fall by standard deviations, for nothing is relative to them."""
    usual = {start_s: Moments(40, -2.0, 0.04) for start_s in _cells()}
    fallen = {start_s: Moments(40, -2.3, 0.04) for start_s in sorted(usual)[-4:]}
    (found,) = episodes([{**usual, **fallen}], "retriever:bm25")
    assert found.ongoing
    assert found.worst.fall_lower is None
    assert found.worst.after == pytest.approx(-2.3)


def test_declared_distances_drop_where_they_rise() -> None:
    """The episode is that of the rise, and its worst hour the one in which they were largest; a fall of them is none."""
    risen, fallen = [_cells((8, 0, 0.9))], [_cells((8, 0, 0.3))]
    (found,) = episodes(risen, "l2", lower_is_better=True)
    assert found.ongoing
    assert found.detected_s < END_S - 4 * STEP_S, "named before the whole hour had risen"
    assert found.worst.after == pytest.approx(0.9)
    assert episodes(fallen, "l2", lower_is_better=True) == []
    assert len(episodes(fallen, "l2")) == 1
    assert episodes(risen, "l2") == []


def test_the_page_judges_a_route_as_its_settings_say() -> None:
    """Scores of a route of distances by their rise; recall that rises, and another route's scores, have not dropped."""
    cells = _cells((8, 0, 0.9))

    def query(_: str, __: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"t": start_s, "model": "m", "retriever_version": "r", "scorer": "l2"}
            | {f"{what}_n": cell.n for what in ("recall", "score")}
            | {f"{what}_mean": cell.mean for what in ("recall", "score")}
            | {f"{what}_squares": cell.variance * (cell.n - 1) for what in ("recall", "score")}
            for start_s, cell in cells.items()
        ]

    sources = WebSources(
        drop_limits=Limits(),
        windows=tuple,
        drops=tuple,
        query=query,
        database="citegauge",
        metrics=lambda: (b"", ""),
        healthy=lambda: Health(ok=True),
        ready=lambda: Health(ok=True),
        distance_routes=frozenset({"near"}),
    )
    told = {}
    for route in ("near", "plain"):
        found = Judged(sources).alerts(GroupParams(route=route, top_k_bucket="1-5"), END_S)
        told[route] = [one["scorer"] for one in found["alerts"]]
    assert told == {"near": ["l2"], "plain": []}
