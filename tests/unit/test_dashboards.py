"""The committed dashboards: made by the code beside them, complete in words, and naming only what there is.

What their queries find in real data is in tests/integration/test_dashboards.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.dashboards import (
    ALL,
    CLICKHOUSE,
    EVERY,
    FOLDER,
    NAMES,
    PROMETHEUS,
    Asked,
    label_values,
    panels,
    promql,
    read,
    sql,
    unknown_names,
)

ROOT = Path(__file__).parents[2]
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
SOURCES: list[dict[str, Any]] = yaml.safe_load((PROVISIONING / "datasources" / "citegauge.yaml").read_text())[
    "datasources"
]
PROMQL = [query for query in EVERY if query.source == PROMETHEUS]
ANY = {"route": "r", "top_k_bucket": "1-5", "window": "1h", "scorer": "s", "instance": ALL}


def test_there_is_something_to_check() -> None:
    """The rules below hold for queries that were found."""
    assert len(PROMQL) > 60
    assert len(EVERY) - len(PROMQL) > 20
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)


def test_the_committed_dashboards_are_what_the_code_makes() -> None:
    """A change of the code without `make dashboards`, or of the JSON by hand, fails here."""
    command = [sys.executable, str(FOLDER.parent / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    """The check above can fail: a copy with one changed board is refused by name."""
    copy = shutil.copytree(FOLDER.parent, tmp_path / "grafana")
    changed = copy / "dashboards" / "traces.json"
    changed.write_text(changed.read_text().replace("least recall", "most recall"))
    done = subprocess.run(
        [sys.executable, str(copy / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "traces.json" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_panels_are_explained(name: str) -> None:
    """Each panel has a title, a description and, where it draws values, a unit; each board its own id."""
    board = read(name)
    assert board["uid"] == f"citegauge-{name}"
    for panel in panels(board):
        if panel["type"] == "text":
            continue
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["type"] in ("table", "heatmap") or panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_do_not_overlap() -> None:
    """Each cell of the grid belongs to one panel."""
    for name in NAMES:
        taken: set[tuple[int, int]] = set()
        for panel in read(name)["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, (name, panel["title"])
            taken |= cells


def test_the_proxy_is_said_once() -> None:
    """The quality board says what recall is here, and what it is not; no panel repeats it."""
    said = [panel for name in NAMES for panel in panels(read(name)) if "proxy" in json.dumps(panel)]
    assert [panel["type"] for panel in said] == ["text"]
    assert "never pooled" in said[0]["options"]["content"]


def test_data_sources_are_provisioned() -> None:
    """Each query goes to a source that the provisioning defines, by id and type."""
    provided = {(source["uid"], source["type"]) for source in SOURCES}
    used = set()
    for name in NAMES:
        board = read(name)
        places = [*panels(board), *board["templating"]["list"], *board["annotations"].get("list", ())]
        places += [target for panel in panels(board) for target in panel.get("targets", ())]
        used |= {(place["datasource"]["uid"], place["datasource"]["type"]) for place in places if "datasource" in place}
    assert used == provided


def test_links_lead_to_boards_and_set_their_variables() -> None:
    """A data link that names a board or variable that does not exist would open an empty page."""
    variables = {read(name)["uid"]: {one["name"] for one in read(name)["templating"]["list"]} for name in NAMES}
    found = 0
    for name in NAMES:
        for uid, query in re.findall(r'"url": "/d/([\w-]+)\?([^"]*)"', (FOLDER / f"{name}.json").read_text()):
            found += 1
            assert set(re.findall(r"var-(\w+)=", query)) <= variables[uid]
    assert found > 5


def test_links_choose_orders_that_there_are() -> None:
    """A link that sorts by something must name an order of the board that it opens."""
    (orders,) = (v["query"].split(",") for v in read("traces")["templating"]["list"] if v["name"] == "order")
    text = "".join((FOLDER / f"{name}.json").read_text() for name in NAMES)
    asked_for = {order.replace("%20", " ") for order in re.findall(r"var-order=([^\"&$]+)[\"&]", text)}
    assert asked_for
    assert asked_for <= set(orders)


def test_variables_start_with_all() -> None:
    """Where several may be chosen, all are at first."""
    variables = [variable for name in NAMES for variable in read(name)["templating"]["list"]]
    many = [variable for variable in variables if variable["multi"]]
    assert len(many) > 5
    assert all(variable["current"]["value"] == [ALL] and variable["includeAll"] for variable in many)


# ------------------------------------------------------------------------------------------------ names in PromQL


@pytest.mark.parametrize("query", PROMQL, ids=str)
def test_every_metric_and_label_exists(query: Asked) -> None:
    """A query names only what the table of metrics, the process or the rules show, with the labels that they have."""
    text = label_values(query.text)[0] if query.place.startswith("variable ") else query.text
    assert unknown_names(promql(text, ANY)) == []


@pytest.mark.parametrize(
    ("expr", "unknown"),
    [
        ('sum by (kind) (rate(citegauge_spans_total{instance=~".*"}[5m]))', []),
        ("citegauge_span_total", ["citegauge_span_total"]),
        ("sum(rate(citegauge_span_total[5m])) / sum(up)", ["citegauge_span_total"]),
        ('citegauge_spans_total{knd="x"}', ["citegauge_spans_total{knd}"]),
        ("max by (rout) (citegauge_window_traces)", ["{rout}"]),
        ("up * on (jbo) group_left (kind) citegauge_spans_total", ["{jbo}"]),
        ("up * on (job) group_left (kinds) citegauge_spans_total", ["{kinds}"]),
        ('{route="x"}', ["(a selector without a name)"]),
        ("slice:citegauge_recall_n:1h - slice:citegauge_recall_n:2h", ["slice:citegauge_recall_n:2h"]),
    ],
)
def test_unknown_names_are_found(expr: str, unknown: list[str]) -> None:
    """The check above can fail: a name or label that nobody shows is told, wherever it stands."""
    assert unknown_names(expr) == unknown


@pytest.mark.parametrize("query", [query for query in PROMQL if not query.place.startswith("variable ")], ids=str)
def test_legends_name_labels_that_are_there(query: Asked) -> None:
    """A legend of a label that the result does not have is an empty name."""
    kept = set(re.findall(r"by \(([^)]*)\)", query.text)) | {""}
    labels = {label.strip() for group in kept for label in group.split(",")}
    for legend in re.findall(r"\{\{\s*(\w+)\s*\}\}", _legend(query)):
        assert legend in labels or " by " not in query.text, legend


def _legend(query: Asked) -> str:
    for panel in panels(read(query.board)):
        for target in panel.get("targets", ()):
            if f"{panel['title']} {target['refId']}" == query.place:
                return str(target.get("legendFormat", ""))
    return ""


# --------------------------------------------------------------------------------------------- the small Grafana


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ('a{b="$b",c=~"${c}"}', {"b": 'say "x"', "c": ALL}, 'a{b="say \\"x\\"",c=~".*"}'),
        ('a{c=~"$c"}', {"c": ("x.y", "z")}, 'a{c=~"(x\\.y|z)"}'),
        ("rate(a[$__rate_interval])", {}, "rate(a[240s])"),
    ],
)
def test_variables_in_promql(text: str, values: dict[str, str], expected: str) -> None:
    """They are put in as Grafana does."""
    assert promql(text, values) == expected


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("x = ${x:singlequote}", {"x": "it's"}, "x = 'it\\'s'"),
        ("$__conditionalAll(x IN (${x:singlequote}), $x)", {"x": ALL}, "1=1"),
        ("$__conditionalAll(f(x) IN (${x:singlequote}), $x) AND y", {"x": ("a", "b")}, "f(x) IN ('a','b') AND y"),
        ("$__timeFilter(pane)", {}, "pane >= toDateTime(60) AND pane <= toDateTime(120)"),
        ("$__timeInterval(pane)", {}, "toStartOfInterval(toDateTime(pane), INTERVAL 300 second)"),
    ],
)
def test_macros_and_variables_in_sql(text: str, values: dict[str, str], expected: str) -> None:
    """They are expanded as the plug-in does."""
    assert sql(text, values, from_s=60, to_s=120) == expected


@pytest.mark.parametrize("text", ["$nobody", "${nobody:singlequote}", "$__nothing(x)"])
def test_what_nobody_sets_is_an_error(text: str) -> None:
    """A misspelt variable or macro fails here instead of reaching ClickHouse as text."""
    with pytest.raises(KeyError):
        sql(text, {}, from_s=0, to_s=1)


def test_sources_of_sql_are_clickhouse() -> None:
    """There are two kinds of query, and no third."""
    assert {query.source for query in EVERY} == {PROMETHEUS, CLICKHOUSE}
