"""Is everything read, joined and stored, and how fresh are the numbers? Each panel says which runbook goes with it."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from boards.parts import (
    BOOL,
    BYTES,
    NUMBER,
    PER_SECOND,
    PIPELINE,
    QUALITY,
    SECONDS,
    Promql,
    Sql,
    Words,
    bars,
    board,
    label_variable,
    lines,
    link,
    marks,
    merged,
    number,
    rows,
    units,
)

FROM = 'instance=~"$instance"'
RATE = "$__rate_interval"


def pipeline() -> Dashboard:
    """The board."""
    made = board(
        PIPELINE, "citegauge: pipeline health", "Reading, joining, storing, and how fresh it all is.", since="now-6h"
    )
    made.with_variable(label_variable("instance", "Worker", "citegauge_records_total", many=True))
    made.annotation(
        marks("Alerts", "red", Promql('ALERTS{alertstate="firing",signal=~"pipeline|traffic"}', "{{alertname}}"))
    )
    _now(made)
    _reading(made)
    _joining(made)
    _refused(made)
    _storing(made)
    _windows(made)
    _process(made)
    return made


def _now(made: Dashboard) -> None:
    small = {"width": 4, "height": 4}
    stale = f"max(time() - (citegauge_as_of_timestamp_seconds{{{FROM}}} > 0))"
    lag = f"sum(max by (topic, partition) (citegauge_position_lag_records{{{FROM}}}))"
    ready = f"max(citegauge_windows_ready{{{FROM}}})"
    caught = f"max(citegauge_as_of_caught_up{{{FROM}}})"
    waits = f"sum(max by (instance, tier) (citegauge_clickhouse_backlog_rows{{{FROM}}}))"
    words = Words(
        "As-of age", "How old the windows are: every quality number speaks of that time (alert: as-of-stale).", **small
    )
    made.with_panel(number(words, SECONDS, Promql(stale), bad_from=300))
    words = Words(
        "Windows ready",
        "Whether a worker has restored its windows from ClickHouse (alert: windows-not-ready).",
        **small,
    )
    made.with_panel(number(words, BOOL, Promql(ready)))
    words = Words("Caught up", "Whether the windows follow the wall clock, or wait for a reader that lags.", **small)
    made.with_panel(number(words, BOOL, Promql(caught)))
    words = Words(
        "Unread records", "Over all partitions of the source topics (alerts: lag-seconds, lag-records).", **small
    )
    made.with_panel(number(words, NUMBER, Promql(lag)))
    words = Words(
        "Rows waiting for ClickHouse",
        "Over both tiers; nothing is lost while they wait (alert: clickhouse-failing).",
        **small,
    )
    made.with_panel(number(words, NUMBER, Promql(waits)))
    words = Words("Workers that answer", "Targets of the scrape that are up (alerts: down, worker-down).", **small)
    made.with_panel(number(words, NUMBER, Promql(f"sum(up{{{FROM}}})")))
    firing = 'max by (alertname, severity, signal, instance) (ALERTS{alertstate="firing",alertname=~"Citegauge.*"})'
    words = Words(
        "Alerts that fire now",
        "From Prometheus; Alertmanager may hold some back. Empty: none fires.",
        width=24,
        height=6,
    )
    made.with_panel(merged(rows(words, Promql(firing, now=True), links={"signal": link(QUALITY)}), "firing"))


def _reading(made: Dashboard) -> None:
    made.with_row(Row("Reading"))

    def per_partition(name: str) -> str:
        return f"max by (topic, partition) ({name}{{{FROM}}})"

    legend = "{{topic}}/{{partition}}"
    words = Words("Lag", "Records of each partition that are not read yet (alert: lag-records).")
    made.with_panel(lines(words, NUMBER, Promql(per_partition("citegauge_position_lag_records"), legend)).min(0))
    words = Words(
        "Standing still",
        "How long nothing of a partition was read, or re-keyed, although something waits (alerts: stalled, not-reading).",
    )
    made.with_panel(lines(words, SECONDS, Promql(per_partition("citegauge_progress_age_seconds"), legend)).min(0))
    words = Words(
        "Watermark age",
        "How far event time is behind the wall clock, per partition. It also grows while a partition has nothing to "
        "read; with lag it means delay (alert: lag-seconds).",
    )
    behind = f"max by (topic, partition) (time() - (citegauge_watermark_timestamp_seconds{{{FROM}}} > 0))"
    made.with_panel(lines(words, SECONDS, Promql(behind, legend)).min(0))
    words = Words(
        "Commit age",
        "Time since the last confirmed commit (alert: commit-age). An idle partition has nothing to commit.",
    )
    made.with_panel(lines(words, SECONDS, Promql(per_partition("citegauge_commit_age_seconds"), legend)).min(0))
    words = Words(
        "Held back",
        "Records behind the read position that a restart would read again: open minutes hold them, so it is not lag.",
    )
    made.with_panel(lines(words, NUMBER, Promql(per_partition("citegauge_commit_lag_records"), legend)).min(0))
    words = Words(
        "Re-keying: held, no longer waited for",
        "Bytes that wait for slower source partitions, and how often one was overruled (alert: rekey-overruled).",
    )
    held = Promql(f"sum(citegauge_rekey_held_bytes{{{FROM}}})", "bytes held")
    overruled = Promql(
        f"sum by (topic, partition) (increase(citegauge_rekey_holds_overruled_total{{{FROM}}}[{RATE}]))",
        f"overruled {legend}",
    )
    made.with_panel(lines(words, NUMBER, held, overruled).min(0))
    words = Words(
        "Reading: paused, replaying",
        "Paused: ClickHouse takes no rows (alert: reading-paused). Replaying: after a restart.",
    )
    paused = Promql(f"max by (instance) (citegauge_reading_paused{{{FROM}}})", "paused {{instance}}")
    replaying = Promql(f"max by (topic, partition) (citegauge_replaying{{{FROM}}}) > 0", f"replaying {legend}")
    made.with_panel(lines(words, BOOL, paused, replaying).min(0))
    words = Words(
        "Commits lost, publishing tried again",
        "Commits that were refused, because the partition had moved; batches to Kafka that were repeated.",
    )
    lost = Promql(f"sum(increase(citegauge_commits_lost_total{{{FROM}}}[{RATE}]))", "commits lost")
    again = Promql(f"sum(increase(citegauge_publish_retries_total{{{FROM}}}[{RATE}]))", "batches repeated")
    made.with_panel(bars(words, NUMBER, lost, again).min(0))


def _joining(made: Dashboard) -> None:
    made.with_row(Row("Joining"))
    words = Words("Records and spans", "Read and joined, per second (alert: no-traces).")
    records = Promql(f"sum(rate(citegauge_records_total{{{FROM}}}[{RATE}]))", "records")
    spans = Promql(f"sum by (kind) (rate(citegauge_spans_total{{{FROM}}}[{RATE}]))", "spans: {{kind}}")
    made.with_panel(lines(words, PER_SECOND, records, spans).min(0))
    words = Words("Traces of closed minutes", "By state, per second.")
    closed = f"sum by (state) (rate(citegauge_traces_closed_total{{{FROM}}}[{RATE}])) > 0"
    made.with_panel(lines(words, PER_SECOND, Promql(closed, "{{state}}")).min(0))
    words = Words("Traces and groups in memory", "Traces in flight, and groups with an open minute.")
    flight = Promql(f"sum(citegauge_traces_in_flight{{{FROM}}})", "traces in flight")
    groups = Promql(f"sum(citegauge_open_groups{{{FROM}}})", "open groups")
    made.with_panel(lines(words, NUMBER, flight, groups).min(0))
    words = Words(
        "Limits that were met",
        "Minutes closed early (join.traces_max), and partitions whose unlisted routes count as *other*.",
    )
    forced = Promql(f"sum(increase(citegauge_panes_forced_total{{{FROM}}}[{RATE}]))", "panes forced")
    frozen = Promql(f"sum(citegauge_routes_frozen{{{FROM}}})", "partitions with frozen routes")
    dropped = Promql(f"max(citegauge_window_series_dropped{{{FROM}}})", "roll-ups not exported")
    made.with_panel(lines(words, NUMBER, forced, frozen, dropped).min(0))
    words = Words(
        "Re-key stage",
        "Records read and spans sent on, per second, and source partitions that wait for slower ones. Empty without "
        "this stage.",
        24,
        7,
    )
    read = Promql(f"sum(rate(citegauge_rekeyed_records_total{{{FROM}}}[{RATE}]))", "records per second")
    sent = Promql(f"sum(rate(citegauge_rekeyed_spans_total{{{FROM}}}[{RATE}]))", "spans per second")
    wait = Promql(f"sum(citegauge_rekey_waiting_partitions{{{FROM}}})", "partitions waiting")
    made.with_panel(lines(words, NUMBER, read, sent, wait).min(0))


def _refused(made: Dashboard) -> None:
    made.with_row(Row("Left out, and why"))
    words = Words(
        "Dead letters",
        "Records or spans that cannot be read, by reason; each lies in the dead-letter topic (alert: dead-letters).",
    )
    dead = Promql(f"sum by (reason) (increase(citegauge_dead_letters_total{{{FROM}}}[{RATE}]))", "{{reason}}")
    rekey = Promql(
        f"sum by (reason) (increase(citegauge_rekey_dead_letters_total{{{FROM}}}[{RATE}]))", "re-key: {{reason}}"
    )
    made.with_panel(bars(words, NUMBER, dead, rekey).min(0))
    words = Words("Late, repeated, of impossible time", "Late spans change no trace; repeated ones were known already.")
    late = Promql(f"sum(increase(citegauge_spans_late_total{{{FROM}}}[{RATE}]))", "late")
    known = Promql(f"sum(increase(citegauge_spans_duplicate_total{{{FROM}}}[{RATE}]))", "repeated")
    wrong = Promql(f"sum(increase(citegauge_spans_bad_time_total{{{FROM}}}[{RATE}]))", "impossible time")
    twice = Promql(
        f"sum(increase(citegauge_traces_recounted_total{{{FROM}}}[{RATE}]))", "traces counted in a second minute"
    )
    made.with_panel(bars(words, NUMBER, late, known, wrong, twice).min(0))
    words = Words(
        "Late spans, by partition",
        "From ClickHouse: how many came after their minute had closed, and by how much the typical one missed it.",
        24,
        7,
    )
    made.with_panel(units(rows(words, Sql(_LATE)), median_lateness=SECONDS))


def _storing(made: Dashboard) -> None:
    made.with_row(Row("Storing"))
    words = Words("Rows waiting for ClickHouse", "By tier. When the buffer is full, reading pauses.")
    waiting = f"sum by (tier) (citegauge_clickhouse_backlog_rows{{{FROM}}})"
    made.with_panel(lines(words, NUMBER, Promql(waiting, "{{tier}}")).min(0))
    words = Words(
        "Inserts that fail",
        "Whether the last insert failed, and inserts that were tried again (alert: clickhouse-failing).",
    )
    failing = Promql(f"max by (tier) (citegauge_clickhouse_failing{{{FROM}}})", "failing: {{tier}}")
    again = Promql(
        f"sum by (tier) (increase(citegauge_clickhouse_retries_total{{{FROM}}}[{RATE}]))", "tried again: {{tier}}"
    )
    made.with_panel(lines(words, NUMBER, failing, again).min(0))
    words = Words("Rows acknowledged", "By ClickHouse, per second and table.", 24, 7)
    rows_ = f"sum by (table) (rate(citegauge_clickhouse_rows_total{{{FROM}}}[{RATE}]))"
    made.with_panel(lines(words, PER_SECOND, Promql(rows_, "{{table}}")).min(0))


def _windows(made: Dashboard) -> None:
    made.with_row(Row("Windows"))
    words = Words("As-of age", "How old the windows are (alert: as-of-stale).")
    stale = f"max by (instance) (time() - (citegauge_as_of_timestamp_seconds{{{FROM}}} > 0))"
    made.with_panel(lines(words, SECONDS, Promql(stale, "{{instance}}")).min(0))
    words = Words(
        "Panes topic", "Messages of open minutes that the windows still hold back, and messages that are not ours."
    )
    held = Promql(f"sum(citegauge_panes_unacknowledged{{{FROM}}})", "unacknowledged")
    alien = Promql(f"sum(increase(citegauge_panes_unreadable_total{{{FROM}}}[{RATE}]))", "unreadable")
    made.with_panel(lines(words, NUMBER, held, alien).min(0))
    words = Words(
        "Freshness by source",
        "From ClickHouse: each partition's newest minute, and its newest that is closed and will not change again.",
        24,
        7,
    )
    made.with_panel(units(rows(words, Sql(_FRESHNESS)), closed_age=SECONDS))


def _process(made: Dashboard) -> None:
    made.with_row(Row("The process"))
    third = {"width": 8, "height": 7}
    words = Words("Memory", "Resident memory of each worker.", **third)
    memory = Promql(
        f"process_resident_memory_bytes{{{FROM}}} and on (instance) citegauge_records_total", "{{instance}}"
    )
    made.with_panel(lines(words, BYTES, memory).min(0))
    words = Words("CPU", "Cores in use by each worker.", **third)
    cpu = Promql(
        f"rate(process_cpu_seconds_total{{{FROM}}}[{RATE}]) and on (instance) citegauge_records_total", "{{instance}}"
    )
    made.with_panel(lines(words, NUMBER, cpu).min(0))
    words = Words("Open files", "Sockets and files that each worker holds open.", **third)
    files = Promql(f"process_open_fds{{{FROM}}} and on (instance) citegauge_records_total", "{{instance}}")
    made.with_panel(lines(words, NUMBER, files).min(0))


_LATE = """
SELECT
    concat(topic, '/', toString(`partition`)) AS source,
    kind,
    count() AS spans,
    quantile(0.5)((watermark_ns - end_ns) / 1e9) AS "median lateness",
    max(pane) AS "newest minute"
FROM late FINAL
WHERE $__timeFilter(pane)
GROUP BY source, kind
ORDER BY spans DESC
"""

_FRESHNESS = """
SELECT
    source,
    max(pane) AS "newest minute",
    maxIf(pane, `final`) AS "closed through",
    dateDiff('second', "closed through" + INTERVAL 1 MINUTE, now()) AS "closed age",
    countIf(forced) AS "forced panes"
FROM panes FINAL
WHERE $__timeFilter(pane)
GROUP BY source
ORDER BY source
"""
