"""`citegauge backtest`: reads its arguments, asks the composition root, prints."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from citegauge import bootstrap
from citegauge.commands.options import config_option
from citegauge.errors import ConfigError
from citegauge.settings import Settings, load
from citegauge.tools import backtest as backtesting
from citegauge.tools.rules import rule_file
from citegauge.tools.simulate_command import moment
from citegauge.tools.simulate_spec import MINUTE_NS, SECOND_NS, parse_duration

STEP_NS_MAX = 5 * MINUTE_NS
"""What is held for five minutes would otherwise be told apart from nothing."""
REPORT_COLUMNS = 120
"""Width of a report that no terminal bounds."""
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="When would the alerts have fired?")
@config_option
@click.option(
    "--from",
    "start",
    default="-24h",
    show_default=True,
    metavar="TIME|DURATION",
    help="RFC 3339, or counted from now (-7d).",
)
@click.option("--to", "end", metavar="TIME|DURATION", help="The same.  [default: now]")
@click.option("--rules", "rules", type=FILE, metavar="FILE", help="A rule file to try.  [default: the settings' rules]")
@click.option("--step", default="1m", show_default=True, help="Between two evaluations; 5m takes a fifth of the time.")
@click.option("--plot", "plot", type=FILE, metavar="FILE", help="A picture too: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def backtest(
    config: Path | None,
    start: str,
    end: str | None,
    rules: Path | None,
    step: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Replay the rules over what ClickHouse holds, minute by minute, and say when each alert would have fired.

    Prometheus itself evaluates them (`prometheus` must be installed), over the values that /metrics would have shown had the
    worker kept up. Alerts on the worker (lag, commits, …) have no stored history: they are named, not judged.
    """
    settings = load(config)
    if plot is not None:
        backtesting.check_plot(plot)
    asked = _asked(settings, start, end, step)
    text = rule_file(settings.alerts) if rules is None else _read(rules)
    with _ending_in_order(), _bar() as advance:
        report = bootstrap.backtest(settings, asked, text, advance)
    if as_json:
        click.echo(msgspec.json.encode(backtesting.as_json(report)).decode())
    else:
        backtesting.print_report(report, Console(width=None if sys.stdout.isatty() else REPORT_COLUMNS))
    if plot is not None:
        backtesting.draw(report, plot)


def _asked(settings: Settings, start: str, end: str | None, step: str) -> backtesting.Asked:
    """Whole minutes; `to` at a step, no later than now."""
    now_ns = time.time_ns()
    step_ns = parse_duration(step)
    if not MINUTE_NS <= step_ns <= STEP_NS_MAX or step_ns % MINUTE_NS:
        raise ConfigError(f"--step {step} must be one to five whole minutes")
    from_ns, to_ns = moment(start, now_ns), min(now_ns, moment(end, now_ns) if end else now_ns)
    from_s = from_ns // MINUTE_NS * 60
    step_s = step_ns // SECOND_NS
    to_s = from_s + (to_ns // SECOND_NS - from_s) // step_s * step_s
    if to_s <= from_s:
        raise ConfigError("--from must be earlier than --to, and than now")
    distances = settings.score_policy().distance_routes
    limits = settings.drop_limits()
    return backtesting.Asked(from_s, to_s, settings.alerts.job, settings.web.series_max, step_s, distances, limits)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not a rule file: it is not UTF-8") from exc


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM as an exception, so that our Prometheus and its folder go with us."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar() -> Iterator[backtesting.Progress | None]:
    """A bar over the steps, when standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("replaying"), BarColumn(), TextColumn("{task.completed} of {task.total} steps"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
