"""The HTTP front over the embedded engine: what curl and clickhouse_connect get, and what read-only refuses."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import cramjam
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from citegauge.adapters.clickhouse_http import READ_ONLY_LIMITS, WORKERS, ClickHouseHttp, Engine
from citegauge.errors import FatalError
from support.clickhouse import ClickHouseFront, embedded, fetch, recent_minute
from support.clickhouse_rows import pane_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse

NOW = recent_minute()


class Served:
    """A front whose event loop runs in a thread, as the demo's does."""

    def __init__(self, engine: Engine, database: str) -> None:
        self.front = ClickHouseHttp(engine, port=0, database=database)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._run(self.front.start())

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.front.port}"

    def ask(self, query: str, **parameters: str) -> tuple[int, str]:
        """Status and text of a GET, as curl sends it."""
        arguments = urllib.parse.urlencode({"query": query, **parameters})
        status, body, _ = fetch(f"{self.url}/?{arguments}")
        return status, body.decode(errors="replace")

    def stop(self) -> None:
        """End it and its thread."""
        self._run(self.front.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[ClickHouse]:
    """The service's own, writing connection to the engine that the front shows."""
    with embedded(database="shown") as client:
        client.insert([pane_row(NOW, route="support"), pane_row(NOW, route="sälés ☃")])
        yield client


@pytest.fixture(scope="module")
def shown(clickhouse: ClickHouse) -> Iterator[Served]:
    """The read-only front."""
    engine = Engine(None, read_only=True)
    server = Served(engine, clickhouse.database)
    yield server
    server.stop()
    engine.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseFront]:
    """The read-write front, in a child process."""
    front = ClickHouseFront(tmp_path_factory.mktemp("front")).start()
    yield front
    front.stop()


# ------------------------------------------------------------------------------------------------ reading


def test_a_curl_of_the_readme_is_answered(shown: Served) -> None:
    """GET with a query gives tab-separated text; a FORMAT clause or a parameter chooses another format."""
    assert shown.ask("SELECT count() FROM panes") == (200, "2\n")
    status, text = shown.ask(
        f"SELECT route, n, recall_p50 FROM window_quantiles(start = {NOW}, end = {NOW + 60}, dims = ['route'])"
        " ORDER BY route FORMAT JSON"
    )
    assert status == 200
    assert [row["route"] for row in json.loads(text)["data"]] == ["support", "sälés ☃"]
    assert shown.ask("SELECT 1 AS one, 'ü' AS two", default_format="JSONEachRow") == (200, '{"one":1,"two":"ü"}\n')


def test_what_the_service_inserts_is_seen_at_once(shown: Served, clickhouse: ClickHouse) -> None:
    """It is the same engine, not a copy."""
    before = int(shown.ask("SELECT count() FROM panes WHERE route = 'new'")[1])
    clickhouse.insert([pane_row(NOW, route="new", source=f"spans/{before}")])
    assert int(shown.ask("SELECT count() FROM panes WHERE route = 'new'")[1]) == before + 1


def test_parameters_are_values(shown: Served) -> None:
    """`param_x` is bound, not pasted."""
    assert shown.ask("SELECT {x:UInt32} + 1, {s:String}", param_x="41", param_s="a'b") == (200, "42\ta\\'b\n")
    assert shown.ask("SELECT {x:UInt32}")[0] == 400


def test_post_database_and_headers(shown: Served) -> None:
    """A body is the query, `database` is the default database, and the answer names format, time zone and query."""
    status, body, headers = fetch(f"{shown.url}/?database=system&query_id=me", b"SELECT name FROM one, tables LIMIT 1")
    assert status == 200, body
    assert headers["X-ClickHouse-Format"] == "TabSeparated"
    assert headers["X-ClickHouse-Query-Id"] == "me"
    assert int(json.loads(headers["X-ClickHouse-Summary"])["read_rows"]) > 0
    assert fetch(f"{shown.url}/", b"SELECT 1", {"X-ClickHouse-Format": "CSV"})[1] == b"1\n"


