"""The trust benchmark's whole-series detectors are the domain's, at instants drawn at random."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from citegauge.domain.baseline import BLOCK_S, TESTED_S, Baseline, Cell, baseline_of, pooled, usual
from citegauge.domain.compare import Part, like_for_like
from citegauge.domain.cusum import POLICY, Policy, cusum
from citegauge.domain.distribution import fraction_key, fraction_value, histogram_key, quantiles
from citegauge.domain.intervals import Moments
from citegauge.domain.shift import shift

DAYS, DAY, HOUR = 9, 1_440, 60
"""Cells of a minute."""
SERIES = 2


@pytest.fixture(scope="module")
def benchmark() -> tuple[ModuleType, ModuleType]:
    """The benchmark's modules; benchmarks are scripts and no package."""
    folder = str(Path(__file__).parents[2] / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("trust_traffic"), importlib.import_module("trust_detect")


def written_out(cells: Any, row: int) -> list[Cell]:
    """A series as the domain takes it."""
    found = []
    for at in range(cells.n.shape[1]):
        n, total, squares = (float(each[row, at]) for each in cells[:3])
        mean = total / n if n else 0.0
        variance = max(0.0, squares - n * mean**2) / (n - 1) if n > 1 else 0.0
        found.append(Cell(at * 60, Moments(int(n), mean, variance)))
    return found


def between(cells: list[Cell], start_s: int, end_s: int) -> list[Cell]:
    """Those that start within."""
    return [cell for cell in cells if start_s <= cell.start_s < end_s]


def baselines(cells: list[Cell], end_s: int) -> tuple[Baseline | None, Baseline | None]:
    """Day and week, up to the full hour before the tested 6 h."""
    until_s = (end_s - TESTED_S) // BLOCK_S * BLOCK_S
    day, week = (until_s - 18 * BLOCK_S, until_s), (until_s - 168 * BLOCK_S, until_s)
    return baseline_of(between(cells, *day)), baseline_of(between(cells, *week))


@pytest.mark.parametrize("per_hour", [4, 60, 2_000])
@pytest.mark.parametrize("fall_at", [None, 8 * DAY - 100])
def test_recall_detectors_are_the_domains(
    benchmark: tuple[ModuleType, ModuleType], per_hour: int, fall_at: int | None
) -> None:
    """Baseline, comparison, both CUSUMs and the median, with and without a drop, from little to much traffic."""
    traffic, detect = benchmark
    rng = np.random.default_rng(per_hour)
    of = traffic.recalls(5, 0.4, 0.4)
    cells = traffic.simulate(rng, of, per_hour, traffic.USUAL, (SERIES, DAYS * DAY), fall_at)
    normal, slow = detect.usual(cells), detect.usual(cells, DAY, day=False)
    hour = detect.compared(cells, np.nan_to_num(normal.between))
    ratios = detect.cusum(cells, normal, POLICY), detect.cusum(cells, slow, detect.DAY_POLICY)
    medians = detect.median(cells, of.values)
    for row in range(SERIES):
        fine = written_out(cells, row)
        for at in [*rng.integers(3 * HOUR, DAYS * DAY, 25), 8 * DAY, 8 * DAY + 3]:
            end_s = int(at) * 60
            expected = usual(*baselines(fine, end_s))
            if expected is None:
                assert np.isnan(normal.mean[row, at - 1])
                continue
            seen = [float(each[row, at - 1]) for each in normal]
            assert seen == pytest.approx([expected.mean, expected.variance, expected.between], rel=1e-6)
            same_hour(fine, end_s, expected, [float(each[row, at - 1]) for each in hour])
            same_cusum(fine, end_s, expected, POLICY, ratios[0][row, at - 1])
            until_s = (end_s - 86_400) // BLOCK_S * BLOCK_S
            week = baseline_of(between(fine, until_s - 144 * BLOCK_S, until_s))
            same_cusum(fine, end_s, week, detect.DAY_POLICY, ratios[1][row, at - 1])
            same_median(cells, row, int(at), medians[row, at - 1])


def same_hour(cells: list[Cell], end_s: int, expected: Baseline, seen: list[float]) -> None:
    """The last hour against the day before it."""
    before = pooled(cell.found for cell in between(cells, end_s - 86_400, end_s - 3_600))
    after = pooled(cell.found for cell in between(cells, end_s - 3_600, end_s))
    compared = like_for_like([Part(before, after, expected.between)])
    assert (compared is None) == (seen[0] == 0.0)
    if compared is not None:
        assert compared.fall == pytest.approx(seen[0], rel=1e-6, abs=1e-9)
        assert compared.z == pytest.approx(seen[2], rel=1e-6, abs=1e-9)


def same_cusum(cells: list[Cell], end_s: int, baseline: Baseline | None, policy: Policy, seen: float) -> None:
    """The statistic over its limit; none is 0."""
    found = cusum([(baseline, cells)], end_s, policy) if baseline is not None else None
    assert (found.ratio if found is not None else 0.0) == pytest.approx(seen, rel=1e-6, abs=1e-9)


def same_median(cells: Any, row: int, at: int, seen: float) -> None:
    """The last hour's median on the lattice of fifths."""
    counts: dict[int, int] = {
        fraction_key(cited, 5): n
        for cited, count in enumerate(cells.counts)
        if (n := int(count[row, at - HOUR : at].sum()))
    }
    found = quantiles(counts, fraction_value, [0.5])[0]
    assert np.isnan(seen) if found is None else found == pytest.approx(seen)


def test_the_shift_is_the_domains(benchmark: tuple[ModuleType, ModuleType]) -> None:
    """Ratio of the distance to its limit, still and fallen."""
    traffic, detect = benchmark
    rng = np.random.default_rng(7)
    of = traffic.scores(0.5)
    cells = traffic.simulate(rng, of, 200, traffic.USUAL, (SERIES, 4 * DAY), 3 * DAY)
    wander = np.full(cells.n.shape, 0.0002)
    seen = detect.shift(cells, of.values, wander)
    for at in (2 * DAY, 3 * DAY, 3 * DAY + 35, 3 * DAY + HOUR, 4 * DAY):
        for row in range(SERIES):
            before, after = (counted(traffic, cells, row, *ends) for ends in ((at - DAY, at - HOUR), (at - HOUR, at)))
            found = shift(before, after, between=0.0002)
            assert found is not None
            assert found.ratio == pytest.approx(seen[row, at - 1], rel=1e-6)


def counted(traffic: ModuleType, cells: Any, row: int, start: int, end: int) -> Mapping[int, int]:
    """Histogram counts of some cells."""
    sums = {key: int(n[row, start:end].sum()) for key, n in zip(traffic.SCORE_KEYS, cells.counts, strict=True)}
    return {key: n for key, n in sums.items() if n}


def test_alerts_begin_as_prometheus_begins_them(benchmark: tuple[ModuleType, ModuleType]) -> None:
    """`for` and `keep_firing_for`, against a plain walk through the evaluations."""
    _, detect = benchmark
    rng = np.random.default_rng(3)
    condition = rng.random((4, 400)) < 0.6
    for hold, keep in ((0, 0), (1, 3), (3, 6)):
        expected = []
        for row in range(4):
            true_for, since, fires = 0, keep + 1, False
            for at in range(400):
                true_for, since = (true_for + 1, 0) if condition[row, at] else (0, since + 1)
                now = true_for > hold or (fires and since <= keep)
                if now and not fires:
                    expected.append((row, at))
                fires = now
        assert list(zip(*detect.alerts(condition, hold * 60, keep * 60), strict=True)) == expected


def test_traffic_is_what_it_says(benchmark: tuple[ModuleType, ModuleType]) -> None:
    """Number, mean and standard deviation of the traces; the fall; and a score's key is the service's own."""
    traffic, _ = benchmark
    rng = np.random.default_rng(11)
    of = traffic.recalls(10, 0.4, 0.25)
    cells = traffic.simulate(rng, of, 500, traffic.USUAL, (40, 2 * DAY), DAY)
    for start, mean in ((0, 0.4), (DAY, 0.3)):
        n, total, squares = (float(each[:, start : start + DAY].sum()) for each in cells[:3])
        assert n == pytest.approx(500 * 24 * 40, rel=0.01)
        assert total / n == pytest.approx(mean, rel=0.02)
        assert (squares / n - (total / n) ** 2) ** 0.5 == pytest.approx(of.sd, rel=0.15)
    assert [histogram_key(float(value)) for value in traffic.scores().values] == list(traffic.SCORE_KEYS)
