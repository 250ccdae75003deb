"""What `explain` reads from ClickHouse: panes as cells, and traces to look at. With FINAL; values are always bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group
from citegauge.domain.versions import Cell
from citegauge.ports import SqlReader
from citegauge.tools.explain.asked import Asked

CELLS = """
SELECT route, top_k_bucket, model, retriever_version, scorer,
       pane >= toDateTime({{after_start:UInt32}}, 'UTC') AS is_after,
       intDiv(toUnixTimestamp(pane), {{cell_s:UInt32}}) * {{cell_s:UInt32}} AS at_s,
       toUnixTimestamp(min(pane)) AS first_s, toUnixTimestamp(max(pane)) AS last_s,
       sumMap(states) AS all_states, sum(citations) AS all_citations, sum(hallucinated) AS all_hallucinated,
       sumMap(recall_counts) AS recall, sumMap(score_counts) AS score
FROM {database}.panes FINAL
WHERE pane >= toDateTime({{before_start:UInt32}}, 'UTC') AND pane < toDateTime({{after_end:UInt32}}, 'UTC')
  AND (pane < toDateTime({{before_end:UInt32}}, 'UTC') OR pane >= toDateTime({{after_start:UInt32}}, 'UTC'))
  AND route LIKE {{route_like:String}} AND notEmpty(states)
GROUP BY route, top_k_bucket, model, retriever_version, scorer, is_after, at_s
"""
WORST = """
SELECT trace_id, event_time_ns, recall, retrieved, cited_retrieved
FROM {database}.traces FINAL
WHERE pane >= toDateTime({{after_start:UInt32}}, 'UTC') AND pane < toDateTime({{after_end:UInt32}}, 'UTC')
  AND route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}} AND model = {{model:String}}
  AND retriever_version = {{retriever_version:String}} AND scorer = {{scorer:String}} AND recall IS NOT NULL
ORDER BY recall, retrieved DESC, event_time_ns DESC, trace_id
LIMIT {{traces_max:UInt32}}
"""
WORST_MAX = 5


class PeriodCell(NamedTuple):
    """A cell, or the part of it that lies in one of the two periods."""

    is_after: bool
    cell: Cell


def read_cells(reader: SqlReader, database: str, asked: Asked) -> Iterator[PeriodCell]:
    """The panes of both periods; `database` is a plain identifier (a setting that is checked)."""
    for row in reader.query(CELLS.format(database=database), {"cell_s": asked.cell_s, **_bound(asked)}):
        tally = Tally()
        tally.set_state_counts(row["all_states"])
        tally.citations, tally.hallucinated = int(row["all_citations"]), int(row["all_hallucinated"])
        tally.recall_counts = {int(key): int(n) for key, n in row["recall"].items()}
        tally.score_counts = {int(key): int(n) for key, n in row["score"].items()}
        group = Group(*(str(row[name]) for name in Group._fields))
        yield PeriodCell(
            bool(row["is_after"]), Cell(group, int(row["at_s"]), int(row["first_s"]), int(row["last_s"]), tally)
        )


def read_worst(reader: SqlReader, database: str, asked: Asked, group: Group) -> list[dict[str, Any]]:
    """The measured traces of the group that cite least, of the later period."""
    bound = {name: value for name, value in _bound(asked).items() if name.startswith("after_")}
    return reader.query(WORST.format(database=database), {**bound, **group._asdict(), "traces_max": WORST_MAX})


def _bound(asked: Asked) -> dict[str, Any]:
    return {
        "route_like": asked.route_like,
        "before_start": asked.before.start_s,
        "before_end": asked.before.end_s,
        "after_start": asked.after.start_s,
        "after_end": asked.after.end_s,
    }
