"""The parts of `citegauge backtest` that need no Prometheus: what a rule reads, what can be replayed, how samples travel."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from citegauge.cli import cli
from citegauge.domain.window import WINDOWS
from citegauge.errors import ConfigError
from citegauge.metrics import METRICS
from citegauge.section_alerts import AlertSettings
from citegauge.tools.backtest import Asked, check_plot
from citegauge.tools.backtest.alerting import Firing, firings
from citegauge.tools.backtest.engine import Rule
from citegauge.tools.backtest.expression import Reads, reach_s, reads
from citegauge.tools.backtest.history import Extent
from citegauge.tools.backtest.plan import plan
from citegauge.tools.backtest.report import print_curves
from citegauge.tools.backtest.run import Curve, Report
from citegauge.tools.backtest.series import STALE, WriteBuffer, labels_of
from citegauge.tools.rules import rule_groups
from citegauge.tools.rules.model import Recording


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("up", [("up", ())]),
        ('max by (job, route) (a:b_c:1h{window = "1h", x=~"y|z"}) > 0.5', [("a:b_c:1h", ('window="1h"', 'x=~"y|z"'))]),
        ("sum(x) by (job) / on (job) group_left (route) y", [("x", ()), ("y", ())]),
        ("a and b unless c or d", [("a", ()), ("b", ()), ("c", ()), ("d", ())]),
        ("rate(x_total[5m:1m] offset 1h) # and not_this", [("x_total", ())]),
        ('{__name__=~"c.*"} > a', [("", ('__name__=~"c.*"',)), ("a", ())]),
        ('label_replace(x{a="}"}, "dst", "$1", "src", "(.*)")', [("x", ('a="}"',))]),
        ("topk by (a) (3, x) > bool 1e5 + Inf", [("x", ())]),
        ("time() - x > 5m", [("x", ())]),
    ],
)
def test_names_are_read_from_expressions(expr: str, found: list[tuple[str, tuple[str, ...]]]) -> None:
    """Metrics with their matchers; not functions, labels, ranges, strings or comments."""
    assert reads(expr) == [Reads(*each) for each in found]


@pytest.mark.parametrize(
    ("expr", "seconds"),
    [("x", 0), ("rate(x[5m])", 300), ("x offset 1h30m", 5_400), ("max_over_time(x[1d:5m] offset 1h)", 90_000)],
)
def test_how_far_back_an_expression_looks(expr: str, seconds: int) -> None:
    """Ranges and offsets add up: never less than what is really read."""
    assert reach_s(expr) == seconds


def recording(name: str, expr: str) -> Rule:
    """A recording rule."""
    return Rule(name, True, expr, {}, 0, 0)


def alert(name: str, expr: str, hold_s: float = 0, keep_s: float = 0) -> Rule:
    """An alert."""
    return Rule(name, False, expr, {}, hold_s, keep_s)


RECALL = "citegauge_cited_chunk_recall_ratio"


def test_what_needs_something_else_is_named_with_what_it_lacks() -> None:
    """Neither judged nor silently dropped, also when the lack is behind a recorded series."""
    found = plan(
        [
            recording("a:lag", "max(citegauge_position_lag_records)"),
            alert("Lag", "a:lag > 5"),
            alert("Both", f"{RECALL} < 0.1 and on () up == 1"),
            alert("Any", '{__name__=~"citegauge.*"} > 5'),
            alert("Own", 'ALERTS{alertname="Lag"}'),
            alert("Fine", f"{RECALL} < 0.1"),
        ]
    )
    assert [rule.name for rule in found.alerts] == ["Fine"]
    assert {rule.name: why for rule, why in found.not_replayable} == {
        "Lag": "not stored: citegauge_position_lag_records",
        "Both": "not stored: up",
        "Any": 'not stored: {__name__=~"citegauge.*"}',
        "Own": "not stored: ALERTS",
    }
    assert found.recordings == ()


def test_recordings_come_after_what_they_read() -> None:
    """Whatever the order of the file, and only those that some alert needs."""
    found = plan(
        [
            recording("c", "b + a"),
            recording("b", "a"),
            recording("a", f'{RECALL}{{window="1h"}}'),
            recording("unused", "a"),
            alert("A", "c > 1"),
        ]
    )
    assert [rule.name for rule in found.recordings] == ["a", "b", "c"]
    assert found.windows == {"1h"}
    assert found.metrics == {RECALL}


def test_a_name_recorded_twice_is_whole_before_it_is_read() -> None:
    """Two rules may record one series with different labels: who reads it waits for both."""
    twice = [recording("c", "a"), recording("a", RECALL), recording("a", "b"), recording("b", f"{RECALL} * 2")]
    found = plan([*twice, alert("A", "c > 1")])
    assert [rule.name for rule in found.recordings] == ["a", "b", "a", "c"]


def test_a_series_that_reads_its_own_past_is_not_replayable() -> None:
    """A stretch is evaluated at once, so its own values are not there yet."""
    found = plan([recording("a", f"a offset 1m + {RECALL}"), alert("A", "a > 1")])
    assert [why for _, why in found.not_replayable] == ["reads its own past"]


def test_a_metric_without_a_window_wants_all_of_them() -> None:
    """What is not named cannot be left out."""
    assert plan([alert("A", f"{RECALL} < 1")]).windows == {window.name for window in WINDOWS}
    assert plan([alert("A", f'{RECALL}{{window=~"1h|6h"}} < 1')]).windows == {window.name for window in WINDOWS}


def test_evaluation_begins_early_enough() -> None:
    """Ranges along what reads what, then `for` and `keep_firing_for`, in whole minutes."""
    found = plan(
        [
            recording("a", f"avg_over_time({RECALL}[10m])"),
            recording("b", "max_over_time(a[30s])"),
            alert("A", "avg_over_time(b[5m]) > 1", hold_s=300, keep_s=900),
        ]
    )
    assert found.warm_up_s == (10 + 1 + 5 + 5 + 15) * 60


def test_every_quality_rule_of_ours_can_be_replayed() -> None:
    """The settings' own rules: all that speak of quality, and of those on traffic the one that reads windows."""
    ours = [
        recording(rule.record, rule.expr) if isinstance(rule, Recording) else alert(rule.name, rule.expr)
        for group in rule_groups(AlertSettings())
        for rule in group.rules
    ]
    quality = {
        rule.name
        for group in rule_groups(AlertSettings())
        for rule in group.rules
        if not isinstance(rule, Recording) and rule.signal == "quality"
    }
    assert quality
    assert {rule.name for rule in plan(ours).alerts} == quality | {"CitegaugeRouteNoTraces"}


