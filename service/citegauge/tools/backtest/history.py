"""The windows of any past minute, from the panes that ClickHouse holds: the same store and the same view as in the worker.

At each minute the windows end there and hold every trace of the minutes before it, as if each had been seen at once; live,
the newest minutes still fill up (a trace counts at its event time, and may come up to the join window later).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from citegauge.adapters.rolling import View, view_of
from citegauge.adapters.rolling.detectors import Detectors
from citegauge.adapters.rolling.tier import WEEK_EVERY_S
from citegauge.adapters.rolling.week import usual_week
from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS
from citegauge.domain.recall import Group
from citegauge.domain.window import MERGED, WINDOWS, WindowStore, bounds
from citegauge.pipeline import tally_of
from citegauge.ports import PaneRow, SqlReader

SOURCE = "all"
"""Of the panes in the store: those of all source partitions together."""
CHUNK_S = 3_600
"""Panes of so much time are in memory at once."""
_PANES = """
SELECT toUnixTimestamp(pane) AS pane_s, * EXCEPT pane FROM `{database}`.panes FINAL
WHERE pane >= toDateTime({{from_s:UInt32}}, 'UTC') AND pane < toDateTime({{to_s:UInt32}}, 'UTC') ORDER BY pane
"""
_EXTENT = """
SELECT toUnixTimestamp(min(pane)) AS first_s, count() AS panes, uniq(route, top_k_bucket) AS pairs
FROM `{database}`.panes FINAL
WHERE pane >= toDateTime({{from_s:UInt32}}, 'UTC') AND pane < toDateTime({{to_s:UInt32}}, 'UTC')
"""
_NAMES = frozenset(PaneRow.__struct_fields__) - {"pane"}


class Extent(NamedTuple):
    """What is stored of a stretch of time."""

    first_s: int
    """Start of its first pane, unix seconds; 0 without any."""
    panes: int
    pairs: int
    """(route, top_k bucket)."""


class History:
    """Panes of one database, read forward."""

    def __init__(self, reader: SqlReader, database: str, distance_routes: frozenset[str] = frozenset()) -> None:
        """`database` is a plain identifier (a setting that is checked); `distance_routes`: whose scores are distances."""
        self._distance_routes = distance_routes
        self._reader, self._database = reader, database
        self._panes_sql, self._extent_sql = (sql.format(database=database) for sql in (_PANES, _EXTENT))

    def extent(self, from_s: int, to_s: int) -> Extent:
        """What is stored of [from, to)."""
        row = self._reader.query(self._extent_sql, {"from_s": from_s, "to_s": to_s})[0]
        return Extent(int(row["first_s"]), int(row["panes"]), int(row["pairs"]))

    async def views(self, times: range, windows: Collection[str], *, signals: bool) -> AsyncIterator[View]:
        """What the worker would have shown at each of these times; only these windows, and the detectors if asked for."""
        detectors, week_hour = Detectors(self._distance_routes), -1
        shown = [window for window in WINDOWS if window.name in windows]
        for store in self.stores(times, full=signals):
            groups = list(store.group_windows(WINDOWS if signals else shown))
            told = [item for item in groups if item.window in shown]
            view = await view_of(told, store.end_s * SECOND_NS - 1, caught_up=True, roll_ups_only=True)
            if signals:
                if store.end_s // WEEK_EVERY_S != week_hour:
                    week_hour = store.end_s // WEEK_EVERY_S
                    detectors.week = usual_week(self._reader, self._database, 0, 1, store.end_s)
                view = replace(view, signals=await detectors.signals(store, groups))
            yield view

    def stores(self, times: range, *, full: bool) -> Iterator[WindowStore]:
        """The store at each of these times (unix seconds, whole minutes); one object that moves on.

        `full`: with groups by model and retriever version, which only the detectors want.
        """
        store, last_s = WindowStore(), times[-1]
        panes = self._minutes(oldest_s(times[0]), last_s)
        pane_s, rows = next(panes, (last_s, []))
        for end_s in times:
            store.advance(end_s)
            while pane_s < end_s:
                _fold(store, pane_s, rows, full=full)
                pane_s, rows = next(panes, (last_s, []))
            yield store

    def _minutes(self, from_s: int, to_s: int) -> Iterator[tuple[int, list[PaneRow]]]:
        """The panes of each minute that has any, by time."""
        for chunk_s in range(from_s, to_s, CHUNK_S):
            bound = {"from_s": chunk_s, "to_s": min(to_s, chunk_s + CHUNK_S)}
            minutes: dict[int, list[PaneRow]] = {}
            for row in self._reader.query(self._panes_sql, bound):
                minutes.setdefault(int(row["pane_s"]), []).append(_pane(row))
            yield from minutes.items()


def oldest_s(first_s: int) -> int:
    """Start of the oldest pane that a replay from `first_s` on needs."""
    return min(bounds(window, first_s)[0] for window in WINDOWS)


def _fold(store: WindowStore, pane_s: int, rows: Sequence[PaneRow], *, full: bool) -> None:
    """Take one minute. Sums know no order: what no view tells apart is added up first, which makes views cheap."""
    tallies: dict[Group, Tally] = {}
    for row in rows:
        model, version = (row.model, row.retriever_version) if full else (MERGED, MERGED)
        group = Group(row.route, row.top_k_bucket, model, version, row.scorer)
        known = tallies.get(group)
        if known is None:
            tallies[group] = tally_of(row)
        else:
            known.merge(tally_of(row))
    for group, tally in tallies.items():
        store.upsert(SOURCE, pane_s, group, 1, tally)
    store.close(SOURCE, pane_s)


def _pane(row: Mapping[str, Any]) -> PaneRow:
    return PaneRow(pane=int(row["pane_s"]), **{name: value for name, value in row.items() if name in _NAMES})
