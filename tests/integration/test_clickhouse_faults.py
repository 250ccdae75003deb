"""The server goes away, hangs, dies and comes back; the embedded engine is asked for what it cannot give."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.adapters.clickhouse import ClickHouse, EmbeddedTarget, HttpTarget, connect
from citegauge.adapters.clickhouse.codes import ACCESS, OURS, SERVER
from citegauge.adapters.migrations import migrate
from citegauge.errors import ConfigError, FatalError, RetryableError
from support.clickhouse import ClickHouseFront, child_environment, fetch, free_port, recent_minute
from support.clickhouse_rows import late_row, trace_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = recent_minute()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[ClickHouseFront]:
    """A server with a migrated database."""
    server = ClickHouseFront(tmp_path / "data").start()
    client = connect(HttpTarget(url=server.url))
    migrate(client, "citegauge")
    client.close()
    yield server
    server.kill()


@pytest.fixture
def client(front: ClickHouseFront) -> Iterator[ClickHouse]:
    """A client that loses patience quickly."""
    clickhouse = connect(HttpTarget(url=front.url, connect_timeout_s=1, send_receive_timeout_s=5))
    yield clickhouse
    clickhouse.close()


def test_a_server_that_is_down_is_worth_another_try(front: ClickHouseFront, client: ClickHouse) -> None:
    """Every call fails with `RetryableError` while it is down; afterwards the same client goes on, rows kept."""
    client.insert([late_row(NOW, offset=1)])
    front.stop()
    for _ in range(2):
        with pytest.raises(RetryableError):
            client.insert([late_row(NOW, offset=2)])
        with pytest.raises(RetryableError):
            client.query("SELECT 1")
        assert not client.ping()
    front.start()
    client.insert([late_row(NOW, offset=2)])
    assert client.query("SELECT `offset` FROM late FINAL ORDER BY `offset`") == [{"offset": 1}, {"offset": 2}]
    assert client.ping()


def test_a_client_may_be_made_before_its_server_runs(tmp_path: Path) -> None:
    """Start order does not matter."""
    port = free_port()
    client = connect(HttpTarget(url=f"http://127.0.0.1:{port}", connect_timeout_s=1))
    with pytest.raises(RetryableError):
        client.query("SELECT 1 AS one")
    front = ClickHouseFront(tmp_path, port).start()
    try:
        migrate(client, "citegauge")
        assert client.query("SELECT 1 AS one") == [{"one": 1}]
    finally:
        client.close()
        front.stop()


def test_a_frozen_server_times_out_and_the_rows_may_be_sent_again(front: ClickHouseFront, client: ClickHouse) -> None:
    """A time-out means that the outcome is unknown: the rows may arrive after all, and are there once."""
    client.insert([trace_row(NOW)])
    front.pause()
    started = time.monotonic()
    with pytest.raises(RetryableError):
        client.insert([trace_row(NOW, version=2)])
    assert time.monotonic() - started < 25
    front.resume()
    client.insert([trace_row(NOW, version=2)])
    assert client.query("SELECT version FROM traces FINAL") == [{"version": 2}]


def test_kill_while_inserting_loses_nothing_that_was_acknowledged(front: ClickHouseFront, client: ClickHouse) -> None:
    """Acknowledged rows survive SIGKILL; the others are sent again; all are there once."""
    acknowledged: list[int] = []
    failed: list[int] = []

    def write() -> None:
        for batch in range(10_000):
            try:
                client.insert([late_row(NOW, partition=batch, offset=row) for row in range(50)])
                acknowledged.append(batch)
            except RetryableError:
                failed.append(batch)
                return

    writing = threading.Thread(target=write)
    writing.start()
    while len(acknowledged) < 20 and writing.is_alive():
        time.sleep(0.005)
    assert writing.is_alive(), "it was to write until the kill"
    front.kill()
    writing.join()
    assert failed
    front.start()
    stored = {row["p"] for row in client.query("SELECT DISTINCT `partition` AS p FROM late")}
    assert stored >= set(acknowledged)
    for batch in failed:
        client.insert([late_row(NOW, partition=batch, offset=row) for row in range(50)])
    (row,) = client.query("SELECT count() AS n FROM late FINAL")
    assert row["n"] == 50 * len({*acknowledged, *failed})


def test_something_that_is_no_clickhouse_is_told_apart() -> None:
    """A proxy's 502 passes, an address that answers 404 does not."""
    import http.server  # noqa: PLC0415  # only here

    class Proxy(http.server.BaseHTTPRequestHandler):
        status = 502

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(self.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            del args

    server = http.server.HTTPServer(("127.0.0.1", 0), Proxy)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        client = connect(HttpTarget(url=f"http://127.0.0.1:{server.server_port}"))
        for status, error in ((502, RetryableError), (429, RetryableError), (503, RetryableError), (404, FatalError)):
            Proxy.status = status
            with pytest.raises(error):
                client.query("SELECT 1")
        client.close()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.parametrize("url", ["", "localhost:8123", "tcp://h:9000", "http://", "https://user:secret@h:8443"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    """The mistake shows at start, and a password in an address is not repeated."""
    with pytest.raises(ConfigError) as refusal:
        HttpTarget(url=url)
    assert "secret" not in str(refusal.value)


def test_a_second_directory_in_one_process_is_refused_in_one_line(tmp_path: Path) -> None:
    """The engine can hold one directory; the message names both."""
    first = connect(EmbeddedTarget(path=tmp_path / "one"))
    try:
        with pytest.raises(FatalError, match="two") as refusal:
            connect(EmbeddedTarget(path=tmp_path / "two"))
        assert "\n" not in str(refusal.value)
    finally:
        first.close()


def test_embedded_data_is_there_for_the_next_process(tmp_path: Path) -> None:
    """A directory is a database that stays."""
    script = (
        "import sys; from pathlib import Path\n"
        "from citegauge.adapters.clickhouse import EmbeddedTarget, connect\n"
        "from citegauge.adapters.migrations import migrate\n"
        "c = connect(EmbeddedTarget(path=Path(sys.argv[1]))); print(len(migrate(c, 'citegauge'))); c.close()\n"
    )
    counts = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "db")],
            check=True,
            capture_output=True,
            text=True,
            env=child_environment(),
        ).stdout.strip()
        for _ in range(2)
    ]
    assert counts[0] != "0"
    assert counts[1] == "0"


