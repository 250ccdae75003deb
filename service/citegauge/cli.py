"""Commands; nothing else. Each reads its arguments, calls what the composition root or a tool offers, and prints.

Exit status 0 on success, 2 on bad usage or configuration, 1 otherwise; errors are one line that says what to change.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from citegauge import bootstrap
from citegauge.adapters.supervise import leave
from citegauge.commands.backtest import backtest
from citegauge.commands.forget import forget
from citegauge.commands.options import config_option
from citegauge.errors import CitegaugeError, ConfigError
from citegauge.settings import ENCODINGS, load
from citegauge.tools import audit as auditing
from citegauge.tools import doctor as doctoring
from citegauge.tools import explain as explaining
from citegauge.tools import replay as replaying
from citegauge.tools.demo import DemoOptions
from citegauge.tools.doctor.as_json import report_json
from citegauge.tools.doctor.report import print_report
from citegauge.tools.rules import rule_file
from citegauge.tools.simulate_command import TrafficArguments, traffic_spec, write
from citegauge.tools.simulate_output import Encoding
from citegauge.tools.simulate_spec import SCENARIO_KINDS
from citegauge.tools.tables import trace_table, window_table

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
REPORT_COLUMNS = 160
UNREADABLE_SHOWN_MAX = 20
_SHARE = click.FloatRange(0, 1)
"""Width of tables that no terminal bounds."""


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="citegauge")
@click.option("-v", "--verbose", is_flag=True, help="Log what the libraries do, too.")
def cli(verbose: bool) -> None:
    """How much of what your retriever returns do the answers cite? Measured on production traces, without labels."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("citegauge").setLevel(logging.DEBUG if verbose else logging.INFO)
    if not verbose:  # what they warn of they also raise, and then we say it
        for library in ("urllib3", "clickhouse_connect"):
            logging.getLogger(library).setLevel(logging.ERROR)


@cli.command(short_help="The worker: Kafka in, ClickHouse and /metrics out.")
@config_option
@click.option(
    "--role",
    type=click.Choice(["all", "rekey", "join", "roll"]),
    default="all",
    show_default=True,
    help="rekey, join, roll: only that stage.",
)
@click.option(
    "--rebuild-from", metavar="OFFSET|TIME", help="Ignore the commit: start there, empty. Raise the topic's epoch too."
)
def run(config: Path | None, role: bootstrap.Role, rebuild_from: str | None) -> None:
    """Run the worker against real Kafka and ClickHouse."""
    settings = load(config, **({"kafka": {"rebuild_from": rebuild_from}} if rebuild_from else {}))
    bootstrap.run_worker(settings, role)


@cli.command(short_help="The same core over files: no broker, no database.")
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True))
@config_option
@click.option("--encoding", type=click.Choice(sorted(ENCODINGS)), default="auto", show_default=True)
@click.option("--traces", is_flag=True, help="One row per trace instead of the windows.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of tables.")
@click.option("--live-rules", is_flag=True, help="Apply watermark and lateness in file order, as on a topic.")
def replay(
    files: tuple[str, ...], config: Path | None, encoding: str, traces: bool, as_json: bool, live_rules: bool
) -> None:
    """Measure FILES (`-`: standard input) as one complete log; the order of files and lines does not matter."""
    settings = load(config, kafka={"encoding": encoding})
    with _progress(files) as advance:
        found = replaying.replay(
            ((path, replaying.records_of(path, encoding == "jsonl")) for path in files),
            bootstrap.build_decoder(settings),
            settings.join_policy(),
            settings.score_policy(),
            now_ns=time.time_ns(),
            live_rules=live_rules,
            on_progress=advance,
        )
    for bad in found.unreadable[:UNREADABLE_SHOWN_MAX]:
        click.echo(f"unreadable: {bad.said}", err=True)
    if len(found.unreadable) > UNREADABLE_SHOWN_MAX:
        click.echo(f"unreadable: {len(found.unreadable) - UNREADABLE_SHOWN_MAX} more", err=True)
    if as_json:
        rows = (
            [replaying.trace_json(result, found.late_by_trace.get(result.trace_id, 0)) for result in found.results]
            if traces
            else [replaying.window_json(item) for item in found.windows]
        )
        for row in rows:
            click.echo(msgspec.json.encode(row).decode())
    else:
        Console().print(trace_table(found) if traces else window_table(found.windows))
    if not found.results:
        raise ConfigError(
            f"no trace with a retrieval or a generation among {found.spans} spans: "
            "`citegauge doctor` on the same files says what they hold"
        )