def test_ping_and_nothing(shown: Served) -> None:
    """Health checks of other programs work."""
    assert fetch(f"{shown.url}/ping")[:2] == (200, b"Ok.\n")
    assert fetch(f"{shown.url}/")[:2] == (200, b"Ok.\n")
    assert fetch(f"{shown.url}/else")[0] == 404


def test_errors_carry_the_engine_s_code(shown: Served) -> None:
    """Status, header and text, as a server sends them."""
    status, body, headers = fetch(f"{shown.url}/?query=SELECT+*+FROM+nothing")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (404, "60")
    assert body.startswith(b"Code: 60. DB::Exception: ")
    status, body, headers = fetch(f"{shown.url}/?query=SELEC+1")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (400, "62")
    assert b"formatQuery" not in body


@pytest.mark.parametrize(
    "query",
    [
        "SHOW TABLES",
        "DESCRIBE panes",
        "EXPLAIN SELECT count() FROM panes",
        "EXISTS panes",
        "SHOW CREATE TABLE panes",
        "WITH 1 AS x SELECT x",
        "FROM panes SELECT count()",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "SELECT 1; -- a comment\n",
        "/* first */ SELECT 'file(' AS `into x`, 'INTO OUTFILE', 'a''b\\\\', ';'",
        "SELECT number FROM numbers(3)",
        "SELECT length('" + "x" * 20_000 + "')",
        "SELECT format('{}-{}', 1, 2), arrayMap(x -> x + 1, [1])",
        "SELECT * FROM rolling(from = 1764457200, to = 1764460800, window_s = 60, step_s = 60, route = '')",
    ],
)
def test_reading_statements_are_answered(shown: Served, query: str) -> None:
    """The fences do not stand in the way of honest questions."""
    status, text = shown.ask(query)
    assert status == 200, text


