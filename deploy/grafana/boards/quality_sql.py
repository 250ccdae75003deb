"""What the quality board asks ClickHouse: plain tables, so that a user who may read them is enough.

Recall comes from the minutes' exact counts (`recall_counts`: retrieved << 16 | cited, to traces); what needs ranks or single
scores comes from the trace rows.
"""

from __future__ import annotations

PLACE = "route = ${route:singlequote} AND top_k_bucket = ${top_k_bucket:singlequote}"
VERSION = """$__conditionalAll(model IN (${model:singlequote}), $model)
    AND $__conditionalAll(retriever_version IN (${retriever_version:singlequote}), $retriever_version)"""
MEASURED = "arraySum(mapValues(recall_counts))"
COUNTS = "mapKeys(recall_counts), mapValues(recall_counts)"
CITED = f"arraySum(arrayMap((k, w) -> w * bitAnd(k, 65535) / bitShiftRight(k, 16), {COUNTS}))"
CITING = f"arraySum(arrayMap((k, w) -> if(bitAnd(k, 65535) > 0, w, 0), {COUNTS}))"
SCORES_MAX = 20_000
RANKS_MAX = 50

NEW_VERSIONS = f"""
SELECT min(pane) AS time, concat(retriever_version, ' (', model, ')') AS text, retriever_version AS tags
FROM panes FINAL
WHERE {PLACE}
GROUP BY retriever_version, model
HAVING $__timeFilter(time)
ORDER BY time
"""

_BINS = ",\n    ".join(f'sumIf(n, bin = {tenth}) AS "{tenth / 10}"' for tenth in range(10))

RECALL_HEAT = f"""
SELECT
    $__timeInterval(pane) AS time,
    {_BINS}
FROM
(
    SELECT
        pane,
        arrayJoin(recall_counts) AS counted,
        counted.2 AS n,
        least(9, intDiv(bitAnd(counted.1, 65535) * 10, bitShiftRight(counted.1, 16))) AS bin
    FROM panes FINAL
    WHERE $__timeFilter(pane) AND {PLACE}
    AND {VERSION}
)
GROUP BY time
ORDER BY time
"""

RANK_CURVE = f"""
SELECT toString(place) AS rank, sum(has(cited_ranks, place)) / count() AS cited, count() AS n
FROM
(
    SELECT cited_ranks, arrayJoin(range(1, least(retrieved, {RANKS_MAX}) + 1)) AS place
    FROM traces FINAL
    WHERE $__timeFilter(pane) AND {PLACE} AND state = 'measured'
    AND {VERSION}
)
GROUP BY place
ORDER BY place
"""

SCORE_HEAT = f"""
SELECT time, score
FROM
(
    SELECT event_time AS time, assumeNotNull(top1_score) AS score
    FROM traces FINAL
    WHERE $__timeFilter(pane) AND {PLACE} AND scorer = ${{scorer:singlequote}} AND top1_score IS NOT NULL
    AND {VERSION}
    ORDER BY cityHash64(trace_id)
    LIMIT {SCORES_MAX}
)
ORDER BY time
"""

BY_VERSION_OVER_TIME = f"""
SELECT
    $__timeInterval(pane) AS time,
    concat(retriever_version, ' (', model, ')') AS version,
    sum({CITED}) / nullIf(sum({MEASURED}), 0) AS recall
FROM panes FINAL
WHERE $__timeFilter(pane) AND {PLACE}
    AND {VERSION}
GROUP BY time, version
ORDER BY time, version
"""

BY_VERSION = f"""
SELECT
    retriever_version,
    model,
    min(pane) AS since,
    sum({MEASURED}) AS measured,
    sum({CITED}) / nullIf(measured, 0) AS "recall mean",
    sum({CITING}) / nullIf(measured, 0) AS "cites anything",
    sum(panes.hallucinated) / nullIf(sum(panes.citations), 0) AS hallucinated
FROM panes FINAL
WHERE $__timeFilter(pane) AND {PLACE}
    AND {VERSION}
GROUP BY retriever_version, model
ORDER BY since, retriever_version, model
"""
