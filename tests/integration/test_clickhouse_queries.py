"""The cookbook in `sql/queries` runs on a real engine and finds what was put there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.clickhouse import embedded, recent_minute
from support.clickhouse_rows import TRACE_ID, late_row, pane_row, panes_of, trace_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from citegauge.adapters.clickhouse import ClickHouse

QUERIES = Path(__file__).parents[2] / "sql" / "queries"
NOW = recent_minute()
PARAMETERS: dict[str, dict[str, Any]] = {"one_trace": {"trace_id": TRACE_ID}, "recall_heatmap": {"route": "support"}}
EMPTY_WHEN_WELL = {"panes_against_traces"}


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[ClickHouse]:
    """An hour of today and the same hour of yesterday, when recall was better."""
    with embedded(database="cookbook") as client:
        today = [trace_row(NOW - 60 * m, trace_id=f"{m:032x}", version=1) for m in range(2, 50)]
        today.append(trace_row(NOW - 600, trace_id=TRACE_ID, recall=0.0, cited_retrieved=0, hallucinated_ids=["h1"]))
        client.insert(today)
        client.insert(panes_of(today))
        client.insert([pane_row(NOW - 86_400 - 60 * m, recall_counts={3 << 16 | 3: 2}) for m in range(2, 50)])
        client.insert([late_row(NOW - 3600)])
        yield client


def run(client: ClickHouse, name: str) -> list[dict[str, Any]]:
    """One query of the cookbook, with the format left to the client."""
    sql = (QUERIES / f"{name}.sql").read_text().replace("FORMAT Vertical", "")
    return client.query(sql, PARAMETERS.get(name))


@pytest.mark.parametrize("name", sorted(path.stem for path in QUERIES.glob("*.sql")))
def test_every_query_runs_and_finds_something(clickhouse: ClickHouse, name: str) -> None:
    """A recipe that fails or is always empty is worse than none."""
    rows = run(clickhouse, name)
    assert bool(rows) != (name in EMPTY_WHEN_WELL), rows
    assert (QUERIES / f"{name}.sql").read_text().startswith("-- "), "say in the first line what it is for"


def test_the_drop_is_seen(clickhouse: ClickHouse) -> None:
    """Recall fell from 1 to about a third, and the query says by how much."""
    (row,) = run(clickhouse, "drop_against_yesterday")
    assert row["n_yesterday"] == 96
    assert row["recall_change"] == pytest.approx(-2 / 3, abs=0.02)


def test_the_worst_trace_comes_first(clickhouse: ClickHouse) -> None:
    """It is the one that cites nothing."""
    assert run(clickhouse, "worst_traces")[0]["trace_id"] == TRACE_ID


def test_shares_of_states_add_up(clickhouse: ClickHouse) -> None:
    """Shares of one route sum to 1."""
    assert sum(row["share"] for row in run(clickhouse, "states_by_route")) == pytest.approx(1.0)


def test_a_pane_that_lies_is_found(clickhouse: ClickHouse) -> None:
    """The comparison with the trace rows is not empty by construction."""
    wrong = pane_row(NOW - 1200, final=True, version=2**40, recall_counts={3 << 16 | 2: 9})
    clickhouse.insert([wrong])
    assert [int(row["pane"].timestamp()) for row in run(clickhouse, "panes_against_traces")] == [NOW - 1200]