def test_clickhouse_connect_reads(shown: Served, clickhouse: ClickHouse) -> None:
    """The usual Python client works, its probes at connect included, though it may set nothing."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=shown.front.port, database=clickhouse.database)
    try:
        result = client.query("SELECT * FROM panes WHERE route = {r:String} LIMIT 1", parameters={"r": "sälés ☃"})
        (row,) = result.named_results()
        assert row["route"] == "sälés ☃"
        assert row["recall_counts"] == {3 << 16 | 1: 2}
        with pytest.raises(DatabaseError, match="READONLY"):
            client.insert("late", [["t"]], column_names=["topic"], column_type_names=["String"])
    finally:
        client.close()


# ------------------------------------------------------------------------------------------------ attacks

ATTACKS = [
    "INSERT INTO late (topic) VALUES ('x')",
    "INSERT INTO late (topic) SELECT 'x'",
    "INSERT INTO FUNCTION file('{dir}/out', 'CSV') SELECT 1",
    "CREATE TABLE shown.t (a UInt8) ENGINE = Memory",
    "CREATE TEMPORARY TABLE t (a UInt8)",
    "CREATE TABLE shown.t ENGINE = File(CSV, '{dir}/out') AS SELECT 1",
    "CREATE FUNCTION f AS x -> x",
    "CREATE USER u",
    "GRANT ALL ON *.* TO default",
    "DROP TABLE panes",
    "TRUNCATE TABLE panes",
    "ALTER TABLE panes DELETE WHERE 1",
    "DELETE FROM panes WHERE 1",
    "RENAME TABLE panes TO shown.gone",
    "OPTIMIZE TABLE panes FINAL",
    "DETACH TABLE panes",
    "ATTACH TABLE shown.gone",
    "BACKUP TABLE panes TO File('{dir}/out')",
    "SYSTEM FLUSH LOGS",
    "SYSTEM SHUTDOWN",
    "KILL QUERY WHERE 1",
    "SELECT 1 PARALLEL WITH KILL QUERY WHERE 1",
    "CHECK TABLE panes",
    "USE system",
    "SET readonly = 0",
    "SET max_execution_time = 0",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 1000",
    "SELECT 1; DROP TABLE panes",
    "SELECT 1; SELECT 2",
    "SELECT * FROM file('{dir}/secret', 'LineAsString')",
    "SELECT * FROM default.`{dir}/secret`",
    "SELECT * FROM `{dir}/secret`",
    "SELECT file('{dir}/secret')",
    "SELECT `file`('{dir}/secret')",
    "SELECT \"FILE\" /* */ ('{dir}/secret')",
    "SELECT * APPLY(file) FROM (SELECT '{dir}/secret')",
    "SELECT * APPLY file FROM (SELECT '{dir}/secret')",
    "EXPLAIN SELECT file('{dir}/secret')",
    "WITH x AS (SELECT file('{dir}/secret') AS y) SELECT y FROM x",
    "SELECT arrayMap(x -> file(x), ['{dir}/secret'])",
    "SELECT * FROM eval('SELECT file(''{dir}/secret'')')",
    "SELECT * FROM viewExplain('EXPLAIN', '', (SELECT 1))",
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')",
    "SELECT * FROM s3('http://127.0.0.1:1/bucketname/x.csv', 'CSV', 'a String')",
    "SELECT * FROM remote('127.0.0.1:1', 'system', 'one')",
    "SELECT * FROM cluster('default', 'system', 'one')",
    "SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM sqlite('{dir}/out', 't')",
    "SELECT * FROM executable('ls', 'TSV', 'a String')",
    "SELECT * FROM filesystem('{dir}')",
    "SELECT * FROM Python(secret)",
    "SELECT * FROM python('secret')",
    "SELECT * FROM arrowstream('secret')",
    "SELECT 1 INTO OUTFILE '{dir}/out'",
    "SELECT 1 INTO/**/OUTFILE '{dir}/out' FORMAT CSV",
    "SHOW TABLES INTO OUTFILE '{dir}/out'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{dir}/out'",
    "SELECT 1 UNION ALL SELECT 2 INTO OUTFILE '{dir}/out' APPEND",
    "SELECT aiGenerate('x')",
    "SELECT sleep(3)",
    "SELECT sleepEachRow(1) FROM numbers(3)",
    "?? drop everything",
    "exit",
    "quit",
    "SELECT 1 FORMAT",
    "\\",
    "file('{dir}/secret')",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_read_only_refuses(shown: Served, clickhouse: ClickHouse, tmp_path: Path, attack: str) -> None:
    """No statement writes, reaches out of the tables, waits or changes a setting, over GET or POST."""
    (tmp_path / "secret").write_text("the secret\n")
    before = clickhouse.query("SELECT (SELECT count() FROM panes) AS panes, (SELECT count() FROM late) AS late")
    query = attack.replace("{dir}", str(tmp_path))
    for status, text in (shown.ask(query), _post(shown, query)):
        assert status in {400, 403, 404, 500, 501}, text
        assert "Code: " in text
        assert "the secret" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert clickhouse.query("SELECT (SELECT count() FROM panes) AS panes, (SELECT count() FROM late) AS late") == before
    assert shown.ask("SELECT 1") == (200, "1\n")


def _post(shown: Served, query: str) -> tuple[int, str]:
    status, body, _ = fetch(f"{shown.url}/", query.encode())
    return status, body.decode(errors="replace")


def test_parameters_are_no_way_around(shown: Served, tmp_path: Path) -> None:
    """An identifier or a part of a statement cannot be slipped in as a value."""
    (tmp_path / "secret").write_text("the secret\n")
    for query, value in (
        ("SELECT {x:Identifier}('" + str(tmp_path / "secret") + "')", "file"),
        ("SELECT * FROM {x:Identifier}", f"default.`{tmp_path}/secret`"),
        ("SELECT * FROM {x:Identifier}", str(tmp_path / "secret")),
        ("{x:Identifier}", "DROP TABLE panes"),
    ):
        status, text = shown.ask(query, param_x=value)
        assert status >= 400, text
        assert "the secret" not in text


@pytest.mark.parametrize("setting", ["readonly", "max_execution_time", "max_result_rows", "nonsense", "a b'; DROP"])
def test_read_only_takes_no_settings(shown: Served, setting: str) -> None:
    """A bound that the asker can lift is none."""
    status, text = shown.ask("SELECT 1", **{setting: "0"})
    assert status >= 400, text


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT number FROM numbers(1000000)", "TOO_MANY_ROWS_OR_BYTES"),
        ("SELECT repeat(toString(number), 500) FROM numbers(99000)", "TOO_MANY_ROWS_OR_BYTES"),
        ("SELECT length(groupArray(toString(number))) FROM numbers(100000000)", "MEMORY_LIMIT_EXCEEDED"),
        ("SELECT " + "1+" * 200_000 + "1", "size 263168 exceeded"),
    ],
    ids=["rows", "bytes", "memory", "length"],
)
def test_read_only_is_bounded(shown: Served, query: str, error: str) -> None:
    """One question cannot fill the machine; nothing of its half answer shows up in the next one."""
    status, text = _post(shown, query)
    assert status >= 400
    assert error in text[:2000]
    assert shown.ask("SELECT 1") == (200, "1\n")


def test_read_only_ends_what_takes_too_long(clickhouse: ClickHouse) -> None:
    """The bound on time holds; here it is made short."""
    engine = Engine(None, read_only=True, limits={**READ_ONLY_LIMITS, "max_execution_time": "0.3", "readonly": "1"})
    short = Served(engine, clickhouse.database)
    try:
        status, text = short.ask("SELECT sum(cityHash64(number)) FROM numbers(100000000000)")
        assert status == 504
        assert "TIMEOUT_EXCEEDED" in text
    finally:
        short.stop()
        engine.close()


def test_a_foreign_host_name_is_not_served(shown: Served) -> None:
    """A web page that points its own name at 127.0.0.1 must not read the tables through a visitor's browser."""
    assert fetch(f"{shown.url}/?query=SELECT+1", headers={"Host": "evil.example:8124"})[0] == 403
    assert fetch(f"{shown.url}/?query=SELECT+1", headers={"Host": f"localhost:{shown.front.port}"})[0] == 200


