"""The cold tier on Kafka and ClickHouse: its windows are those of SQL, over restarts, in other processes, shared by two."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.adapters.rolling.detectors import Detectors
from citegauge.adapters.rolling.restore import restored_store
from citegauge.domain.window import WINDOWS, bounds, window_end_s
from citegauge.ports import ClosedMarker, PaneMessage, PaneUpdate
from citegauge.tools.samples import signal_samples
from support.worker import Site, WorkerProcess, pairs, produce, traffic, wait_until
from support.worker_tables import assert_equal, expected, group_offsets, panes_messages, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from aiokafka import TopicPartition

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000
SPREAD = frozenset({"sd", "mean_lower", "mean_upper", "mid_p25", "mid_p50"}) | {
    f"{quantile}_{end}" for quantile in ("p25", "p50") for end in ("lower", "upper")
}
"""Stats that the view does not have; neither has it the metric of shares. Both are made of what is compared here."""
Shown = dict[tuple[str, ...], float]
"""(metric, route, bucket, window, and what else labels it) to value."""


def shown(*workers: WorkerProcess) -> tuple[int, Shown]:
    """The end of the windows and all that `/metrics` says of them, in one scrape of each worker."""
    found: Shown = {}
    ends = set()
    for worker in workers:
        for (name, labels), value in worker.metrics().items():
            own = dict(labels)
            if name == "citegauge_as_of_timestamp_seconds" and value:
                ends.add(window_end_s(int(value * 1e9)))
            elif "window" in own and value and own.get("stat") not in SPREAD and "share" not in own:
                key = own.pop("route"), own.pop("top_k_bucket"), own.pop("window"), *sorted(own.values())
                assert (name, *key) not in found, "two workers show one roll-up"
                found[name, *key] = value
    return (ends.pop() if len(ends) == 1 else 0), found


def in_sql(database: ClickHouse, site: Site, end_s: int) -> Shown:
    """The same from the view `window_quantiles`."""
    found: Shown = {}
    for window in WINDOWS:
        start_s, _ = bounds(window, end_s)
        for dims in (["route", "top_k_bucket"], ["route", "top_k_bucket", "scorer"]):
            rows = database.query(
                f"SELECT * FROM {site.database}.window_quantiles(start = {start_s}, end = {end_s}, dims = {dims})"
            )
            for row in rows:
                key = row["route"], row["top_k_bucket"], window.name
                found |= scores(key, row) if len(dims) == 3 else ratios(key, row)
    return {key: value for key, value in found.items() if value}


def ratios(key: tuple[str, ...], row: dict[str, Any]) -> Shown:
    """What a roll-up shows of citations."""
    found: dict[tuple[str, ...], Any] = {
        ("citegauge_window_traces", *key, state): n for state, n in row["states"].items()
    }
    found["citegauge_cited_any_ratio", *key] = row["cited_any_ratio"]
    found["citegauge_rank_weighted_recall_ratio", *key, "mean"] = row["rank_weighted_mean"]
    for stat in ("p25", "p50", "p75", "mean"):
        found["citegauge_cited_chunk_recall_ratio", *key, stat] = row[f"recall_{stat}"]
    outcomes = {
        "valid": row["citations"] - row["hallucinated"] - row["unresolved"],
        "never_retrieved": row["hallucinated"] - row["dropped_citations"],
        "dropped": row["dropped_citations"],
        "unresolved": row["unresolved"],
    }
    for outcome, n in outcomes.items():
        found["citegauge_window_citations", *key, outcome] = n
    return found


def scores(key: tuple[str, ...], row: dict[str, Any]) -> Shown:
    """What a roll-up shows of one scorer."""
    found: dict[tuple[str, ...], Any] = {("citegauge_top1_score_samples", *key, row["scorer"]): row["score_n"]}
    for stat in ("p25", "p50", "p75", "mean"):
        found["citegauge_top1_score", *key, *sorted((row["scorer"], stat))] = row[f"score_{stat}"]
    return found


def differences(found: Shown, wanted: Shown) -> list[str]:
    """What is not the same within 1e-12."""
    return [
        f"{key}: {found.get(key)} shown, {wanted.get(key)} in SQL"
        for key in sorted(found.keys() | wanted.keys())
        if not math.isclose(found.get(key, math.inf), wanted.get(key, -math.inf), rel_tol=1e-12)
    ]


def assert_windows_are_those_of_sql(database: ClickHouse, site: Site, *workers: WorkerProcess) -> None:
    """Every number of every window on /metrics equals the view's for the same [start, end), and the raw rows'."""
    unlike = ["nothing shown"]

    def equal() -> bool:
        end_s, found = shown(*workers)
        if end_s and found:
            unlike[:] = differences(found, in_sql(database, site, end_s))
        return not unlike

    try:
        wait_until(equal, "the windows equal SQL", 30)
    except AssertionError as exc:
        raise AssertionError(f"{len(unlike)} differences:\n" + "\n".join(unlike[:10])) from exc


def assert_signals_are_those_of_the_panes(database: ClickHouse, site: Site, *workers: WorkerProcess) -> None:
    """What the detectors say on /metrics is what a store says that was restored from ClickHouse just now."""
    unlike = ["nothing shown"]

    def equal() -> bool:
        found: dict[tuple[str, ...], float] = {}
        ends = set()
        for worker in workers:
            for (name, labels), value in worker.metrics().items():
                if name == "citegauge_as_of_timestamp_seconds" and value:
                    ends.add(window_end_s(int(value * 1e9)))
                elif name.startswith(("citegauge_compared_", "citegauge_baseline_", "citegauge_detector_")):
                    found[name, *sorted(dict(labels).values())] = value
        if len(ends) == 1 and found:
            unlike[:] = differences(found, asyncio.run(recomputed(database, site, ends.pop())))
        return not unlike

    try:
        wait_until(equal, "the detectors say what the panes say", 90)
    except AssertionError as exc:
        raise AssertionError(f"{len(unlike)} differences:\n" + "\n".join(unlike[:10])) from exc


async def recomputed(database: ClickHouse, site: Site, end_s: int) -> Shown:
    """The detectors over the stored panes."""
    store = restored_store(database, site.database, 0, 1)
    store.advance(end_s)
    signals = await Detectors().signals(store, list(store.group_windows()))
    return {
        (sample.name, *sorted(sample.labels)): sample.value for signal in signals for sample in signal_samples(signal)
    }


def assert_recall_is_that_of_the_raw_rows(database: ClickHouse, site: Site, worker: WorkerProcess) -> None:
    """p25 and p50 of recall are R-7 over the trace rows: exactly, not by an estimate."""
    end_s, found = shown(worker)
    start_s, _ = bounds(WINDOWS[0], end_s)
    rows = database.query(
        f"SELECT route, top_k_bucket, quantilesExactInclusive(0.25, 0.5)(assumeNotNull(recall)) AS q "
        f"FROM {site.database}.traces FINAL WHERE state = 'measured' AND pane >= {start_s} AND pane < {end_s} "
        f"GROUP BY route, top_k_bucket"
    )
    assert len(rows) >= 3
    for row in rows:
        for stat, value in zip(("p25", "p50"), row["q"], strict=True):
            key = "citegauge_cited_chunk_recall_ratio", row["route"], row["top_k_bucket"], "1h", stat
            assert math.isclose(found.get(key, 0.0), value, rel_tol=1e-12), key


def held_from(site: Site) -> dict[int, int]:
    """By panes partition: the oldest message whose pane its source has not closed; the end where there is none."""
    messages: dict[int, list[PaneMessage]] = panes_messages(site)
    found = {}
    for partition, log in messages.items():
        closed: dict[str, int] = {}
        for message in log:
            if isinstance(message, ClosedMarker):
                closed[message.source] = max(message.through, closed.get(message.source, -1))
        open_panes = (
            offset
            for offset, message in enumerate(log)
            if isinstance(message, PaneUpdate) and message.row.pane > closed.get(message.row.source, -1)
        )
        found[partition] = next(open_panes, len(log))
    return found


def acknowledged(site: Site) -> dict[int, int]:
    """The cold tier's committed offsets."""
    offsets: dict[TopicPartition, tuple[int, str]] = group_offsets(site.kafka, f"{site.name}-panes.roll")
    return {partition.partition: offset for partition, (offset, _) in offsets.items()}


