"""FORGET: delete what is stored of single traces, or of a user's. Panes and windows hold counts only, name nobody, and stay.

It deletes rows of `traces`, `late` and `trace_users`. It cannot reach the topics, which let go of a trace by their own
retention; until then, a worker that reads that stretch again (`--rebuild-from`) writes its rows again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from citegauge.conventions.base import FaultError
from citegauge.conventions.identity import foreign_trace_id
from citegauge.conventions.routes import cleaned
from citegauge.conventions.users import HASH_BYTES, user_hash
from citegauge.errors import ConfigError

TRACE_IDS_MAX = 1_000
"""Ids of one call: each table is rewritten once for all of them."""
GROWS_S = 3_600
"""A trace of which spans were read so lately may get more of them."""
# A mutation and not a lightweight delete, which would only hide the rows until some later merge.
_DELETE = "ALTER TABLE {database}.{table} DELETE WHERE trace_id IN {{ids:Array(String)}} SETTINGS mutations_sync = 2"
_DELETE_LINKS = """
ALTER TABLE {database}.trace_users DELETE
WHERE trace_id IN {{ids:Array(String)}} AND toUnixTimestamp(seen) < {{before_s:Int64}} SETTINGS mutations_sync = 2
"""
_OF_USER = """
SELECT trace_id, toUnixTimestamp(max(seen)) AS seen_s FROM {database}.trace_users
WHERE user_hash = {{user_hash:String}} GROUP BY trace_id ORDER BY trace_id
"""
_COUNT = """
SELECT trace_id, count() AS n FROM {database}.{table} FINAL WHERE trace_id IN {{ids:Array(String)}} GROUP BY trace_id
"""
_OPEN = """
SELECT trace_id, count() AS n FROM {database}.traces FINAL
WHERE trace_id IN {{ids:Array(String)}} AND (pane, source) NOT IN (
    SELECT pane, source FROM {database}.panes FINAL WHERE final AND pane IN (
        SELECT pane FROM {database}.traces FINAL WHERE trace_id IN {{ids:Array(String)}}))
GROUP BY trace_id
"""


class SqlEditor(Protocol):
    """A database that can be read and changed; values are always bound."""

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT."""

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run one statement."""


class Forgotten(NamedTuple):
    """What was deleted of one trace."""

    trace_id: str
    """As it was stored: 32 hex digits."""
    traces: int
    late: int
    still_open: int
    """How many of the trace rows lie in minutes that are not closed: the worker may write them again."""

    @property
    def said(self) -> str:
        """In one line."""
        return f"{self.trace_id}: {self.traces} trace rows and {self.late} late rows deleted"

    @property
    def again(self) -> str:
        """Why it must be repeated; empty where it need not."""
        return f"{self.trace_id}: its minute is still open, so repeat this in a few minutes" if self.still_open else ""


class ForgottenUser(NamedTuple):
    """What was deleted of one user."""

    user_hash: str
    traces: int
    """How many traces have spans of this user."""
    rows: int
    """Rows of `traces` and `late`."""
    growing: int
    """How many of the traces may get more spans and rows: these remain linked to the user, so that a repeat finds them."""

    @property
    def said(self) -> str:
        """In one line."""
        return f"user {self.user_hash}: {self.rows} rows of {self.traces} traces deleted"

    @property
    def again(self) -> str:
        """As of `Forgotten`."""
        young = f"user {self.user_hash}: {self.growing} traces are not an hour old, so repeat this in an hour"
        return young if self.growing else ""


def hash_of(user: str, key: str) -> str:
    """The hash that is stored of a user id, as 32 hex digits. Raises `ConfigError` without a key or a user."""
    if not key:
        raise ConfigError(
            "without privacy.user_hmac_key no user is known: give trace ids, or the key that the workers have"
        )
    name = cleaned(user)
    if not name:
        raise ConfigError("--user is empty")
    return user_hash(name, key.encode()).hex()


def forget_user(database: SqlEditor, name: str, stored_hash: str, now_s: int) -> ForgottenUser:
    """Delete the rows of all traces with spans of this user. Raises as `forget` does."""
    wanted = stored_hash.strip().lower()
    if not re.fullmatch(rf"[0-9a-f]{{{2 * HASH_BYTES}}}", wanted):
        raise ConfigError(
            f"--user-hash {stored_hash!r} is not {2 * HASH_BYTES} hex digits, as in trace_users.user_hash"
        )
    found = database.query(_OF_USER.format(database=name), {"user_hash": wanted})
    ids = [str(row["trace_id"]) for row in found]
    parts = (ids[at : at + TRACE_IDS_MAX] for at in range(0, len(ids), TRACE_IDS_MAX))
    gone = [one for part in parts for one in forget(database, name, part, now_s)]
    growing = sum(int(row["seen_s"]) >= now_s - GROWS_S for row in found)
    return ForgottenUser(wanted, len(ids), sum(one.traces + one.late for one in gone), growing)


def forget(database: SqlEditor, name: str, trace_ids: Sequence[str], now_s: int) -> list[Forgotten]:
    """Delete the rows of these traces from the database `name` (a plain identifier); returns once they are gone.

    Ids may have any form that a record may have. What links a trace to its users goes, too, once the trace has not grown for
    `GROWS_S`. Raises `ConfigError` for what is no id, and what the database raises.
    """
    if len(trace_ids) > TRACE_IDS_MAX:
        raise ConfigError(f"at most {TRACE_IDS_MAX} trace ids at a time, not {len(trace_ids)}")
    ids = list(dict.fromkeys(_stored_form(one) for one in trace_ids))
    bound = {"ids": ids}

    def count(sql: str, table: str = "") -> dict[str, int]:
        rows = database.query(sql.format(database=name, table=table), bound)
        return {str(row["trace_id"]): int(row["n"]) for row in rows}

    traces, late, still_open = count(_COUNT, "traces"), count(_COUNT, "late"), count(_OPEN)
    # Also where FINAL shows nothing: a moved trace's old rows may lie under its tombstone.
    for table in ("traces", "late"):
        database.command(_DELETE.format(database=name, table=table), bound)
    database.command(_DELETE_LINKS.format(database=name), {**bound, "before_s": now_s - GROWS_S})
    return [Forgotten(one, traces.get(one, 0), late.get(one, 0), still_open.get(one, 0)) for one in ids]


def _stored_form(text: str) -> str:
    try:
        return foreign_trace_id(text.strip()).hex()
    except FaultError as exc:
        raise ConfigError(f"--trace-id {text!r} is no trace id") from exc
