"""Applies `sql/NNNN_verb_noun.sql` to a ClickHouse, forward only. Not a schema language and not a way back.

One statement a file, `{database}` stands for the database. Every statement can be repeated (`IF NOT EXISTS`), and what
was applied is written down only after it succeeded: so two workers that start together do the same work twice,
harmlessly, and one that dies in between goes on where it was. A file that was applied and has changed since is refused.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from citegauge.errors import ConfigError, FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.resources.abc import Traversable

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9]+(?:_[a-z0-9]+)+\.sql")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class SqlRunner(Protocol):
    """What is needed of a client; `clickhouse.ClickHouse` has it."""

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run one statement; the value of its only cell, if it has one."""

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file of `sql/`."""

    name: str
    """File name; its first four digits are its place."""
    statement: str
    digest: str
    """SHA-256 of the file's bytes, hex."""


def load(folder: Traversable | None = None) -> list[Migration]:
    """All migrations in order, by default those that ship with the package.

    Raises `FatalError` when a name is malformed, a number is missing or twice there, or the folder cannot be found.
    """
    found = sorted((entry for entry in (folder or _shipped()).iterdir() if entry.name.endswith(".sql")), key=_name)
    migrations = []
    for place, entry in enumerate(found, start=1):
        match = _FILE_NAME.fullmatch(entry.name)
        if match is None:
            raise FatalError(f"migration {entry.name}: the name must be NNNN_verb_noun.sql")
        if int(match[1]) != place:
            raise FatalError(f"migration {entry.name}: number {place:04} is missing, or a number is used twice")
        content = entry.read_bytes()
        migrations.append(
            Migration(name=entry.name, statement=content.decode(), digest=hashlib.sha256(content).hexdigest())
        )
    if not migrations:
        raise FatalError("no migrations found: the installation is incomplete")
    return migrations


def migrate(
    client: SqlRunner,
    database: str,
    *,
    on_step: Callable[[str, int, int], None] = lambda name, done, todo: None,
    migrations: Sequence[Migration] | None = None,
) -> list[str]:
    """Bring `database` up to date and return the names of the files applied now; creates it when it is missing.

    `on_step(name, done, todo)` is called before each file with how many of the `todo` files are done.
    Raises `ConfigError` for a name that is no plain identifier, `FatalError` when the database and the files
    contradict each other, and what the client raises.
    """
    if _IDENTIFIER.fullmatch(database) is None:
        raise ConfigError(f"ClickHouse database {database!r}: use letters, digits and _, at most 63, no digit first")
    shipped = load() if migrations is None else migrations
    quoted = f"`{database}`"
    _prepare(client, quoted)
    pending = _pending(shipped, _applied(client, quoted), database)
    for done, migration in enumerate(pending):
        on_step(migration.name, done, len(pending))
        client.command(migration.statement.replace("{database}", quoted))
        client.command(
            f"INSERT INTO {quoted}.migrations (name, digest) SELECT {{name:String}}, {{digest:String}}",
            {"name": migration.name, "digest": migration.digest},
        )
    return [migration.name for migration in pending]


def own_ids(client: SqlRunner, database: str, name: str) -> tuple[str, ...]:
    """The ids of this installation, oldest first, but `name` before all where it is given.

    Writes `name` down where it is new, and makes an id where there is none. Raises what the client raises.
    """
    table = f"`{database}`.installation"

    def stored() -> list[str]:
        return [str(row["id"]) for row in client.query(f"SELECT id FROM {table} GROUP BY id ORDER BY min(since), id")]

    found = stored()
    if name not in found if name else not found:
        client.command(f"INSERT INTO {table} (id) SELECT {{id:String}}", {"id": name or secrets.token_hex(8)})
        found = stored()
    return (name, *(one for one in found if one != name)) if name else tuple(found)


def _prepare(client: SqlRunner, quoted: str) -> None:
    # Asked first: a user without the right to create databases can still be given one.
    if not client.command(f"EXISTS DATABASE {quoted}"):
        client.command(f"CREATE DATABASE IF NOT EXISTS {quoted}")
    client.command(
        f"CREATE TABLE IF NOT EXISTS {quoted}.migrations"
        " (name String, digest String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC'))"
        " ENGINE = ReplacingMergeTree ORDER BY (name, digest)"
    )


def _applied(client: SqlRunner, quoted: str) -> dict[str, set[str]]:
    applied: dict[str, set[str]] = {}
    for row in client.query(f"SELECT DISTINCT name, digest FROM {quoted}.migrations"):  # quoted
        applied.setdefault(row["name"], set()).add(row["digest"])
    return applied


def _pending(shipped: Sequence[Migration], applied: Mapping[str, set[str]], database: str) -> list[Migration]:
    pending = []
    for migration in shipped:
        digests = applied.get(migration.name)
        if digests is None:
            pending.append(migration)
        elif digests != {migration.digest}:
            raise FatalError(
                f"migration {migration.name} was applied to {database} with other content: shipped files never change;"
                " restore the file, or add a new one"
            )
    newest = max(applied, default="")
    for migration in pending:
        if migration.name < newest:
            raise FatalError(f"migration {migration.name} is older than {newest}, which {database} already has")
    return pending


def _shipped() -> Traversable:
    packaged = resources.files("citegauge") / "sql"
    if packaged.is_dir():
        return packaged
    # A checkout, also an editable install: sql/ stands beside service/.
    checkout = Path(__file__).resolve().parents[3] / "sql"
    if not checkout.is_dir():
        raise FatalError("the folder of SQL migrations is missing: the installation is incomplete")
    return checkout


def _name(entry: Traversable) -> str:
    return entry.name
