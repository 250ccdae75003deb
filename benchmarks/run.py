"""All benchmarks in one table: the pure core, Kafka to ClickHouse beside a plain Faust agent, memory. `make bench`.

    python benchmarks/run.py                        everything, some minutes
    python benchmarks/run.py core memory            only these parts
    python benchmarks/run.py --tiny --json          a few seconds; the numbers mean nothing, but nothing has rotted

A figure has a goal where one was promised, and the table says when it falls short. The parts stand in core.py,
endtoend.py and memory.py; decode.py measures the conventions one by one.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import core
import endtoend
import memory
import traffic

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.kafka import pinned_version

PARTS = ("core", "memory", "endtoend", "backfill")
GOAL_SPANS_PER_S = 50_000
GOAL_TIMES_FAUST = 7.0
GOAL_TIMES_HOT_KEY = 3.0
GOAL_BYTES_PER_TRACE = {"short": 1_000, "uuid": 1_500}
LEGEND = (
    "Faust agents: dict keeps the traces that wait in a dict, which a restart forgets; take does so and reads in batches; "
    "table keeps them in a Faust table, which a restart recovers, as citegauge recovers its own. By CPU: per second of the "
    "job's own process, for a busy machine. load: the system's one-minute average when the figure was ready."
)
PACKAGES = ("aiokafka", "chdb", "clickhouse-connect", "faust-streaming", "msgspec", "protobuf")


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    core_traces: int = 20_000
    core_rounds: int = 8
    memory_traces: int = 100_000
    traces: int = 150_000
    faust_records: int = 60_000
    rounds: int = 2
    backfill_hours: int = 24


TINY = Size(
    core_traces=200, core_rounds=1, memory_traces=10_000, traces=300, faust_records=400, rounds=1, backfill_hours=1
)


class Figure(msgspec.Struct, kw_only=True):
    """One line of the table."""

    part: str
    what: str
    value: float
    unit: str
    goal: str = ""
    passed: bool | None = None
    """None: there is no goal."""
    detail: str = ""
    load: float = 0.0
    """The system's one-minute load average when the figure was ready, our own load included."""