@cli.command(short_help="What can be measured from your traces, and what to change.")
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@config_option
@click.option("--topic", "topics", multiple=True, help="Repeatable.  [default: the settings' source topics]")
@click.option("--records", type=click.IntRange(1), default=20_000, show_default=True, help="Newest records of a topic.")
@click.option("--since", metavar="TIME|DURATION", help="Start there instead: RFC 3339, or counted from now (-1h).")
@click.option("--encoding", type=click.Choice(sorted(ENCODINGS)), help="[default: the settings', for files auto]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def doctor(
    files: tuple[str, ...],
    config: Path | None,
    topics: tuple[str, ...],
    records: int,
    since: str | None,
    encoding: str | None,
    as_json: bool,
) -> None:
    """Look at FILES (`-`: standard input) or at a topic, and say per metric whether it can be measured, and if not, why.

    Only looks: nothing is committed, written or created. Exit status 0: recall can be measured, for some traces at least;
    1: it cannot.
    """
    settings = load(config)
    bounds = doctoring.bounds_of(records, since, now_ns=time.time_ns())
    names = topics or (() if files else tuple(settings.source_topics()))
    with Console(stderr=True).status("looking …"):
        samples = [doctoring.file_sample(path, encoding == "jsonl") for path in files]
        samples.extend(asyncio.run(bootstrap.sample_topic(settings, name, bounds)) for name in names)
        report = doctoring.examine(samples, doctoring.practice_of(settings, encoding), now_ns=time.time_ns())
    if as_json:
        click.echo(msgspec.json.encode(report_json(report)).decode())
    else:
        print_report(report, Console())
    if not report.can_measure:
        sys.exit(1)


@cli.command(short_help="A seeded traffic generator: to a topic or a file.")
@config_option
@click.option("--to", default="-", show_default=True, metavar="kafka|FILE|-", help="kafka: the settings' source topic.")
@click.option("--encoding", type=click.Choice(["native", "otlp_proto"]), default="native", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed, the same bytes.")
@click.option(
    "--start",
    metavar="TIME|DURATION",
    help="RFC 3339, or counted from now (-24h).  [default: now, or for a file 2026-01-01]",
)
@click.option("--duration", help="How long.  [default: for good, or for a file 1h]")
@click.option("--traces", type=click.IntRange(1), help="Stop after so many traces.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=26.0, show_default=True, help="Traces per minute."
)
@click.option("--route", "routes", multiple=True, metavar="NAME[:TOP_K[:SHARE[:SCORE]]]", help="Repeatable.")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="KIND:ROUTE[:FROM[:TO]]",
    help=f"Repeatable; times count from the end, as in off-topic:support:-40m. Kinds: {', '.join(SCENARIO_KINDS)}.",
)
@click.option("--disorder", default="5s", show_default=True, help="Records come out of order by up to this.")
@click.option("--duplicates", type=_SHARE, default=0.0, show_default=True, help="Share of spans sent twice.")
@click.option("--late", type=_SHARE, default=0.0, show_default=True, help="Share of spans held back for 10 minutes.")
@click.option("--missing", type=_SHARE, default=0.0, show_default=True, help="Share of traces without one half.")
@click.option("--realtime", is_flag=True, help="With --to kafka: what lies in the future waits for its time.")
def simulate(config: Path | None, to: str, encoding: Encoding, realtime: bool, **arguments: Any) -> None:
    """Make whole RAG traces, in order, out of order, twice, late or by halves, healthy or not."""
    settings = load(config)
    spec = traffic_spec(TrafficArguments(**arguments), now_ns=time.time_ns(), to_topic=to == "kafka")
    if to != "kafka":
        write(spec, encoding, to)
        return
    endless = spec.end_ns is None and spec.traces_max is None
    with _counter() as count:
        asyncio.run(
            bootstrap.produce(settings, spec, encoding=encoding, realtime=realtime or endless, on_progress=count)
        )


@cli.command(short_help="Everything here and now: broker, ClickHouse, traffic, page.")
@click.option("--hours", type=click.IntRange(1, 48), default=24, show_default=True, help="Simulated history.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Page and /metrics.")
@click.option("--clickhouse-port", type=click.IntRange(0, 65535), default=8124, show_default=True)
@click.option("--smoke", is_flag=True, help="Check the outcome, then stop: 0 when all agrees.")
def demo(hours: int, seed: int, port: int, clickhouse_port: int, smoke: bool) -> None:
    """Back-fill a simulated day in which one route degrades 40 minutes before its end, then go on live."""
    if not logging.getLogger().isEnabledFor(logging.INFO):
        logging.getLogger("citegauge").setLevel(logging.ERROR)  # the screen says what there is to say
    bootstrap.run_demo(DemoOptions(hours=hours, seed=seed, port=port, clickhouse_port=clickhouse_port, smoke=smoke))


@cli.command(short_help="Apply sql/ to ClickHouse.")
@config_option
def migrate(config: Path | None) -> None:
    """Create or update the tables and views; harmless when repeated."""
    settings = load(config)
    database = bootstrap.open_clickhouse(settings)
    try:
        applied = bootstrap.migrate(database, settings)
    finally:
        database.close()
    click.echo("\n".join(f"applied {name}" for name in applied) or "nothing to do: the schema is up to date")


