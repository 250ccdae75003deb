"""The rules on stories of a whole deployment, judged by promtool: what fires, and above all what does not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest

from citegauge.domain.intervals import wilson
from citegauge.domain.recall import State
from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules import alerts, rule_file
from support import stall_stories
from support.promtool import (
    BREAK,
    GONE,
    MINUTES,
    NORMAL,
    PROMTOOL,
    SLICES,
    Hour,
    Sample,
    changed,
    expect_firing,
    gone,
    key,
    pipeline,
    promtool_test,
    rendered_texts,
    rising,
    steady,
    story,
    then,
    windows,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool comes with Debian's package prometheus")

RULES = rule_file(AlertSettings())
ADDRESS = re.compile(
    r"http://127\.0\.0\.1:9464/(runbooks/[a-z0-9-]+\.md|#/|#/group\?route=[^&= ]+&top_k_bucket=(1-5|6-10|unknown))"
)
LAST = MINUTES - 5
PARTITION = {"topic": "spans", "partition": "0"}
NOTHING = Sample(n=0, mean=0.0, sd=0.0)
HARD = Sample(n=2_000, mean=0.2, sd=0.2)
FALLEN = Sample(n=200, mean=0.42, sd=0.3)
CLOCK, WATERMARK = key("citegauge_as_of_timestamp_seconds"), key("citegauge_watermark_timestamp_seconds", **PARTITION)
STOOD = rising(60, until=BREAK)
LAG = key("citegauge_position_lag_records", **PARTITION)
EMPTY = {
    at: replace(hour, recall=NOTHING, score=NOTHING, day=hour.day + hour.recall, score_day=hour.score_day + hour.score)
    for at, hour in SLICES.items()
}

SALES_EMPTY = {at: EMPTY[at] if at[0] == "sales" else hour for at, hour in SLICES.items()}
BARE = replace(NORMAL, recall=NOTHING, score=NOTHING, day=NOTHING, score_day=NOTHING)
"""A bucket without anything measured, as `unknown` is where top_k is not recorded."""
NOWHERE = ("sales", "unknown")


def unmeasured(state: str, n: int) -> dict[tuple[str, str], Hour]:
    """Nothing of the route sales is measured any more, and each of its buckets shows so many traces of a state."""
    return {
        at: replace(each, others=((state, n, 0),)) if at[0] == "sales" else each for at, each in SALES_EMPTY.items()
    }


NEVER = {
    at: replace(BARE, others=(("no_output", 200, 4_000),)) if at[0] == "sales" else hour for at, hour in SLICES.items()
}
"""A route of which no answer is captured."""
BUSY = changed("sales", recall=Sample(n=1_000, mean=0.6, sd=0.3))

LOW, USUALLY_LOW = Sample(n=200, mean=0.2, sd=0.4), Sample(n=4_000, mean=0.05, sd=0.22)

FIRES: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "one route falls in both buckets": (
        story(changed("support", recall=FALLEN)),
        {"CitegaugeRouteRecallDrop": 1, "CitegaugeRecallDrop": 2},
    ),
    "one bucket of a route falls by a little more than a tenth": (
        story(changed("support", "1-5", recall=Sample(n=800, mean=0.53, sd=0.3))),
        {"CitegaugeRecallDrop": 1},
    ),
    "a route falls to nothing at all": (
        story(changed("support", recall=Sample(n=200, mean=0.0, sd=0.0))),
        {"CitegaugeRouteRecallDrop": 1, "CitegaugeRecallDrop": 2},
    ),
    "scores fall": (
        story(changed("support", "1-5", score=Sample(n=200, mean=0.72, sd=0.1))),
        {"CitegaugeTop1ScoreDrop": 1},
    ),
    "declared distances rise": (
        story(changed("support", "1-5", score=Sample(n=200, mean=0.88, sd=0.1), distances=True)),
        {"CitegaugeTop1ScoreDrop": 1},
    ),
    "scores below zero fall": (
        story(
            changed(
                "support",
                "1-5",
                score=Sample(n=200, mean=-0.4, sd=0.1),
                score_day=Sample(n=4_000, mean=-0.3, sd=0.1),
            )
        ),
        {"CitegaugeTop1ScoreDrop": 1},
    ),
    "recall is a little lower for hours": (
        story(changed("support", "1-5", recall=Sample(n=800, mean=0.57, sd=0.3), cusum=1.4)),
        {"CitegaugeRecallCusum": 1},
    ),
    "scores change their shape": (story(changed("support", "1-5", shift=1.5)), {"CitegaugeScoreShift": 1}),
    "a seventh more of the scores are low": (
        story(changed("support", "1-5", low=(LOW, USUALLY_LOW))),
        {"CitegaugeLowConfidence": 1},
    ),
    "citations are invented": (
        story(changed("support", "1-5", hallucinated=0.2)),
        {"CitegaugeHallucinatedCitations": 1},
    ),
    "answers lose their form": (story(changed("sales", "1-5", nonconformant=40)), {"CitegaugeNonconformantAnswers": 1}),
    "the index is empty": (
        story(SALES_EMPTY | {NOWHERE: replace(BARE, empty=60)}),
        {"CitegaugeZeroResults": 1},
    ),
    "a part of the index is empty": (
        story(SLICES | {NOWHERE: replace(BARE, empty=60)}),
        {"CitegaugeZeroResults": 1},
    ),
    "the index is empty, and top_k is recorded": (
        story(changed("sales", "1-5", empty=60)),
        {"CitegaugeZeroResults": 1},
    ),
    "content capture is switched off": (story(unmeasured("no_output", 200)), {"CitegaugeUnmeasurable": 1}),
    "ids are no longer recorded": (
        story(SALES_EMPTY | {NOWHERE: replace(BARE, others=(("ids_missing", 400, 0),))}),
        {"CitegaugeUnmeasurable": 1},
    ),
    "a part of the route is cut off": (
        story(SLICES | {("sales", "6-10"): replace(NORMAL, others=(("truncated", 80, 0),))}),
        {"CitegaugeUnmeasurable": 1},
    ),
    "generations are missing": (story(changed("sales", "1-5", unjoined=100)), {"CitegaugeUnjoinedTraces": 1}),
    "retrievals are missing": (
        story(SLICES | {NOWHERE: replace(BARE, generations=100)}),
        {"CitegaugeUnjoinedTraces": 1},
    ),
    "traffic stops": (
        story(EMPTY, {key("citegauge_records_total"): rising(500, until=BREAK)}),
        {"CitegaugeNoTraces": 1, "CitegaugeRouteNoTraces": 2},
    ),
    "one route goes quiet": (
        story(SALES_EMPTY),
        {"CitegaugeRouteNoTraces": 1},
    ),
    "reading falls behind": (
        story(changes={LAG: then(0, 2_000), WATERMARK: STOOD}),
        {"CitegaugeLagSeconds": 1},
    ),
    "many records wait": (story(changes={LAG: then(0, 200_000)}), {"CitegaugeLagRecords": 1}),
    "nothing is committed": (
        story(changes={key("citegauge_commit_age_seconds", **PARTITION): f"{steady(5, BREAK)} 5+60x{MINUTES - BREAK}"}),
        {"CitegaugeCommitAge": 1},
    ),
    "ClickHouse takes nothing": (
        story(
            changes={
                key("citegauge_clickhouse_failing", tier="hot"): then(0, 1),
                key("citegauge_reading_paused"): then(0, 1),
            }
        ),
        {"CitegaugeClickHouseFailing": 1, "CitegaugeReadingPaused": 1},
    ),
    "windows stand still": (story(changes={CLOCK: STOOD}), {"CitegaugeAsOfStale": 1}),
    "windows are not restored": (
        story(changes={key("citegauge_windows_ready"): then(1, 0)}),
        {"CitegaugeWindowsNotReady": 1},
    ),
    "a start waits": (
        story(changes={key("citegauge_waiting", **{"for": "kafka"}): then(0, 1)}),
        {"CitegaugeWaiting": 1},
    ),
    "the worker is gone": (
        gone(pipeline()) | {key("up"): then(1, 0)},
        {"CitegaugeDown": 1, "CitegaugeWorkerDown": 1},
    ),
    "one worker of two is gone": (
        story(changes={'up{job="citegauge",instance="other:9464"}': then(1, 0)}),
        {"CitegaugeWorkerDown": 1},
    ),
    "the target is gone": ({key("up"): then(1, GONE)}, {"CitegaugeDown": 1}),
    "spans come late": (
        story(changes={key("citegauge_spans_late_total"): f"{steady(0, BREAK)} 0+10x{MINUTES - BREAK}"}),
        {"CitegaugeLateSpans": 1},
    ),
    **stall_stories.FIRES,
}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name: str, tmp_path: Path) -> None:
    """Nothing fires before the break, and the right alerts and no others fire after it."""
    series, expected = FIRES[name]
    expect_firing(tmp_path, RULES, series, {BREAK - 1: {}, LAST: expected})


@pytest.mark.parametrize("counter", ["citegauge_dead_letters_total", "citegauge_rekey_dead_letters_total"])
@pytest.mark.parametrize("known", [True, False])
def test_dead_letters(counter: str, known: bool, tmp_path: Path) -> None:
    """A burst counts, also when it is the first value that its series ever has, and it ends when no more come."""
    series = story(changes={key(counter, reason="not_json"): then(3 if known else GONE, 50)})
    fires = {"CitegaugeDeadLetters": 1}
    expect_firing(tmp_path, RULES, series, {BREAK - 1: {}, BREAK + 10: fires, BREAK + 40: fires, LAST: {}})


NEW_POD = {"job": "citegauge", "instance": "new:9464"}


def test_dead_letters_of_a_new_worker(tmp_path: Path) -> None:
    """What its counter shows at the first scrape is what it refused since it started: that counts, and not for ever."""
    changes = {
        key("up", **NEW_POD): then(GONE, 1),
        key("process_start_time_seconds", **NEW_POD): then(GONE, 60 * BREAK - 30),
        key("citegauge_dead_letters_total", **NEW_POD, reason="not_json"): then(GONE, 50),
    }
    fires = {"CitegaugeDeadLetters": 1}
    expect_firing(tmp_path, RULES, story(changes=changes), {BREAK - 1: {}, BREAK + 2: fires, LAST: {}})


def gap(counter: str) -> dict[str, str]:
    """One worker, never restarted, whose counter stands at 5,000; for three minutes it cannot be read."""
    rest = MINUTES - BREAK - 3
    return {
        key("up"): f"{steady(1, BREAK)} {steady(0, 3)} {steady(1, rest)}",
        key("process_start_time_seconds"): f"{steady(-86_400, BREAK)} stale _x2 {steady(-86_400, rest)}",
        key(counter, reason="not_json"): f"{steady(5_000, BREAK)} stale _x2 {steady(5_000, rest)}",
    }


QUIET: dict[str, dict[str, str]] = {
    "all is well": story(),
    "low traffic falls": story(changed("support", recall=Sample(n=20, mean=0.1, sd=0.2))),
    "low traffic invents": story(changed("support", hallucinated=0.9, recall=Sample(n=10, mean=0.6, sd=0.3))),
    "a fall within chance": story(changed("support", recall=Sample(n=60, mean=0.5, sd=0.35))),
    "a fall that is certain but small": story(changed("support", recall=Sample(n=50_000, mean=0.57, sd=0.3))),
    "recall rises": story(changed("support", recall=Sample(n=200, mean=0.9, sd=0.1))),
    "scores rise": story(changed("support", score=Sample(n=200, mean=0.88, sd=0.1))),
    "declared distances fall": story(changed("support", score=Sample(n=200, mean=0.72, sd=0.1), distances=True)),
    "a young route without a day": story(
        changed("support", recall=FALLEN, day=NOTHING, score_day=NOTHING, hallucinated=0.3)
    ),
    "a new scorer on another scale": story(
        changed("support", scorer="reranker:b", old_scorer="reranker:a", score=Sample(n=200, mean=0.1, sd=0.02))
    ),
    "traffic moves to the hard route": story(
        before=changed("sales", recall=Sample(n=400, mean=0.2, sd=0.2), day=Sample(n=4_000, mean=0.2, sd=0.2)),
        after=changed("sales", recall=Sample(n=4_000, mean=0.2, sd=0.2), day=Sample(n=4_000, mean=0.2, sd=0.2))
        | {("support", "1-5"): replace(NORMAL, recall=Sample(n=60, mean=0.6, sd=0.3))},
    ),
    "traffic moves to the hard bucket of one route": story(
        before=SLICES | {("support", "6-10"): replace(NORMAL, day=HARD, recall=Sample(n=50, mean=0.2, sd=0.2))},
        after=SLICES
        | {
            ("support", "1-5"): replace(NORMAL, recall=Sample(n=60, mean=0.6, sd=0.3)),
            ("support", "6-10"): replace(NORMAL, day=HARD, recall=Sample(n=900, mean=0.2, sd=0.2)),
        },
    ),
    "a new model cites less": story(changed("support", versions=((Sample(n=400, mean=0.1, sd=0.1), NOTHING),))),
    "a new retriever version replaces the old one": story(
        changed("support", recall=NOTHING, versions=((Sample(n=200, mean=0.3, sd=0.2), NOTHING),))
    ),
    "traffic moves to the weaker model of a bucket": story(
        before=changed("support", versions=((Sample(n=50, mean=0.2, sd=0.2), HARD),)),
        after=changed(
            "support", recall=Sample(n=60, mean=0.6, sd=0.3), versions=((Sample(n=900, mean=0.2, sd=0.2), HARD),)
        ),
    ),
    "detectors alarm on low traffic": story(
        changed(
            "support",
            recall=Sample(n=20, mean=0.5, sd=0.3),
            score=Sample(n=20, mean=0.79, sd=0.1),
            cusum=3.0,
            shift=3.0,
        )
    ),
    "detectors alarm on a short past": story(
        changed(
            "support",
            recall=Sample(n=200, mean=0.58, sd=0.3),
            day=Sample(n=150, mean=0.6, sd=0.3),
            score_day=Sample(n=150, mean=0.8, sd=0.1),
            cusum=3.0,
            shift=3.0,
        )
    ),
    "few scores are low": story(changed("support", low=(replace(LOW, n=40), USUALLY_LOW))),
    "scores are as low as ever": story(changed("support", low=(LOW, replace(LOW, n=4_000)))),
    "low scores of a scorer without a past": story(changed("support", low=(LOW, NOTHING))),
    "what was low for hours has recovered": story(changed("support", cusum=2.0)),
    "an idle partition has nothing to commit": story(
        changes={key("citegauge_commit_age_seconds", **PARTITION): rising(60), WATERMARK: steady(3_600, MINUTES)}
    ),
    "a spare worker is not ready and knows no time": story(
        changes={
            'citegauge_windows_ready{job="citegauge",instance="spare:9464"}': steady(0, MINUTES),
            'citegauge_as_of_timestamp_seconds{job="citegauge",instance="spare:9464"}': steady(1, MINUTES),
            'citegauge_as_of_caught_up{job="citegauge",instance="spare:9464"}': steady(0, MINUTES),
            'up{job="citegauge",instance="spare:9464"}': steady(1, MINUTES),
        }
    ),
    "windows that are ready before the first heartbeat": story(changes={CLOCK: steady(0, MINUTES)}),
    "a topic that never had traffic": pipeline() | {key("citegauge_records_total"): steady(0, MINUTES)},
    "one turn in sixteen is chat, without a retrieval": story(
        before=BUSY | {NOWHERE: replace(BARE, generations=130)}, after=BUSY | {NOWHERE: replace(BARE, generations=130)}
    ),
    "as many traces as ever cannot be measured": story(
        changed("sales", others=(("no_output", 60, 1_200), ("truncated", 20, 400)))
    ),
    "a route that never was measurable": story(before=NEVER, after=NEVER),
    "traffic ends, and of the last traces most cannot be measured": story(
        changed("sales", recall=Sample(n=3, mean=0.6, sd=0.3), others=(("no_output", 20, 0),))
    ),
    "one trace in twenty can no longer be measured": story(changed("sales", others=(("no_output", 10, 0),))),
    "a scrape gap of a worker with old dead letters": story(changes=gap("citegauge_dead_letters_total")),
    "a scrape gap of a worker with old dead letters of rekey": story(changes=gap("citegauge_rekey_dead_letters_total")),
    "old dead letters when Prometheus starts": story(
        changes={
            key("process_start_time_seconds"): steady(-86_400, MINUTES),
            key("citegauge_dead_letters_total", reason="not_json"): steady(5_000, MINUTES),
        }
    ),
    "a dead letter now and then": story(changes={key("citegauge_dead_letters_total", reason="not_json"): rising(0.2)}),
    **stall_stories.QUIET,
}


@pytest.mark.parametrize("name", QUIET)
def test_it_is_quiet(name: str, tmp_path: Path) -> None:
    """What is no fault makes no noise, at no minute of the story."""
    expect_firing(tmp_path, RULES, QUIET[name], {minute: {} for minute in (*range(BREAK, MINUTES, 10), LAST)})


def test_traffic_that_stops_is_no_quality(tmp_path: Path) -> None:
    """While the windows empty, ever fewer traces show ever odder means; no quality alert comes of it."""
    few, fewer = Sample(n=15, mean=0.2, sd=0.2), Sample(n=15, mean=0.3, sd=0.1)
    draining = changed("support", recall=few, score=fewer, cusum=3.0, shift=3.0, others=(("no_output", 8, 0),))
    series = story(draining, {key("citegauge_records_total"): rising(500, until=BREAK)})
    expect_firing(tmp_path, RULES, series, {LAST: {"CitegaugeNoTraces": 1}})


def test_a_stuck_worker_is_no_lack_of_traffic(tmp_path: Path) -> None:
    """Records that wait are traffic: only the lag speaks."""
    series = story(
        changes={key("citegauge_records_total"): rising(500, until=BREAK), LAG: then(0, 5), WATERMARK: STOOD}
    )
    expect_firing(tmp_path, RULES, series, {LAST: {"CitegaugeLagSeconds": 1}})


def test_series_may_move_between_workers(tmp_path: Path) -> None:
    """A fall that two workers show at the same time, or one after the other, is one fall that goes on."""
    fallen = windows(changed("support", recall=FALLEN, cusum=2.0, shift=2.0))
    takes, gives = BREAK + 30, BREAK + 35
    new = {
        name.replace("service:9464", "other:9464"): f"{steady(GONE, takes)} {steady(value, MINUTES - takes)}"
        for name, value in fallen.items()
    }
    usual = story(changed("support", recall=FALLEN, cusum=2.0, shift=2.0))
    old = {name: f"{usual[name].split(' ')[0]} {steady(fallen[name], gives - BREAK)} stale" for name in fallen}
    falls = {
        "CitegaugeRouteRecallDrop": 1,
        "CitegaugeRecallDrop": 2,
        "CitegaugeRecallCusum": 2,
        "CitegaugeScoreShift": 2,
    }
    expect_firing(tmp_path, RULES, usual | old | new, dict.fromkeys((takes - 2, takes + 2, gives + 5, LAST), falls))


def test_two_workers_with_one_series_are_not_added_up(tmp_path: Path) -> None:
    """While both show a thinly used route, its traces are still too few to say anything."""
    thin = {
        at: replace(hour, recall=Sample(n=20, mean=0.1, sd=0.1)) if at[0] == "support" else hour
        for at, hour in SLICES.items()
    }
    series = story(thin)
    twins = {name.replace("service:9464", "other:9464"): values for name, values in series.items() if "window=" in name}
    expect_firing(tmp_path, RULES, series | twins, {LAST: {}})


@pytest.mark.parametrize("state", [state.name for state in State])
def test_no_state_takes_a_route_away_unheard(state: str, tmp_path: Path) -> None:
    """All of a route in one state, and none of it measured: that has an alert, or the settings or the source say so."""
    spoken = {
        "measured": {},
        "empty_retrieval": {"CitegaugeZeroResults": 1},
        "no_retrieval": {"CitegaugeUnjoinedTraces": 1},
        "no_generation": {"CitegaugeUnjoinedTraces": 1},
        "nonconformant": {"CitegaugeNonconformantAnswers": 2},
        "no_citation_format": {},
        "retrieved_is_cited": {},
    }
    expected: dict[str, int] = spoken.get(state, {"CitegaugeUnmeasurable": 1})
    slices = unmeasured(state, 200)
    if state == "nonconformant":  # of which the worker shows the share
        slices = {at: replace(each, others=(), nonconformant=200 * bool(each.others)) for at, each in slices.items()}
    expect_firing(tmp_path, RULES, story(slices), {BREAK - 1: {}, LAST: expected})


def test_shares_of_a_route_do_not_count_twice(tmp_path: Path) -> None:
    """Two workers show the same few empty retrievals: they are still too few, and so are the unjoined traces."""
    few = changed("sales", recall=Sample(n=10, mean=0.6, sd=0.3)) | {NOWHERE: replace(BARE, empty=9, generations=9)}
    series = story(few)
    twins = {name.replace("service:9464", "other:9464"): values for name, values in series.items() if "window=" in name}
    expect_firing(tmp_path, RULES, series | twins, {LAST: {}})
    many = changed("sales", recall=Sample(n=20, mean=0.6, sd=0.3)) | {NOWHERE: replace(BARE, empty=30, generations=30)}
    expect_firing(tmp_path, RULES, story(many), {LAST: {"CitegaugeZeroResults": 1, "CitegaugeUnjoinedTraces": 1}})


def test_shares_of_a_route_span_workers(tmp_path: Path) -> None:
    """One worker has the bucket of what is measured, another the bucket of the empty retrievals."""
    series = FIRES["a part of the index is empty"][0]
    parted = {
        name.replace("service:9464", "other:9464") if "unknown" in name else name: values
        for name, values in series.items()
    }
    assert parted.keys() != series.keys()
    expect_firing(tmp_path, RULES, parted, {BREAK - 1: {}, LAST: {"CitegaugeZeroResults": 1}})


@pytest.mark.parametrize(("part", "whole"), [(0, 60), (1, 60), (30, 60), (60, 60), (7, 1_000), (500_000, 1_000_000)])
def test_the_bound_of_a_share_is_wilsons(part: int, whole: int, tmp_path: Path) -> None:
    """In PromQL as in the domain, over two buckets; nothing at all has no bound."""
    place = {"route": "sales", "window": "1h"}
    series = {
        key("citegauge_window_traces", **place, top_k_bucket="unknown", state="empty_retrieval"): steady(part, 5),
        key("citegauge_window_traces", **place, top_k_bucket="1-5", state="measured"): steady(whole - part, 5),
        key("citegauge_window_traces", window="1h", route="idle", top_k_bucket="1-5", state="measured"): steady(0, 5),
    }
    found = wilson(part, whole)
    assert found is not None
    test = {
        "expr": f"count(abs(route:citegauge_zero_results_lower:1h - {found.lower!r}) < 1e-6)"
        " / count(route:citegauge_zero_results_lower:1h)",
        "eval_time": "3m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    said = promtool_test(tmp_path, RULES, series, {"promql_expr_test": [test]})
    assert not said, said


def test_a_route_is_weighed_by_its_traffic(tmp_path: Path) -> None:
    """A bucket with a tenth of the traffic falls to nothing: its own ticket, and no page for the route."""
    slices = changed(
        "support", "6-10", recall=Sample(n=2_000, mean=0.6, sd=0.3), day=Sample(n=40_000, mean=0.6, sd=0.3)
    )
    slices[("support", "1-5")] = replace(NORMAL, recall=Sample(n=200, mean=0.1, sd=0.2))
    expect_firing(tmp_path, RULES, story(slices), {LAST: {"CitegaugeRecallDrop": 1}})


def test_scorers_do_not_mix(tmp_path: Path) -> None:
    """One of two scorers of a slice falls while the other stays high: one ticket, which names it."""
    place = {"route": "support", "top_k_bucket": "1-5", "scorer": "vector:b"}
    high = {}
    for window, n in (("1h", 200), ("24h", 4_200)):
        high[key("citegauge_top1_score_samples", **place, window=window)] = steady(n, MINUTES)
        for stat, value in (("mean", 12.0), ("sd", 2.0)):
            high[key("citegauge_top1_score", **place, window=window, stat=stat)] = steady(value, MINUTES)
    series = story(changed("support", "1-5", score=Sample(n=200, mean=0.72, sd=0.1))) | high
    expect_firing(tmp_path, RULES, series, {BREAK - 1: {}, LAST: {"CitegaugeTop1ScoreDrop": 1}})


def test_a_worker_that_tells_no_direction_has_scores(tmp_path: Path) -> None:
    """While an older version of the worker still runs, a fall of its scores is a fall."""
    fallen = story(changed("support", "1-5", score=Sample(n=200, mean=0.72, sd=0.1)))
    series = {name: values for name, values in fallen.items() if "_sign{" not in name}
    assert len(series) < len(fallen)
    expect_firing(tmp_path, RULES, series, {BREAK - 1: {}, LAST: {"CitegaugeTop1ScoreDrop": 1}})


def test_a_share_without_a_past_is_quiet(tmp_path: Path) -> None:
    """A route whose first hours are bad has nothing that it rose from; a few traces of a day are no past."""
    young = changed("support", hallucinated=0.3, day=Sample(n=40, mean=0.6, sd=0.3), others=(("ids_missing", 100, 0),))
    expect_firing(tmp_path, RULES, story(young), {LAST: {}})


def test_a_fall_rings_within_the_wait(tmp_path: Path) -> None:
    """The tickets come two minutes after the hour shows the fall, the page after five."""
    series = story(changed("support", recall=FALLEN))
    tickets = {"CitegaugeRecallDrop": 2}
    pages = {"CitegaugeRouteRecallDrop": 1}
    expect_firing(
        tmp_path, RULES, series, {BREAK + 1: {}, BREAK + 3: tickets, BREAK + 4: tickets, BREAK + 6: tickets | pages}
    )


def test_settings_move_the_thresholds(tmp_path: Path) -> None:
    """Who asks for a larger fall gets no alert for this one."""
    rules = rule_file(AlertSettings(recall_drop_page_ratio=0.5, recall_drop_ticket_ratio=0.4))
    expect_firing(tmp_path, rules, FIRES["one route falls in both buckets"][0], {LAST: {}})


def test_the_texts_name_the_numbers(tmp_path: Path) -> None:
    """Summary, description and runbook of a page, as they arrive, also for a route with quotes in its name."""
    odd = 'chat "β"\\{x}'
    renamed = {(odd if at[0] == "support" else at[0], at[1]): hour for at, hour in SLICES.items()}
    fallen = {at: replace(hour, recall=FALLEN) if at[0] == odd else hour for at, hour in renamed.items()}
    series = story(fallen, before=renamed)
    # The link leads to the bucket with most traces, so one must have more.
    (largest,) = (
        at for at in series if at.startswith("citegauge_window_traces") and "support" not in at and "sales" not in at
        and all(part in at for part in ('"1-5"', '"24h"', '"measured"'))
    )  # fmt: skip
    series[largest] = series[largest].replace("+0x", "9+0x")
    expected = {
        "summary": f"{odd}: cited-chunk recall fell by 30 % in the last hour",
        "description": "From 0.600 in the day before (at the hour's mix of top_k buckets, models, retriever versions and "
        "scorers) to 0.420, on 400 measured traces: 11.5 standard errors.",
        "runbook_url": "http://127.0.0.1:9464/runbooks/route-recall-drop.md",
        "dashboard_url": f"http://127.0.0.1:9464/#/group?route={quote_plus(odd)}&top_k_bucket=1-5",
    }
    labels = {"severity": "page", "signal": "quality", "job": "citegauge", "route": odd}
    test = {
        "eval_time": f"{LAST}m",
        "alertname": "CitegaugeRouteRecallDrop",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": expected}],
    }
    said = promtool_test(tmp_path, RULES, series, {"alert_rule_test": [test]})
    assert not said, said


def test_every_text_is_whole(tmp_path: Path) -> None:
    """No alert that fires in a story says `?` or an error where a number belongs."""
    seen: set[str] = set()
    for series, expected in FIRES.values():
        for alert in expected.keys() - seen:
            texts = list(rendered_texts(tmp_path, RULES, series, alert, LAST))
            assert texts, alert
            words = [text for text in texts if not text.startswith("http")]
            assert not [text for text in words if "?" in text or "error" in text.replace("standard errors", "")], texts
            addresses = [text for text in texts if text.startswith("http")]
            assert len(addresses) == len(words), texts
            assert not [text for text in addresses if not ADDRESS.fullmatch(text)], texts
            seen.add(alert)
    assert seen == {alert.name for alert in alerts(AlertSettings())} - {"CitegaugeDeadLetters", "CitegaugeWatchdog"}


@pytest.mark.parametrize("series", [story(), gone(pipeline())], ids=["in health", "when all is gone"])
def test_the_watchdog_always_fires(series: dict[str, str], tmp_path: Path) -> None:
    """Its silence then says that no alert arrives, whatever happens to the workers."""
    minutes = (0, 1, BREAK + 10, LAST)
    tests = [
        {
            "expr": 'count(ALERTS{alertname="CitegaugeWatchdog",alertstate="firing",severity="none",job="citegauge"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for minute in minutes
    ]
    said = promtool_test(tmp_path, RULES, series, {"promql_expr_test": tests})
    assert not said, said
