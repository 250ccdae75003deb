"""`citegauge backtest` over a past whose story is known: what fires, when, and what does not; promtool tells the same."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from datetime import datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from citegauge.adapters.web import Past
from citegauge.commands.backtest import _asked as asked_of
from citegauge.domain.drop import LIMITS
from citegauge.errors import ConfigError
from citegauge.metrics import BY_NAME
from citegauge.section_alerts import AlertSettings
from citegauge.settings import load
from citegauge.tools.backtest import Asked, as_json, print_report, read_rules, run_backtest
from citegauge.tools.backtest.alerting import firings
from citegauge.tools.backtest.history import History
from citegauge.tools.backtest.report import flat
from citegauge.tools.rules import rule_file
from citegauge.tools.samples import window_samples
from support.clickhouse import child_environment, over_http, recent_minute
from support.history import Habit, Stretch, past
from support.promtool import PROMTOOL, promtool_test

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from citegauge.tools.backtest import Report
    from support.clickhouse import ClickHouseFront

pytestmark = pytest.mark.skipif(
    PROMTOOL is None or shutil.which("prometheus") is None, reason="they come with Debian's package prometheus"
)

MINUTE_S, HOUR_S = 60, 3_600
TO = recent_minute() // HOUR_S * HOUR_S - 10 * MINUTE_S  # baselines stand on whole hours: the minute must not decide
FROM = TO - 5 * HOUR_S
FALL, RECOVERY, STOP = TO - 4 * HOUR_S, TO - 3 * HOUR_S, TO - 3 * HOUR_S
HABITS = (
    Habit(route="support", wrong=[Stretch(from_s=FALL, to_s=RECOVERY, recall=0.3)]),
    Habit(route="support", model="m2", per_minute=2, wrong=[Stretch(from_s=FALL, to_s=RECOVERY, recall=0.3)]),
    Habit(route="sales", wrong=[Stretch(from_s=STOP, to_s=TO, recall=None)]),
    Habit(route="docs", top_k_bucket="6-10", retrieved=10, recall=0.3),
    # Too few to say anything, and falling all the same.
    Habit(
        route="rare",
        per_minute=1,
        wrong=[
            *(Stretch(from_s=at, to_s=at + 9 * MINUTE_S, recall=None) for at in range(FROM - 30 * HOUR_S, TO, 600)),
            Stretch(from_s=FALL, to_s=FALL + 30 * MINUTE_S, recall=0.05),
        ],
    ),
)
ASKED = Asked(FROM, TO, "citegauge", 100)
RULES = rule_file(AlertSettings())


@pytest.fixture(scope="module")
def database(front: ClickHouseFront) -> Iterator[ClickHouse]:
    """The past in a database of its own."""
    with over_http(front.url) as client:
        client.insert(list(past(HABITS, FROM - 26 * HOUR_S, TO)))
        yield client


@pytest.fixture(scope="module")
def report(database: ClickHouse) -> Report:
    """One backtest with the rules of the default settings."""
    return asyncio.run(run_backtest(database, database.database, read_rules(RULES), ASKED))


def fired(report: Report) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(alert, route) to (from, to) in minutes after the start."""
    return {
        (one.rule.name, dict(labels)["route"]): [
            ((each.from_s - FROM) // 60, ((each.to_s or TO + 60) - FROM) // 60) for each in found
        ]
        for one in report.fired
        for labels, found in one.by_labels.items()
    }


def test_the_route_that_falls_fires_in_time_and_nothing_else_does(report: Report) -> None:
    """Within the hour in which it fell there is a ticket, then a page, and both end after it has recovered."""
    found = fired(report)
    assert set(found) == {
        ("CitegaugeRouteRecallDrop", "support"),
        ("CitegaugeRecallDrop", "support"),
        ("CitegaugeRecallCusum", "support"),
        ("CitegaugeRouteNoTraces", "sales"),
    }
    fall, recovery = (FALL - FROM) // 60, (RECOVERY - FROM) // 60
    for alert, hold in (("CitegaugeRouteRecallDrop", 5), ("CitegaugeRecallDrop", 2)):
        ((start, end),) = found[alert, "support"]
        assert fall + hold < start < fall + hold + 25, "the hour's mean has fallen far enough after a third of it"
        assert recovery + 20 < end < recovery + 60 + 30, "it ends when the hour is clean, and has been kept"


def test_the_drop_is_told_as_the_page_tells_it(report: Report, database: ClickHouse) -> None:
    """One episode: it started with the fall and ended with the recovery; the page, judging quarters, tells the same."""
    (minutes,) = [one for one in report.episodes if one.worst.what == "recall"]
    told = as_json(report)["episodes"]
    assert minutes.as_dict() in told
    assert abs(minutes.started_s - FALL) <= 5 * MINUTE_S
    assert FALL < minutes.detected_s < FALL + 30 * MINUTE_S
    assert minutes.ended_s is not None
    assert RECOVERY < minutes.ended_s <= RECOVERY + 70 * MINUTE_S
    page = Past(database.query, database.database, LIMITS).of(
        "support", minutes.worst.top_k_bucket, minutes.ended_s + HOUR_S
    )
    (quarters,) = [one for one in page if one.worst.what == "recall"]
    assert quarters.ended_s is not None
    for name in ("started_s", "detected_s", "ended_s"):
        assert abs(getattr(quarters, name) - getattr(minutes, name)) <= 15 * MINUTE_S, name
    assert quarters.worst.moved == pytest.approx(minutes.worst.moved, abs=0.05)


def test_traffic_that_stops_says_nothing_of_quality(report: Report) -> None:
    """The windows empty; an hour and a half later the route is missed, to the minute."""
    stop = (STOP - FROM) // 60
    assert fired(report)["CitegaugeRouteNoTraces", "sales"] == [(stop + 60 + 30, (TO - FROM) // 60 + 1)]


def test_what_cannot_be_replayed_is_named(report: Report) -> None:
    """An alert on the worker is never said not to have fired."""
    lacking = {rule.name for rule, _ in report.plan.not_replayable}
    assert {"CitegaugeDown", "CitegaugeNoTraces", "CitegaugeLagSeconds", "CitegaugeAsOfStale"} <= lacking
    assert not lacking & {one.rule.name for one in report.fired}


def test_promtool_tells_the_same_story(database: ClickHouse, report: Report, tmp_path: Path) -> None:
    """The same samples and the same rule file in `promtool test rules`: the same alerts fire at the same minutes."""
    first_s = FROM - report.plan.warm_up_s
    minutes = (TO - first_s) // 60 + 1

    async def shown() -> list[dict[str, float]]:
        history = History(database, database.database)
        return [
            {_series(sample.name, sample.labels): sample.value for sample in window_samples(view, 100)}
            async for view in history.views(range(first_s, TO + 1, 60), {"1h", "24h"}, signals=report.plan.signals)
        ]

    scrapes = asyncio.run(shown())
    names = {name for scrape in scrapes for name in scrape if "as_of_timestamp" not in name}
    series = {name: " ".join(_values(name, scrapes)) for name in names}
    tests = []
    for minute in range((FROM - first_s) // 60, minutes):
        now_s = first_s + minute * 60
        firing: dict[str, int] = {}
        for one in report.fired:
            n = sum(each.from_s <= now_s < (each.to_s or TO + 60) for _, each in flat(one.by_labels))
            if n:
                firing[one.rule.name] = n
        tests.append(_expected(minute, firing, report))
    said = promtool_test(tmp_path, RULES, series, {"promql_expr_test": tests})
    assert not said, said[:3_000]


def test_declared_distances_are_told(database: ClickHouse, tmp_path: Path) -> None:
    """What the settings declare reaches the series, so that the rules judge a rise as they would have live."""
    config = tmp_path / "c.toml"
    config.write_text('[routes.docs]\nscore_direction = "lower"\n[routes.support]\ncites = true\n')
    asked = asked_of(load(config), "-1h", None, "1m")

    async def signs() -> dict[str, float]:
        history = History(database, database.database, asked.distance_routes)
        return {
            sample.labels[0]: sample.value
            async for view in history.views(range(FROM, FROM + 1), {"1h"}, signals=True)
            for sample in window_samples(view, 100)
            if sample.name == "citegauge_compared_top1_score_sign"
        }

    found = asyncio.run(signs())
    assert {route: found[route] for route in ("docs", "support")} == {"docs": -1, "support": 1}


def _expected(minute: int, firing: Mapping[str, int], report: Report) -> dict[str, Any]:
    judged = "|".join(one.rule.name for one in report.fired)
    return {
        "expr": f'count by (alertname) (ALERTS{{alertstate="firing",alertname=~"{judged}"}})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": n} for name, n in firing.items()],
    }


def _series(name: str, values: tuple[str, ...]) -> str:
    pairs = [*zip(BY_NAME[name].labels, values, strict=True), ("job", "citegauge"), ("instance", "backtest")]
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in pairs) + "}"


def _values(name: str, scrapes: list[dict[str, float]]) -> Iterator[str]:
    """As promtool writes them; a series that is gone ends at once."""
    before = False
    for scrape in scrapes:
        value = scrape.get(name)
        yield "stale" if value is None and before else "_" if value is None else repr(float(value))
        before = value is not None


def test_for_and_keep_firing_for_are_those_of_promtool(tmp_path: Path) -> None:
    """Random patterns under several holds: the closed form fires at the minutes at which Prometheus' own engine does."""
    rng = random.Random(5)
    minutes, step_s = 150, 60
    holds = [(0, 0), (0, 120), (60, 0), (300, 0), (120, 180), (300, 300), (90, 150)]
    patterns = {
        f"p{index}": [rng.random() < share for _ in range(minutes)] for index, share in enumerate((0.3, 0.6, 0.9, 0.97))
    }
    rules = "groups:\n- name: g\n  interval: 1m\n  rules:\n" + "".join(
        f"  - alert: A{hold}x{keep}\n    expr: x == 1\n    for: {hold}s\n    keep_firing_for: {keep}s\n"
        for hold, keep in holds
    )
    series = {f'x{{p="{name}"}}': " ".join("1" if true else "0" for true in shown) for name, shown in patterns.items()}
    tests = []
    for minute in range(minutes):
        samples = []
        for hold, keep in holds:
            for name, shown in patterns.items():
                points = [(at * step_s, 1.0) for at, true in enumerate(shown) if true]
                told = firings(points, hold_s=hold, keep_s=keep, step_s=step_s, end_s=minutes * step_s)
                if any(one.from_s <= minute * step_s < (one.to_s or minutes * step_s) for one in told):
                    labels = f'ALERTS{{alertname="A{hold}x{keep}",alertstate="firing",p="{name}"}}'
                    samples.append({"labels": labels, "value": 1})
        tests.append({"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": samples})
    said = promtool_test(tmp_path, rules, series, {"promql_expr_test": tests})
    assert not said, said[:3_000]


def test_rules_that_prometheus_refuses_are_refused_with_its_words() -> None:
    """What is wrong and where, in one line."""
    with pytest.raises(ConfigError, match=r"does not take the rules: .*unclosed left parenthesis"):
        read_rules("groups:\n- name: x\n  rules:\n  - alert: A\n    expr: foo(\n")


def test_a_stretch_without_panes_is_refused(database: ClickHouse) -> None:
    """Nothing stored is not `nothing fired`."""
    asked = Asked(FROM - 400 * 24 * HOUR_S, FROM - 399 * 24 * HOUR_S, "citegauge", 100)
    with pytest.raises(ConfigError, match="no panes of that time"):
        asyncio.run(run_backtest(database, database.database, read_rules(RULES), asked))


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_tells_where(report: Report, width: int) -> None:
    """On a narrow terminal too: the route of each firing, whether it has ended, its peak; and a curve for each pair."""
    console = Console(width=width, file=StringIO())
    print_report(report, console)
    text = cast("StringIO", console.file).getvalue()
    firings_shown = text.partition("does not fire")[0]
    assert "support" in firings_shown
    assert "sales" in firings_shown
    for word in ("still", "firing", "lasts", "peak"):
        assert word in firings_shown
    assert max(map(len, text.splitlines())) <= width
    for route in ("support 1-5", "sales 1-5", "docs 6-10", "rare 1-5"):
        assert any(line.startswith(route) for line in text.splitlines()), route


def citegauge(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "citegauge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment(), timeout=280)


@pytest.fixture
def config(front: ClickHouseFront, database: ClickHouse, tmp_path: Path) -> str:
    """Settings of the command."""
    path = tmp_path / "citegauge.toml"
    path.write_text(f'[clickhouse]\nurl = "{front.url}"\ndatabase = "{database.database}"\n')
    return str(path)


def test_the_command_tells_and_draws(config: str, tmp_path: Path) -> None:
    """JSON with the same firings, and a picture; a rule file of one's own is taken instead."""
    rules, picture = tmp_path / "rules.yml", tmp_path / "picture.svg"
    rules.write_text(
        "groups:\n- name: own\n  rules:\n"
        "  - record: own:recall\n"
        '    expr: max by (route) (citegauge_cited_chunk_recall_ratio{window="1h",stat="mean"})\n'
        '  - alert: Low\n    expr: own:recall{route="support"} < 0.45\n    labels: {severity: page}\n'
        "  - alert: Gone\n    expr: up == 0\n"
    )
    start, end = (datetime.fromtimestamp(at).astimezone().isoformat() for at in (FROM, TO))
    asked = ("backtest", "--config", config, "--from", start, "--to", end, "--step", "5m", "--rules", str(rules))
    done = citegauge(*asked, "--json", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["alert"] for one in found["not_replayable"]] == ["Gone"]
    (low,) = found["alerts"]
    (firing,) = low["firings"]
    assert (low["alert"], low["severity"], firing["labels"]) == ("Low", "page", {"route": "support"})
    began = datetime.fromisoformat(firing["from"]).timestamp()
    assert FALL + 25 * MINUTE_S < began < FALL + 40 * MINUTE_S, "half of the hour is at 0.3 instead of 0.6"
    assert 0.28 < firing["value_min"] < 0.35
    assert firing["duration_s"] == datetime.fromisoformat(firing["to"]).timestamp() - began
    drawn = picture.read_text()
    assert "<svg" in drawn
    assert drawn.count('id="axes_') == len({habit.route for habit in HABITS}), "a panel for each route and bucket"
    text = citegauge(*asked)
    assert text.returncode == 0, text.stderr
    assert "Low: fires once" in text.stdout
    assert "Not replayable" in text.stdout
    assert "Gone" in text.stdout


def test_a_stopped_command_leaves_nothing_behind(config: str, tmp_path: Path) -> None:
    """SIGTERM ends its Prometheus too, and removes what that had stored."""
    command = [sys.executable, "-m", "citegauge", "backtest", "--config", config]
    process = subprocess.Popen(command, env=child_environment() | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE)
    logs = "citegauge-backtest-*/data/wal"
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(logs)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not list(tmp_path.glob("citegauge-backtest-*"))


def test_without_prometheus_the_command_ends_with_status_2(config: str) -> None:
    """One line that names the package."""
    environment = child_environment() | {"PATH": ""}
    command = [sys.executable, "-m", "citegauge", "backtest", "--config", config]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "prometheus" in done.stderr
