"""The table of metrics: every name that `/metrics` can show, beside `process_…`. Data only; values come from the adapters.

The README's table is generated from it, and the exporter refuses a sample whose name or labels do not stand here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric."""

    name: str
    type: Literal["gauge", "counter"]
    unit: str
    """Base unit, in words for the README; Prometheus reads it from the name."""
    labels: tuple[str, ...]
    help: str


_SLICE = ("route", "top_k_bucket")
_WINDOW = (*_SLICE, "window")
_PARTITION = ("topic", "partition")

METRICS: tuple[Metric, ...] = (
    # -- quality: one series per roll-up, from the live windows
    Metric(
        "citegauge_cited_chunk_recall_ratio",
        "gauge",
        "ratio",
        (*_WINDOW, "stat"),
        "Cited-chunk recall of measured traces in the window; stat is p25, p50, p75, mean, sd, mid_p25 or mid_p50 "
        "(mid-distribution quantiles), or an end of a 95 % interval: mean_lower, mean_upper (from 30 traces on), p25_lower, "
        "p25_upper (from 13), p50_lower or p50_upper (from 6). A proxy, not labelled recall.",
    ),
    Metric(
        "citegauge_rank_weighted_recall_ratio",
        "gauge",
        "ratio",
        (*_WINDOW, "stat"),
        "Cited-chunk recall with each chunk weighted by 1/rank; stat is mean.",
    ),
    Metric(
        "citegauge_cited_any_ratio",
        "gauge",
        "ratio",
        _WINDOW,
        "Share of measured answers with at least one valid citation.",
    ),
    Metric(
        "citegauge_top1_score",
        "gauge",
        "score",
        (*_WINDOW, "scorer", "stat"),
        "Score of the first retrieved chunk, per scorer; stat is p25, p50, p75, mean, sd, or an end of a 95 % interval: "
        "p25_lower, p25_upper (from 13 traces on), p50_lower or p50_upper (from 6).",
    ),
    Metric(
        "citegauge_top1_score_samples",
        "gauge",
        "traces",
        (*_WINDOW, "scorer"),
        "Traces with a top-1 score in the window.",
    ),
    Metric(
        "citegauge_window_traces",
        "gauge",
        "traces",
        (*_WINDOW, "state"),
        "Traces in the window by result state; only state measured enters a ratio.",
    ),
    Metric(
        "citegauge_window_citations",
        "gauge",
        "citations",
        (*_WINDOW, "outcome"),
        "Citations in the window by outcome: valid, never_retrieved, dropped (retrieved, but dropped before the context) or "
        "unresolved (out of range or malformed). The two in the middle are hallucinated. Only of states measured, "
        "nonconformant and empty_retrieval: in the others the whole retrieved set is not known.",
    ),
    Metric(
        "citegauge_window_share_ratio",
        "gauge",
        "ratio",
        (*_WINDOW, "share", "stat"),
        "Shares in the window: cited_any, cites_rank1 and cites_rank1_3 (of measured answers: with a valid citation, of the "
        "first chunk, of one of the first three), hallucinated (of citations), nonconformant (of traces that may have an "
        "answer), zero_results (of traces whose retrieval is known), low_confidence (of traces whose top-1 score has a "
        "threshold) and unjoined (of all traces); stat is value, lower or upper (95 %, Wilson).",
    ),
    # -- detectors: each full group (model, retriever version, scorer) against its own past; not while the windows are old
    Metric(
        "citegauge_compared_recall_ratio",
        "gauge",
        "ratio",
        (*_SLICE, "stat"),
        "Mean cited-chunk recall of the last hour (stat after) and of the day before it (before), both at the hour's mix of "
        "models, retriever versions and scorers, and their standard errors (se_before, se_after; the latter holds wander, "
        "by which an hour's level moves by itself). Groups without enough past are left out: a new version cannot fall. "
        "Not shown, as all that is compared, while the windows are older than alerts.as_of_stale_s.",
    ),
    Metric(
        "citegauge_compared_recall_traces",
        "gauge",
        "traces",
        (*_SLICE, "side"),
        "Measured traces on each side (before, after) of the groups that were compared.",
    ),
    Metric(
        "citegauge_compared_top1_score",
        "gauge",
        "score",
        (*_SLICE, "scorer", "stat"),
        "The same for the top-1 score, within one scorer; stat is before, after, se_before, se_after or sd (standard "
        "deviation of single scores before, within groups).",
    ),
    Metric(
        "citegauge_compared_top1_score_traces",
        "gauge",
        "traces",
        (*_SLICE, "scorer", "side"),
        "Traces with a score on each side (before, after) of the groups that were compared.",
    ),
    Metric(
        "citegauge_compared_top1_score_sign",
        "gauge",
        "sign",
        (*_SLICE, "scorer"),
        'What a fall of these scores means: 1, worse; -1, better, where routes.<name>.score_direction is "lower".',
    ),
    Metric(
        "citegauge_compared_low_confidence_ratio",
        "gauge",
        "ratio",
        (*_SLICE, "stat"),
        "The same for the share of traces of low confidence (top-1 score below its threshold); stat is before, after, "
        "se_before or se_after. Only where routes.<name>.low_confidence_below is set.",
    ),
    Metric(
        "citegauge_compared_low_confidence_traces",
        "gauge",
        "traces",
        (*_SLICE, "side"),
        "Traces whose score has a threshold on each side (before, after) of the groups that were compared.",
    ),
    Metric(
        "citegauge_baseline_recall_ratio",
        "gauge",
        "ratio",
        (*_SLICE, "baseline", "stat"),
        "What is usual at the hour's mix of groups: mean and sd (of single traces) of recall in the last 24h or 7d, without "
        "the last 6 hours, which are what is tested. From 100 traces and 6 hours with traffic on.",
    ),
    Metric(
        "citegauge_baseline_recall_traces",
        "gauge",
        "traces",
        (*_SLICE, "baseline"),
        "Measured traces that the baseline rests on.",
    ),
    Metric(
        "citegauge_detector_ratio",
        "gauge",
        "ratio",
        (*_SLICE, "scorer", "detector"),
        "A detector's statistic over its decision limit; from 1 on it is an alarm. recall_cusum: recall of the last 6 hours "
        "fell short of the baseline (scorer is *); score_shift: the scores of the hour are distributed otherwise.",
    ),
    Metric(
        "citegauge_window_series_dropped",
        "gauge",
        "series",
        (),
        "Roll-ups left out: pairs past web.series_max, and scorers of a pair past the 20 with most scores.",
    ),
    Metric(
        "citegauge_as_of_timestamp_seconds",
        "gauge",
        "seconds",
        (),
        "Time up to which the windows speak.",
    ),
    Metric(
        "citegauge_as_of_caught_up",
        "gauge",
        "bool",
        (),
        "1 while the windows follow the wall clock, 0 while they wait for a reader that lags.",
    ),
    # -- traffic
    Metric("citegauge_records_total", "counter", "records", (), "Records read, without those re-read in silence."),
    Metric("citegauge_spans_total", "counter", "spans", ("kind",), "Spans joined, by kind."),
    Metric("citegauge_spans_duplicate_total", "counter", "spans", (), "Spans that were known already."),
    Metric("citegauge_spans_late_total", "counter", "spans", (), "Spans that came after their minute had closed."),
    Metric("citegauge_spans_bad_time_total", "counter", "spans", (), "Spans with an impossible end time."),
    Metric("citegauge_traces_closed_total", "counter", "traces", ("state",), "Traces in closed minutes, by state."),
    Metric("citegauge_traces_recounted_total", "counter", "traces", (), "Traces counted in a second minute."),
    Metric("citegauge_dead_letters_total", "counter", "records", ("reason",), "Records or spans that cannot be read."),
    Metric("citegauge_panes_forced_total", "counter", "panes", (), "Panes closed early because of join.traces_max."),
    Metric("citegauge_rekeyed_records_total", "counter", "records", (), "Records read by the re-key stage."),
    Metric("citegauge_rekeyed_spans_total", "counter", "spans", (), "Spans sent to the partition of their trace."),
    Metric("citegauge_rekey_dead_letters_total", "counter", "records", ("reason",), "Unreadable, in the re-key stage."),
    Metric(
        "citegauge_rekey_waiting_partitions",
        "gauge",
        "partitions",
        (),
        "Source partitions that wait for slower ones, so that nothing comes late.",
    ),
    Metric("citegauge_rekey_held_bytes", "gauge", "bytes", (), "Spans that the re-key stage holds back, in memory."),
    Metric(
        "citegauge_rekey_holds_overruled_total",
        "counter",
        "holds",
        _PARTITION,
        "Times that a source partition was no longer waited for: it held others for longer (rekey.hold_s_max) or from "
        "further back (rekey.hold_behind_s_max) than it may, or memory ran out (rekey.held_bytes_max).",
    ),
    Metric("citegauge_rekey_retries_total", "counter", "batches", (), "Batches of the re-key stage tried again."),
    # -- the worker; a partition is one that the join reads, or a source partition that the re-key stage reads
    Metric("citegauge_position_lag_records", "gauge", "records", _PARTITION, "Records not read, or not re-keyed, yet."),
    Metric(
        "citegauge_progress_age_seconds",
        "gauge",
        "seconds",
        _PARTITION,
        "How long nothing was read, or re-keyed, of a partition although there is something to read; 0 otherwise.",
    ),
    Metric(
        "citegauge_commit_lag_records",
        "gauge",
        "records",
        _PARTITION,
        "Records behind the read position that a restart would read again; open minutes hold it back, so it is not lag.",
    ),
    Metric("citegauge_commit_age_seconds", "gauge", "seconds", _PARTITION, "Time since the last confirmed commit."),
    Metric(
        "citegauge_watermark_timestamp_seconds",
        "gauge",
        "seconds",
        _PARTITION,
        "Watermark of event time (of a source: newest re-keyed).",
    ),
    Metric("citegauge_replaying", "gauge", "bool", _PARTITION, "1 while the hold-back is being re-read in silence."),
    Metric("citegauge_traces_in_flight", "gauge", "traces", _PARTITION, "Traces in memory."),
    Metric("citegauge_open_groups", "gauge", "groups", _PARTITION, "Groups with an open minute."),
    Metric(
        "citegauge_routes_frozen",
        "gauge",
        "bool",
        _PARTITION,
        "1 while unlisted routes, their models, versions and scorers count as other; they have no top-1 scores then.",
    ),
    Metric("citegauge_reading_paused", "gauge", "bool", (), "1 while reading waits for ClickHouse."),
    Metric("citegauge_clickhouse_backlog_rows", "gauge", "rows", ("tier",), "Rows that wait for ClickHouse."),
    Metric("citegauge_clickhouse_failing", "gauge", "bool", ("tier",), "1 while the last insert failed."),
    Metric("citegauge_clickhouse_retries_total", "counter", "inserts", ("tier",), "Inserts tried again."),
    Metric("citegauge_clickhouse_rows_total", "counter", "rows", ("table",), "Rows acknowledged by ClickHouse."),
    Metric("citegauge_publish_retries_total", "counter", "batches", (), "Batches to Kafka tried again."),
    Metric("citegauge_commits_lost_total", "counter", "commits", (), "Commits refused: the partition had moved on."),
    Metric("citegauge_panes_unacknowledged", "gauge", "messages", (), "Panes-topic messages of open minutes."),
    Metric("citegauge_panes_unreadable_total", "counter", "messages", (), "Panes-topic messages that are not ours."),
    Metric(
        "citegauge_waiting",
        "gauge",
        "bool",
        ("for",),
        "1 while the start waits for clickhouse or kafka, and nothing is read.",
    ),
    Metric("citegauge_windows_ready", "gauge", "bool", (), "1 once the windows are restored from ClickHouse."),
)

BY_NAME = {metric.name: metric for metric in METRICS}
assert len(BY_NAME) == len(METRICS), "names in a table are unique"


class Sample(NamedTuple):
    """One value of one series; `labels` in the order of the metric's table row."""

    name: str
    labels: tuple[str, ...]
    value: float