def core_figures(size: Size) -> Iterator[Figure]:
    """The pure core."""
    for encoding in ("jsonl", "otlp_proto"):
        found = core.measure(encoding, size.core_traces, size.core_rounds)
        native = encoding == "jsonl"
        yield Figure(
            part="core",
            what=f"{'native' if native else 'OTLP protobuf'} spans, decode to rows",
            value=found.spans_per_s,
            unit="spans/s/core",
            goal=f"≥ {GOAL_SPANS_PER_S:,}" if native else "",
            passed=found.spans_per_s >= GOAL_SPANS_PER_S if native else None,
            detail=f"{found.times_plain:.1f} × {found.plain} alone ({found.plain_us:.1f} µs of {found.total_us:.1f}: "
            f"decode {found.decode_us:.1f}, join + score + pane {found.join_us:.1f}, rows {found.rows_us:.1f})",
        )

    hot = core.hot_key(size.core_traces // 4, max(1, size.core_rounds // 2))
    yield Figure(
        part="core",
        what="one trace id for ever, per span, against ordinary traffic",
        value=hot.ratio,
        unit="×",
        goal=f"≤ {GOAL_TIMES_HOT_KEY:g}",
        passed=hot.ratio <= GOAL_TIMES_HOT_KEY,
        detail=f"{hot.hot_us:.0f} µs against {hot.ordinary_us:.0f}; on the way to oversize {hot.growing_us:.0f}; "
        f"{hot.spans:,} spans",
    )


def memory_figures(size: Size) -> Iterator[Figure]:
    """Bytes per live trace."""
    for ids in get_args(traffic.Ids):
        found, goal = memory.per_trace(ids, size.memory_traces), GOAL_BYTES_PER_TRACE[ids]
        yield Figure(
            part="memory",
            what=f"per live trace, {'8-character' if ids == 'short' else 'UUID'} chunk ids",
            value=found.bytes_per_trace,
            unit="bytes",
            goal=f"≤ {goal:,}",
            passed=found.bytes_per_trace <= goal,
            detail=f"{found.traces:,} traces of 2 spans, k = 10, 3 cited",
        )


def endtoend_figures(size: Size, bootstrap: str) -> Iterator[Figure]:
    """Kafka to ClickHouse."""
    for found in endtoend.measure(size.traces, size.faust_records, size.rounds, bootstrap):
        where = "chDB in process" if found.clickhouse == "chdb" else "ClickHouse over HTTP"
        yield Figure(
            part="endtoend",
            what=f"citegauge's worker, {where}",
            value=found.worker.per_s,
            unit="spans/s",
            detail=f"{found.worker.per_cpu_s:,.0f} per CPU second; {found.worker.records:,} spans, one worker",
        )
        for form, theirs in found.faust.items():
            ratio = found.ratio(form)
            yield Figure(
                part="endtoend",
                what=f"faster than a Faust agent ({form}), {where}",
                value=ratio,
                unit="×",
                goal=f"≥ {GOAL_TIMES_FAUST:g}",
                passed=ratio >= GOAL_TIMES_FAUST,
                detail=f"Faust {theirs.per_s:,.0f} spans/s, {theirs.per_cpu_s:,.0f} per CPU second: "
                f"by CPU {found.cpu_ratio(form):.1f} ×",
            )


def backfill_figures(size: Size) -> Iterator[Figure]:
    """The demo's back-fill."""
    found = memory.backfill(size.backfill_hours)
    yield Figure(
        part="backfill",
        what=f"peak memory of the demo's {found.hours} h back-fill",
        value=found.peak_mb,
        unit="MB",
        detail=f"worker and ClickHouse in one process; {found.seconds:.0f} s from start to end of the smoke run",
    )


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    facts = {"cores": str(len(os.sched_getaffinity(0))), "cpu": _cpu(), "python": platform.python_version()}
    facts |= {name: version(name) for name in PACKAGES}
    return facts | {"kafka": pinned_version()}


def _cpu() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def measure(parts: list[str], size: Size, bootstrap: str) -> Iterator[Figure]:
    """The figures of these parts, each as soon as it is known."""
    figures: dict[str, Callable[[], Iterator[Figure]]] = {
        "core": lambda: core_figures(size),
        "memory": lambda: memory_figures(size),
        "endtoend": lambda: endtoend_figures(size, bootstrap),
        "backfill": lambda: backfill_figures(size),
    }
    for part in parts:
        for figure in figures[part]():
            figure.load = round(os.getloadavg()[0], 1)
            yield figure


def table(figures: list[Figure]) -> Table:
    """For the terminal."""
    facts = machine()
    found = Table(
        box=SIMPLE_HEAD, pad_edge=False, caption=", ".join(f"{name} {value}" for name, value in facts.items())
    )
    for name in ("what", "value", "", "goal", "", "load", "detail"):
        found.add_column(name, justify="right" if name in ("value", "load") else "left", no_wrap=name != "detail")
    for at, figure in enumerate(figures):
        verdict = {None: "", True: "[green]met[/]", False: "[red]falls short[/]"}[figure.passed]
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:,.1f}"
        last = at + 1 == len(figures) or figures[at + 1].part != figure.part
        found.add_row(
            figure.what, value, figure.unit, figure.goal, verdict, f"{figure.load}", figure.detail, end_section=last
        )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--tiny", action="store_true", help="only to see that everything still runs")
    parser.add_argument("--bootstrap", default="", help="host:port of a Kafka broker; default: start one (Java, Maven)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    figures: list[Figure] = []
    for figure in measure(options.parts or list(PARTS), TINY if options.tiny else Size(), options.bootstrap):
        figures.append(figure)
        if sys.stderr.isatty():
            print(f"{figure.what}: {figure.value:,.1f} {figure.unit}", file=sys.stderr)
    if options.json:
        print(msgspec.json.encode({"machine": machine(), "figures": figures}).decode())
    else:
        console = Console()
        console.width = max(console.width, 160)
        console.print(table(figures))


if __name__ == "__main__":
    main()