@cli.command(short_help="Prometheus rules from the settings.")
@config_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="[default: standard output]", metavar="FILE"
)
def rules(config: Path | None, output: Path | None) -> None:
    """Write the alerts as a Prometheus rule file; thresholds stand in the section `alerts`, what to do in docs/runbooks."""
    settings = load(config)
    text = rule_file(settings.alerts, settings.web)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {output}: {exc.strerror}") from exc


@cli.command(short_help="Does ClickHouse hold what the topic says?")
@config_option
@click.option(
    "--from",
    "starts",
    multiple=True,
    metavar="[TOPIC/PARTITION=]OFFSET|TIME",
    help="Read from there; repeatable.  [default: the beginning of the log]",
)
@click.option("--empty-before", is_flag=True, help="The worker began there too, with nothing: judge from there on.")
@click.option("--forgotten", multiple=True, metavar="TRACE_ID", help="Rows deleted on purpose; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def audit(
    config: Path | None, starts: tuple[str, ...], empty_before: bool, forgotten: tuple[str, ...], as_json: bool
) -> None:
    """Read the source topics once, count everything anew, and compare with every pane, trace and late row stored.

    It shares the formulas with the worker and nothing else, reads up to what the worker says it has published, and judges
    minutes that are closed. A topic that is not keyed is compared with the re-keyed spans. Exit status 0: all is equal and
    read; 1: something differs (it is named), what stood in a topic is not read (after a short wait), or nothing could be
    judged.
    """
    asked = auditing.Asked(starts=starts, empty_before=empty_before, forgotten=frozenset(forgotten))
    with _passed() as passed:
        report = asyncio.run(bootstrap.audit(load(config), asked, passed))
    text = [msgspec.json.encode(report.as_dict()).decode()] if as_json else auditing.lines(report)
    click.echo("\n".join(text))
    if not report.equal or not report.judged:
        sys.exit(1)


@cli.command(short_help="Why the recall changed: retrieval, or only the traffic?")
@config_option
@click.option("--route", metavar="NAME", help="This route alone.  [default: all routes]")
@click.option("--family", metavar="PATTERN", help="Routes by a pattern, as in 'support/*'.")
@click.option(
    "--from", "starts", metavar="TIME|DURATION", help="RFC 3339, or back from now.  [default: an hour before --to]"
)
@click.option("--to", "ends", metavar="TIME|DURATION", help="[default: now]")
@click.option("--against", metavar="FROM[/TO]", help="The period before.  [default: the day before --from]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def explain(config: Path | None, as_json: bool, **arguments: Any) -> None:
    """Split the change of the mean recall into what changed within groups and what only moved between them.

    A group is a route, top_k bucket, model, retriever version and scorer. A new version is set against the one before it.
    """
    asked = explaining.asked_of(explaining.Arguments(**arguments), now_ns=time.time_ns())
    found = bootstrap.explain(load(config), asked)
    if as_json:
        click.echo(msgspec.json.encode(found.as_dict()).decode())
    else:
        explaining.show(found, Console(width=None if sys.stdout.isatty() else REPORT_COLUMNS))


cli.add_command(backtest)
cli.add_command(forget)


@contextmanager
def _passed() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar for each partition, when standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total} records"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def passed(source: str, done: int, total: int) -> None:
            if source not in tasks:
                tasks[source] = progress.add_task(source, total=total)
            progress.update(tasks[source], completed=done)

        yield passed


@contextmanager
def _counter() -> Iterator[Callable[[int, int], None]]:
    """A line on standard error that counts spans, when it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda spans, emit_ns: None
        return
    columns = (TextColumn("sent"), TextColumn("{task.completed} spans, up to {task.fields[at]}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("sent", total=None, at="…")
        yield lambda spans, emit_ns: progress.update(task, completed=spans, at=replaying.rfc3339(emit_ns)[:19])


@contextmanager
def _progress(files: tuple[str, ...]) -> Iterator[Callable[[int], None] | None]:
    """A bar over the files' bytes, when standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    total = sum(Path(path).stat().st_size for path in files if path != "-" and Path(path).exists())
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total or None)
        yield lambda n: progress.advance(task, n)


def main() -> None:
    """Entry point: turns errors into one line and an exit status."""
    leave(_status())


def _status() -> int:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return 2
    except click.Abort:
        return 130
    except ConfigError as exc:
        click.echo(f"citegauge: {exc}", err=True)
        return 2
    except CitegaugeError as exc:
        click.echo(f"citegauge: {exc}", err=True)
        return 1
    except (BrokenPipeError, asyncio.CancelledError):
        return 1
    return 0
