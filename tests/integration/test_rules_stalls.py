"""When the alerts on what stands still ring, to the second, and what of it is told beside what: judged by promtool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules import rule_file
from support.promtool import (
    BREAK,
    GONE,
    MINUTES,
    PROMTOOL,
    SLICES,
    Hour,
    Sample,
    expect_firing,
    key,
    rising,
    story,
    then,
)
from support.promtool import promtool_test as promtool
from support.stall_stories import LOGS, NOT_READ, OTHER, OVERRULED, STANDS, source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool comes with Debian's package prometheus")

RULES = rule_file(AlertSettings())
LAST = MINUTES - 5
STEP_S = 5
NOTHING = Sample(n=0, mean=0.0, sd=0.0)
EMPTY = {
    at: Hour(recall=NOTHING, day=hour.day + hour.recall, score=NOTHING, score_day=hour.score_day + hour.score)
    for at, hour in SLICES.items()
}
STOPPED = {key("citegauge_records_total"): rising(500, until=BREAK)}


def seen(samples: dict[int, float], end_s: int) -> str:
    """Values by the second from which they are known, in steps of `STEP_S`; a scrape shows nothing in between."""
    return " ".join(repr(samples[at]) if at in samples else "_" for at in range(0, end_s + 1, STEP_S))


def fires(folder: Path, series: dict[str, str], name: str, at_s: Sequence[int], quiet_s: Sequence[int]) -> str:
    """What promtool says when the alert does not fire at the one seconds, or does at the others."""
    tests = [
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
            "eval_time": f"{second}s",
            "exp_samples": [{"labels": "{}", "value": 1}] if second in at_s else [],
        }
        for second in (*at_s, *quiet_s)
    ]
    return promtool(folder, RULES, series, {"promql_expr_test": tests}, interval=f"{STEP_S}s")


def scrapes(first_s: int, values: Sequence[float]) -> dict[int, float]:
    """One value each 15 seconds."""
    return {first_s + 15 * i: value for i, value in enumerate(values)}


def test_a_worker_that_hangs_rings_within_the_minute(tmp_path: Path) -> None:
    """It stops at second 60, just after a scrape: the next waits for ten seconds, and its failure is known 25 s later."""
    series = {
        key("up", **OTHER): seen(scrapes(0, [1] * 5) | scrapes(85, [0] * 5), 150),
        key("scrape_duration_seconds", **OTHER): seen(scrapes(0, [0.1] * 5) | scrapes(85, [10.0] * 5), 150),
    }
    said = fires(tmp_path, series, "CitegaugeWorkerHangs", at_s=(100, 120, 150), quiet_s=(60, 80))
    assert not said, said


def test_a_worker_that_is_away_rings_within_the_minute(tmp_path: Path) -> None:
    """Nobody listens from second 60 on, just after a scrape."""
    series = {
        key("up", **OTHER): seen(scrapes(0, [1] * 5) | scrapes(75, [0] * 5), 150),
        key("scrape_duration_seconds", **OTHER): seen(scrapes(0, [0.1] * 5) | scrapes(75, [0.001] * 5), 150),
    }
    said = fires(tmp_path, series, "CitegaugeWorkerDown", at_s=(115, 120, 150), quiet_s=(60, 75, 100))
    assert not said, said


@pytest.mark.parametrize("failed", [1, 2])
def test_a_restart_does_not_ring(failed: int, tmp_path: Path) -> None:
    """Up to half a minute without anybody who listens: one scrape fails, or two."""
    series = {
        key("up", **OTHER): seen(scrapes(0, [1] * 5 + [0] * failed + [1] * 9), 210),
        key("scrape_duration_seconds", **OTHER): seen(scrapes(0, [0.1] * 5 + [0.001] * failed + [0.1] * 9), 210),
    }
    for name in ("CitegaugeWorkerDown", "CitegaugeWorkerHangs", "CitegaugeDown"):
        said = fires(tmp_path, series, name, at_s=(), quiet_s=range(0, 211, STEP_S))
        assert not said, said


@pytest.mark.parametrize("topic", ["traces", "spans"], ids=["of the re-key stage", "of the join"])
def test_a_partition_that_stands_rings_in_time(topic: str, tmp_path: Path) -> None:
    """Nothing is read from second 60 on: a ticket within a minute, the page within three; while it is read, neither."""
    ages = scrapes(10, [0] * 4 + [10 + 15 * i for i in range(12)])
    place = {"topic": topic, "partition": "2"}
    series = {
        key("citegauge_progress_age_seconds", **place): seen(ages, 245),
        key("citegauge_position_lag_records", **place): seen(scrapes(10, [900] * 16), 245),
    }
    said = fires(tmp_path, series, "CitegaugeStalled", at_s=(120, 240), quiet_s=(60, 90))
    assert not said, said
    said = fires(tmp_path, series, "CitegaugeNotReading", at_s=(240,), quiet_s=(60, 120, 180))
    assert not said, said


def test_a_rebalance_does_not_ring(tmp_path: Path) -> None:
    """A partition waits for half a minute until another worker has it, and is read again."""
    ages = scrapes(10, [0] * 4 + [10, 25, 0, 0, 0, 0])
    series = {key("citegauge_progress_age_seconds", topic="traces", partition="2"): seen(ages, 150)}
    said = fires(tmp_path, series, "CitegaugeStalled", at_s=(), quiet_s=range(0, 151, STEP_S))
    assert not said, said


def test_no_traces_beside_logs_that_flow(tmp_path: Path) -> None:
    """Unread logs are there at every moment, and are read: traffic that stopped is told nevertheless."""
    series = story(EMPTY, STOPPED | source("logs", **LOGS))
    expect_firing(tmp_path, RULES, series, {LAST: {"CitegaugeNoTraces": 1, "CitegaugeRouteNoTraces": 2}})


def test_a_stage_that_stands_is_no_lack_of_traffic(tmp_path: Path) -> None:
    """Source records wait, and nothing is re-keyed: the traffic is there, and the windows wait for it."""
    standing = {
        key("citegauge_as_of_timestamp_seconds"): rising(60, until=BREAK),
        key("citegauge_as_of_caught_up"): then(1, 0),
    }
    series = story(EMPTY, STOPPED | standing | source("logs", **STANDS, **LOGS))
    expect_firing(tmp_path, RULES, series, {LAST: {**NOT_READ, "CitegaugeAsOfStale": 1}})


@pytest.mark.parametrize("changes", [{"position_lag_records": then(3, 200_000)}, {}], ids=["a backlog", "paused"])
def test_nor_is_a_backlog_or_a_pause(changes: dict[str, str], tmp_path: Path) -> None:
    """Who reads a hundred thousand records first, or waits for ClickHouse, does not know whether traces come."""
    paused = {} if changes else {key("citegauge_reading_paused"): then(0, 1)}
    series = story(changes=STOPPED | paused | source("logs", **LOGS, **changes))
    told = {"CitegaugeLagRecords": 1} if changes else {"CitegaugeReadingPaused": 1}
    expect_firing(tmp_path, RULES, series, {LAST: told})


@pytest.mark.parametrize("known", [True, False])
def test_the_first_hold_that_is_overruled_counts(known: bool, tmp_path: Path) -> None:
    """Also when it is the first value that its series ever has; and it ends when no more come."""
    place = {"topic": "traces", "partition": "2"}
    series = story(changes={key(OVERRULED, **place): then(4 if known else GONE, 5)})
    told = {"CitegaugeRekeyOverruled": 1}
    expect_firing(tmp_path, RULES, series, {BREAK - 1: {}, BREAK + 2: told, BREAK + 30: told, LAST: {}})
