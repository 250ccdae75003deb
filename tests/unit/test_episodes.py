"""Drops of the past, judged again step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from citegauge.adapters.web import Health, WebSources
from citegauge.adapters.web.judged import Judged
from citegauge.adapters.web.params import GroupParams
from citegauge.domain.drop import Limits
from citegauge.domain.episodes import DAY_S, STEP_S, Cells, compare_at, episodes, has_fallen
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


def test_without_a_fall_there_is_no_episode() -> None:
    """A level that stands still tells nothing."""
    assert episodes([_cells()], ENDS) == []


def test_a_fall_that_ended_and_one_that_goes_on_are_two() -> None:
    """Each has its own time, and only the one that holds the newest hour goes on; the deepest hour is kept."""
    found = episodes([_cells((60, 56, 0.3), (4, 0, 0.1))], ENDS)
    assert [one.ongoing for one in found] == [False, True]
    first, second = found
    # Named within the hour in which it fell, and until the last hour that holds enough of it.
    assert END_S - 60 * STEP_S < first.from_s <= END_S - 56 * STEP_S
    assert END_S - 56 * STEP_S <= first.to_s < END_S - 52 * STEP_S
    assert first.worst.after == pytest.approx(0.3)
    assert second.to_s == END_S
    assert second.worst.after == pytest.approx(0.1)


def test_a_rise_and_few_traces_are_no_drops() -> None:
    """More recall is no alarm, and neither is a handful of traces, however bad."""
    assert episodes([_cells((4, 0, 0.9))], ENDS) == []
    assert episodes([_cells((4, 0, 0.0), n=2)], ENDS) == []


def test_the_limits_are_those_that_are_given() -> None:
    """What the settings call a drop, and not what the defaults do."""
    fall = _cells((4, 0, 0.45))
    assert len(episodes([fall], ENDS)) == 1
    assert episodes([fall], ENDS, limits=Limits(fall_min=0.3)) == []
    few = _cells((4, 0, 0.1), n=10)
    assert episodes([few], ENDS) == []
    assert len(episodes([few], ENDS, limits=Limits(traces_min=20))) == 1


def test_traffic_that_stopped_is_no_drop() -> None:
    """Nothing to compare is not a quality of 0."""
    quiet = {start_s: cell for start_s, cell in _cells().items() if start_s < END_S - 7200}
    assert episodes([quiet], ENDS) == []
    assert compare_at([quiet], END_S) is None


def test_a_shift_of_the_mix_is_no_drop() -> None:
    """Two groups at different levels: the hour's traffic goes to the lower one, and each is as good as it was."""
    high, low = _cells(), {start_s: Moments(5, 0.2, 0.04) for start_s in _cells()}
    hour = [END_S - (number + 1) * STEP_S for number in range(4)]
    mixed: list[Cells] = [
        {start_s: cell for start_s, cell in high.items() if start_s not in hour},
        {**low, **dict.fromkeys(hour, Moments(45, 0.2, 0.04))},
    ]
    assert episodes(mixed, ENDS) == []


def test_a_new_version_has_nothing_to_fall_from() -> None:
    """A group without a past is left out, and does not drag the others down."""
    new: Cells = {END_S - STEP_S: Moments(200, 0.1, 0.04)}
    compared = compare_at([_cells(), new], END_S)
    assert compared is not None
    assert compared.after == pytest.approx(USUAL)
    assert not has_fallen(compared)


def test_scores_of_any_sign_can_fall() -> None:
    """Log-probabilities and logits are negative: they fall by standard deviations, for nothing is relative to them."""
    usual = {start_s: Moments(40, -2.0, 0.04) for start_s in _cells()}
    fallen = {start_s: Moments(40, -2.3, 0.04) for start_s in sorted(usual)[-4:]}
    (found,) = episodes([{**usual, **fallen}], ENDS, "retriever:bm25")
    assert found.ongoing
    assert found.worst.fall is None
    assert found.worst.after == pytest.approx(-2.3)


def test_declared_distances_drop_where_they_rise() -> None:
    """The episode is that of the rise, and its worst hour the one in which they were largest; a fall of them is none."""
    risen, fallen = [_cells((8, 0, 0.9))], [_cells((8, 0, 0.3))]
    (found,) = episodes(risen, ENDS, "l2", lower_is_better=True)
    assert found.ongoing
    assert found.from_s < END_S - 4 * STEP_S, "named before the whole hour had risen"
    assert found.worst.after == pytest.approx(0.9)
    assert episodes(fallen, ENDS, "l2", lower_is_better=True) == []
    assert len(episodes(fallen, ENDS, "l2")) == 1
    assert episodes(risen, ENDS, "l2") == []


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