def test_the_host_s_time_zone_changes_nothing() -> None:
    """A worker in New York stores, reads and compares the same instants as one in UTC."""
    script = (
        "from citegauge.adapters.clickhouse import EmbeddedTarget, connect\n"
        "c = connect(EmbeddedTarget(), 'default')\n"
        "sql = \"SELECT toDateTime(1764460800, 'UTC') AS a, [toDateTime('2025-11-30 00:00:00')] AS b\"\n"
        "(row,) = c.query(sql); print(row['a'].isoformat(), row['b'][0].isoformat()); c.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={**child_environment(), "TZ": "America/New_York"},
    )
    assert done.stdout.split() == ["2025-11-30T00:00:00+00:00"] * 2


def test_every_code_of_the_engine_has_been_judged_under_its_name() -> None:
    """The table is read by people; a number that means something else would hide a fault for ever, or end every worker."""
    client = connect(EmbeddedTarget(), "default")
    try:
        sql = "SELECT number AS code, errorCodeToName(number) AS name FROM numbers(1, 3000) WHERE name != ''"
        known = {row["code"]: row["name"] for row in client.query(sql)}
    finally:
        client.close()
    assert len(OURS) + len(ACCESS) + len(SERVER) == len(known), "no code stands in two tables"
    assert known == {**OURS, **ACCESS, **SERVER}


