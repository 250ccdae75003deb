"""What a backtest found, for the terminal and as JSON. Formatting only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from citegauge.tools.backtest.alerting import Firing
from citegauge.tools.backtest.run import Curve, Report
from citegauge.tools.backtest.series import Labels

BARS = "▁▂▃▄▅▆▇█"
CURVE_COLUMNS_MAX = 96
CURVES_SHOWN_MAX = 20
FIRINGS_SHOWN_MAX = 200


def as_json(report: Report) -> dict[str, Any]:
    """One object; times are RFC 3339, `to` is null while it still fires at the end."""
    asked = report.asked
    return {
        "from": iso(asked.from_s),
        "to": iso(asked.to_s),
        "step_s": asked.step_s,
        "panes": report.extent.panes,
        "panes_from": iso(report.extent.first_s),
        "past_is_short": report.past_is_short,
        "alerts": [
            {
                "alert": fired.rule.name,
                "severity": fired.rule.labels.get("severity", ""),
                "firings": [
                    {
                        "labels": dict(labels),
                        "from": iso(one.from_s),
                        "to": None if one.to_s is None else iso(one.to_s),
                        "duration_s": (one.to_s or asked.to_s) - one.from_s,
                        "value_min": finite(one.value_min),
                        "value_max": finite(one.value_max),
                    }
                    for labels, one in flat(fired.by_labels)
                ],
            }
            for fired in report.fired
        ],
        "episodes": [one.as_dict() for one in report.episodes],
        "not_replayable": [{"alert": rule.name, "why": why} for rule, why in report.plan.not_replayable],
    }


def print_report(report: Report, console: Console) -> None:
    """Firings, counts, curves, and what could not be replayed."""
    asked = report.asked
    rows = [(fired, labels, one) for fired in report.fired for labels, one in flat(fired.by_labels)]
    table = Table(
        box=SIMPLE_HEAD,
        title=f"{moment(asked.from_s)} to {moment(asked.to_s)} UTC, every {asked.step_s} s",
    )
    for name in ("alert", "where", "from", "to", "lasts", "peak"):  # all may fold: what may not would push others out
        table.add_column(name, overflow="fold", justify="right" if name in ("lasts", "peak") else "left")
    for fired, labels, one in rows[:FIRINGS_SHOWN_MAX]:
        ends = "still firing" if one.to_s is None else day_time(one.to_s)
        lasts = duration((one.to_s or asked.to_s) - one.from_s)
        style = "bold red" if fired.rule.labels.get("severity") == "page" else None
        table.add_row(
            fired.rule.name, where(labels), day_time(one.from_s), ends, lasts, f"{one.value_max:.3g}", style=style
        )
    if rows:
        console.print(table)
    if len(rows) > FIRINGS_SHOWN_MAX:
        console.print(f"the first {FIRINGS_SHOWN_MAX} of {len(rows)} firings; --json has all")
    for fired in report.fired:
        n = sum(len(found) for found in fired.by_labels.values())
        console.print(f"{fired.rule.name}: {f'fires {n} times' if n > 1 else 'fires once' if n else 'does not fire'}")
    if report.episodes:
        console.print("\nEpisodes, as the page tells them:")
    for episode in report.episodes[:FIRINGS_SHOWN_MAX]:
        console.print(f"  {episode.sentence}", highlight=False, markup=False)
    if report.plan.not_replayable:
        names = ", ".join(rule.name for rule, _ in report.plan.not_replayable)
        console.print(f"\nNot replayable, because what they read is not stored (--json says what): {names}")
    if report.past_is_short:
        console.print(
            f"\nPanes begin at {moment(report.extent.first_s)}: until a day later there was less to compare with than live, "
            "unless the service was that young."
        )
    print_curves(report, console)


def print_curves(report: Report, console: Console) -> None:
    """A line for each (route, top_k bucket) that was ever measured: the hour's mean recall, red while an alert fires."""
    pairs = [pair for pair in ranked(report) if not all(map(math.isnan, report.curves[pair].stats["mean"]))]
    shown = pairs[:CURVES_SHOWN_MAX]
    if not shown:
        return
    width = max(len(f"{route} {bucket}") for route, bucket in shown)
    columns = max(10, min(CURVE_COLUMNS_MAX, console.width - width - 16))
    console.print("\nmean cited-chunk recall of the hour before; red: an alert on it fires")
    for route, bucket in shown:
        curve = report.curves[route, bucket]
        means = [mean for mean in curve.stats["mean"] if not math.isnan(mean)]
        low, high = (min(means), max(means)) if means else (0.0, 0.0)
        line = Text(f"{route} {bucket}".ljust(width + 1))
        for value, red in _columns(report, curve, firing_on(report, route, bucket), columns):
            line.append(_bar(value, high), style="bold red" if red else "")
        line.append(f" {low:.2f}–{high:.2f}" if means else " –")
        console.print(line, no_wrap=True, overflow="crop")
    if len(shown) < len(pairs):
        console.print(f"the first {len(shown)} of {len(pairs)}: those on which something fires come first")


def _columns(
    report: Report, curve: Curve, firing: Sequence[Firing], columns: int
) -> Iterator[tuple[float | None, bool]]:
    asked = report.asked
    span = asked.to_s + asked.step_s - asked.from_s
    bins: list[list[float]] = [[] for _ in range(columns)]
    for time_s, value in zip(curve.times_s, curve.stats["mean"], strict=True):
        if not math.isnan(value):  # a step may be wider than a column: it fills all that it covers
            since_s = time_s - asked.from_s
            first, last = since_s * columns // span, (since_s + asked.step_s - 1) * columns // span
            for number in range(first, min(last, columns - 1) + 1):
                bins[number].append(value)
    for number, values in enumerate(bins):
        start, end = (asked.from_s + span * edge / columns for edge in (number, number + 1))
        red = any(one.from_s < end and (one.to_s or asked.to_s + 1) > start for one in firing)
        yield (sum(values) / len(values) if values else None), red


def _bar(value: float | None, high: float) -> str:
    if value is None:
        return "·"
    return BARS[round(value / high * (len(BARS) - 1))] if high > 0 else BARS[0]


def ranked(report: Report) -> list[tuple[str, str]]:
    """(route, top_k bucket) pairs with a curve, those on which something fires first."""
    return sorted(report.curves, key=lambda pair: (not firing_on(report, *pair), pair))


def firing_on(report: Report, route: str, bucket: str, severity: str = "") -> list[Firing]:
    """Firings of alerts (of one severity) that name this pair, its route alone, or no route at all."""
    return [
        one
        for fired in report.fired
        for labels, one in flat(fired.by_labels)
        if severity in ("", fired.rule.labels.get("severity"))
        and dict(labels).get("route", route) == route
        and dict(labels).get("top_k_bucket", bucket) == bucket
    ]


def flat(by_labels: dict[Labels, list[Firing]]) -> list[tuple[Labels, Firing]]:
    """By time."""
    found = [(labels, one) for labels, firings in by_labels.items() for one in firings]
    return sorted(found, key=lambda item: (item[1].from_s, item[0]))


def where(labels: Labels) -> str:
    """The values that tell one firing from another; --json has the names."""
    return ", ".join(value for name, value in labels if name not in ("job", "instance")) or "–"


def finite(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if math.isfinite(value) else None


def iso(time_s: int) -> str:
    """RFC 3339, UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(time_s: int) -> str:
    """For a table, UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def day_time(time_s: int) -> str:
    """Shorter, under a title that names the year."""
    return moment(time_s)[5:]


def duration(seconds: int) -> str:
    """`2 h 05 min`."""
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
