"""The windows of one partition of the panes topic as ClickHouse knows them: read once, on assignment. Blocking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.domain.pane import COUNTERS, HISTOGRAMS, Tally
from citegauge.domain.recall import Group
from citegauge.domain.window import WINDOWS, WindowStore, bounds
from citegauge.ports import SqlReader, panes_partition

_GROUP = "route, top_k_bucket, model, retriever_version, scorer"
_MAPS = ("states", *HISTOGRAMS)
_SUMS = ", ".join([*(f"sumMap({name}) AS {name}" for name in _MAPS), *(f"sum({name}) AS {name}" for name in COUNTERS)])


def restored_store(reader: SqlReader, database: str, partition: int, partitions: int) -> WindowStore:
    """Closed panes folded in SQL by cell, later ones in detail. Blocking."""
    panes = f"{database}.panes"
    closed = {
        str(row["source"]): _seconds(row["through"])
        for row in reader.query(f"SELECT source, max(pane) AS through FROM {panes} FINAL WHERE final GROUP BY source")
    }
    end_s = max(closed.values(), default=-60) + 60
    store = WindowStore(end_s)
    closed_filter = "pane <= transform(source, {sources:Array(String)}, {through:Array(UInt32)}, toUInt32(0))"
    known = {"sources": list(closed), "through": list(closed.values())}
    for window in WINDOWS if closed else ():
        start_s, _ = bounds(window, end_s)
        rows = reader.query(
            f"SELECT toUnixTimestamp(toStartOfInterval(pane, toIntervalSecond({window.cell_s}))) AS cell, {_GROUP}, "
            f"{_SUMS} FROM {panes} FINAL WHERE pane >= {{start:DateTime}} AND {closed_filter} "
            f"GROUP BY cell, {_GROUP}",
            {"start": start_s, **known},
        )
        for row in rows:
            group = _group(row)
            if _owns(partition, partitions, group):
                store.restore_cell(window, int(row["cell"]), group, _tally(row))
    store.closed_through.update(closed)
    for row in reader.query(
        f"SELECT toUnixTimestamp(pane) AS pane_s, {_GROUP}, source, version, {', '.join((*_MAPS, *COUNTERS))} "
        f"FROM {panes} FINAL WHERE NOT ({closed_filter})",
        known,
    ):
        group = _group(row)
        if _owns(partition, partitions, group):
            store.upsert(str(row["source"]), int(row["pane_s"]), group, int(row["version"]), _tally(row))
    return store


def _owns(partition: int, partitions: int, group: Group) -> bool:
    return panes_partition(group.route, group.top_k_bucket, partitions) == partition


def _group(row: Mapping[str, Any]) -> Group:
    return Group(*(str(row[name]) for name in Group._fields))


def _tally(row: Mapping[str, Any]) -> Tally:
    tally = Tally()
    tally.set_state_counts(row["states"])
    for name in COUNTERS:
        setattr(tally, name, int(row[name]))
    for name in HISTOGRAMS:
        setattr(tally, name, {int(key): int(n) for key, n in row[name].items() if n})
    return tally


def _seconds(moment: Any) -> int:
    return int(moment.timestamp())