def test_answers_of_askers_at_once_are_their_own(shown: Served) -> None:
    """More askers than workers: each gets its own answer."""

    def ask(number: int) -> tuple[int, str]:
        return shown.ask("SELECT {x:UInt32}", param_x=str(number))

    with ThreadPoolExecutor(4 * WORKERS) as pool:
        assert list(pool.map(ask, range(100))) == [(200, f"{number}\n") for number in range(100)]


def test_a_taken_port_is_one_line(shown: Served, clickhouse: ClickHouse) -> None:
    """The message says which address."""
    engine = Engine(None, read_only=True)
    try:
        front = ClickHouseHttp(engine, port=shown.front.port, database=clickhouse.database)
        with pytest.raises(FatalError, match=f"127.0.0.1:{shown.front.port}"):
            asyncio.run(front.start())
        asyncio.run(front.stop())
    finally:
        engine.close()


# ------------------------------------------------------------------------------------------------ read-write


@pytest.mark.parametrize("compression", [False, "lz4", "zstd", "gzip"])
def test_clickhouse_connect_writes_and_reads(server: ClickHouseFront, compression: Any) -> None:
    """Native inserts and queries, commands, summaries and errors, compressed or not."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=server.port, compress=compression)
    try:
        client.command(
            "CREATE OR REPLACE TABLE t (a UInt32, s LowCardinality(String), m Map(String, UInt64)) ORDER BY a"
        )
        rows = [(number, f"s{number % 3}", {"k": number}) for number in range(5_000)]
        summary = client.insert("t", rows, column_names=["a", "s", "m"])
        assert summary.written_rows == 5_000
        assert client.query("SELECT * FROM t ORDER BY a").result_rows == rows
        assert client.query("SELECT * FROM t LIMIT 0").column_names == ("a", "s", "m")
        assert client.command("SELECT count() FROM t") == 5_000
        long = ["x" * 10_000, *map(str, range(5_000))]
        answer = client.query("SELECT length({v:Array(String)})", parameters={"v": long})
        assert answer.result_rows == [(5_001,)]
        with pytest.raises(DatabaseError) as error:
            client.query("SELECT nothing FROM t")
        assert error.value.name == "UNKNOWN_IDENTIFIER"
    finally:
        client.close()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        (None, bytes),
        ("lz4", cramjam.lz4.compress),
        ("zstd", cramjam.zstd.compress),
        ("gzip", cramjam.gzip.compress),
        ("deflate", cramjam.zlib.compress),
    ],
)
def test_raw_inserts(server: ClickHouseFront, encoding: str | None, encode: Callable[[bytes], Any]) -> None:
    """The path that the service itself uses: JSON lines behind the statement, or compressed beside it."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=server.port)
    try:
        client.command("CREATE OR REPLACE TABLE raw (a UInt32, `format` String) ENGINE = MergeTree ORDER BY a")
        block = b'{"a":1,"format":" FORMAT CSV"}\n{"a":2,"format":"SELECT"}\n'
        client.raw_insert("raw", ["a", "format"], bytes(encode(block)), fmt="JSONEachRow", compression=encoding)
        assert client.query("SELECT * FROM raw ORDER BY a").result_rows == [(1, " FORMAT CSV"), (2, "SELECT")]
    finally:
        client.close()


