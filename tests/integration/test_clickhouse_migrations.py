"""The migration runner on a real engine: once, twice, by two workers at a time, and what it refuses."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import ClickHouse, EmbeddedTarget, HttpTarget, connect
from citegauge.adapters.migrations import Migration, load, migrate, own_ids
from citegauge.errors import ConfigError, FatalError
from support.clickhouse import ClickHouseFront

if TYPE_CHECKING:
    from collections.abc import Iterator

SQL = Path(__file__).parents[2] / "sql"
DATABASE = "migrating"


@pytest.fixture
def clickhouse() -> Iterator[ClickHouse]:
    """An engine without the database."""
    client = connect(EmbeddedTarget(), DATABASE)
    client.command(f"DROP DATABASE IF EXISTS {DATABASE} SYNC")
    yield client
    client.command(f"DROP DATABASE IF EXISTS {DATABASE} SYNC")
    client.close()


def migration(name: str, statement: str) -> Migration:
    """A migration as `load` makes it."""
    return Migration(name=name, statement=statement, digest=hashlib.sha256(statement.encode()).hexdigest())


FIRST = migration(
    "0001_create_a.sql", "CREATE TABLE IF NOT EXISTS {database}.a (x UInt8) ENGINE = MergeTree ORDER BY x"
)
SECOND = migration(
    "0002_create_b.sql", "CREATE TABLE IF NOT EXISTS {database}.b (x UInt8) ENGINE = MergeTree ORDER BY x"
)
BROKEN = migration(
    "0002_create_b.sql", "CREATE TABLE IF NOT EXISTS {database}.b (x Nonsense) ENGINE = MergeTree ORDER BY x"
)


def tables(client: ClickHouse) -> set[str]:
    """What the database holds."""
    return {row["name"] for row in client.query("SHOW TABLES")}


def test_shipped_files_make_the_schema_and_say_so(clickhouse: ClickHouse) -> None:
    """A fresh database gets everything, each file is announced before it is applied, and a second run does nothing."""
    steps: list[tuple[str, int, int]] = []
    applied = migrate(clickhouse, DATABASE, on_step=lambda *step: steps.append(step))
    files = sorted(path.name for path in SQL.glob("*.sql"))
    assert applied == files
    assert steps == [(name, place, len(files)) for place, name in enumerate(files)]
    assert {"traces", "panes", "late", "windows", "window_quantiles", "rolling", "recount"} <= tables(clickhouse)
    assert migrate(clickhouse, DATABASE, on_step=lambda *_: pytest.fail("nothing was to do")) == []


def test_every_shipped_statement_can_be_repeated(clickhouse: ClickHouse) -> None:
    """Two workers that start together apply the same files; a worker that died before writing it down applies again."""
    migrate(clickhouse, DATABASE)
    clickhouse.command(f"TRUNCATE TABLE {DATABASE}.migrations")
    assert len(migrate(clickhouse, DATABASE)) == len(load())


def test_shipped_files_hold_one_statement_each() -> None:
    """A server executes one statement a request."""
    for shipped in load():
        code = [line.split("--")[0] for line in shipped.statement.splitlines()]
        assert ";" not in "".join(code), shipped.name
        assert "{database}" in shipped.statement, shipped.name


def test_two_workers_may_start_together(tmp_path: Path) -> None:
    """Over HTTP, at the same time, neither fails and the schema is there once."""
    front = ClickHouseFront(tmp_path).start()
    try:
        failures: list[BaseException] = []
        barrier = threading.Barrier(4)

        def start() -> None:
            client = connect(HttpTarget(url=front.url), DATABASE)
            try:
                barrier.wait()
                migrate(client, DATABASE)
            except BaseException as error:  # noqa: BLE001  # reported below
                failures.append(error)
            finally:
                client.close()

        workers = [threading.Thread(target=start) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failures
        client = connect(HttpTarget(url=front.url), DATABASE)
        assert migrate(client, DATABASE) == []
        client.close()
    finally:
        front.stop()


def test_an_installation_has_an_id_that_stays(clickhouse: ClickHouse) -> None:
    """Made once; a name that is given later is shown first, and the ids of before stay its own."""
    migrate(clickhouse, DATABASE)
    (made,) = own_ids(clickhouse, DATABASE, "")
    assert re.fullmatch(r"[0-9a-f]{16}", made)
    assert own_ids(clickhouse, DATABASE, "") == (made,)
    assert own_ids(clickhouse, DATABASE, "prod") == ("prod", made)
    assert own_ids(clickhouse, DATABASE, "") == (made, "prod"), "a worker that is not told the name yet knows it too"


def test_a_name_makes_no_id(clickhouse: ClickHouse) -> None:
    """An installation that has a name from the start is known by nothing else."""
    migrate(clickhouse, DATABASE)
    assert own_ids(clickhouse, DATABASE, "prod") == own_ids(clickhouse, DATABASE, "") == ("prod",)


def test_only_what_is_missing_is_applied(clickhouse: ClickHouse) -> None:
    """An upgrade adds its own files."""
    assert migrate(clickhouse, DATABASE, migrations=[FIRST]) == [FIRST.name]
    assert migrate(clickhouse, DATABASE, migrations=[FIRST, SECOND]) == [SECOND.name]
    assert tables(clickhouse) == {"a", "b", "migrations"}


def test_an_older_version_may_still_start(clickhouse: ClickHouse) -> None:
    """During a rolling upgrade a worker meets files that it does not know; they are not its business."""
    migrate(clickhouse, DATABASE, migrations=[FIRST, SECOND])
    assert migrate(clickhouse, DATABASE, migrations=[FIRST]) == []


def test_a_failed_file_stops_there_and_is_tried_again(clickhouse: ClickHouse) -> None:
    """What did not succeed is not written down."""
    with pytest.raises(FatalError):
        migrate(clickhouse, DATABASE, migrations=[FIRST, BROKEN])
    assert migrate(clickhouse, DATABASE, migrations=[FIRST, SECOND]) == [SECOND.name]


def test_an_applied_file_that_changed_is_refused(clickhouse: ClickHouse) -> None:
    """Shipped migrations are immutable: the database would no longer be what the files say."""
    migrate(clickhouse, DATABASE, migrations=[FIRST])
    changed = migration(FIRST.name, FIRST.statement + " -- a comment counts too")
    with pytest.raises(FatalError, match=r"0001_create_a\.sql was applied to migrating with other content"):
        migrate(clickhouse, DATABASE, migrations=[changed, SECOND])
    assert tables(clickhouse) == {"a", "migrations"}


def test_a_file_that_comes_too_late_is_refused(clickhouse: ClickHouse) -> None:
    """Forward only: nothing is slipped in before what was applied."""
    migrate(clickhouse, DATABASE, migrations=[SECOND])
    with pytest.raises(FatalError, match="older than 0002"):
        migrate(clickhouse, DATABASE, migrations=[FIRST, SECOND])


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a`b", "a.b", "ä", "x" * 64, "a b", "a;DROP DATABASE b"])
def test_a_database_name_that_is_no_identifier_is_refused(clickhouse: ClickHouse, name: str) -> None:
    """The name is put into statements, so it must be one word."""
    with pytest.raises(ConfigError, match="letters, digits and _"):
        migrate(clickhouse, name)


def test_a_database_that_exists_needs_no_right_to_create_one() -> None:
    """An administrator may have made it; then CREATE DATABASE is not even tried."""

    class Recorder:
        def __init__(self) -> None:
            self.statements: list[str] = []

        def command(self, sql: str, parameters: object = None) -> object:
            del parameters
            self.statements.append(sql)
            return 1

        def query(self, sql: str, parameters: object = None) -> list[dict[str, object]]:
            del sql, parameters
            return []

    recorder = Recorder()
    migrate(recorder, DATABASE, migrations=[FIRST])
    assert not any("CREATE DATABASE" in statement for statement in recorder.statements)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0001_create_a.sql", "0003_create_b.sql"], "0002 is missing"),
        (["0001_create_a.sql", "0001_create_b.sql"], "used twice"),
        (["0002_create_a.sql"], "0001 is missing"),
        (["0001_a.sql"], "NNNN_verb_noun"),
        (["1_create_a.sql"], "NNNN_verb_noun"),
        (["0001_Create_a.sql"], "NNNN_verb_noun"),
        ([], "incomplete"),
    ],
)
def test_a_folder_with_gaps_duplicates_or_other_names_is_refused(
    tmp_path: Path, names: list[str], message: str
) -> None:
    """The order of the files is their names, so the names must be in order."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(FatalError, match=message):
        load(tmp_path)
