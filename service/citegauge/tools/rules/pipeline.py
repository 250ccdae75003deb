"""Alerts on the worker itself: does traffic come, is it read, joined, stored and up to date?

Traffic that stops is `CitegaugeNoTraces`, never a quality of 0. What a number means stands in the table of metrics.
"""

from __future__ import annotations

from citegauge.sections import AlertSettings
from citegauge.tools.rules.model import SHARE, WHOLE, Alert, Group, looked_up


def pipeline_group(settings: AlertSettings) -> Group:
    """The alerts."""
    rules = [
        *_down(settings),
        *_traffic(settings),
        *_reading(settings),
        *_storing(),
        *_windows(settings),
        *_input(settings),
    ]
    return Group(name="citegauge-pipeline", interval="1m", rules=rules)


def _down(settings: AlertSettings) -> tuple[Alert, ...]:
    up = f'up{{job="{settings.job}"}}'
    return (
        Alert(
            name="CitegaugeDown",
            runbook="down",
            severity="page",
            signal="pipeline",
            expr=f"(sum by (job) ({up}) == 0) or absent({up})",
            hold="3m",
            keep="5m",
            summary="{{ $labels.job }}: no worker answers",
            description="Prometheus reaches no worker: nothing is measured, and no other rule can speak.",
            stalls=True,
        ),
        Alert(
            name="CitegaugeWorkerDown",
            runbook="worker-down",
            severity="ticket",
            signal="pipeline",
            expr=f"{up} == 0",
            hold="10m",
            keep="5m",
            summary="{{ $labels.job }}: worker {{ $labels.instance }} does not answer",
            description="Its partitions go to the other workers of the group, if there are any.",
        ),
    )


def _traffic(settings: AlertSettings) -> tuple[Alert, ...]:
    route_day, route_hour = (
        f'sum by (job, route) (max by (job, route, top_k_bucket, state) (citegauge_window_traces{{window="{window}"}}))'
        for window in ("24h", "1h")
    )
    return (
        Alert(
            name="CitegaugeNoTraces",
            runbook="no-traces",
            severity="page",
            signal="traffic",
            # Unread records mean that the worker is stuck, which is another alert.
            expr=(
                f"(sum by (job) (increase(citegauge_records_total[{settings.no_traces_s}s])) == 0)\n"
                f"  and on (job) (sum by (job) ({route_day}) >= {settings.traces_min})\n"
                f"  unless on (job) (sum by (job) (citegauge_position_lag_records) > 0)"
            ),
            hold="5m",
            keep="10m",
            summary="{{ $labels.job }}: traces stopped coming",
            description=(
                f"No record for {settings.no_traces_s} seconds and nothing left to read, after traffic within 24 hours: "
                "the windows empty; no quality is said of traffic that is not there."
            ),
        ),
        Alert(
            name="CitegaugeRouteNoTraces",
            runbook="route-no-traces",
            severity="ticket",
            signal="traffic",
            # Nobody is missed who comes rarely: only a route with enough traces in an average hour.
            expr=(
                f"({route_day} >= {24 * settings.traces_min})\n"
                f"  unless on (job, route) ({route_hour} > 0)\n"
                f"  unless on (job) (max by (job) (citegauge_as_of_caught_up) == 0)"
            ),
            hold="30m",
            keep="10m",
            summary="{{ $labels.route }}: no trace for an hour and a half",
            description='{{ $value | printf "%.0f" }} traces in the last 24 hours, none in the last hour.',
        ),
    )


def _reading(settings: AlertSettings) -> tuple[Alert, ...]:
    partition = ("job", "topic", "partition")
    unread = looked_up("citegauge_position_lag_records", partition, WHOLE)
    return (
        Alert(
            name="CitegaugeLagSeconds",
            runbook="lag-seconds",
            severity="page",
            signal="pipeline",
            expr=(
                f"max by (job, topic, partition) (time() - (citegauge_watermark_timestamp_seconds > 0))\n"
                f"  > {settings.lag_s:g}\n"
                f"  and on (job, topic, partition) (max by (job, topic, partition) (citegauge_position_lag_records) > 0)"
            ),
            hold="10m",
            keep="10m",
            summary="{{ $labels.topic }}/{{ $labels.partition }} is read {{ $value | humanizeDuration }} late",
            description=f"{unread} records are not read yet.",
            stalls=True,
        ),
        Alert(
            name="CitegaugeLagRecords",
            runbook="lag-records",
            severity="ticket",
            signal="pipeline",
            expr=f"max by (job, topic, partition) (citegauge_position_lag_records) > {settings.lag_records}",
            hold="15m",
            keep="10m",
            summary='{{ $labels.topic }}/{{ $labels.partition }}: {{ $value | printf "%.0f" }} records are not read yet',
            description=f"For 15 minutes more than {settings.lag_records}: the workers do not keep up.",
        ),
        Alert(
            name="CitegaugeCommitAge",
            runbook="commit-age",
            severity="ticket",
            signal="pipeline",
            # An idle partition has nothing to commit.
            expr=(
                f"max by (job, topic, partition) (citegauge_commit_age_seconds) > {settings.commit_age_s:g}\n"
                f"  and on (job, topic, partition)\n"
                f"    (max by (job, topic, partition) (delta(citegauge_watermark_timestamp_seconds[10m])) > 0)"
            ),
            hold="5m",
            keep="10m",
            summary="{{ $labels.topic }}/{{ $labels.partition }}: no commit for {{ $value | humanizeDuration }}",
            description="It is read, yet nothing is confirmed: a restart would read all of it again.",
        ),
        Alert(
            name="CitegaugeReadingPaused",
            runbook="reading-paused",
            severity="page",
            signal="pipeline",
            expr="max by (job, instance) (citegauge_reading_paused) == 1",
            hold="5m",
            keep="10m",
            summary="{{ $labels.job }}: {{ $labels.instance }} has stopped reading, because ClickHouse takes no rows",
            description=f"{looked_up('citegauge_clickhouse_backlog_rows', ('job', 'instance'), WHOLE)} rows wait.",
            stalls=True,
        ),
    )


