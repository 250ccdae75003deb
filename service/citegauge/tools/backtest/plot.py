"""A backtest as a picture: the hour's recall of each (route, top_k bucket), and when alerts on it fire. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from citegauge.errors import ConfigError
from citegauge.tools.backtest.alerting import Firing
from citegauge.tools.backtest.report import firing_on, moment, ranked
from citegauge.tools.backtest.run import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = (".png", ".svg", ".pdf")
PANELS_MAX = 24
WIDTH_INCHES, PANEL_INCHES = 11.0, 1.9
COLOURS = {"mean": "#1f4e79", "p50": "#6fa8dc", "p25": "#b7b7b7"}
SHADE = {"page": ("#cc0000", 0.28), "ticket": ("#e69138", 0.22)}


def check_plot(path: Path) -> None:
    """Raise `ConfigError` before any work is done for a picture that cannot be drawn."""
    if path.suffix.lower() not in FORMS:
        raise ConfigError(f"--plot {path}: end its name in {', '.join(FORMS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'citegauge[plot]'")


def draw(report: Report, path: Path) -> None:
    """Write the picture. Raises `ConfigError` when the file cannot be written."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - an extra, and it takes a while to load
    from matplotlib.figure import Figure  # noqa: PLC0415

    pairs = ranked(report)
    shown = pairs[:PANELS_MAX]
    figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * max(1, len(shown)) + 1.0), layout="constrained")
    asked = report.asked
    left_out = f" (the first {len(shown)} of {len(pairs)})" if len(shown) < len(pairs) else ""
    figure.suptitle(f"Backtest {moment(asked.from_s)} to {moment(asked.to_s)} UTC{left_out}", fontsize=11)
    panels = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (route, bucket) in zip(panels, shown, strict=False):
        _panel(panel, report, route, bucket)
    last = panels[-1]
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    last.xaxis.set_major_locator(locator)
    last.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    last.set_xlim(_time(asked.from_s), _time(asked.to_s))
    told = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(told.values(), told.keys(), loc="outside lower left", ncols=5, fontsize=7, frameon=False)
    try:
        figure.savefig(path)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc


def _panel(panel: Axes, report: Report, route: str, bucket: str) -> None:
    curve = report.curves[route, bucket]
    times = [_time(time_s) for time_s in curve.times_s]
    for stat, colour in COLOURS.items():
        panel.plot(times, curve.stats[stat], color=colour, linewidth=1.4 if stat == "mean" else 0.9, label=stat)
    _shade(panel, report, route, bucket)
    panel.set_ylim(0, 1)
    panel.set_ylabel("recall", fontsize=8)
    panel.set_title(f"{route}, top_k {bucket}", loc="left", fontsize=9)
    panel.tick_params(labelsize=7)
    panel.grid(visible=True, linewidth=0.3)


def _shade(panel: Axes, report: Report, route: str, bucket: str) -> None:
    told: dict[str, Sequence[Firing]] = {severity: firing_on(report, route, bucket, severity) for severity in SHADE}
    for severity, firing in told.items():
        colour, alpha = SHADE[severity]
        for number, one in enumerate(firing):
            panel.axvspan(
                _time(max(one.from_s, report.asked.from_s)),
                _time(one.to_s or report.asked.to_s),
                color=colour,
                alpha=alpha,
                linewidth=0,
                label=None if number else f"{severity} fires",
            )


def _time(seconds: int) -> float:
    """Matplotlib's dates: days since 1970."""
    return seconds / 86_400
