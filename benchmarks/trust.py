"""How far the drop alerts can be trusted: false alarms without a regression, and delays of drops. `make trust`.

    python benchmarks/trust.py                      prints it: half an hour of one core; takes all there are
    python benchmarks/trust.py --write docs/trust.md
    python benchmarks/trust.py --quick              seconds; the numbers mean little, but nothing has rotted

Traffic: trust_traffic.py; detectors, held to the service's own code by a test: trust_detect.py. A series is one route and
bucket with one full group. Everything is evaluated each minute, as Prometheus does it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

import trust_detect as detect
import trust_report as report
from citegauge.domain.cusum import POLICY
from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules import alerts
from citegauge.tools.simulate_spec import SECOND_NS, parse_duration
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
HOLDS = {
    alert.name: (parse_duration(alert.hold) // SECOND_NS, parse_duration(alert.keep) // SECOND_NS)
    for alert in alerts(AlertSettings())
}
"""`for` and `keep_firing_for` of the alerts."""
CUSUM = "CitegaugeRecallCusum"
OLD_Z, OLD_PAGE_S, OLD_TICKET_S = (5.0, 4.0), (300, 900), (900, 1_800)
"""Of the page and the ticket before there were baselines: Welch's z, `for` and `keep_firing_for`."""


class Size(NamedTuple):
    """How much of everything."""

    months: int = 3
    """Times 360 series and 30 days, per rate, in the usual mood; once in the others."""
    scored: int = 2
    """Times 60 series with scores, per rate."""
    days: int = MONTH_DAYS
    ks: tuple[int, ...] = KS
    per_k: int = SERIES // len(KS)
    delay_ks: tuple[int, ...] = KS_DELAY
    delays: int = 60
    """Series per k, rate and drop."""


QUICK = Size(months=1, scored=1, days=2, ks=(1, 5), per_k=4, delay_ks=(1, 5), delays=6)


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

    def cusum_rule(self, ratio: float) -> Bools:
        """CitegaugeRecallCusum: not where the last hour has recovered, or has few traces."""
        return self.enough & (self.hour.fall > 0) & (self.cusum >= ratio)

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
    return detect.cusum(world.cells, detect.usual(world.cells, PER_DAY, day=False), detect.DAY_POLICY) >= 1


RECALL = (
    Detector("page: hour", lambda world: world.hour_rule(page=True), *HOLDS["CitegaugeRouteRecallDrop"]),
    Detector("ticket: hour", lambda world: world.hour_rule(page=False), *HOLDS["CitegaugeRecallDrop"]),
    Detector("ticket: CUSUM", lambda world: world.cusum_rule(1.0), *HOLDS[CUSUM]),
    Detector(f"not wired: CUSUM ≥ {CUSUM_PAGE_RATIO}", lambda world: world.cusum_rule(CUSUM_PAGE_RATIO), *HOLDS[CUSUM]),
    Detector("not wired: CUSUM of 24 h", _day_cusum, *HOLDS[CUSUM]),
    Detector("before: page (Welch)", lambda world: world.old_rule(page=True), *OLD_PAGE_S),
    Detector("before: ticket (Welch)", lambda world: world.old_rule(page=False), *OLD_TICKET_S),
    Detector(f"naive: p50 < {NAIVE_RATIO} × week 1", World.naive, *OLD_PAGE_S),
)
PAGES, RULES = 1, 3
"""How many of them page, and how many are alerts of `citegauge rules`."""


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
    Detector("ticket: score drop", _score_drop, *HOLDS["CitegaugeTop1ScoreDrop"]),
    Detector("ticket: score shift", _score_shift, *HOLDS["CitegaugeScoreShift"]),
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


Evaluated = Callable[["Case"], Floats]


class Case(NamedTuple):
    """Some series, simulated and put through the detectors in one go."""

    scores: bool
    k: int
    mean: float
    fall: float
    """0: none; of scores in sd, else relative."""
    rate: int
    mood: Mood
    series: int
    days: int
    number: int = 0
    """Another one of the same."""


