"""`citegauge forget`: what is stored of a trace goes, everything else stays, on chDB in this process and over HTTP."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from citegauge.errors import ConfigError
from citegauge.tools.forget import GROWS_S, TRACE_IDS_MAX, Forgotten, ForgottenUser, forget, forget_user, hash_of
from support.clickhouse import ClickHouseFront, child_environment, embedded, over_http, recent_minute
from support.clickhouse_rows import TRACE_ID, late_row, pane_row, tombstone, trace_row, user_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from citegauge.adapters.clickhouse import ClickHouse

NOW = recent_minute()
OTHER = "ab" * 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseFront]:
    """The server substitute in a child process."""
    front = ClickHouseFront(tmp_path_factory.mktemp("clickhouse")).start()
    yield front
    front.stop()


@pytest.fixture(params=["embedded", "http"])
def database(request: pytest.FixtureRequest) -> Iterator[ClickHouse]:
    """Two traces; one of them has moved, was late once, and lies in a closed and in an open minute."""
    made = (
        embedded(database="forget") if request.param == "embedded" else over_http(request.getfixturevalue("server").url)
    )
    with made as client:
        moved = trace_row(NOW - 180, version=3)
        client.insert([moved, trace_row(NOW - 600, version=5), trace_row(NOW - 120, version=9)])
        client.insert([tombstone(moved, 8)])
        client.insert([trace_row(NOW - 600, trace_id=OTHER, version=5)])
        client.insert([pane_row(NOW - 600, final=True, version=99), pane_row(NOW - 120, final=False, version=98)])
        client.insert([late_row(NOW - 900, trace_id=TRACE_ID), late_row(NOW - 900, offset=77, trace_id=OTHER)])
        yield client


def every(database: ClickHouse, table: str) -> list[str]:
    """Trace ids of a table with every version that has not been merged away."""
    return [row["trace_id"] for row in database.query(f"SELECT trace_id FROM {table} ORDER BY trace_id")]


def test_every_row_of_a_trace_goes_and_nothing_else(database: ClickHouse) -> None:
    """Rows, their old versions and deletion marks, and late spans; other traces and all counts stay."""
    panes = database.query("SELECT * FROM panes FINAL ORDER BY pane")
    found = forget(database, database.database, [TRACE_ID], NOW)
    assert found == [Forgotten(TRACE_ID, traces=2, late=1, still_open=1)]
    assert every(database, "traces") == [OTHER]
    assert every(database, "late") == [OTHER]
    assert database.query("SELECT * FROM panes FINAL ORDER BY pane") == panes
    assert forget(database, database.database, [TRACE_ID], NOW) == [Forgotten(TRACE_ID, traces=0, late=0, still_open=0)]


def test_any_form_of_an_id_finds_the_trace(database: ClickHouse) -> None:
    """Users copy ids from where they see them: a UUID in capitals is the same trace, and twice the same id is one."""
    form = f" {uuid.UUID(TRACE_ID)} ".upper()
    assert [one.traces for one in forget(database, database.database, [form, TRACE_ID, OTHER], NOW)] == [2, 1]
    assert every(database, "traces") == []


def test_an_id_is_only_ever_a_value(database: ClickHouse) -> None:
    """Free text is an id to some systems: it is bound, never part of a statement, and matches nothing here."""
    for hostile in ("x') OR 1 = 1 --", "'", "{ids:Array(String)}", "\\", "%"):
        assert [one.traces for one in forget(database, database.database, [hostile], NOW)] == [0]
    assert len(every(database, "traces")) == 5


@pytest.mark.parametrize("wrong", [[""], ["  "], [TRACE_ID] * (TRACE_IDS_MAX + 1)])
def test_what_is_no_id_is_refused(database: ClickHouse, wrong: list[str]) -> None:
    """Nothing is deleted when one of the ids cannot be meant."""
    with pytest.raises(ConfigError):
        forget(database, database.database, wrong, NOW)
    assert len(every(database, "traces")) == 5


def command(client: ClickHouse, url: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`citegauge forget` as a user runs it; `more`: settings beside those of the database."""
    settings = {"CITEGAUGE_CLICKHOUSE__URL": url, "CITEGAUGE_CLICKHOUSE__DATABASE": client.database}
    return subprocess.run(
        [sys.executable, "-m", "citegauge", "forget", *arguments],
        env=child_environment() | settings | more, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_says_how_many_rows_went(server: ClickHouseFront) -> None:
    """One line for each trace, and one more where the row may come back because its minute is open."""
    with over_http(server.url) as client:
        client.insert([trace_row(NOW - 60, version=9)])
        done = command(client, server.url, "--trace-id", TRACE_ID, "--trace-id", OTHER)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"{TRACE_ID}: 1 trace rows and 0 late rows deleted",
            f"{OTHER}: 0 trace rows and 0 late rows deleted",
        ]
        assert done.stderr == f"{TRACE_ID}: its minute is still open, so repeat this in a few minutes\n"
        assert every(client, "traces") == []


