"""The backtest itself: panes to samples, samples into Prometheus, rules over them, and when each alert would have fired."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from citegauge.adapters.rolling import View
from citegauge.domain.drop import LIMITS, Limits, drops
from citegauge.domain.episodes import Episode, Followed, Judgement
from citegauge.domain.signals import Signal
from citegauge.domain.window import MERGED, PANE_S
from citegauge.errors import ConfigError
from citegauge.metrics import BY_NAME
from citegauge.ports import SqlReader
from citegauge.tools.backtest.alerting import Firing, firings
from citegauge.tools.backtest.engine import Engine, Rule, engine
from citegauge.tools.backtest.history import Extent, History, oldest_s
from citegauge.tools.backtest.plan import Plan, plan
from citegauge.tools.backtest.series import Labels, WriteBuffer, labels_of
from citegauge.tools.samples import window_samples

CHUNK_POINTS = 50_000
"""Evaluations times (route, top_k bucket) pairs that are evaluated at a time; it bounds the answers in memory."""
BUFFERED_SAMPLES_MAX = 100_000
CURVE_POINTS_MAX = 2_000

Progress = Callable[[int, int], None]
"""Evaluations done, of how many."""


class Asked(NamedTuple):
    """What the user wants to know."""

    from_s: int
    to_s: int
    """[from, to) in unix seconds, whole minutes."""
    job: str
    """Of the scrape job: the label that live series carry."""
    series_max: int
    step_s: int = PANE_S
    """Between two evaluations: whole minutes."""
    distance_routes: frozenset[str] = frozenset()
    """Routes whose scores are distances, as the settings declare them."""
    limits: Limits = LIMITS
    """What a fall must exceed to be an episode, as the settings have it."""


@dataclass(slots=True)
class Fired:
    """One alert's firings, for each of its label sets."""

    rule: Rule
    by_labels: dict[Labels, list[Firing]] = field(default_factory=dict)


@dataclass(slots=True)
class Curve:
    """The hour's recall of one (route, top_k bucket), thinned out; NaN where nothing was measured."""

    times_s: array[int] = field(default_factory=lambda: array("q"))
    stats: dict[str, array[float]] = field(
        default_factory=lambda: {stat: array("d") for stat in ("mean", "p25", "p50")}
    )

    def add(self, time_s: int, *values: float | None) -> None:
        """Mean, p25 and p50 at one more time."""
        self.times_s.append(time_s)
        for stat, value in zip(self.stats.values(), values, strict=True):
            stat.append(math.nan if value is None else value)


@dataclass(slots=True)
class Report:
    """What a backtest found."""

    asked: Asked
    plan: Plan
    extent: Extent
    needed_from_s: int
    """Start of the first pane that the first minute looks at."""
    fired: list[Fired] = field(default_factory=list)
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    """By the rule for drops, as the page tells them, oldest first; none where no rule wants what the workers compare."""

    @property
    def past_is_short(self) -> bool:
        """Panes begin later than what the first minute looks at, so some comparisons have less of a past than asked for."""
        return self.extent.first_s > self.needed_from_s + PANE_S


