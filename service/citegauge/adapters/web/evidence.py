"""What stands behind a group's numbers in ClickHouse: scores over time, ranks, new versions, single traces. Blocking.

Every question has a bound in time and one in rows; values are always bound. Only the database's name is formatted in.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from citegauge.adapters.web.heat import heat
from citegauge.adapters.web.history import check_database
from citegauge.domain.intervals import wilson
from citegauge.domain.window import WINDOWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from citegauge.adapters.web.params import DistributionParams, TraceParams, TracesParams
    from citegauge.adapters.web.sources import Rows, WebSources

HEAT_SQL = """
SELECT scorer, intDiv(toUnixTimestamp(pane), {{step_s:UInt32}}) * {{step_s:UInt32}} AS t, sumMap(score_counts) AS score
FROM {database}.panes FINAL
WHERE pane >= toDateTime({{start_s:UInt32}}, 'UTC') AND pane < toDateTime({{end_s:UInt32}}, 'UTC')
  AND route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}} AND notEmpty(score_counts)
GROUP BY scorer, t
ORDER BY scorer, t
LIMIT {{rows_max:UInt32}}
"""

RANKS_SQL = """
SELECT sumMap(map(retrieved, toUInt64(1))) AS retrieved,
       sumMap(CAST(arrayMap(rank -> (rank, 1), cited_ranks), 'Map(UInt32, UInt64)')) AS cited
FROM {database}.traces FINAL
WHERE pane >= toDateTime({{start_s:UInt32}}, 'UTC') AND pane < toDateTime({{end_s:UInt32}}, 'UTC')
  AND route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}} AND recall IS NOT NULL
"""

VERSIONS_SQL = """
SELECT seen.1 AS kind, seen.2 AS name, toUnixTimestamp(min(pane)) AS first_s
FROM
(
    SELECT pane, arrayJoin([('group', ''), ('model', model), ('retriever', retriever_version), ('scorer', scorer)]) AS seen
    FROM {database}.panes FINAL
    WHERE pane >= toDateTime({{before_s:UInt32}}, 'UTC') AND pane < toDateTime({{end_s:UInt32}}, 'UTC')
      AND route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}} AND notEmpty(states)
)
WHERE name != 'unknown'
GROUP BY kind, name
HAVING kind = 'group' OR first_s >= {{start_s:UInt32}}
ORDER BY kind != 'group', first_s DESC
LIMIT {{rows_max:UInt32}}
"""

TRACE_COLUMNS = """trace_id, event_time_ns, toUnixTimestamp(pane) AS pane_s, route, top_k_bucket, model, retriever_version,
       scorer, state, top_k, recall, rank_weighted_recall, retrieved, cited_retrieved, top1_score, nonconformant,
       unresolved, ids_dropped, synthetic_ids, lag_ns, source,
       arraySlice(chunk_ids, 1, {{chunks_max:UInt32}}) AS chunk_ids,
       arraySlice(chunk_scores, 1, {{chunks_max:UInt32}}) AS chunk_scores,
       arraySlice(cited_ranks, 1, {{chunks_max:UInt32}}) AS cited_ranks,
       arraySlice(hallucinated_ids, 1, {{chunks_max:UInt32}}) AS hallucinated_ids,
       arraySlice(dropped_cited_ids, 1, {{chunks_max:UInt32}}) AS dropped_cited_ids,
       arraySlice(arrayFilter(id -> NOT has(traces.chunk_ids, id) AND NOT has(traces.hallucinated_ids, id), cited_ids),
                  1, {{chunks_max:UInt32}}) AS unjudged_cited_ids"""

TRACES_SQL = f"""
SELECT {TRACE_COLUMNS}
FROM {{database}}.traces FINAL
WHERE pane >= toDateTime({{{{start_s:UInt32}}}}, 'UTC') AND pane < toDateTime({{{{end_s:UInt32}}}}, 'UTC')
  AND route = {{{{route:String}}}} AND top_k_bucket = {{{{top_k_bucket:String}}}} AND state = {{{{state:String}}}}
ORDER BY recall, event_time_ns DESC
LIMIT {{{{rows_max:UInt32}}}}
"""

TRACE_SQL = f"""
SELECT {TRACE_COLUMNS}
FROM {{database}}.traces FINAL
WHERE trace_id = {{{{trace_id:String}}}}
  AND pane >= toDateTime({{{{start_s:UInt32}}}}, 'UTC') AND pane < toDateTime({{{{end_s:UInt32}}}}, 'UTC')
ORDER BY pane_s DESC
LIMIT {{{{rows_max:UInt32}}}}
"""

TRACES_MAX = 20
"""Traces that a list shows."""
CHUNKS_MAX = 100
"""Chunks that are shown of one trace."""
TRACE_ROWS_MAX = 8
"""Minutes in which one trace was counted that are shown: more than one where it went on after its minute had closed."""
TRACE_AROUND_S = 86_400
"""How far from the named time a trace is looked for: parts of the table are days."""
HEAT_ROWS_MAX = 1_600
"""Times x scorers of a heat map."""
RANKS_MAX = 50
"""Ranks of a rank curve."""
MARKS_MAX = 20
"""New models, retriever versions and scorers that are marked, the newest ones."""
LOOK_BACK_S = 86_400
"""How long a version must not have been seen to be called new."""
FIRST_HOUR_S = 3_600
"""After a group's own first trace everything in it is new, which is worth no mark."""
NS_PER_MS = 1_000_000
CELL_S: Mapping[str, int] = {window.name: window.cell_s for window in WINDOWS}