KEY = "0123456789abcdef" * 2
ALICE, BOB = hash_of("alice@example.org", KEY), hash_of("bob", KEY)


def test_a_users_traces_go_and_nothing_else(database: ClickHouse) -> None:
    """Found by the hash; what links them goes with them, but of a trace that may still grow, so that a repeat finds it."""
    old, new = NOW - GROWS_S - 60, NOW - 60
    database.insert([user_row(ALICE, TRACE_ID, old), user_row(ALICE, TRACE_ID, old - 60), user_row(BOB, OTHER, old)])
    growing = "cd" * 16
    database.insert([user_row(ALICE, growing, new)])
    assert forget_user(database, database.database, ALICE, NOW) == ForgottenUser(ALICE, traces=2, rows=3, growing=1)
    assert every(database, "traces") == [OTHER]
    assert every(database, "late") == [OTHER]
    assert every(database, "trace_users") == [OTHER, growing]
    database.insert([trace_row(NOW, trace_id=growing, version=9)])
    later = NOW + GROWS_S
    assert forget_user(database, database.database, ALICE.upper(), later) == ForgottenUser(ALICE, 1, 1, 0)
    assert forget_user(database, database.database, ALICE, later) == ForgottenUser(ALICE, 0, 0, 0)
    assert every(database, "traces") == [OTHER]
    assert every(database, "trace_users") == [OTHER]


def test_a_forgotten_trace_is_nobodys(database: ClickHouse) -> None:
    """Also by its own id what links it goes."""
    database.insert([user_row(BOB, OTHER, NOW - GROWS_S - 1), user_row(ALICE, TRACE_ID, NOW - GROWS_S - 1)])
    forget(database, database.database, [OTHER], NOW)
    assert every(database, "trace_users") == [TRACE_ID]


def test_many_traces_of_a_user_go_in_parts(database: ClickHouse) -> None:
    """More than one statement may name."""
    ids = [f"{number:032x}" for number in range(1, TRACE_IDS_MAX + 3)]
    database.insert([user_row(BOB, one, NOW - 2 * GROWS_S) for one in ids])
    database.insert([trace_row(NOW - 600, trace_id=one) for one in ids])
    assert forget_user(database, database.database, BOB, NOW) == ForgottenUser(BOB, len(ids), len(ids), 0)
    assert set(every(database, "traces")) == {TRACE_ID, OTHER}


@pytest.mark.parametrize("wrong", ["", "alice", ALICE[:-1], ALICE + "0", "x" * 32, "' OR 1 = 1 --"])
def test_what_is_no_hash_is_refused(database: ClickHouse, wrong: str) -> None:
    """Somebody may give the user itself."""
    with pytest.raises(ConfigError):
        forget_user(database, database.database, wrong, NOW)


def test_the_command_forgets_users(server: ClickHouseFront) -> None:
    """By the id, hashed like the workers do it and not repeated, or by the hash; without a key one line says why."""
    with over_http(server.url) as client:
        client.insert([trace_row(NOW - 600), trace_row(NOW - 600, trace_id=OTHER)])
        client.insert([user_row(ALICE, TRACE_ID, NOW - 2 * GROWS_S), user_row(BOB, OTHER, NOW)])
        refused = command(client, server.url, "--user", "alice@example.org")
        assert refused.returncode == 2
        assert "privacy.user_hmac_key" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert command(client, server.url).returncode == 2
        key = {"CITEGAUGE_PRIVACY__USER_HMAC_KEY": KEY}
        done = command(client, server.url, "--user", "alice@example.org", "--user-hash", BOB, **key)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"user {BOB}: 1 rows of 1 traces deleted",
            f"user {ALICE}: 1 rows of 1 traces deleted",
        ]
        assert done.stderr == f"user {BOB}: 1 traces are not an hour old, so repeat this in an hour\n"
        assert every(client, "traces") == []
        assert every(client, "trace_users") == [OTHER]
