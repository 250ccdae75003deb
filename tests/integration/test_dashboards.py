"""Every query of every dashboard, run against what a real worker wrote: Prometheus on its /metrics, ClickHouse on its rows.

A worker reads a day of unkeyed traffic with late, repeated, torn and unreadable spans, so every stage has something to show.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.adapters.clickhouse import ClickHouse, HttpTarget, connect
from citegauge.errors import CitegaugeError
from citegauge.tools.simulate_encode import encode_otlp
from citegauge.tools.simulate_output import otlp_batches
from support.clickhouse import ClickHouseFront, free_port
from support.dashboards import (
    ALL,
    CLICKHOUSE,
    EVERY,
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
from support.kafka import create_topic, unique
from support.prometheus import PROMETHEUS as BINARY
from support.prometheus import Prometheus, history
from support.worker import Site, WorkerProcess, produce, traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.dashboards import Values

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(BINARY is None, reason="prometheus comes with Debian's package prometheus"),
]

HOURS = 25
PAST_NS, HOUR_NS = 180 * 1_000_000_000, 3600 * 1_000_000_000
EMPTY_WHEN_WELL = {
    "quality: Alerts that fire now A": "no rule is evaluated here",
    "quality: annotation Alerts": "no rule is evaluated here",
    "pipeline: Alerts that fire now A": "no rule is evaluated here",
    "pipeline: annotation Alerts": "no rule is evaluated here",
    "pipeline: Reading: paused, replaying B": "a worker that has read everything replays nothing",
}
"""What finds nothing in a healthy installation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """What a worker left behind."""

    prometheus: Prometheus
    clickhouse: ClickHouse
    from_s: int
    to_s: int
    trace_id: str
    """Of a trace with a valid and a hallucinated citation."""

    def sql(self, text: str, values: Values) -> list[dict[str, Any]]:
        """Runs a query of a board."""
        return self.clickhouse.query(sql(text, values, from_s=self.from_s, to_s=self.to_s))


