"""The server goes away, hangs, dies and comes back; the embedded engine is asked for what it cannot give."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import RETRYABLE_CODES, ClickHouse, EmbeddedTarget, HttpTarget, connect
from citegauge.adapters.migrations import migrate
from citegauge.errors import ConfigError, FatalError, RetryableError
from support.clickhouse import ClickHouseFront, child_environment, free_port, recent_minute
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


def test_codes_that_are_worth_another_try_have_the_names_that_the_engine_gives_them() -> None:
    """The table is read by people; a number that means something else would hide a fault for ever."""
    client = connect(EmbeddedTarget(), "default")
    try:
        rows = client.query(
            "SELECT code, errorCodeToName(code) AS name FROM (SELECT arrayJoin({codes:Array(Int32)}) AS code)",
            {"codes": list(RETRYABLE_CODES)},
        )
    finally:
        client.close()
    assert {row["code"]: row["name"] for row in rows} == dict(RETRYABLE_CODES)