def test_windows_equal_sql_and_survive_restarts_and_roles(
    make_site: MakeSite, database: ClickHouse, tmp_path: Path
) -> None:
    """One site: fresh, killed and restored from panes, split into join and two roll workers; always the numbers of SQL."""
    site = make_site()
    batch = pairs(traffic(31, minutes=90, per_minute=60, end_ns=time.time_ns() - PAST_NS))
    later = len(batch) * 3 // 4
    produce(site.kafka, site.topic, batch[:later])
    with WorkerProcess(site, tmp_path) as worker:
        assert_equal(database, site, expected(site, read_topic(site.kafka, site.topic)), worker)
        worker.until_ready()
        assert_windows_are_those_of_sql(database, site, worker)
        assert_recall_is_that_of_the_raw_rows(database, site, worker)
        assert_signals_are_those_of_the_panes(database, site, worker)
        worker.until(lambda: acknowledged(site) == held_from(site), "held back to the oldest open pane, exactly")
        held = acknowledged(site)
        assert all(offset > 0 for offset in held.values()), "closed panes are not read again"
        worker.kill()

        worker.start()
        begun = time.monotonic()
        worker.until_ready()
        ready_s = time.monotonic() - begun
        assert_windows_are_those_of_sql(database, site, worker)
        windows_s = time.monotonic() - begun
        assert_signals_are_those_of_the_panes(database, site, worker)
        again = worker.value("citegauge_commit_lag_records")
        assert again > 0, "there was something to read again"
        for counter in ("citegauge_records_total", "citegauge_spans_total", "citegauge_traces_closed_total"):
            assert worker.value(counter) == 0, "what is read again in silence is not counted again"
        assert worker.end() == 0

    with (
        WorkerProcess(site, tmp_path, "--role", "join") as join,
        WorkerProcess(site, tmp_path, "--role", "roll") as one,
        WorkerProcess(site, tmp_path, "--role", "roll") as two,
    ):
        one.until(lambda: shown(one)[1] and shown(two)[1], "both show windows")
        produce(site.kafka, site.topic, batch[later:])
        assert_equal(database, site, expected(site, read_topic(site.kafka, site.topic)), join)
        assert_windows_are_those_of_sql(database, site, one, two)
        assert_signals_are_those_of_the_panes(database, site, one, two)
        assert not shown(join)[1]
        assert {worker.end() for worker in (one, two, join)} == {0}
    print(f"killed and started: ready after {ready_s:.1f} s, windows right after {windows_s:.1f} s; held back: {held}")