@pytest.fixture(scope="module")
def world(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A worker's day, its last /metrics as the past of a Prometheus."""
    folder = tmp_path_factory.mktemp("dashboards")
    front = ClickHouseFront(folder / "clickhouse", free_port()).start()
    try:
        site, text, end_s = _worked(kafka, front, folder)
        labels = {"job": "citegauge", "instance": "service:9464"}
        client = connect(HttpTarget(url=front.url), site.database)
        with Prometheus(folder, history(text, labels, end_s=end_s, minutes=120)) as server:
            row = client.query(
                "SELECT trace_id FROM traces FINAL WHERE notEmpty(hallucinated_ids) AND notEmpty(cited_ranks) LIMIT 1"
            )[0]
            yield World(
                prometheus=server,
                clickhouse=client,
                from_s=end_s - (HOURS + 1) * 3600,  # before the data begins: each version's first minute is in range
                to_s=end_s,
                trace_id=row["trace_id"],
            )
        client.close()
    finally:
        front.stop()


def _worked(kafka: str, front: ClickHouseFront, folder: Any) -> tuple[Site, str, int]:
    topic = asyncio.run(create_topic(kafka, unique("dashboards"), partitions=2))
    name = unique("spans")
    site = Site(kafka=kafka, clickhouse=front.url, topic=topic).with_options(
        SOURCES=f'{{"{topic}": {{"encoding": "otlp_proto"}}}}',
        ROUTES='{"docs": {"low_confidence_below": {"reranker:bge-v2": 0.7}}}',
        REKEY__SPANS_TOPIC=name,
        REKEY__SPANS_PARTITIONS="2",
        REKEY__GROUP_ID=f"{name}-rekey",
    )
    now_ns = time.time_ns() - PAST_NS
    day = traffic(43, minutes=(HOURS - 1) * 60, per_minute=2, end_ns=now_ns - HOUR_NS, late_by_ns=HOUR_NS)
    hour = traffic(44, minutes=60, per_minute=6, end_ns=now_ns, late_by_ns=HOUR_NS // 2)
    batches = [(None, encode_otlp(batch)) for spec in (day, hour) for batch in otlp_batches(spec, ns_max=HOUR_NS // 6)]
    with WorkerProcess(site, folder) as worker:
        produce(kafka, topic, [*batches, (None, b"not a batch")])
        worker.until_ready()
        produce(kafka, name, [(b"k", b"not a span")])
        worker.until(
            lambda: (
                worker.value("citegauge_rekeyed_records_total") >= len(batches)
                and worker.value("citegauge_dead_letters_total") > 0
                and worker.value("citegauge_position_lag_records", topic=name) == 0
                and worker.value("citegauge_window_traces", window="1h", state="measured") > 200
                and worker.value("citegauge_compared_recall_traces", side="after") > 200  # once a minute
                and worker.value("citegauge_as_of_caught_up") == 1
                and worker.value("citegauge_clickhouse_rows_total", table="traces") > 0
                and worker.value("citegauge_clickhouse_backlog_rows") == 0
            ),
            "everything is read, stored, compared and shown",
            180,
        )
        _, text = worker.get("/metrics")
        end_s = int(time.time()) // 60 * 60
        assert worker.end() == 0
    return site, text, end_s


# --------------------------------------------------------------------------------------------------- the variables


@cache
def chosen(world: World, board: str, *, everything: bool) -> dict[str, str | tuple[str, ...]]:
    """Each variable's value, found as Grafana finds it, in order: the first option, or «All» where that may be chosen."""
    values: dict[str, str | tuple[str, ...]] = {}
    queries = {query.place: query for query in EVERY if query.board == board}
    for variable in read(board)["templating"]["list"]:
        name = variable["name"]
        if variable["type"] == "custom":
            values[name] = variable["query"].split(",")[0]
        elif variable["type"] == "textbox":
            values[name] = world.trace_id
        else:
            options = offered(world, queries[f"variable {name}"], values)
            assert options, f"{board}: the variable {name} has no options"
            several = tuple(options) if not everything else ALL
            values[name] = several if variable["multi"] else options[0]
    return values


def offered(world: World, query: Asked, values: Values) -> list[str]:
    """The options that a variable's query finds."""
    if query.source == PROMETHEUS:
        series, label = label_values(query.text)
        return world.prometheus.label_values(promql(series, values), label, world.from_s, world.to_s)
    return [str(next(iter(row.values()))) for row in world.sql(query.text, values)]


@pytest.mark.parametrize("board", NAMES)
def test_variables_have_options(world: World, board: str) -> None:
    """Each variable offers what the data holds, the later ones within the choice of the earlier ones."""
    values = chosen(world, board, everything=False)
    assert set(values) == {variable["name"] for variable in read(board)["templating"]["list"]}


# ----------------------------------------------------------------------------------------------------- the queries


@pytest.mark.parametrize("everything", [True, False], ids=["all", "chosen"])
@pytest.mark.parametrize("query", [q for q in EVERY if not q.place.startswith("variable ")], ids=str)
def test_every_query_runs_and_finds_something(world: World, query: Asked, everything: bool) -> None:
    """A panel that fails, or that is always empty, is worse than none."""
    values = chosen(world, query.board, everything=everything)
    found = answer(world, query, values)
    assert bool(found) != (str(query) in EMPTY_WHEN_WELL), f"{len(found)} found"


def answer(world: World, query: Asked, values: Values) -> list[dict[str, Any]]:
    """What the engine says. AssertionError or `CitegaugeError` where it refuses, or names are not known."""
    if query.source == CLICKHOUSE:
        return world.sql(query.text, values)
    expr = promql(query.text, values)
    assert not unknown_names(expr)
    if query.now:
        return world.prometheus.now(expr, world.to_s)
    return world.prometheus.lines(expr, world.to_s - 3600, world.to_s)


@pytest.mark.parametrize("query", [q for q in EVERY if q.lines], ids=str)
def test_lines_have_a_time_and_a_number(world: World, query: Asked) -> None:
    """The plug-in makes lines of a time, numbers, and words that name the lines; rows are in order of time."""
    rows = answer(world, query, chosen(world, query.board, everything=True))
    kinds = [{type(row[name]) for row in rows} - {type(None)} for name in rows[0]]
    assert kinds[0] == {dt.datetime}
    assert any(kind <= {int, float} for kind in kinds[1:])
    times = [next(iter(row.values())) for row in rows]
    assert times == sorted(times)


def test_heat_maps_have_what_they_draw(world: World) -> None:
    """One column per bin, named by a number; or, where the panel counts, one row per value."""
    for panel in panels(read("quality")):
        if panel["type"] != "heatmap":
            continue
        (query,) = (q for q in EVERY if q.board == "quality" and q.place == f"{panel['title']} A")
        rows = answer(world, query, chosen(world, "quality", everything=True))
        names = list(rows[0])
        assert names[0] == "time"
        if panel["options"]["calculate"]:
            assert names == ["time", "score"]
        else:
            assert [float(name) for name in names[1:]] == [edge / 10 for edge in range(10)]
            assert sum(row[name] for row in rows for name in names[1:]) > 100


def test_the_heat_map_counts_what_the_windows_count(world: World) -> None:
    """Two ways to the same number: the measured traces of the heat map and those of the panes."""
    values = chosen(world, "quality", everything=True)
    (heat,) = (q for q in EVERY if q.place == "Recall over time A")
    rows = answer(world, heat, values)
    total = sum(value for row in rows for name, value in row.items() if name != "time")
    place = sql("route = ${route:singlequote} AND top_k_bucket = ${top_k_bucket:singlequote}", values, from_s=0, to_s=1)
    (row,) = world.clickhouse.query(f"SELECT sum(states['measured']) AS n FROM panes FINAL WHERE {place}")
    assert total == pytest.approx(row["n"], rel=0.01)


def test_chunks_of_a_trace_are_in_order(world: World) -> None:
    """The trace's own table lists its chunks by rank, and marks the cited ones."""
    (query,) = (q for q in EVERY if q.place == "Retrieved chunks A")
    rows = answer(world, query, chosen(world, "traces", everything=True))
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    (row,) = world.clickhouse.query(f"SELECT cited_ranks FROM traces FINAL WHERE trace_id = '{world.trace_id}'")
    assert [row["rank"] for row in rows if row["cited"]] == sorted(row["cited_ranks"])


# ------------------------------------------------------------------------------------------------- they can fail


@pytest.mark.parametrize("query", [q for q in EVERY if q.source == CLICKHOUSE], ids=str)
def test_an_unknown_column_is_refused(world: World, query: Asked) -> None:
    """Each SQL query with one of its columns renamed fails: the engine judges names, not this test."""
    known = r"\b(pane|trace_id)\b"
    assert re.search(known, query.text), query.text
    wrong = replace(query, text=re.sub(known, r"\1_misspelt", query.text, count=1))
    with pytest.raises(CitegaugeError, match=r"(?i)unknown|identifier"):
        answer(world, wrong, chosen(world, query.board, everything=True))


def test_an_unknown_metric_is_refused(world: World) -> None:
    """Prometheus itself would answer with nothing, and no panel would say why."""
    query = Asked(board="pipeline", place="x A", source=PROMETHEUS, text="sum(citegauge_record_total)")
    with pytest.raises(AssertionError, match="citegauge_record_total"):
        answer(world, query, {})


def test_what_is_no_promql_is_refused(world: World) -> None:
    """Prometheus says what is wrong."""
    with pytest.raises(AssertionError, match="parse error"):
        world.prometheus.now("sum(", world.to_s)
