"""What the last 7 days hold of one partition's groups, read from ClickHouse by the hour. Blocking.

Number, sum and sum of squares are taken in SQL, by group and whole hour, so that a week of a group is at most 168 small
numbers, however much traffic it had.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from citegauge.domain.intervals import Moments
from citegauge.domain.recall import Group
from citegauge.domain.signals import Usual, usual_bounds, usual_of
from citegauge.domain.window import CellValues
from citegauge.ports import SqlReader

logger = logging.getLogger(__name__)

WEEK_S = 7 * 86_400
GROUPS_MAX = 20_000
"""Groups of one partition whose week is read; those with the most traces first."""
_GROUP = "route, top_k_bucket, model, retriever_version, scorer"
_RECALL = "bitAnd(k, 65535) / bitShiftRight(k, 16)"
_SCORE = "if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128))"


def _sums(name: str, column: str, value: str) -> str:
    """Number, sum and sum of squares of the values behind a column of counts."""
    counts = f"mapKeys({column}), mapValues({column})"
    return (
        f"sum(arraySum(mapValues({column}))) AS {name}_n, sum(arraySum((k, w) -> w * ({value}), {counts})) AS {name}_sum, "
        f"sum(arraySum((k, w) -> w * pow({value}, 2), {counts})) AS {name}_squares"
    )


def usual_week(reader: SqlReader, database: str, partition: int, partitions: int, end_s: int) -> dict[Group, Usual]:
    """What is usual by group, of the panes partition's own groups."""
    start_s, until_s = usual_bounds(WEEK_S, end_s)
    rows = reader.query(
        f"SELECT {_GROUP}, groupArray((cell, recall_n, recall_sum, recall_squares, score_n, score_sum, score_squares)) "
        f"AS cells FROM (SELECT {_GROUP}, toUnixTimestamp(toStartOfHour(pane)) AS cell, "
        f"{_sums('recall', 'recall_counts', _RECALL)}, {_sums('score', 'score_counts', _SCORE)} "
        f"FROM {database}.panes FINAL WHERE pane >= {{start:DateTime}} AND pane < {{until:DateTime}} "
        "AND CRC32(concat(route, '\\0', top_k_bucket)) % {partitions:UInt32} = {partition:UInt32} "
        f"GROUP BY {_GROUP}, cell) GROUP BY {_GROUP} ORDER BY sum(recall_n) DESC, {_GROUP} LIMIT {{limit:UInt32}}",
        {"start": start_s, "until": until_s, "partition": partition, "partitions": partitions, "limit": GROUPS_MAX + 1},
    )
    if len(rows) > GROUPS_MAX:
        logger.warning(
            "panes partition %d: more than %d groups; the rarest have no 7 d baseline", partition, GROUPS_MAX
        )
    return {
        Group(*(str(row[name]) for name in Group._fields)): usual_of(_cell(cell) for cell in row["cells"])
        for row in rows[:GROUPS_MAX]
    }


def _cell(cell: Sequence[Any]) -> CellValues:
    start_s, *sums = cell
    return CellValues(int(start_s), _moments(*sums[:3]), _moments(*sums[3:]))


def _moments(n: int, total: float, squares: float) -> Moments:
    """From sums. What rounding takes below 0 is 0."""
    if n == 0:
        return Moments(0, 0.0, 0.0)
    mean = total / n
    return Moments(int(n), mean, max(0.0, squares - total * mean) / (n - 1) if n > 1 else 0.0)
