"""Alerts on what stands still: a worker that is away or hangs, a partition that nobody reads, a source that holds others.

Looked at every 5 seconds, so that with scrapes each 15 seconds (10 seconds of patience) every stall of a minute rings while
it lasts: a worker that hangs within 40 seconds, one that is away and a partition that stands still within 55. A restart of
half a minute does not ring: meanwhile the port refuses at once, and after it every partition counts anew.
"""

from __future__ import annotations

from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules.model import WHOLE, Alert, Group, looked_up

PARTITION = ("job", "topic", "partition")
PLACE = ", ".join(PARTITION)
HANGS_S = 4
"""A scrape that failed after so long waited for an answer; where nobody listens it fails at once."""


def stalls_group(settings: AlertSettings) -> Group:
    """The alerts."""
    return Group(
        name="citegauge-stalls", interval="5s", rules=[*_workers(settings), *_partitions(settings), _overruled()]
    )


def _workers(settings: AlertSettings) -> tuple[Alert, ...]:
    up = f'up{{job="{settings.job}"}}'
    return (
        Alert(
            name="CitegaugeWorkerHangs",
            runbook="worker-hangs",
            severity="ticket",
            signal="pipeline",
            expr=f"{up} == 0\n  and on (job, instance) (scrape_duration_seconds >= {HANGS_S})",
            hold="10s",
            keep="5m",
            summary="{{ $labels.job }}: worker {{ $labels.instance }} hangs",
            description="It takes connections and answers nothing, so its partitions may stand still.",
        ),
        Alert(
            name="CitegaugeWorkerDown",
            runbook="worker-down",
            severity="ticket",
            signal="pipeline",
            expr=f"{up} == 0",
            hold="35s",
            keep="5m",
            summary="{{ $labels.job }}: worker {{ $labels.instance }} does not answer",
            description="Its partitions go to the other workers of the group, if there are any.",
        ),
    )


def _partitions(settings: AlertSettings) -> tuple[Alert, ...]:
    # The longest of all workers: one that hangs shows nothing, and one that has just taken over begins at 0.
    age = f"max by ({PLACE}) (citegauge_progress_age_seconds)"
    unread = looked_up("citegauge_position_lag_records", PARTITION, WHOLE)
    return (
        Alert(
            name="CitegaugeStalled",
            runbook="stalled",
            severity="ticket",
            signal="pipeline",
            expr=f"{age} > {settings.stalled_s:g}",
            hold="0s",
            keep="2m",
            summary="{{ $labels.topic }}/{{ $labels.partition }} stands still for {{ $value | humanizeDuration }}",
            description=f"{unread} records are to be read, and none is.",
        ),
        Alert(
            name="CitegaugeNotReading",
            runbook="not-reading",
            severity="page",
            signal="pipeline",
            expr=f"{age} > {settings.not_reading_s:g}",
            hold="30s",
            keep="5m",
            summary="{{ $labels.topic }}/{{ $labels.partition }}: nothing was read for {{ $value | humanizeDuration }}",
            description=f"{unread} records are to be read, and none is. Numbers of it stand still or are missing.",
            stalls=True,
        ),
    )


def _overruled() -> Alert:
    # Also the first value that its series ever has: `increase` does not see it.
    counter = "citegauge_rekey_holds_overruled_total"
    return Alert(
        name="CitegaugeRekeyOverruled",
        runbook="rekey-overruled",
        severity="ticket",
        signal="pipeline",
        expr=(
            f"sum by ({PLACE}) (\n"
            f"    (({counter} unless ({counter} offset 15m))\n"
            f"        and on (job, instance) ((up offset 15m == 1) or (process_start_time_seconds > time() - 960)))\n"
            f"      or increase({counter}[15m])\n"
            f"  ) > 0"
        ),
        hold="0s",
        keep="30m",
        summary="{{ $labels.topic }}/{{ $labels.partition }} is no longer waited for by the re-key stage",
        description=(
            "It held the other source partitions for longer, or from further back in time, than it may, or memory ran out: "
            "its spans may come late now."
        ),
    )
