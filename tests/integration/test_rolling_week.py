"""The 7 days as SQL tells them are those of the panes, each group on exactly one partition, and without what is tested."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec
import pytest

from citegauge.adapters.rolling.detectors import Detectors
from citegauge.adapters.rolling.restore import restored_store
from citegauge.adapters.rolling.week import WEEK_S, usual_week
from citegauge.domain.baseline import Baseline
from citegauge.domain.distribution import add_counts
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group
from citegauge.domain.signals import Usual, usual_bounds, usual_of
from citegauge.domain.window import WindowStore, cell_of
from citegauge.pipeline import tally_of
from citegauge.ports import panes_partition
from support.clickhouse import embedded, recent_minute
from support.clickhouse_rows import panes_of, random_traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from citegauge.adapters.clickhouse import ClickHouse
    from citegauge.domain.signals import Signal
    from citegauge.ports import PaneRow

HOURS = 12
END_S = recent_minute() // 3_600 * 3_600 + 1_200
START_S = END_S - HOURS * 3_600
PARTITIONS = 4


@pytest.fixture(scope="module")
def panes() -> list[PaneRow]:
    """Twelve hours of panes, up to the newest minute; a tenth of the traces are of other routes and versions."""
    traces = random_traces(random.Random(20_261_130), START_S, HOURS * 60, 9_000)
    usual = {"route": "support", "model": "m1", "retriever_version": "r7"}
    return panes_of([row if i % 10 == 0 else msgspec.structs.replace(row, **usual) for i, row in enumerate(traces)])


@pytest.fixture(scope="module")
def clickhouse(panes: list[PaneRow]) -> Iterator[ClickHouse]:
    """Inserted twice, so that FINAL matters."""
    with embedded(database="week") as client:
        client.insert(panes)
        client.insert(panes[::2])
        yield client


def naive(panes: list[PaneRow], end_s: int) -> dict[Group, Usual]:
    """By group, from whole hours of panes."""
    start_s, until_s = usual_bounds(WEEK_S, end_s)
    hours: dict[Group, dict[int, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for row in panes:
        if start_s <= row.pane < until_s:
            group = Group(row.route, row.top_k_bucket, row.model, row.retriever_version, row.scorer)
            tally = hours[group][row.pane // 3_600 * 3_600]
            add_counts(tally.recall_counts, row.recall_counts)
            add_counts(tally.score_counts, row.score_counts)
    return {group: usual_of(cell_of(start, tally) for start, tally in cells.items()) for group, cells in hours.items()}


def numbers(baseline: Baseline | None) -> object:
    """For comparison: sums are added in another order."""
    if baseline is None:
        return None
    return pytest.approx((baseline.n, baseline.mean, baseline.variance, baseline.between, baseline.blocks), rel=1e-9)


@pytest.mark.parametrize("end_s", [END_S, END_S + 3 * 3_600, END_S + 6 * 3_600])
def test_the_week_is_that_of_the_panes(end_s: int, clickhouse: ClickHouse, panes: list[PaneRow]) -> None:
    """Every partition reads its own groups and no others; together they have all of them, with the same numbers."""
    expected = naive(panes, end_s)
    found: dict[Group, Usual] = {}
    for partition in range(PARTITIONS):
        own = usual_week(clickhouse, "week", partition, PARTITIONS, end_s)
        assert {panes_partition(group.route, group.top_k_bucket, PARTITIONS) for group in own} <= {partition}
        found |= own
    assert found.keys() == expected.keys()
    for group, usual in found.items():
        for mine, theirs in zip(usual, expected[group], strict=True):
            assert (mine is None) == (theirs is None), group
            if mine is not None:
                assert (mine.n, mine.mean, mine.variance, mine.between, mine.blocks) == numbers(theirs)
    assert end_s == END_S or any(usual.recall is not None for usual in found.values())


def test_a_group_without_scores_has_no_usual_score(clickhouse: ClickHouse, panes: list[PaneRow]) -> None:
    """Nothing measured is None in the answer, never 0."""
    end_s = END_S + 6 * 3_600
    silent = {group for group, usual in naive(panes, end_s).items() if usual.score is None}
    for partition in range(PARTITIONS):
        for group, usual in usual_week(clickhouse, "week", partition, PARTITIONS, end_s).items():
            assert (usual.score is None) == (group in silent)


async def test_a_restart_forgets_nothing(clickhouse: ClickHouse, panes: list[PaneRow]) -> None:
    """Restored from ClickHouse, with the minutes that come after it, the detectors say what they said without a restart."""
    ran_on, detectors, again = WindowStore(START_S), Detectors(), Detectors()
    newest = START_S
    for row in sorted(panes, key=lambda row: row.pane):
        if row.pane // 3_600 > newest // 3_600:
            for source in ("spans/0", "spans/1"):
                ran_on.close(source, newest - 600)
            await detectors.signals(ran_on, list(ran_on.group_windows()))  # what it remembers must not show
        newest = row.pane
        group = Group(row.route, row.top_k_bucket, row.model, row.retriever_version, row.scorer)
        ran_on.advance(row.pane + 60)
        ran_on.upsert(row.source, row.pane, group, row.version, tally_of(row))
    restored = [restored_store(clickhouse, "week", partition, PARTITIONS) for partition in range(PARTITIONS)]
    for end_s in (END_S, END_S + 60, END_S + 3_600):
        expected: list[Signal] = []
        for store in restored:
            store.advance(end_s)
            expected += await Detectors().signals(store, list(store.group_windows()))
            again_too = await again.signals(store, list(store.group_windows()))
            assert again_too == tuple(expected[len(expected) - len(again_too) :])
        ran_on.advance(end_s)
        found = await detectors.signals(ran_on, list(ran_on.group_windows()))
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert any(signal.cusum is not None for signal in found)
        assert any(signal.shift is not None for signal in found) == (end_s < END_S + 3_600), "later the hour is empty"