def test_other_forms_of_insert(server: ClickHouseFront) -> None:
    """VALUES and SELECT need no data behind the statement; a broken body is an error."""

    def post(text: bytes, **arguments: str) -> tuple[int, bytes, dict[str, str]]:
        return fetch(f"{server.url}/?{urllib.parse.urlencode(arguments)}", text)

    assert post(b"CREATE OR REPLACE TABLE v (a UInt32) ENGINE = MergeTree ORDER BY a")[0] == 200
    assert post(b"INSERT INTO v VALUES (1), (2)")[0] == 200
    assert post(b"INSERT INTO v SELECT number FROM numbers(3)")[0] == 200
    assert post(b"7\n8\n", query="INSERT INTO v FORMAT TSV")[0] == 200
    assert post(b"INSERT INTO v FORMAT JSONEachRow\n{broken")[0] >= 400
    assert fetch(f"{server.url}/", b"garbage", {"Content-Encoding": "lz4"})[0] == 400
    assert fetch(f"{server.url}/", b"x", {"Content-Encoding": "snappy"})[0] == 400
    assert post(b"SELECT count(), sum(a) FROM v")[1] == b"7\t21\n"


def test_get_only_reads(server: ClickHouseFront) -> None:
    """As with a server: a link must not change anything."""
    assert fetch(f"{server.url}/?query=CREATE+DATABASE+x")[0] == 403
    assert fetch(f"{server.url}/?query=SELECT+1&max_threads=1")[:2] == (200, b"1\n")


def test_settings_hold_for_one_request(server: ClickHouseFront) -> None:
    """What one request sets, the next does not have."""
    ask = "SELECT value FROM system.settings WHERE name = 'max_block_size'"
    assert fetch(f"{server.url}/?max_block_size=77", ask.encode())[1] == b"77\n"
    assert fetch(f"{server.url}/", ask.encode())[1] != b"77\n"
    assert fetch(f"{server.url}/?no_such_setting=1", b"SELECT 1")[0] == 404


def test_data_stays_over_restarts(tmp_path: Path) -> None:
    """The same port and directory, as a server has."""
    front = ClickHouseFront(tmp_path).start()
    try:
        fetch(front.url, b"CREATE TABLE kept (a UInt32) ENGINE = MergeTree ORDER BY a")
        fetch(front.url, b"INSERT INTO kept VALUES (42)")
        front.stop()
        front.start()
        assert fetch(front.url, b"SELECT a FROM kept")[1] == b"42\n"
        front.kill()
        front.start()
        assert fetch(front.url, b"SELECT a FROM kept")[1] == b"42\n"
    finally:
        front.stop()