async def run_backtest(
    reader: SqlReader, database: str, rules: list[Rule], asked: Asked, on_progress: Progress | None = None
) -> Report:
    """Replay [from, to) minute by minute. Raises `ConfigError` where there is nothing to replay."""
    todo = plan(rules)
    first_s = asked.from_s - -(-todo.warm_up_s // asked.step_s) * asked.step_s
    history = History(reader, database, asked.distance_routes)
    extent = history.extent(oldest_s(first_s), asked.to_s)
    if not extent.panes:
        raise ConfigError("ClickHouse holds no panes of that time: look at --from and --to")
    report = Report(asked, todo, extent, oldest_s(asked.from_s))
    with engine() as prometheus:
        replay = _Replay(prometheus, report, first_s)
        times = range(first_s, asked.to_s + 1, asked.step_s)
        followed: defaultdict[tuple[str, str, str], Followed] = defaultdict(Followed)
        done = 0
        async for view in history.views(times, todo.windows | {"1h"}, signals=todo.signals):
            replay.show(times[done], view)
            _judge(followed, times[done], view.signals, asked.limits)
            done += 1
            if done % replay.chunk_steps == 0 or done == len(times):
                replay.evaluate(times[done - 1])
            if on_progress is not None:
                on_progress(done, len(times))
        report.fired = list(replay.firings())
    found = [one for each in followed.values() for one in each.episodes]
    report.episodes = sorted(
        (one for one in found if one.detected_s < asked.to_s and (one.ended_s or asked.to_s) > asked.from_s),
        key=lambda one: (one.detected_s, one.worst.name),
    )
    return report


def _judge(
    followed: defaultdict[tuple[str, str, str], Followed], time_s: int, signals: Iterable[Signal], limits: Limits
) -> None:
    fallen = {(one.route, one.top_k_bucket, one.scorer): one for one in drops(signals, limits)}
    for key in fallen.keys() | {key for key, each in followed.items() if each.current is not None}:
        followed[key].add(Judgement(time_s, fallen.get(key)))


class _Replay:
    """One pass over history."""

    def __init__(self, prometheus: Engine, report: Report, first_s: int) -> None:
        self._prometheus = prometheus
        self._report = report
        self._plan, self._asked = report.plan, report.asked
        self._next_s = first_s
        self._shown, self._recorded = WriteBuffer(), WriteBuffer()
        self._present: set[tuple[int, Labels]] = set()
        self._true: list[dict[Labels, tuple[array[int], array[float]]]] = [{} for _ in self._plan.alerts]
        self._known: dict[tuple[str, tuple[str, ...]], Labels] = {}
        self._target = (("job", self._asked.job), ("instance", "backtest"))
        self.chunk_steps = min(1_440, max(30, CHUNK_POINTS // max(1, report.extent.pairs)))
        steps = (self._asked.to_s - self._asked.from_s) // self._asked.step_s
        self._stride_s = -(-steps // CURVE_POINTS_MAX) * self._asked.step_s

    def show(self, time_s: int, view: View) -> None:
        """What a scrape at that time would have brought."""
        samples: dict[Labels, float] = {}
        for sample in window_samples(view, self._asked.series_max):
            if sample.name in self._plan.metrics:
                samples[self._labels(sample.name, sample.labels)] = sample.value
        self._shown.at(time_s, samples)
        if self._shown.samples > BUFFERED_SAMPLES_MAX:
            self._prometheus.write(self._shown.take())
        if time_s >= self._asked.from_s and (time_s - self._asked.from_s) % self._stride_s == 0:
            self._draw(time_s, view)

    def _labels(self, name: str, values: tuple[str, ...]) -> Labels:
        known = self._known.get((name, values))
        if known is None:
            pairs = zip(BY_NAME[name].labels, values, strict=True)
            known = self._known[name, values] = labels_of(name, (*pairs, *self._target))
        return known

    def _draw(self, time_s: int, view: View) -> None:
        for row in view.rows:
            if (row.window, row.model, row.retriever_version, row.scorer) == ("1h", MERGED, MERGED, MERGED):
                curve = self._report.curves.setdefault((row.route, row.top_k_bucket), Curve())
                if curve.times_s and curve.times_s[-1] < time_s - self._stride_s:
                    curve.add(time_s - self._stride_s, None, None, None)  # no line over a time without traces
                curve.add(time_s, row.recall_mean, row.recall_p25, row.recall_p50)

    def evaluate(self, last_s: int) -> None:
        """All rules over what was shown since the last time."""
        times = range(self._next_s, last_s + 1, self._asked.step_s)
        if not times:
            return
        self._prometheus.write(self._shown.take())
        for number, rule in enumerate(self._plan.recordings):
            self._record(number, rule, times)
        for rule, true in zip(self._plan.alerts, self._true, strict=True):
            for series in self._prometheus.query_range(rule.expr, times[0], times[-1], times.step):
                labels = tuple(sorted(item for item in series.labels.items() if item[0] != "__name__"))
                moments, values = true.setdefault(labels, (array("q"), array("d")))
                moments.extend(time_s for time_s, _ in series.points)
                values.extend(value for _, value in series.points)
        self._next_s = last_s + self._asked.step_s

    def _record(self, number: int, rule: Rule, times: range) -> None:
        before = {labels for at, labels in self._present if at == number}
        found: Mapping[Labels, list[tuple[int, float]]] = {
            labels_of(rule.name, ({**series.labels, **rule.labels, "__name__": ""}).items()): series.points
            for series in self._prometheus.query_range(rule.expr, times[0], times[-1], times.step)
        }
        for labels in before | found.keys():
            has = self._recorded.along(labels, found.get(labels, ()), times, labels in before)
            (self._present.add if has else self._present.discard)((number, labels))
        if self._recorded.samples:
            self._prometheus.write(self._recorded.take())

    def firings(self) -> Iterator[Fired]:
        """What fired in [from, to), in the order of the rules."""
        asked = self._asked
        for rule, true in zip(self._plan.alerts, self._true, strict=True):
            fired = Fired(rule)
            for labels, points in true.items():
                told = firings(
                    zip(*points, strict=True),
                    hold_s=rule.hold_s,
                    keep_s=rule.keep_s,
                    step_s=asked.step_s,
                    end_s=asked.to_s + asked.step_s,
                )
                seen = [one for one in told if one.from_s < asked.to_s and (one.to_s or asked.to_s) > asked.from_s]
                if seen:
                    fired.by_labels[labels] = seen
            yield fired
