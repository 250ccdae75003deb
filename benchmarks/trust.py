"""How far the drop alerts can be trusted: false alarms without a regression, and delays of drops. `make trust`.

    python benchmarks/trust.py                      prints it: a quarter of an hour on one core
    python benchmarks/trust.py --write docs/trust.md
    python benchmarks/trust.py --quick              seconds; the numbers mean little, but nothing has rotted

Traffic: trust_traffic.py; detectors, held to the service's own code by a test: trust_detect.py. A series is one route and
bucket with one full group. Everything is evaluated at the end of each 5-minute cell (the service: each minute).
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

import trust_detect as detect
import trust_report as report
from citegauge.domain.cusum import DAY_POLICY, POLICY
from citegauge.sections import AlertSettings
from trust_detect import Bools
from trust_traffic import (
    CALM,
    CELL_S,
    EVALUATION_SEED,
    LIVELY,
    PER_DAY,
    USUAL,
    Cells,
    Floats,
    Mood,
    Values,
    recalls,
    scores,
    simulate,
)

RATES = (10, 50, 200, 2_000)
KS = (1, 2, 3, 5, 10, 20)
KS_DELAY = (1, 2, 3, 5, 8, 10, 20)
FALLS = (0.15, 0.25, 0.50)
FALLS_SD = (0.25, 0.5, 1.0)
MEAN, MEAN_HIGH = 0.4, 0.6
SERIES = 360
WARM_DAYS, MONTH_DAYS = 7, 30
NAIVE_RATIO = 0.8
CUSUM_PAGE_RATIO = 1.25
PAGE_S, TICKET_S, CUSUM_S = (300, 900), (900, 1_800), (300, 1_800)
"""`for` and `keep_firing_for` of pages, tickets and CUSUMs."""
OLD_Z = (5.0, 4.0)
"""Welch's z of the page and the ticket before there were baselines."""


class Size(NamedTuple):
    """How much of everything."""

    months: int = 5
    """Times 360 series and 30 days, per rate, in the usual mood; once in the others."""
    days: int = MONTH_DAYS
    ks: tuple[int, ...] = KS
    per_k: int = SERIES // len(KS)
    delay_ks: tuple[int, ...] = KS_DELAY
    delays: int = 60
    """Series per k, rate and drop."""


QUICK = Size(months=1, days=2, ks=(1, 5), per_k=4, delay_ks=(1, 5), delays=6)


class World:
    """Some series, and what the detectors need of them, each computed once."""

    def __init__(self, cells: Cells, values: Floats) -> None:
        self.cells, self.values = cells, values
        self.settings = AlertSettings()

    @cached_property
    def usual(self) -> detect.Usual:
        """Baselines for the hour and the 6 h."""
        return detect.usual(self.cells)

    @cached_property
    def hour(self) -> detect.Compared:
        """The last hour against the day before it."""
        return detect.compared(self.cells, np.nan_to_num(self.usual.between))

    @cached_property
    def cusum(self) -> Floats:
        """Of 6 h."""
        return detect.cusum(self.cells, self.usual, POLICY)

    @cached_property
    def enough(self) -> Bools:
        """Traces on both sides."""
        return (self.hour.n_after >= self.settings.traces_min) & (
            self.hour.n_before >= self.settings.baseline_traces_min
        )

    def hour_rule(self, page: bool) -> Bools:
        """CitegaugeRouteRecallDrop, CitegaugeRecallDrop."""
        found = self.settings
        ratio, z = (
            (found.recall_drop_page_ratio, found.page_z_min)
            if page
            else (found.recall_drop_ticket_ratio, found.ticket_z_min)
        )
        return self.enough & (self.hour.fall >= ratio) & (self.hour.z >= z)

    def old_rule(self, page: bool) -> Bools:
        """The same two as they were: Welch, traces taken for independent."""
        ratio = self.settings.recall_drop_page_ratio if page else self.settings.recall_drop_ticket_ratio
        return self.enough & (self.hour.fall >= ratio) & (self.hour.z_welch >= OLD_Z[0 if page else 1])

    def naive(self) -> Bools:
        """The hour's p50 below 0.8 × the first week's."""
        first = Cells(*self.cells[:3], [each[:, : WARM_DAYS * PER_DAY] for each in self.cells.counts])
        threshold = NAIVE_RATIO * detect.median(first, self.values, None)
        found: Bools = detect.median(self.cells, self.values) < threshold
        return found


class Detector(NamedTuple):
    """One line of the tables."""

    name: str
    condition: Callable[[World], Bools]
    for_s: int
    keep_s: int


def _day_cusum(world: World) -> Bools:
    """Against the 7 days before that day."""
    return detect.cusum(world.cells, detect.usual(world.cells, PER_DAY, day=False), DAY_POLICY) >= 1


RECALL = (
    Detector("page: hour", lambda world: world.hour_rule(page=True), *PAGE_S),
    Detector(f"page: CUSUM ≥ {CUSUM_PAGE_RATIO}", lambda world: world.cusum >= CUSUM_PAGE_RATIO, *CUSUM_S),
    Detector("ticket: hour", lambda world: world.hour_rule(page=False), *TICKET_S),
    Detector("ticket: CUSUM", lambda world: world.cusum >= 1, *CUSUM_S),
    Detector("ticket: CUSUM of 24 h", _day_cusum, *CUSUM_S),
    Detector("before: page (Welch)", lambda world: world.old_rule(page=True), *PAGE_S),
    Detector("before: ticket (Welch)", lambda world: world.old_rule(page=False), *TICKET_S),
    Detector(f"naive: p50 < {NAIVE_RATIO} × week 1", World.naive, *PAGE_S),
)
PAGES = 2
"""How many of them page."""