def evaluate(case: Case) -> Floats:
    """Without a fall: false alarms by detector, after a week of warming up. With one, hours from it to the first alert that
    begins after it, by detector and series; infinite where none came in time.
    """
    of = scores(case.fall) if case.scores else recalls(case.k, case.mean, case.fall)
    from_at = (WARM_DAYS + 1) * PER_DAY if case.fall else WARM_DAYS * PER_DAY
    length = (WARM_DAYS + case.days) * PER_DAY
    what = (case.scores, case.k, 100 * case.mean, 100 * case.fall, case.rate, 100 * case.mood.wander, case.number)
    rng = np.random.default_rng([EVALUATION_SEED, *map(round, what)])
    cells = simulate(rng, of, case.rate, case.mood, (case.series, length), from_at if case.fall else None)
    world = World(cells, of.values)
    detectors = SCORE if case.scores else RECALL
    found = np.full((len(detectors), case.series), math.inf) if case.fall else np.zeros(len(detectors))
    for which, detector in enumerate(detectors):
        series, begin = detect.alerts(detector.condition(world), detector.for_s, detector.keep_s)
        true = begin >= from_at
        if case.fall:
            np.minimum.at(found[which], series[true], (begin[true] - from_at + 1) * CELL_S / 3_600)
        else:
            found[which] = true.sum()
    return found


class Plan(NamedTuple):
    """What is to be evaluated."""

    size: Size

    def still(self, mood: Mood, rate: int, scored: bool = False) -> list[Case]:
        """Series that never change."""
        size = self.size
        if scored:
            return [Case(True, 0, 0.0, 0.0, rate, mood, size.per_k, size.days, each) for each in range(size.scored)]
        months = size.months if mood == USUAL else 1
        return [
            Case(False, k, MEAN, 0.0, rate, mood, size.per_k, size.days, month)
            for month in range(months)
            for k in size.ks
        ]

    def fallen(self, fall: float, rate: int, mood: Mood = USUAL, mean: float = MEAN) -> list[Case]:
        """Series that fall, by k."""
        return [Case(False, k, mean, fall, rate, mood, self.size.delays, 2) for k in self.size.delay_ks]

    def fallen_scores(self, fall: float, rate: int) -> list[Case]:
        """Scores that fall."""
        return [Case(True, 0, 0.0, fall, rate, USUAL, self.size.delays, 2)]


def alarms_of(cases: Sequence[Case], of: Evaluated) -> list[Alarms]:
    """By detector."""
    weeks = sum(case.series * case.days for case in cases) / 7
    return [Alarms(int(each), weeks) for each in sum(of(case) for case in cases)]


def sections(size: Size, of: Evaluated) -> Iterator[str]:
    """The report, part by part as it is measured."""
    plan = Plan(size)
    yield report.traffic((MEAN, MEAN_HIGH), size.delay_ks, (CALM, USUAL, LIVELY))
    for mood in (USUAL, CALM, LIVELY):
        found = {rate: alarms_of(plan.still(mood, rate), of) for rate in RATES}
        yield report.alarms(f"False alarms without a regression, {mood.name} mood", RECALL, found)
    pooled = {
        (rate, fall): np.hstack([of(case) for case in plan.fallen(fall, rate) if case.k >= 3])
        for rate in RATES
        for fall in FALLS
    }
    yield report.delays("Hours to the first alert, k ≥ 3, usual mood", RECALL, pooled, "{:.0%}")
    worlds = ((MEAN, USUAL), (MEAN_HIGH, USUAL), (MEAN, CALM), (MEAN_HIGH, CALM))
    by_k = {(mean, mood): {case.k: of(case) for case in plan.fallen(0.25, 200, mood, mean)} for mean, mood in worlds}
    usual = {rate: alarms_of(plan.still(USUAL, rate), of) for rate in RATES}
    yield report.goal((PAGES, RULES), usual, by_k)
    still = {rate: alarms_of(plan.still(USUAL, rate, scored=True), of) for rate in RATES}
    yield report.alarms("False alarms of the top-1 score, usual mood", SCORE, still)
    fallen = {(rate, fall): of(plan.fallen_scores(fall, rate)[0]) for rate in RATES for fall in FALLS_SD}
    yield report.delays("Hours to the first alert on scores that fell by so many sd", SCORE, fallen, "{:g} sd")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only to see that everything still runs")
    parser.add_argument("--write", type=Path, help="write it to this file, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    options = parser.parse_args()
    command = "python benchmarks/trust.py" + (" --quick" if options.quick else "")
    parts = [report.opening(command, dt.datetime.now(dt.UTC).date())]
    print(parts[0], flush=True)
    size = QUICK if options.quick else Size()
    with ProcessPoolExecutor(options.jobs) as pool:
        # A dry run tells what is wanted; the second run finds it, or waits for it.
        wanted: dict[Case, Future[Floats]] = {}

        def later(case: Case) -> Floats:
            if case not in wanted:
                wanted[case] = pool.submit(evaluate, case)
            detectors = len(SCORE if case.scores else RECALL)
            return np.zeros((detectors, 1) if case.fall else detectors)

        for _ in sections(size, later):
            pass
        for part in sections(size, lambda case: wanted[case].result()):
            parts.append(part)
            print(part, flush=True)
    if options.write:
        options.write.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
