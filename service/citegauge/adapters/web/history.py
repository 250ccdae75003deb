"""What the page reads from ClickHouse of a group: rolling lines and whole distributions. Blocking; values are always bound.

What stands behind them, down to single traces, is `evidence`.

Only the database's name is formatted into the text, because it names a view; it is checked when the page is built.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from citegauge.domain import distribution
from citegauge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from citegauge.adapters.web.params import DistributionParams, SeriesParams
    from citegauge.adapters.web.sources import Rows, WebSources

SERIES_SQL = """
SELECT toUnixTimestamp(window_end) AS t, scorer, n, recall_p25, recall_p50, recall_mean,
       score_n, score_p25, score_p50, score_p75
FROM {database}.rolling(
    from = {{from_s:UInt32}}, to = {{to_s:UInt32}}, window_s = {{window_s:UInt32}}, step_s = {{step_s:UInt32}},
    route = {{route:String}})
WHERE route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}}
ORDER BY t
"""

DISTRIBUTION_SQL = """
SELECT scorer, sumMap(recall_counts) AS recall, sumMap(score_counts) AS score
FROM {database}.panes FINAL
WHERE pane >= toDateTime({{start_s:UInt32}}, 'UTC') AND pane < toDateTime({{end_s:UInt32}}, 'UTC')
  AND route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}}
GROUP BY scorer
ORDER BY scorer
"""

MERGED = "*"
RECALL_LINES: Mapping[str, str] = {"n": "n", "p25": "recall_p25", "p50": "recall_p50", "mean": "recall_mean"}
SCORE_LINES: Mapping[str, str] = {"n": "score_n", "p25": "score_p25", "p50": "score_p50", "p75": "score_p75"}


def check_database(name: str) -> None:
    """The one name that is formatted into SQL. Raises `ConfigError` unless it is a plain identifier."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name):
        raise ConfigError(f"clickhouse.database must be a plain identifier, not {name!r}")


class History:
    """Questions to ClickHouse about one group."""

    def __init__(self, sources: WebSources) -> None:
        """Raises `ConfigError` for a database whose name is not a plain identifier."""
        check_database(sources.database)
        self._query = sources.query
        self._series_sql = SERIES_SQL.format(database=sources.database)
        self._distribution_sql = DISTRIBUTION_SQL.format(database=sources.database)

    def series(self, asked: SeriesParams) -> dict[str, Any]:
        """`t` (unix seconds) and, aligned with it, `recall` lines and per scorer `scores` lines; null: empty window."""
        rows = self._query(
            self._series_sql,
            {
                "from_s": asked.from_s,
                "to_s": asked.to_s,
                "window_s": asked.window_s,
                "step_s": asked.step_s,
                "route": asked.route,
                "top_k_bucket": asked.top_k_bucket,
            },
        )
        return {
            "from_s": asked.from_s,
            "to_s": asked.to_s,
            "window_s": asked.window_s,
            "step_s": asked.step_s,
            **_lines_by_scorer(rows),
        }

    def distribution(self, asked: DistributionParams, start_s: int, end_s: int) -> dict[str, Any]:
        """Recall as [value, count] pairs, and per scorer the top-1 score likewise, of the panes in [start_s, end_s)."""
        rows = self._query(
            self._distribution_sql,
            {"start_s": start_s, "end_s": end_s, "route": asked.route, "top_k_bucket": asked.top_k_bucket},
        )
        recall: dict[float, int] = {}
        scores: list[dict[str, Any]] = []
        for row in rows:
            for key, count in row["recall"].items():
                value = distribution.fraction_value(int(key))
                recall[value] = recall.get(value, 0) + int(count)
            score = sorted((distribution.histogram_value(int(key)), int(n)) for key, n in row["score"].items())
            if score:
                scores.append({"scorer": row["scorer"], "n": sum(n for _, n in score), "values": score})
        return {
            "window": asked.window,
            "start_s": start_s,
            "end_s": end_s,
            "recall": {"n": sum(recall.values()), "values": sorted(recall.items())},
            "scores": scores,
        }


def _lines(rows: Rows, columns: Mapping[str, str], times: list[int]) -> dict[str, list[Any]]:
    """Rows of one scorer as columns over `times`."""
    by_time = {int(row["t"]): row for row in rows}
    return {name: [by_time[t][column] if t in by_time else None for t in times] for name, column in columns.items()}


def _lines_by_scorer(rows: Rows) -> dict[str, Any]:
    times = sorted({int(row["t"]) for row in rows})
    by_scorer: dict[str, Rows] = {}
    for row in rows:
        by_scorer.setdefault(str(row["scorer"]), []).append(row)
    recall = by_scorer.pop(MERGED, [])
    scores = [
        {"scorer": scorer, **_lines(own, SCORE_LINES, times)}
        for scorer, own in sorted(by_scorer.items())
        if any(row["score_n"] for row in own)
    ]
    return {"t": times, "recall": _lines(recall, RECALL_LINES, times), "scores": scores}
