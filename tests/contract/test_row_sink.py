"""What every `RowSink` + `SqlReader` must do, on real engines: chDB in this process, HTTP, and a user's own server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.adapters.clickhouse import TABLES
from citegauge.adapters.migrations import load
from citegauge.errors import FatalError, RetryableError
from citegauge.ports import PaneRow, Row, TraceRow, WindowRow
from support.clickhouse import OWN_SERVER, ClickHouseFront, embedded, over_http, recent_minute
from support.clickhouse_rows import late_row, pane_row, tombstone, trace_row, user_row, window_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

    from citegauge.adapters.clickhouse import ClickHouse

NOW = recent_minute()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseFront]:
    """The server substitute in a child process."""
    server = ClickHouseFront(tmp_path_factory.mktemp("clickhouse"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["embedded", "http", *(["own server"] if OWN_SERVER else [])])
def sink(request: pytest.FixtureRequest) -> Iterator[ClickHouse]:
    """An empty, migrated database on one engine after the other."""
    if request.param == "embedded":
        with embedded() as client:
            yield client
        return
    url = OWN_SERVER if request.param == "own server" else request.getfixturevalue("front").url
    with over_http(url) as client:
        yield client


def stored(sink: ClickHouse, row: Row) -> dict[str, Any]:
    """The only row of the table that `row` belongs to, without the columns that the struct does not have."""
    table = TABLES[type(row)]
    (found,) = sink.query(f"SELECT * FROM {table} FINAL")
    return {name: _plain(found[name]) for name in row.__struct_fields__}


def fields(row: msgspec.Struct) -> dict[str, Any]:
    """What was sent."""
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _plain(value: Any) -> Any:
    return int(value.timestamp()) if hasattr(value, "timestamp") else value


def count(sink: ClickHouse, table: str) -> int:
    """Rows after replacement."""
    n: int = sink.query(f"SELECT count() AS n FROM {table} FINAL")[0]["n"]
    return n


@pytest.mark.parametrize(
    "row",
    [
        trace_row(NOW),
        trace_row(NOW, recall=0.1 + 0.2, top1_score=5e-324, rank_weighted_recall=1 / 3, version=3 << 48, lag_ns=-5),
        trace_row(NOW, recall=None, rank_weighted_recall=None, top1_score=None, state="no_generation", lag_ns=0),
        trace_row(NOW, chunk_ids=[], chunk_scores=[], cited_ids=[], cited_ranks=[], hallucinated_ids=[]),
        trace_row(NOW, chunk_scores=[None, -1e300, 0.0], top_k=2**40, nonconformant=True, synthetic_ids=True),
        trace_row(NOW, route="Größe ☃ '\"`\\\t\n\x00{x:String}", hallucinated_ids=["", "🦉", "%s; DROP"]),
        pane_row(NOW),
        pane_row(NOW, recall_counts={}, rank_weighted_counts={}, score_counts={}, states={}, citations=0),
        pane_row(NOW, recall_counts={0xFFFF_FFFF: 2**63}, score_counts={0: 1, -3842: 5, 36158: 7}),
        pane_row(NOW, final=True, forced=True),
        late_row(NOW),
        late_row(NOW, offset=2**62, kind="", route="ü"),
        user_row("0f" * 16, "4b" * 16, NOW),
        window_row(NOW),
        window_row(NOW, n=0, recall_p25=None, recall_p50=None, recall_p75=None, recall_mean=None,
                   rank_weighted_mean=None, cited_any_ratio=None, states={}, score_n=3, score_p25=-0.5),
    ],
    ids=lambda row: type(row).__name__,
)  # fmt: skip
def test_what_is_inserted_is_read_back_unchanged(sink: ClickHouse, row: Any) -> None:
    """Every field survives to the last bit: NULL, empty maps and arrays, unicode, extreme numbers."""
    sink.insert([row])
    assert stored(sink, row) == fields(row)


@pytest.mark.parametrize(
    "row",
    [trace_row(NOW), pane_row(NOW), late_row(NOW), user_row("0f" * 16, "4b" * 16, NOW), window_row(NOW)],
    ids=lambda r: type(r).__name__,
)
def test_the_same_rows_twice_are_there_once(sink: ClickHouse, row: Any) -> None:
    """An insert with unknown outcome may be repeated, in the same block or in another one, before and after merges."""
    sink.insert([row, row])
    sink.insert([row])
    assert stored(sink, row) == fields(row)
    for table in ("traces", "panes", "late", "trace_users", "windows"):
        sink.command(f"OPTIMIZE TABLE `{sink.database}`.{table} FINAL")
    assert stored(sink, row) == fields(row)


@pytest.mark.parametrize("make", [trace_row, pane_row, window_row])
def test_the_highest_version_stays_whatever_the_order(sink: ClickHouse, make: Any) -> None:
    """A stale owner that writes last loses."""
    newest = make(NOW, version=2**50, unresolved=9)
    sink.insert([newest])
    sink.insert([make(NOW, version=2**49)])
    assert stored(sink, newest) == fields(newest)


def test_at_equal_versions_the_last_insert_stays(sink: ClickHouse) -> None:
    """What the flush order of the service relies on."""
    sink.insert([pane_row(NOW, citations=1)])
    sink.insert([pane_row(NOW, citations=2)])
    assert stored(sink, pane_row(NOW))["citations"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"pane": NOW - 60},
        {"route": "x"},
        {"top_k_bucket": "x"},
        {"model": "x"},
        {"retriever_version": "x"},
        {"scorer": "x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_key_tells_rows_apart(sink: ClickHouse, change: dict[str, Any]) -> None:
    """Rows of different panes or groups never replace each other."""
    pane = change.get("pane", NOW)
    group = {name: value for name, value in change.items() if name != "pane"}
    sink.insert([trace_row(NOW), trace_row(pane, **group)])
    sink.insert([pane_row(NOW), pane_row(pane, **group), pane_row(pane, source="spans/1", **group)])
    assert (count(sink, "traces"), count(sink, "panes")) == (2, 3)


def test_a_tombstone_deletes_older_rows_only(sink: ClickHouse) -> None:
    """A trace that moved is gone from its old key; one that moved back is there again; a stale row stays deleted."""
    row = trace_row(NOW, version=11)
    sink.insert([row])
    sink.insert([tombstone(row, version=20)])
    assert count(sink, "traces") == 0
    sink.insert([row])
    assert count(sink, "traces") == 0
    back = trace_row(NOW, version=21)
    sink.insert([back])
    assert stored(sink, back) == fields(back)
    sink.insert([tombstone(row, version=20)])
    sink.command(f"OPTIMIZE TABLE `{sink.database}`.traces FINAL")
    assert stored(sink, back) == fields(back)


def test_a_tombstone_touches_its_own_trace_only(sink: ClickHouse) -> None:
    """Tombstones name the whole key."""
    other = trace_row(NOW, trace_id="f" * 32)
    sink.insert([trace_row(NOW), other])
    sink.insert([tombstone(trace_row(NOW), version=2)])
    assert stored(sink, other) == fields(other)


def test_not_a_number_is_stored_as_null(sink: ClickHouse) -> None:
    """NaN and infinities never reach an average."""
    sink.insert([trace_row(NOW, top1_score=float("nan"), recall=float("inf"), chunk_scores=[float("-inf")])])
    found = stored(sink, trace_row(NOW))
    assert (found["top1_score"], found["recall"], found["chunk_scores"]) == (None, None, [None])


def test_nothing_to_insert_is_no_insert(sink: ClickHouse) -> None:
    """An empty batch is harmless."""
    sink.insert([])
    assert count(sink, "traces") == 0


def test_times_come_back_aware(sink: ClickHouse) -> None:
    """A DateTime without a zone would be read as local time by the caller."""
    sink.insert([trace_row(NOW)])
    (row,) = sink.query("SELECT pane, event_time, toDateTime(0) AS bare FROM traces")
    assert all(value.utcoffset().total_seconds() == 0 for value in row.values())
    assert row["event_time"].microsecond == 123_456
    assert row["bare"].timestamp() == 0


def test_values_are_bound_and_never_become_sql(sink: ClickHouse) -> None:
    """What a user typed into a filter is a value."""
    evil = "x' OR 1=1 --\n\\'"
    sink.insert([trace_row(NOW), trace_row(NOW, route=evil)])
    found = sink.query(
        "SELECT route FROM traces"
        " WHERE route = {route:String} AND pane >= {from:UInt32} AND has({ids:Array(String)}, trace_id)",
        {"route": evil, "from": NOW, "ids": [trace_row(NOW).trace_id, evil]},
    )
    assert found == [{"route": evil}]


def test_unknown_tables_columns_and_syntax_are_fatal(sink: ClickHouse) -> None:
    """Repeating such a call would fail for ever; the message says what to run."""
    with pytest.raises(FatalError, match="citegauge migrate"):
        sink.query("SELECT * FROM nothing_of_that_name")
    with pytest.raises(FatalError, match="SYNTAX_ERROR"):
        sink.query("SELECT (1")
    sink.command(f"ALTER TABLE `{sink.database}`.late DROP COLUMN kind")
    with pytest.raises(FatalError, match="citegauge migrate"):
        sink.insert([late_row(NOW)])


def test_a_value_of_the_wrong_type_is_fatal_and_stores_nothing(sink: ClickHouse) -> None:
    """A batch is stored whole or not at all."""
    with pytest.raises(FatalError):
        sink.insert([trace_row(NOW), trace_row(NOW, trace_id="0" * 32, retrieved="three")])
    assert count(sink, "traces") == 0


def test_running_out_of_time_or_memory_is_worth_another_try(sink: ClickHouse) -> None:
    """The same call may succeed on a quieter server."""
    with pytest.raises(RetryableError):
        sink.query(
            "SELECT sum(sleepEachRow(0.1)) FROM numbers(100) SETTINGS max_execution_time = 1, max_block_size = 1"
        )
    with pytest.raises(RetryableError):
        sink.query("SELECT length(groupArray(number)) FROM numbers(10000000) SETTINGS max_memory_usage = 5000000")


def test_after_a_failed_query_the_next_answer_is_its_own(sink: ClickHouse) -> None:
    """The embedded engine keeps what a failed query had produced, and would put it before the next answer."""
    for _ in range(3):
        with pytest.raises(FatalError):
            sink.query("SELECT number, throwIf(number = 900000) FROM numbers(1000000)")
        assert sink.query("SELECT 1 AS one") == [{"one": 1}]


def test_inserts_go_on_while_a_long_query_runs(sink: ClickHouse) -> None:
    """A page that asks for a lot must not hold up the writer."""
    started, answers = threading.Event(), []

    def ask() -> None:
        started.set()
        answers.append(sink.query("SELECT sum(sleepEachRow(0.1)) AS s FROM numbers(30) SETTINGS max_block_size = 1"))

    asking = threading.Thread(target=ask)
    asking.start()
    started.wait()
    for offset in range(5):
        sink.insert([late_row(NOW, offset=offset)])
    assert not answers, "the query had ended before the inserts: it proves nothing"
    asking.join()
    assert count(sink, "late") == 5


def test_many_threads_write_and_read_at_once(sink: ClickHouse) -> None:
    """Every row arrives, and no thread sees the answer of another."""
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for turn in range(5):
                sink.insert([late_row(NOW, partition=worker, offset=turn)])
                (row,) = sink.query("SELECT {me:Int32} AS me", {"me": worker})
                assert row == {"me": worker}
        except BaseException as error:  # noqa: BLE001  # reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert count(sink, "late") == 40


def test_one_insert_is_one_block_of_ten_thousand_rows(sink: ClickHouse) -> None:
    """Batches of the usual size do not fall apart into many parts."""
    sink.insert([trace_row(NOW, trace_id=f"{index:032x}", version=index) for index in range(10_000)])
    sink.insert([pane_row(NOW, source=f"spans/{index}") for index in range(10_000)])
    parts = sink.query(
        "SELECT count() AS n FROM system.parts WHERE database = {db:String} AND active", {"db": sink.database}
    )
    assert (count(sink, "traces"), count(sink, "panes")) == (10_000, 10_000)
    assert parts[0]["n"] <= 4 + len(load())  # the migrations table has a part per file


def test_columns_of_the_tables_are_the_fields_of_the_structs(sink: ClickHouse) -> None:
    """A field without a column would stop the service; a column without a field would stay empty."""
    described = sink.query(
        "SELECT table, groupArray(name) AS names FROM system.columns"
        " WHERE database = {db:String} AND default_kind != 'ALIAS'"
        " AND table IN ('traces', 'panes', 'windows') GROUP BY table",
        {"db": sink.database},
    )
    names = {row["table"]: set(row["names"]) for row in described}
    assert names["traces"] == {*TraceRow.__struct_fields__, "is_deleted"}
    assert names["panes"] == set(PaneRow.__struct_fields__)
    assert names["windows"] == set(WindowRow.__struct_fields__)
