"""What the tiers know, as samples of the table of metrics, and as health. Pure reading; renders nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from citegauge.adapters.kafka.hot import HotTier
from citegauge.adapters.kafka.publisher import Publisher
from citegauge.adapters.kafka.rekey import RekeyTier
from citegauge.adapters.kafka.writer import RowWriter
from citegauge.adapters.rolling import RollTier, View
from citegauge.domain.recall import STATE_NAMES
from citegauge.domain.signals import Signal
from citegauge.domain.summary import SHARES
from citegauge.domain.window import MERGED
from citegauge.metrics import Sample
from citegauge.pipeline import KIND_NAMES
from citegauge.ports import WindowRow
from citegauge.tools.replay import RECALL_STATS, SCORE_STATS

TABLES = {
    "TraceRow": "traces",
    "TraceTombstone": "traces_deleted",
    "PaneRow": "panes",
    "LateRow": "late",
    "UserRow": "trace_users",
    "WindowRow": "windows",
}


SCORERS_PER_PAIR_MAX = 20
"""Scorers of one (route, top_k bucket) pair that are exported: those with most scores. A name may come from the spans."""


def window_samples(view: View, series_max: int) -> Iterator[Sample]:
    """Roll-ups only, at most `series_max` (route, top_k bucket) pairs: those with most measured traces in any window."""
    rolled = [row for row in view.rows if row.model == MERGED and row.retriever_version == MERGED]
    n: dict[tuple[str, str], int] = {}
    for row in rolled:
        pair = row.route, row.top_k_bucket
        n[pair] = max(n.get(pair, 0), row.n)
    pairs = sorted(n, key=lambda pair: (-n[pair], pair))
    kept = set(pairs[:series_max])
    left_out = _scorers_left_out(row for row in rolled if (row.route, row.top_k_bucket) in kept)
    for row in rolled:
        if (row.route, row.top_k_bucket) in kept and (row.route, row.top_k_bucket, row.scorer) not in left_out:
            yield from _row_samples(row)
            yield from _share_samples(row)
    for signal in view.signals:
        place = signal.route, signal.top_k_bucket
        if place in kept and (*place, signal.scorer) not in left_out:
            yield from signal_samples(signal)
    yield Sample("citegauge_window_series_dropped", (), len(pairs) - len(kept) + len(left_out))
    yield Sample("citegauge_as_of_timestamp_seconds", (), view.as_of_ns / 1e9)
    yield Sample("citegauge_as_of_caught_up", (), view.caught_up)


def _scorers_left_out(rolled: Iterable[WindowRow]) -> set[tuple[str, str, str]]:
    """(route, top_k bucket, scorer) past `SCORERS_PER_PAIR_MAX`."""
    n: dict[tuple[str, str], dict[str, int]] = {}
    for row in rolled:
        if row.scorer != MERGED:
            of_pair = n.setdefault((row.route, row.top_k_bucket), {})
            of_pair[row.scorer] = max(of_pair.get(row.scorer, 0), row.score_n)
    return {
        (*pair, scorer)
        for pair, of_pair in n.items()
        for scorer in sorted(of_pair, key=lambda scorer: (-of_pair[scorer], scorer))[SCORERS_PER_PAIR_MAX:]
    }


def _row_samples(row: WindowRow) -> Iterator[Sample]:
    key = (row.route, row.top_k_bucket, row.window)
    if row.scorer != MERGED:
        yield from _stat_samples("citegauge_top1_score", (*key, row.scorer), row, "score", SCORE_STATS)
        yield Sample("citegauge_top1_score_samples", (*key, row.scorer), row.score_n)
        return
    yield from _stat_samples("citegauge_cited_chunk_recall_ratio", key, row, "recall", RECALL_STATS)
    if row.rank_weighted_mean is not None:
        yield Sample("citegauge_rank_weighted_recall_ratio", (*key, "mean"), row.rank_weighted_mean)
    if row.cited_any_ratio is not None:
        yield Sample("citegauge_cited_any_ratio", key, row.cited_any_ratio)
    for state in STATE_NAMES:
        yield Sample("citegauge_window_traces", (*key, state), row.states.get(state, 0))
    valid = row.citations - row.hallucinated - row.unresolved
    outcomes = (
        ("valid", valid),
        ("never_retrieved", row.hallucinated - row.dropped_citations),
        ("dropped", row.dropped_citations),
        ("unresolved", row.unresolved),
    )
    for outcome, n in outcomes:
        yield Sample("citegauge_window_citations", (*key, outcome), n)


def _share_samples(row: WindowRow) -> Iterator[Sample]:
    """Shares with their intervals; none where there is nothing to have a share of."""
    if row.scorer != MERGED:
        return
    for share in SHARES:
        key = (row.route, row.top_k_bucket, row.window, share)
        for stat, field in (("value", "ratio"), ("lower", "lower"), ("upper", "upper")):
            value = getattr(row, f"{share}_{field}")
            if value is not None:
                yield Sample("citegauge_window_share_ratio", (*key, stat), value)


def _stat_samples(
    name: str, labels: tuple[str, ...], row: WindowRow, of: str, stats: tuple[str, ...]
) -> Iterator[Sample]:
    for stat in stats:
        value = getattr(row, f"{of}_{stat}")
        if value is not None:
            yield Sample(name, (*labels, stat), value)


def signal_samples(signal: Signal) -> Iterator[Sample]:
    """What the detectors say of one roll-up; nothing where too little is known."""
    place = (signal.route, signal.top_k_bucket)
    scored = signal.scorer != MERGED
    key = (*place, signal.scorer) if scored else place
    name, traces = (
        ("citegauge_compared_top1_score", "citegauge_compared_top1_score_traces")
        if scored
        else ("citegauge_compared_recall_ratio", "citegauge_compared_recall_traces")
    )
    compared = signal.compared
    if compared is not None:
        for stat in ("before", "after", "se_before", "se_after", "sd" if scored else "wander"):
            yield Sample(name, (*key, stat), getattr(compared, stat))
        if scored:
            yield Sample("citegauge_compared_top1_score_sign", key, -1.0 if signal.lower_is_better else 1.0)
        yield Sample(traces, (*key, "before"), compared.n_before)
        yield Sample(traces, (*key, "after"), compared.n_after)
    low = signal.low_confidence
    if low is not None:
        for stat in ("before", "after", "se_before", "se_after"):
            yield Sample("citegauge_compared_low_confidence_ratio", (*place, stat), getattr(low, stat))
        yield Sample("citegauge_compared_low_confidence_traces", (*place, "before"), low.n_before)
        yield Sample("citegauge_compared_low_confidence_traces", (*place, "after"), low.n_after)
    for baseline, usual in signal.baselines.items():
        yield Sample("citegauge_baseline_recall_ratio", (*key, baseline, "mean"), usual.mean)
        yield Sample("citegauge_baseline_recall_ratio", (*key, baseline, "sd"), math.sqrt(usual.variance))
        yield Sample("citegauge_baseline_recall_traces", (*key, baseline), usual.n)
    for detector, said in (("recall_cusum", signal.cusum), ("score_shift", signal.shift)):
        if said is not None:
            yield Sample("citegauge_detector_ratio", (*place, signal.scorer, detector), said.ratio)


def hot_samples(hot: HotTier, publisher: Publisher) -> Iterator[Sample]:
    """Traffic and standing of the hot tier."""
    totals = hot.totals()
    yield Sample("citegauge_records_total", (), totals.records)
    for kind, name in KIND_NAMES.items():
        yield Sample("citegauge_spans_total", (name,), totals.join.spans.get(kind, 0))
    yield Sample("citegauge_spans_duplicate_total", (), totals.join.duplicates)
    yield Sample("citegauge_spans_late_total", (), totals.join.late)
    yield Sample("citegauge_spans_bad_time_total", (), totals.join.bad_time)
    yield Sample("citegauge_traces_recounted_total", (), totals.join.recounted)
    for state, name in enumerate(STATE_NAMES):
        yield Sample("citegauge_traces_closed_total", (name,), totals.join.traces_closed.get(state, 0))
    for reason, n in sorted(hot.counters.dead_letters.items()):
        yield Sample("citegauge_dead_letters_total", (reason,), n)
    yield Sample("citegauge_panes_forced_total", (), hot.counters.forced_panes)
    yield Sample("citegauge_commits_lost_total", (), hot.counters.commits_lost)
    yield Sample("citegauge_publish_retries_total", (), publisher.retries)
    yield Sample("citegauge_reading_paused", (), hot.paused)
    for partition, at in hot.positions().items():
        labels = (partition.topic, str(partition.partition))
        if at.end >= 0:
            yield Sample("citegauge_position_lag_records", labels, max(0, at.end - at.position))
        yield Sample("citegauge_commit_lag_records", labels, at.position - at.committed)
        yield Sample("citegauge_commit_age_seconds", labels, at.commit_age_ns / 1e9)
        yield Sample("citegauge_watermark_timestamp_seconds", labels, at.watermark_ns / 1e9)
        yield Sample("citegauge_replaying", labels, at.replaying)
        yield Sample("citegauge_progress_age_seconds", labels, at.still_ns / 1e9)
    for pipeline in hot.pipelines():
        labels = (pipeline.source.topic, str(pipeline.source.partition))
        yield Sample("citegauge_traces_in_flight", labels, len(pipeline.join.traces))
        yield Sample("citegauge_open_groups", labels, len(pipeline.join.open_groups))
        yield Sample("citegauge_routes_frozen", labels, pipeline.join.clock.routes_frozen)


def writer_samples(writers: Iterable[tuple[str, RowWriter]]) -> Iterator[Sample]:
    """The buffers in front of ClickHouse, by tier."""
    for tier, writer in writers:
        yield Sample("citegauge_clickhouse_backlog_rows", (tier,), writer.backlog_rows)
        yield Sample("citegauge_clickhouse_failing", (tier,), writer.failing)
        yield Sample("citegauge_clickhouse_retries_total", (tier,), writer.failures)
        for name, n in sorted(writer.inserted_rows.items()):
            yield Sample("citegauge_clickhouse_rows_total", (TABLES[name],), n)


def roll_samples(roll: RollTier, series_max: int, stale_s: float, now_ns: int) -> Iterator[Sample]:
    """The windows and the standing of the cold tier. Detectors are silent while the windows are older than `stale_s`."""
    fresh = now_ns - roll.view.as_of_ns <= stale_s * 1e9
    yield from window_samples(roll.view if fresh else replace(roll.view, signals=()), series_max)
    yield Sample("citegauge_panes_unacknowledged", (), roll.unacked)
    yield Sample("citegauge_panes_unreadable_total", (), roll.unreadable)
    yield Sample("citegauge_windows_ready", (), roll.ready)


def rekey_samples(rekey: RekeyTier) -> Iterator[Sample]:
    """Traffic and standing of the re-key stage; a partition whose place is not found yet makes no progress either."""
    yield Sample("citegauge_rekeyed_records_total", (), rekey.records)
    yield Sample("citegauge_rekeyed_spans_total", (), rekey.spans)
    yield Sample("citegauge_rekey_waiting_partitions", (), rekey.paused)
    yield Sample("citegauge_rekey_held_bytes", (), rekey.held_bytes)
    yield Sample("citegauge_rekey_retries_total", (), rekey.retries)
    for partition, at in rekey.positions().items():
        labels = (partition.topic, str(partition.partition))
        if at.end >= 0:
            yield Sample("citegauge_position_lag_records", labels, max(0, at.end - at.position))
        yield Sample("citegauge_commit_age_seconds", labels, at.commit_age_ns / 1e9)
        yield Sample("citegauge_watermark_timestamp_seconds", labels, at.watermark_ns / 1e9)
        yield Sample("citegauge_progress_age_seconds", labels, at.still_ns / 1e9)
    for partition, searched_ns in rekey.unplaced().items():
        labels = (partition.topic, str(partition.partition))
        yield Sample("citegauge_progress_age_seconds", labels, searched_ns / 1e9)
    for partition in sorted(rekey.positions().keys() | rekey.overruled.keys()):
        labels = (partition.topic, str(partition.partition))
        yield Sample("citegauge_rekey_holds_overruled_total", labels, rekey.overruled.get(partition, 0))
    for reason, n in sorted(rekey.dead_letters.items()):
        yield Sample("citegauge_rekey_dead_letters_total", (reason,), n)


def stalled(hot: HotTier | None, roll: RollTier | None, rekey: RekeyTier | None, stall_s: float) -> Sequence[str]:
    """One line for each part that has made no progress for too long; empty when all is well."""
    now_ns = time.monotonic_ns()
    lines = []
    if hot is not None:
        quiet_s = (now_ns - hot.turned_ns) / 1e9
        if quiet_s > stall_s:
            lines.append(f"the reading loop has not turned for {quiet_s:.0f} s")
        lines += [
            f"{partition.topic}/{partition.partition} has not committed for {at.commit_age_ns / 1e9:.0f} s"
            for partition, at in hot.positions().items()
            if at.commit_age_ns / 1e9 > stall_s and at.position > at.published and not hot.excused
        ]
        lines += [
            f"{partition.topic}/{partition.partition} has read nothing for {at.still_ns / 1e9:.0f} s, and may have to"
            for partition, at in hot.positions().items()
            if at.still_ns / 1e9 > stall_s
        ]
    if rekey is not None:
        quiet_s = (now_ns - rekey.turned_ns) / 1e9
        if quiet_s > stall_s:
            lines.append(f"the re-key stage has not turned for {quiet_s:.0f} s")
        lines += [
            f"{partition.topic}/{partition.partition} has not been re-keyed for {at.still_ns / 1e9:.0f} s, "
            f"and {at.end - at.position} records wait"
            for partition, at in rekey.positions().items()
            if at.still_ns / 1e9 > stall_s
        ]
        lines += [
            f"where to re-key {partition.topic}/{partition.partition} from has not been found for {searched_ns / 1e9:.0f} s"
            for partition, searched_ns in rekey.unplaced().items()
            if searched_ns / 1e9 > stall_s
        ]
    if roll is not None:
        quiet_s = (now_ns - roll.turned_ns) / 1e9
        if quiet_s > stall_s:
            lines.append(f"the windows have not been computed for {quiet_s:.0f} s")
    return lines
