"""FORGET: delete what is stored of single traces. Panes and windows hold counts only, name nobody, and stay.

It deletes rows of `traces` and `late`. It cannot reach the topics, which let go of a trace by their own retention; until
then, a worker that reads that stretch again (`--rebuild-from`) writes its rows again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from citegauge.conventions.base import FaultError
from citegauge.conventions.identity import foreign_trace_id
from citegauge.errors import ConfigError

TRACE_IDS_MAX = 1_000
"""Ids of one call: each table is rewritten once for all of them."""
# A mutation and not a lightweight delete, which would only hide the rows until some later merge.
_DELETE = "ALTER TABLE {database}.{table} DELETE WHERE trace_id IN {{ids:Array(String)}} SETTINGS mutations_sync = 2"
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


def forget(database: SqlEditor, name: str, trace_ids: Sequence[str]) -> list[Forgotten]:
    """Delete the rows of these traces from the database `name` (a plain identifier); returns once they are gone.

    Ids may have any form that a record may have. Raises `ConfigError` for what is no id, and what the database raises.
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
    return [Forgotten(one, traces.get(one, 0), late.get(one, 0), still_open.get(one, 0)) for one in ids]


def _stored_form(text: str) -> str:
    try:
        return foreign_trace_id(text.strip()).hex()
    except FaultError as exc:
        raise ConfigError(f"--trace-id {text!r} is no trace id") from exc
