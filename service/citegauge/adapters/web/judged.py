"""A group's episodes: the last day judged again from ClickHouse's panes, up to now. Blocking; it is `domain.episodes`.

It survives restarts, and every worker tells the same. What Prometheus fired is Prometheus' business. The last judgement is
that of the live windows, so that what the page says of now and of the last day is one thing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from citegauge.adapters.web.history import check_database
from citegauge.domain.drop import drops
from citegauge.domain.episodes import DAY_S, STEP_S, Cells, Episode, Judgement, Slice, change_point, follow, judge
from citegauge.domain.intervals import Moments
from citegauge.domain.window import MERGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from citegauge.adapters.web.params import GroupParams
    from citegauge.adapters.web.sources import Rows, WebSources
    from citegauge.domain.drop import Limits
    from citegauge.domain.signals import Signal

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


class Past:
    """Episodes of the last 24 h, from the panes alone."""

    def __init__(
        self,
        query: Callable[[str, Mapping[str, Any]], Rows],
        database: str,
        limits: Limits,
        distance_routes: frozenset[str] = frozenset(),
    ) -> None:
        """Raises `ConfigError` for a database whose name is not a plain identifier."""
        check_database(database)
        self._query, self._limits, self._distance_routes = query, limits, distance_routes
        self._sql = CELLS_SQL.format(database=database)
        self.cut = False
        """The last answer left out what is older than so many rows."""

    def episodes(
        self, route: str, top_k_bucket: str, as_of_s: int, live: Iterable[Signal] = ()
    ) -> dict[Slice, list[Episode]]:
        """Of recall (`*`) and of each scorer; oldest first. `live`: what the windows that end at `as_of_s` say."""
        newest_s = as_of_s // STEP_S * STEP_S  # a quarter that has only begun would be judged on less than an hour
        first_s = newest_s - DAY_S
        asked = {"start_s": first_s - DAY_S, "end_s": newest_s, "step_s": STEP_S, "rows_max": ROWS_MAX}
        rows = self._query(self._sql, {**asked, "route": route, "top_k_bucket": top_k_bucket})
        self.cut = len(rows) == ROWS_MAX
        now = {one.scorer: one for one in live if one.compared is not None}
        distances = route in self._distance_routes
        found = {}
        for scorer, groups in _slices(rows).items():
            of = Slice(route, top_k_bucket, scorer, distances and scorer != MERGED)
            judgements = judge(groups, range(first_s + STEP_S, newest_s + 1, STEP_S), of, self._limits)
            if scorer in now:
                judgements = [one for one in judgements if one.at_s < as_of_s]
                judgements.append(Judgement(as_of_s, next(iter(drops([now[scorer]], self._limits)), None)))
            start_of = partial(change_point, groups, lower_is_better=of.lower_is_better)
            found[of] = follow(judgements, start_of)
        return found

    def of(self, route: str, top_k_bucket: str, as_of_s: int) -> list[Episode]:
        """The same as one list, oldest first."""
        found = self.episodes(route, top_k_bucket, as_of_s).values()
        return sorted((one for each in found for one in each), key=lambda one: one.detected_s)


class Judged:
    """What had dropped, for the page."""

    def __init__(self, sources: WebSources) -> None:
        """Raises `ConfigError` for a database whose name is not a plain identifier."""
        self._past = partial(Past, sources.query, sources.database, sources.drop_limits, sources.distance_routes)
        self._signals = sources.signals
        self._past()

    def alerts(self, asked: GroupParams, as_of_s: int) -> dict[str, Any]:
        """The episodes of the 24 h before as-of, newest first, of recall (`*`) and of each scorer's scores."""
        live = [one for one in self._signals() if (one.route, one.top_k_bucket) == (asked.route, asked.top_k_bucket)]
        past = self._past()
        judged = past.episodes(asked.route, asked.top_k_bucket, as_of_s, live)
        found = [_json(of.scorer, one) for of, episodes in judged.items() for one in episodes]
        found.sort(key=lambda one: (-one["detected_s"], one["scorer"]))
        bounds = {"start_s": as_of_s // STEP_S * STEP_S - DAY_S, "end_s": as_of_s, "step_s": STEP_S}
        return {**bounds, "cut": past.cut, "alerts": found}


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
    # Of distances the interval is that of the rise. Relative to nothing, or to a negative score, nothing is told.
    lower, upper = worst.fall_lower, worst.fall_upper
    if lower is not None and upper is not None and not worst.lower_is_better:
        lower, upper = -upper, -lower
    return {
        "scorer": scorer,
        "started_s": episode.started_s,
        "detected_s": episode.detected_s,
        "ended_s": episode.ended_s,
        "ongoing": episode.ongoing,
        "worst_s": episode.worst_s,
        "before": worst.before,
        "after": worst.after,
        "n": worst.n,
        "change": worst.after / worst.before - 1.0 if worst.before > 0.0 else None,
        "lower": lower,
        "upper": upper,
        "sentence": episode.sentence,
    }
