"""A group's alert history: the last day judged again from ClickHouse's panes. Blocking; the judgement is `domain.episodes`.

It survives restarts, and every worker tells the same. What Prometheus fired is Prometheus' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from citegauge.adapters.web.history import check_database
from citegauge.domain.episodes import DAY_S, STEP_S, Cells, Episode, episodes
from citegauge.domain.intervals import Moments
from citegauge.domain.window import MERGED

if TYPE_CHECKING:
    from citegauge.adapters.web.params import GroupParams
    from citegauge.adapters.web.sources import Rows, WebSources

CELLS_SQL = """
SELECT t, model, retriever_version, scorer,
       arraySum(mapValues(recalls)) AS recall_n,
       arrayMap(k -> bitAnd(k, 65535) / bitShiftRight(k, 16), mapKeys(recalls)) AS recall_values,
       arraySum((x, w) -> x * w, recall_values, mapValues(recalls)) / greatest(recall_n, 1) AS recall_mean,
       arraySum((x, w) -> w * pow(x - recall_mean, 2), recall_values, mapValues(recalls)) AS recall_squares,
       arraySum(mapValues(scores)) AS score_n,
       arrayMap(k -> if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128)), mapKeys(scores)) AS score_values,
       arraySum((x, w) -> x * w, score_values, mapValues(scores)) / greatest(score_n, 1) AS score_mean,
       arraySum((x, w) -> w * pow(x - score_mean, 2), score_values, mapValues(scores)) AS score_squares
FROM
(
    SELECT intDiv(toUnixTimestamp(pane), {{step_s:UInt32}}) * {{step_s:UInt32}} AS t, model, retriever_version, scorer,
           sumMap(recall_counts) AS recalls, sumMap(score_counts) AS scores
    FROM {database}.panes FINAL
    WHERE pane >= toDateTime({{start_s:UInt32}}, 'UTC') AND pane < toDateTime({{end_s:UInt32}}, 'UTC')
      AND route = {{route:String}} AND top_k_bucket = {{top_k_bucket:String}}
    GROUP BY t, model, retriever_version, scorer
)
ORDER BY t DESC
LIMIT {{rows_max:UInt32}}
"""

ROWS_MAX = 12_000
"""Quarters of an hour x full groups that are read: two days of sixty groups. With more, the older ones are left out."""


class Judged:
    """Questions to ClickHouse about what had dropped."""

    def __init__(self, sources: WebSources) -> None:
        """Raises `ConfigError` for a database whose name is not a plain identifier."""
        check_database(sources.database)
        self._query = sources.query
        self._limits = sources.drop_limits
        self._distance_routes = sources.distance_routes
        self._sql = CELLS_SQL.format(database=sources.database)

    def alerts(self, asked: GroupParams, as_of_s: int) -> dict[str, Any]:
        """The drops of the 24 h before as-of, newest first, of recall (`*`) and of each scorer's scores."""
        newest_s = as_of_s // STEP_S * STEP_S  # a quarter that has only begun would be judged on less than an hour
        first_s = newest_s - DAY_S
        bounds = {"start_s": first_s - DAY_S, "end_s": newest_s, "step_s": STEP_S, "rows_max": ROWS_MAX}
        rows = self._query(self._sql, {**bounds, "route": asked.route, "top_k_bucket": asked.top_k_bucket})
        ends_s = range(first_s + STEP_S, newest_s + 1, STEP_S)
        distances = asked.route in self._distance_routes
        found = [
            _json(scorer, episode)
            for scorer, groups in _slices(rows).items()
            for episode in episodes(
                groups, ends_s, scorer, self._limits, lower_is_better=distances and scorer != MERGED
            )
        ]
        found.sort(key=lambda one: (-one["from_s"], one["scorer"]))
        return {"start_s": first_s, "end_s": newest_s, "step_s": STEP_S, "cut": len(rows) == ROWS_MAX, "alerts": found}


def _slices(rows: Rows) -> dict[str, list[Cells]]:
    """What is judged, each as the cells of its full groups: recall under `*`, scores under their scorer."""
    recall: dict[tuple[str, str, str], dict[int, Moments]] = {}
    scores: dict[tuple[str, str, str], dict[int, Moments]] = {}
    for row in rows:
        key = (row["model"], row["retriever_version"], row["scorer"])
        for name, into in (("recall", recall), ("score", scores)):
            n = int(row[f"{name}_n"])
            if n:
                cell = Moments(n, row[f"{name}_mean"], row[f"{name}_squares"] / max(1, n - 1))
                into.setdefault(key, {})[int(row["t"])] = cell
    slices: dict[str, list[Cells]] = {MERGED: list(recall.values())}
    for key, cells in scores.items():
        slices.setdefault(key[2], []).append(cells)
    return slices


def _json(scorer: str, episode: Episode) -> dict[str, Any]:
    worst = episode.worst
    fall, interval = worst.fall, worst.fall_interval
    return {
        "scorer": scorer,
        "from_s": episode.from_s,
        "to_s": episode.to_s,
        "ongoing": episode.ongoing,
        "before": worst.before,
        "after": worst.after,
        "n": worst.n_after,
        "n_before": worst.n_before,
        # Relative to nothing, or to a negative score, nothing is told.
        "change": None if fall is None else -fall,
        "lower": None if interval is None else -interval.upper,
        "upper": None if interval is None else -interval.lower,
    }
