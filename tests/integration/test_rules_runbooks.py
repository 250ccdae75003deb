"""The queries of the runbooks run on the shipped schema, and show the traces that they promise, worst first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.errors import CitegaugeError
from support.clickhouse import embedded, recent_minute
from support.clickhouse_rows import late_row, pane_row, trace_row, window_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from citegauge.adapters.clickhouse import ClickHouse

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
NOW = recent_minute()
PANE = NOW - 600
PARAMETERS = {"route": "support", "top_k_bucket": "1-5", "scorer": "reranker:bge"}
QUERIES = [
    pytest.param(path.stem, sql, id=f"{path.stem}-{i}")
    for path in sorted(RUNBOOKS.glob("*.md"))
    if path.stem != "README"
    for i, sql in enumerate(re.findall(r"```sql\n(.*?)```", path.read_text(), flags=re.DOTALL))
]


def trace(name: str, minutes_ago: int = 10, **changes: Any) -> Any:
    """A trace with a name of its own; a correction of it was stored before, so that FINAL matters."""
    return trace_row(NOW - 60 * minutes_ago, trace_id=name.ljust(32, "0"), **changes)


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[ClickHouse]:
    """Ordinary traces, and one of each kind that a runbook looks for; some of another route, and some of yesterday."""
    nothing: dict[str, Any] = {"recall": None, "rank_weighted_recall": None}
    nothing |= {"cited_retrieved": 0, "cited_ids": [], "cited_ranks": []}
    with embedded(database="runbooks") as client:
        client.insert([trace(f"a{i}") for i in range(5)])
        client.insert([trace("b", recall=0.0, cited_retrieved=0), trace("b", recall=0.9, version=0)])
        client.insert(
            [
                trace("c", top1_score=0.01, low_confidence=True),
                trace("d", hallucinated_ids=["x1", "x2"], dropped_cited_ids=["x1"]),
                trace("e", state="nonconformant", nonconformant=True, **nothing),
                trace("f", state="empty_retrieval", chunk_ids=[], **nothing),
                trace("0f", state="no_generation", **nothing),
                trace("1f", state="ids_missing", **nothing),
                trace("2f", lag_ns=90_000_000_000),
                trace("3f", route="sales", recall=0.0, hallucinated_ids=["x", "y", "z"]),
                trace("4f", minutes_ago=180, recall=0.0, model="m0"),
            ]
        )
        with pytest.raises(CitegaugeError):  # so that the server has an error to show, also when no test ran before
            client.query("SELECT nothing FROM nowhere")
        client.insert([late_row(PANE, trace_id="0f".ljust(32, "0"))])
        client.insert([pane_row(PANE)])
        client.insert([window_row(PANE)])
        yield client


@pytest.mark.parametrize(("name", "sql"), QUERIES)
def test_it_answers(name: str, sql: str, clickhouse: ClickHouse) -> None:
    """No query fails, and on data of every kind none is empty."""
    wanted = set(re.findall(r"\{(\w+):String\}", sql))
    assert wanted <= PARAMETERS.keys()
    rows = clickhouse.query(sql.strip(), {key: PARAMETERS[key] for key in wanted})
    assert rows, name


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("route-recall-drop", "b"),
        ("recall-drop", "b"),
        ("recall-cusum", "b"),
        ("top1-score-drop", "c"),
        ("score-shift", "c"),
        ("low-confidence", "c"),
        ("hallucinated-citations", "d"),
        ("nonconformant-answers", "e"),
        ("zero-results", "f"),
        ("unjoined-traces", "0f"),
        ("unmeasurable", "1f"),
        ("dead-letters", "1f"),
        ("lag-seconds", "2f"),
        ("late-spans", "0f"),
    ],
)
def test_the_worst_trace_comes_first(name: str, first: str, clickhouse: ClickHouse) -> None:
    """The worst trace of the last hour, of this route, in its newest version."""
    queries = [sql for page, sql in (each.values for each in QUERIES) if page == name and "trace_id," in str(sql)]
    sql = str(queries[0])
    wanted = set(re.findall(r"\{(\w+):String\}", sql))
    rows = clickhouse.query(sql.strip(), {key: PARAMETERS[key] for key in wanted})
    assert rows[0]["trace_id"] == first.ljust(32, "0")


def test_every_page_has_a_query() -> None:
    """One page, at least one query."""
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == {str(each.values[0]) for each in QUERIES}


def test_a_fall_of_scores_is_looked_for_in_scores(clickhouse: ClickHouse) -> None:
    """The first query of that page sets scores of this scorer side by side; recall may stand where it was."""
    sql = next(str(each.values[1]) for each in QUERIES if each.values[0] == "top1-score-drop")
    (row, *_) = clickhouse.query(sql.strip(), PARAMETERS)
    assert {"score_hour", "score_day", "sd_day"} <= row.keys()
    assert not [name for name in row if "recall" in name]
    hour = clickhouse.query(
        "SELECT avg(top1_score) AS mean, count() AS n FROM traces FINAL WHERE route = 'support' AND top_k_bucket = '1-5' "
        "AND scorer = 'reranker:bge' AND top1_score IS NOT NULL AND pane >= now() - INTERVAL 1 HOUR "
        "AND model = {model:String}",
        {"model": row["model"]},
    )
    assert row["n_hour"] == hour[0]["n"] > 1
    assert row["score_hour"] == pytest.approx(hour[0]["mean"], abs=1e-4)


def test_what_can_no_longer_be_measured_is_dated(clickhouse: ClickHouse) -> None:
    """The state that rose comes first, beside what it was; the minutes say since when. Halves alone are left out."""
    now = {"measured": 5, "no_output": 15, "no_generation": 80}
    for pane, states in ((PANE, now), (PANE - 7_200, {"measured": 90, "no_output": 10, "truncated": 100})):
        clickhouse.insert([pane_row(pane, route="capture", states=states)])
    states_sql, since_sql, _ = (str(each.values[1]) for each in QUERIES if each.values[0] == "unmeasurable")
    route = {"route": "capture"}
    first, *_, last = clickhouse.query(states_sql.strip(), route)
    assert first == {"state": "no_output", "hour_n": 15, "hour_pct": 75, "day_n": 10, "day_pct": 5}
    assert last["state"] == "truncated"
    assert [(row["traces"], row["pct"]) for row in clickhouse.query(since_sql.strip(), route)] == [(20, 75), (200, 55)]