class _Refusing(BaseHTTPRequestHandler):
    """Answers every statement with one code of ClickHouse, once it was told to; before that like a server at its start."""

    def do_POST(self) -> None:
        """Answer, or refuse."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        code = self.server.code  # type: ignore[attr-defined]
        body = b"1\n" if code is None else f"Code: {code}. DB::Exception: it is so. (NAME)".encode()
        self.send_response(200 if code is None else 500)
        if code is not None:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        self.send_header("X-ClickHouse-Format", "TabSeparated")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 - the base class calls it so

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClickHouse, Any]]:
    """A client that a server has answered before, through a gate that can be told to refuse with any code."""
    front = ClickHouseFront(tmp_path_factory.mktemp("refusing")).start()

    class Gate(_Refusing):
        def do_POST(self) -> None:
            if self.server.code is not None:  # type: ignore[attr-defined]
                super().do_POST()
                return
            length = int(self.headers.get("Content-Length", 0))
            kept = {
                name: value for name, value in self.headers.items() if name.lower() not in {"host", "content-length"}
            }
            status, body, headers = fetch(front.url + self.path, self.rfile.read(length) or None, kept)
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() in {"content-type", "content-length"} or name.lower().startswith("x-clickhouse"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - the base class calls it so

    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        server.code = None  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = connect(HttpTarget(url=f"http://127.0.0.1:{server.server_port}"))
        migrate(client, "citegauge")
        yield client, server
        client.close()
        server.shutdown()
    front.stop()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (75, RetryableError),  # a full disk, as a server says it
        (76, RetryableError),
        (243, RetryableError),
        (246, RetryableError),
        (49, RetryableError),
        (1001, RetryableError),
        (2999, RetryableError),  # nobody knows it yet
        (516, RetryableError),  # the password was changed, and will be again
        (497, RetryableError),
        (62, FatalError),
        (60, FatalError),
        (117, FatalError),
        (349, FatalError),
    ],
)
def test_the_server_s_trouble_is_waited_for_and_ours_is_not(
    refusing: tuple[ClickHouse, Any], code: int, error: type[Exception]
) -> None:
    """Rows that are sent again when the disk has room are stored; rows that do not fit never will be."""
    client, server = refusing
    server.code = code
    try:
        with pytest.raises(error, match=f"{code}") as caught:
            client.insert([late_row(NOW, offset=code)])
        assert "\n" not in str(caught.value)
    finally:
        server.code = None
    client.insert([late_row(NOW, offset=code)])


@pytest.mark.parametrize(("code", "error"), [(516, FatalError), (497, FatalError), (75, RetryableError)])
def test_a_refusal_at_the_start_names_the_setting(code: int, error: type[Exception]) -> None:
    """Before the server has ever answered, a refused user is a wrong setting; a full disk still passes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        server.code = code  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = connect(HttpTarget(url=f"http://127.0.0.1:{server.server_port}"))
        with pytest.raises(error, match="clickhouse.user" if error is FatalError else "75"):
            client.query("SELECT 1")
        client.close()
        server.shutdown()


def test_storage_trouble_of_the_engine_itself_is_waited_for(tmp_path: Path) -> None:
    """The engine cannot open one more file: its write fails, and the same one passes when it can."""
    script = (
        "import os, resource, sys; from pathlib import Path\n"
        "from citegauge.adapters.clickhouse import EmbeddedTarget, connect\n"
        "from citegauge.errors import RetryableError\n"
        "c = connect(EmbeddedTarget(path=Path(sys.argv[1])), 'default')\n"
        "c.command('CREATE TABLE default.t (n UInt64) ENGINE = MergeTree ORDER BY n')\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')), hard))\n"
        "try:\n"
        "    c.command('INSERT INTO default.t SELECT number FROM numbers(1000)')\n"
        "except RetryableError as error:\n"
        "    print('waits:', error)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "c.command('INSERT INTO default.t SELECT number FROM numbers(1000)')\n"
        "print('stored', c.query('SELECT count() AS n FROM default.t')[0]['n'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "db")],
        check=True, capture_output=True, text=True, env=child_environment(),
    )  # fmt: skip
    waits, stored = done.stdout.strip().splitlines()
    assert waits.startswith("waits: ClickHouse: statement failed:"), done.stdout
    assert "Too many open files" in waits
    assert stored == "stored 1000"