def test_all_that_has_a_route_is_a_window_value() -> None:
    """The plan takes metrics with the label `route` for replayable: they are computed from panes alone."""
    assert {metric.name for metric in METRICS if "window" in metric.labels} <= {
        metric.name for metric in METRICS if "route" in metric.labels
    }


def test_for_and_keep_firing_for_by_example() -> None:
    """Pending starts anew after one false evaluation; a gap shorter than `keep_firing_for` ends nothing."""
    points = [(60, 1.0), (180, 2.0), (240, 5.0), (300, 3.0), (480, 4.0)]
    told = firings(points, hold_s=120, keep_s=150, step_s=60, end_s=2_000)
    assert told == [Firing(300, 720, 3.0, 4.0)]
    assert firings(points, hold_s=120, keep_s=0, step_s=60, end_s=2_000) == [Firing(300, 360, 3.0, 3.0)]
    assert firings(points, hold_s=0, keep_s=0, step_s=60, end_s=540)[-1] == Firing(480, None, 4.0, 4.0)
    assert firings([], hold_s=0, keep_s=0, step_s=60, end_s=540) == []


def decoded(request: bytes) -> dict[tuple[tuple[str, str], ...], list[tuple[int, bytes]]]:
    """A remote-write request, read back field by field: labels → (ms, the eight bytes of the value)."""
    found = {}
    for tag, series in fields(request):
        assert tag == 0x0A
        labels, samples = [], []
        for kind, content in fields(series):
            inner = fields(content)
            if kind == 0x0A:
                (_, name), (_, value) = inner
                labels.append((name.decode(), value.decode()))
            else:
                (_, value), (_, time) = inner
                samples.append((int.from_bytes(time, "little"), value))
        found[tuple(labels)] = samples
    return found


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """(tag byte, content) of a protobuf message; varints as little-endian bytes."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 7 == 0:
            found.append((tag, varint().to_bytes(8, "little")))
        else:
            length = 8 if tag & 7 == 1 else varint()
            found.append((tag, data[at : at + length]))
            at += length
    return found


def test_what_is_no_longer_shown_ends() -> None:
    """As at a scrape: a series that is gone gets the mark at once, and does not live on for five minutes."""
    buffer = WriteBuffer()
    a, b = labels_of("m", [("route", "ä" * 100), ("empty", "")]), labels_of("m", [("route", "b")])
    buffer.at(60, {a: 0.5, b: 1.5})
    buffer.at(120, {b: 2.5})
    assert buffer.samples == 4
    found = decoded(buffer.take())
    assert set(found) == {(("__name__", "m"), ("route", "ä" * 100)), (("__name__", "m"), ("route", "b"))}
    assert found[a] == [(60_000, b"\0\0\0\0\0\0\xe0\x3f"), (120_000, STALE)]
    assert [at for at, _ in found[b]] == [60_000, 120_000]
    assert buffer.take() == b""


def test_recorded_series_end_where_they_have_nothing() -> None:
    """Gaps within a stretch, between two of them, and at a stretch's end."""
    buffer, key = WriteBuffer(), labels_of("r", [])

    def along(points: list[tuple[int, float]], times: range, present: bool) -> tuple[bool, list[tuple[int, bool]]]:
        has = buffer.along(key, points, times, present)
        return has, [(at // 1_000, value == STALE) for at, value in decoded(buffer.take()).get(key, [])]

    times = range(600, 900, 60)
    assert along([(600, 1.0), (720, 1.0), (780, 1.0), (840, 1.0)], times, False) == (
        True,
        [(600, False), (660, True), (720, False), (780, False), (840, False)],
    )
    assert along([], times, True) == (False, [(600, True)])
    assert along([], times, False) == (False, [])
    assert along([(660, 1.0)], times, False) == (False, [(660, False), (720, True)])
    assert along([(840, math.inf)], times, True) == (True, [(600, True), (840, False)])


@pytest.mark.parametrize("arguments", [["--step", "30s"], ["--step", "6m"], ["--step", "90s"], ["--from", "1h"]])
def test_times_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    """One line before anything is opened."""
    refused = CliRunner().invoke(cli, ["backtest", *arguments])
    assert isinstance(refused.exception, ConfigError)
    assert arguments[0] in str(refused.exception)


def test_a_picture_that_cannot_be_drawn_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after an hour of work: the form, the folder, and the library."""
    check_plot(tmp_path / "a.svg")
    for wrong in ("a.gif", "none/a.svg"):
        with pytest.raises(ConfigError, match="--plot"):
            check_plot(tmp_path / wrong)
    monkeypatch.setattr("citegauge.tools.backtest.plot.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'citegauge\[plot\]'"):
        check_plot(tmp_path / "a.svg")


def test_without_prometheus_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the name of the package, which the entry point turns into exit status 2."""
    monkeypatch.setenv("PATH", "")
    refused = CliRunner().invoke(cli, ["backtest"])
    assert isinstance(refused.exception, ConfigError)
    assert "package is `prometheus`" in str(refused.exception)


@pytest.mark.parametrize("step_s", [60, 300])
def test_a_curve_has_no_holes_where_there_is_data(step_s: int) -> None:
    """A coarse step fills all the columns that it covers; a gap in the data stays one."""
    asked = Asked(0, 3_600, "job", 100, step_s)
    curve = Curve()
    for time_s in range(0, 3_601, step_s):
        curve.add(time_s, None if 1_800 <= time_s < 2_700 else 0.5, None, None)
    never = Curve()
    never.add(0, None, None, None)
    curves = {("support", "1-5"): curve, ("support", "unknown"): never}
    report = Report(asked, plan([]), Extent(0, 0, 1), 0, curves=curves)
    console = Console(width=80)
    with console.capture() as capture:
        print_curves(report, console)
    assert "unknown" not in capture.get(), "what was never measured is no curve"
    bars = capture.get().splitlines()[-1].split()[2]
    full = {bars[0]}
    assert "·" not in full
    assert set(bars[:24]) == set(bars[-12:]) == full
    assert set(bars[28:36]) == {"·"}
