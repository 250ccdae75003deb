"""The committed dashboards as Grafana would use them: their queries, variables put in, macros expanded, names found.

What Grafana does with a variable or macro is written down here from its documentation and that of the ClickHouse plug-in;
no Grafana runs. What a query then means is judged by the real engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser

from citegauge.metrics import BY_NAME
from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules import rule_groups
from citegauge.tools.rules.model import Recording

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
NAMES = ("pipeline", "quality", "traces")
CLICKHOUSE, PROMETHEUS = "grafana-clickhouse-datasource", "prometheus"
ALL = "$__all"
"""What Grafana holds as the value of a variable whose «All» is chosen."""

Values = Mapping[str, str | tuple[str, ...]]
"""Variable to its value; a tuple where several may be chosen."""


def read(name: str) -> dict[str, Any]:
    """One committed dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its panels that are no rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


# ------------------------------------------------------------------------------------------------------- queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query of a board, and what asks it."""

    board: str
    place: str
    """Title of the panel and reference id, `variable <name>` or `annotation <name>`."""
    source: str
    """Type of the data source."""
    text: str
    now: bool = False
    """An instant query, or one that fills a variable."""
    lines: bool = False
    """ClickHouse: time, labels and values become lines."""

    def __str__(self) -> str:
        return f"{self.board}: {self.place}"


def asked(name: str) -> Iterator[Asked]:
    """Every query of a board: of panels, variables and annotations."""
    board = read(name)
    for panel in panels(board):
        for target in panel.get("targets", ()):
            yield _asked(name, f"{panel['title']} {target['refId']}", target)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield _asked(
                name, f"variable {variable['name']}", variable["query"] | {"datasource": variable["datasource"]}
            )
    for annotation in board["annotations"].get("list", ()):
        yield _asked(name, f"annotation {annotation['name']}", annotation | annotation.get("target", {}))


def _asked(board: str, place: str, query: Mapping[str, Any]) -> Asked:
    source = query["datasource"]["type"]
    text = query["rawSql"] if source == CLICKHOUSE else query.get("expr", query.get("query"))
    return Asked(
        board=board,
        place=place,
        source=source,
        text=text,
        now=bool(query.get("instant")) or place.startswith("variable "),
        lines=query.get("format") == 0,
    )


EVERY = tuple(query for name in NAMES for query in asked(name))

# ------------------------------------------------------------------------------------------ variables and macros

_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)")
_CONDITIONAL = "$__conditionalAll("


def promql(text: str, values: Values, *, interval_s: int = 60) -> str:
    """A Prometheus query with its variables put in. KeyError for one that nobody sets."""
    built_in = {"__rate_interval": f"{4 * interval_s}s", "__interval": f"{interval_s}s"}

    def put(found: re.Match[str]) -> str:
        value = {**built_in, **values}[found[1] or found[3]]
        if value == ALL:
            return ".*"
        if isinstance(value, tuple):
            return "(" + "|".join(map(re.escape, value)) + ")"
        return value.replace("\\", "\\\\").replace('"', '\\"')

    return _VARIABLE.sub(put, text)


def sql(text: str, values: Values, *, from_s: int, to_s: int, interval_s: int = 300) -> str:
    """A ClickHouse query with its macros expanded and its variables put in. KeyError for what nobody sets."""
    text = _conditions(text, values)
    macros: dict[str, Callable[[str], str]] = {
        "fromTime": lambda _: f"toDateTime({from_s})",
        "toTime": lambda _: f"toDateTime({to_s})",
        "timeFilter": lambda of: f"{of} >= toDateTime({from_s}) AND {of} <= toDateTime({to_s})",
        "timeInterval": lambda of: f"toStartOfInterval(toDateTime({of}), INTERVAL {interval_s} second)",
        "interval_s": lambda _: str(interval_s),
    }
    text = re.sub(r"\$__(\w+)(?:\(([^()]*)\))?", lambda found: macros[found[1]](found[2]), text)
    return _VARIABLE.sub(lambda found: _sql_value(values[found[1] or found[3]], found[2] or ""), text)


def _sql_value(value: str | tuple[str, ...], form: str) -> str:
    assert value != ALL, "«All» is put into SQL only by $__conditionalAll"
    several = (value,) if isinstance(value, str) else value
    if form == "singlequote":
        return ",".join("'" + one.replace("'", "\\'") + "'" for one in several)
    assert not form, f"the form {form!r} is not used here"
    return ",".join(several)


def _conditions(text: str, values: Values) -> str:
    """Replaces `$__conditionalAll(condition, $variable)` by the condition, or by `1=1` where «All» is chosen."""
    while _CONDITIONAL in text:
        head, _, rest = text.partition(_CONDITIONAL)
        depth, end = 1, 0
        while depth:  # IndexError where the call is not closed
            depth += {"(": 1, ")": -1}.get(rest[end], 0)
            end += 1
        condition, _, name = rest[: end - 1].rpartition(",")
        chosen = values[name.strip().removeprefix("$")]
        text = f"{head}{'1=1' if chosen == ALL else condition}{rest[end:]}"
    return text


# ---------------------------------------------------------------------------------------------- names in PromQL

SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes."""
PROCESS = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
}


@cache
def known() -> dict[str, frozenset[str]]:
    """Every series that a query may name, and the labels that it may have."""
    found = {name: {*metric.labels} | SCRAPED for name, metric in BY_NAME.items()}
    found |= {name: set(SCRAPED) for name in ("up", *PROCESS)}
    every = set().union(*found.values())
    rules = [rule for group in rule_groups(AlertSettings()) for rule in group.rules]
    found |= {rule.record: every for rule in rules if isinstance(rule, Recording)}
    found["ALERTS"] = every | {"alertname", "alertstate", "severity", "signal", "stalls"}
    return {name: frozenset(labels) for name, labels in found.items()}


def unknown_names(expr: str) -> list[str]:
    """What an expression names and nobody shows: `name`, or `name{label}`. ValueError where it does not parse."""
    selectors: list[promql_parser.VectorSelector] = []
    grouped: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append(node)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            grouped.update(node.modifier.labels)
        elif isinstance(node, promql_parser.BinaryExpr) and node.modifier:
            grouped.update(node.modifier.matching.labels if node.modifier.matching else ())
            grouped.update(node.modifier.group_labels or ())

    promql_parser.walk(promql_parser.parse(expr), visit)
    found = []
    anywhere: set[str] = set()
    for selector in selectors:
        name = selector.name or "(a selector without a name)"
        labels = known().get(name)
        if labels is None:
            found.append(name)
            continue
        anywhere |= labels
        found += [f"{name}{{{m.name}}}" for m in selector.matchers.matchers if m.name not in {*labels, "__name__"}]
    return found + [f"{{{label}}}" for label in sorted(grouped - anywhere)]


_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def label_values(text: str) -> tuple[str, str]:
    """Series and label of a variable's `label_values(series, label)`."""
    found = _LABEL_VALUES.fullmatch(text)
    assert found is not None, text
    return found[1], found[2]