def _storing() -> tuple[Alert, ...]:
    return (
        Alert(
            name="CitegaugeClickHouseFailing",
            runbook="clickhouse-failing",
            severity="page",
            signal="pipeline",
            expr="max by (job, instance, tier) (citegauge_clickhouse_failing) == 1",
            hold="10m",
            keep="10m",
            summary="{{ $labels.job }}: {{ $labels.instance }} cannot write to ClickHouse ({{ $labels.tier }})",
            description=(
                f"{looked_up('citegauge_clickhouse_backlog_rows', ('job', 'instance', 'tier'), WHOLE)} rows wait. "
                "Nothing is lost; when the buffer is full, reading pauses."
            ),
        ),
    )


def _windows(settings: AlertSettings) -> tuple[Alert, ...]:
    return (
        Alert(
            name="CitegaugeAsOfStale",
            runbook="as-of-stale",
            severity="page",
            signal="pipeline",
            # A worker without partitions of the panes topic is not ready, and its as-of says nothing.
            expr=(
                f"max by (job) (time() - (citegauge_as_of_timestamp_seconds > 0)\n"
                f"  and on (job, instance) (citegauge_windows_ready == 1)) > {settings.as_of_stale_s:g}"
            ),
            hold="5m",
            keep="10m",
            summary="{{ $labels.job }}: the windows are {{ $value | humanizeDuration }} old",
            description="Every number speaks of that time, and so does every quality alert.",
            stalls=True,
        ),
        Alert(
            name="CitegaugeWindowsNotReady",
            runbook="windows-not-ready",
            severity="page",
            signal="pipeline",
            expr="max by (job) (citegauge_windows_ready) == 0",
            hold="15m",
            keep="5m",
            summary="{{ $labels.job }}: no worker has restored its windows",
            description="For 15 minutes no window has been published.",
            stalls=True,
        ),
    )


def _input(settings: AlertSettings) -> tuple[Alert, ...]:
    letters = " or ".join(
        f'label_replace({_grown(f"citegauge_{name}dead_letters_total")}, "stage", "{stage}", "", "")'
        for name, stage in (("", "join"), ("rekey_", "rekey"))
    )
    spans = "sum by (job) (increase(citegauge_spans_total[1h]))"
    return (
        Alert(
            name="CitegaugeDeadLetters",
            runbook="dead-letters",
            severity="ticket",
            signal="pipeline",
            expr=f"({letters})\n  >= {settings.dead_letters_min}",
            hold="1m",
            keep="30m",
            summary='{{ $labels.job }}: {{ $value | printf "%.0f" }} unreadable in 15 minutes ({{ $labels.reason }})',
            description="In the stage {{ $labels.stage }}. They are in the dead-letter topic and are counted nowhere.",
        ),
        Alert(
            name="CitegaugeLateSpans",
            runbook="late-spans",
            severity="ticket",
            signal="pipeline",
            expr=(
                f"sum by (job) (increase(citegauge_spans_late_total[1h])) / {spans} >= {settings.late_ratio}\n"
                f"  and ({spans} >= {settings.traces_min})"
            ),
            hold="15m",
            keep="30m",
            summary=f"{{{{ $labels.job }}}}: {SHARE} of spans came after their minute had closed",
            description="In the last hour. Late spans change no trace and no minute; they are in the table late.",
        ),
    )


def _grown(counter: str) -> str:
    """What a counter grew by in 15 minutes. `increase` does not see the first value of a new series: it is added.

    New is a series that was not there 15 minutes ago although its worker was read then, or whose process is hardly older
    (by a minute, so that none slips between its start and its first scrape). A series that comes back after scrapes that
    failed, or that Prometheus itself did not see before, is not new: its first value is that of a lifetime.
    """
    return (
        f"sum by (job, reason) (\n"
        f"    (({counter} unless ({counter} offset 15m))\n"
        f"        and on (job, instance) ((up offset 15m == 1) or (process_start_time_seconds > time() - 960)))\n"
        f"      or increase({counter}[15m])\n"
        f"  )"
    )