def test_windows_stay_when_the_reader_stops(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """Without a hot tier as-of stands at the watermark; with one and no traffic it is now, and windows only shrink."""
    site = make_site()
    end_ns = time.time_ns() - PAST_NS
    produce(site.kafka, site.topic, pairs(traffic(32, minutes=30, per_minute=30, end_ns=end_ns)))
    with (
        WorkerProcess(site, tmp_path, "--role", "join") as join,
        WorkerProcess(site, tmp_path, "--role", "roll") as roll,
    ):
        assert_equal(database, site, expected(site, read_topic(site.kafka, site.topic)), join)
        roll.until(lambda: roll.value("citegauge_as_of_caught_up") == 1, "as-of is now")
        assert abs(roll.value("citegauge_as_of_timestamp_seconds") - time.time()) < 60
        assert join.end() == 0
        roll.until(lambda: roll.value("citegauge_as_of_caught_up") == 0, "nobody says that all is read")
        before = roll.value("citegauge_as_of_timestamp_seconds")
        assert_windows_are_those_of_sql(database, site, roll)
        roll.kill()
        roll.start()  # it restores, and reads old heartbeats again
        roll.until_ready()
        roll.until(lambda: shown(roll)[1], "windows are shown")
        assert roll.value("citegauge_as_of_caught_up") == 0
        assert end_ns / 1e9 - 90 < roll.value("citegauge_as_of_timestamp_seconds") < min(before, end_ns / 1e9 + 1)
        ratios_shown = [value for key, value in shown(roll)[1].items() if "recall" in key[0]]
        assert ratios_shown, "quality is there although traffic has stopped"
    assert stored(database, site.database).panes