class Evidence:
    """Questions to ClickHouse about what a group's numbers are made of."""

    def __init__(self, sources: WebSources) -> None:
        """Raises `ConfigError` for a database whose name is not a plain identifier."""
        check_database(sources.database)
        self._query = sources.query
        self._sql = {
            text: text.format(database=sources.database)
            for text in (HEAT_SQL, RANKS_SQL, VERSIONS_SQL, TRACES_SQL, TRACE_SQL)
        }

    def heat(self, asked: DistributionParams, start_s: int, end_s: int) -> dict[str, Any]:
        """Per scorer the top-1 scores of [start_s, end_s) by time and score, in the window's own cells."""
        step_s = CELL_S[asked.window]
        rows = self._ask(HEAT_SQL, asked, start_s, end_s, step_s=step_s, rows_max=HEAT_ROWS_MAX)
        return {
            **_range(asked, start_s, end_s),
            "step_s": step_s,
            "cut": len(rows) == HEAT_ROWS_MAX,
            "scores": [
                {"scorer": scorer, **heat((int(row["t"]), row["score"]) for row in own)}
                for scorer, own in groupby(rows, key=lambda row: str(row["scorer"]))
            ],
        }

    def ranks(self, asked: DistributionParams, start_s: int, end_s: int) -> dict[str, Any]:
        """Of the measured traces that retrieved at least r chunks, how many cite rank r (1 first); 95 % by Wilson."""
        rows = self._ask(RANKS_SQL, asked, start_s, end_s)
        retrieved = {int(n): int(traces) for n, traces in (rows[0]["retrieved"] if rows else {}).items()}
        cited = {int(rank): int(traces) for rank, traces in (rows[0]["cited"] if rows else {}).items()}
        curve = []
        for rank in range(1, min(RANKS_MAX, max(retrieved, default=0)) + 1):
            n = sum(traces for depth, traces in retrieved.items() if depth >= rank)
            share = wilson(cited.get(rank, 0), n)
            assert share is not None, "the deepest trace is one that retrieved so many"
            curve.append(
                {"rank": rank, "cited": cited.get(rank, 0), "n": n, "lower": share.lower, "upper": share.upper}
            )
        return {**_range(asked, start_s, end_s), "cut": max(retrieved, default=0) > RANKS_MAX, "ranks": curve}

    def versions(self, asked: DistributionParams, start_s: int, end_s: int) -> dict[str, Any]:
        """Models, retriever versions and scorers first seen in [start_s, end_s), `first_s` being a minute, oldest first.

        New is what was not there for a day before, other than in the first hour of the group itself.
        """
        before_s = max(0, start_s - LOOK_BACK_S)
        rows = self._ask(VERSIONS_SQL, asked, start_s, end_s, before_s=before_s, rows_max=MARKS_MAX + 1)
        born_s = next((int(row["first_s"]) for row in rows if row["kind"] == "group"), 0)
        marks = [row for row in rows if row["kind"] != "group" and int(row["first_s"]) >= born_s + FIRST_HOUR_S]
        return {
            **_range(asked, start_s, end_s),
            "cut": len(rows) > MARKS_MAX,
            "versions": sorted(marks, key=lambda row: (row["first_s"], row["kind"], row["name"])),
        }

    def traces(self, asked: TracesParams, start_s: int, end_s: int) -> dict[str, Any]:
        """Traces of one state in [start_s, end_s): lowest recall first, newest first among equals."""
        sizes = {"rows_max": TRACES_MAX, "chunks_max": CHUNKS_MAX}
        rows = self._ask(TRACES_SQL, asked, start_s, end_s, state=asked.state, **sizes)
        return {**_range(asked, start_s, end_s), "state": asked.state, "traces": [_trace(row) for row in rows]}

    def trace(self, asked: TraceParams, now_s: int) -> dict[str, Any]:
        """One trace, once for each minute in which it was counted, newest first; empty where it is not stored."""
        start_s, end_s = 0, now_s + TRACE_AROUND_S
        if asked.at_s is not None:
            start_s, end_s = max(0, asked.at_s - TRACE_AROUND_S), asked.at_s + TRACE_AROUND_S
        rows = self._query(
            self._sql[TRACE_SQL],
            {
                "trace_id": asked.trace_id,
                "start_s": start_s,
                "end_s": end_s,
                "rows_max": TRACE_ROWS_MAX,
                "chunks_max": CHUNKS_MAX,
            },
        )
        return {"trace_id": asked.trace_id, "counted": [_trace(row) for row in rows]}

    def _ask(self, sql: str, asked: DistributionParams, start_s: int, end_s: int, **more: Any) -> Rows:
        group = {"route": asked.route, "top_k_bucket": asked.top_k_bucket}
        return self._query(self._sql[sql], {"start_s": start_s, "end_s": end_s, **group, **more})


def _range(asked: DistributionParams, start_s: int, end_s: int) -> dict[str, Any]:
    return {"window": asked.window, "start_s": start_s, "end_s": end_s}


def _trace(row: dict[str, Any]) -> dict[str, Any]:
    # JavaScript's numbers cannot hold nanoseconds since 1970.
    event_ns, lag_ns = row.pop("event_time_ns"), row.pop("lag_ns")
    return {**row, "event_ms": event_ns // NS_PER_MS, "lag_ms": lag_ns / NS_PER_MS}