def _score_drop(world: World) -> Bools:
    """CitegaugeTop1ScoreDrop."""
    return (
        world.enough
        & (world.hour.fall_sd >= world.settings.score_drop_sd)
        & (world.hour.z >= world.settings.ticket_z_min)
    )


def _score_shift(world: World) -> Bools:
    """CitegaugeScoreShift."""
    return world.enough & (detect.shift(world.cells, world.values, np.nan_to_num(world.usual.between)) >= 1)


SCORE = (
    Detector("ticket: score drop", _score_drop, *TICKET_S),
    Detector("ticket: score shift", _score_shift, *TICKET_S),
)


class Alarms(NamedTuple):
    """False alarms of one detector at one rate."""

    found: int
    series_weeks: float

    @property
    def per_week(self) -> float:
        """And series."""
        return self.found / self.series_weeks

    @property
    def per_month(self) -> float:
        """Over 360 series and 30 days."""
        return self.per_week * SERIES * MONTH_DAYS / 7


def false_alarms(mood: Mood, rate: int, size: Size, months: int, detectors: tuple[Detector, ...]) -> list[Alarms]:
    """Of series that never change, after a week of warming up."""
    found = [0] * len(detectors)
    length = (WARM_DAYS + size.days) * PER_DAY
    for month in range(months):
        for at, k in enumerate(size.ks):
            of = recalls(k, MEAN) if detectors is RECALL else scores()
            seed = [EVALUATION_SEED, round(100 * mood.wander), rate, at, month, int(detectors is RECALL)]
            rng = np.random.default_rng(seed)
            world = World(simulate(rng, of, rate, mood, (size.per_k, length)), of.values)
            for which, detector in enumerate(detectors):
                _, begin = detect.alerts(detector.condition(world), detector.for_s, detector.keep_s)
                found[which] += int((begin >= WARM_DAYS * PER_DAY).sum())
    weeks = months * size.per_k * len(size.ks) * size.days / 7
    return [Alarms(each, weeks) for each in found]


def delays(of: Values, rate: int, mood: Mood, size: Size, detectors: tuple[Detector, ...], seed: list[int]) -> Floats:
    """Hours from the drop to each detector's first alert (rows); infinite where none came within 24 h."""
    fall_at, length = (WARM_DAYS + 1) * PER_DAY, (WARM_DAYS + 2) * PER_DAY
    rng = np.random.default_rng([EVALUATION_SEED, *seed])
    world = World(simulate(rng, of, rate, mood, (size.delays, length), fall_at), of.values)
    found = np.full((len(detectors), size.delays), math.inf)
    for which, detector in enumerate(detectors):
        series, begin = detect.alerts(detector.condition(world), detector.for_s, detector.keep_s)
        true = begin >= fall_at
        np.minimum.at(found[which], series[true], (begin[true] - fall_at + 1) * CELL_S / 3_600)
    return found


def sections(size: Size) -> Iterator[str]:
    """The report, part by part as it is measured."""
    yield report.traffic(MEAN, size.delay_ks, (CALM, USUAL, LIVELY))
    usual = {rate: false_alarms(USUAL, rate, size, size.months, RECALL) for rate in RATES}
    yield report.alarms("False alarms without a regression, usual mood", RECALL, usual)
    for mood in (CALM, LIVELY):
        found = {rate: false_alarms(mood, rate, size, 1, RECALL) for rate in RATES}
        yield report.alarms(f"False alarms without a regression, {mood.name} mood", RECALL, found)
    pooled: dict[tuple[int, float], Floats] = {}
    by_k: dict[int, Floats] = {}
    for rate in RATES:
        for fall in FALLS:
            each = {
                k: delays(recalls(k, MEAN, fall), rate, USUAL, size, RECALL, [rate, round(100 * fall), k])
                for k in size.delay_ks
            }
            pooled[rate, fall] = np.hstack([found for k, found in each.items() if k >= 3])
            if (rate, fall) == (200, 0.25):
                by_k = each
    yield report.delays("Hours to the first alert, k ≥ 3, usual mood", RECALL, pooled, "{:.0%}")
    high = {k: delays(recalls(k, MEAN_HIGH, 0.25), 200, USUAL, size, RECALL, [200, 25, k, 6]) for k in size.delay_ks}
    calm = {k: delays(recalls(k, MEAN, 0.25), 200, CALM, size, RECALL, [200, 25, k, 4]) for k in size.delay_ks}
    yield report.goal(PAGES, usual, {(MEAN, USUAL): by_k, (MEAN_HIGH, USUAL): high, (MEAN, CALM): calm})
    still = {rate: false_alarms(USUAL, rate, size, 1, SCORE) for rate in RATES}
    yield report.alarms("False alarms of the top-1 score, usual mood", SCORE, still)
    fallen = {
        (rate, fall): delays(scores(fall), rate, USUAL, size, SCORE, [rate, round(100 * fall), 99])
        for rate in RATES
        for fall in FALLS_SD
    }
    yield report.delays("Hours to the first alert on scores that fell by so many sd", SCORE, fallen, "{:g} sd")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only to see that everything still runs")
    parser.add_argument("--write", type=Path, help="write it to this file, too")
    options = parser.parse_args()
    command = "python benchmarks/trust.py" + (" --quick" if options.quick else "")
    parts = [report.opening(command, dt.datetime.now(dt.UTC).date())]
    print(parts[0], flush=True)
    for part in sections(QUICK if options.quick else Size()):
        parts.append(part)
        print(part, flush=True)
    if options.write:
        options.write.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
