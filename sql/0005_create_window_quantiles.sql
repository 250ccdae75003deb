-- Any window [start, end) over any subset of the group's dimensions, from panes; exact at pane edges.
--   SELECT * FROM window_quantiles(start = 1764460800, end = 1764464400, dims = ['route', 'top_k_bucket'])
-- Quantiles are R-7 (NumPy's default). Recall is exact; a score is the midpoint of its bucket, at most 0.28 % off.
-- score_* is NULL unless exactly one scorer has scores in the row: scores of different scorers are never mixed.
CREATE VIEW IF NOT EXISTS {database}.window_quantiles AS
WITH
    merged AS
    (
        SELECT
            if(has({dims:Array(String)}, 'route'), p.route, '*') AS by_route,
            if(has({dims:Array(String)}, 'top_k_bucket'), p.top_k_bucket, '*') AS by_top_k_bucket,
            if(has({dims:Array(String)}, 'model'), p.model, '*') AS by_model,
            if(has({dims:Array(String)}, 'retriever_version'), p.retriever_version, '*') AS by_retriever_version,
            if(has({dims:Array(String)}, 'scorer'), p.scorer, '*') AS by_scorer,
            sumMap(p.states) AS all_states,
            sumMap(p.recall_counts) AS recall_map,
            sumMap(p.rank_weighted_counts) AS rank_weighted_map,
            sumMap(p.score_counts) AS score_map,
            arraySort(groupUniqArrayIf(p.scorer, notEmpty(p.score_counts))) AS scorers,
            sum(p.citations) AS all_citations,
            sum(p.hallucinated) AS all_hallucinated,
            sum(p.dropped_citations) AS all_dropped_citations,
            sum(p.unresolved) AS all_unresolved,
            sum(p.ids_dropped) AS all_ids_dropped,
            sum(p.nonconformant) AS all_nonconformant,
            sum(p.recounted) AS all_recounted
        FROM {database}.panes AS p FINAL
        WHERE p.pane >= {start:DateTime('UTC')} AND p.pane < {end:DateTime('UTC')}
        GROUP BY by_route, by_top_k_bucket, by_model, by_retriever_version, by_scorer
    ),
    counted AS
    (
        SELECT
            *,
            arraySum(mapValues(recall_map)) AS measured,
            arrayMap(k -> bitAnd(k, 65535) / bitShiftRight(k, 16), mapKeys(recall_map)) AS recall_values,
            arrayMap(k -> if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128)), mapKeys(rank_weighted_map))
                AS rank_weighted_values,
            if(length(scorers) = 1, score_map, CAST(map(), 'Map(Int32, UInt64)')) AS scored,
            arraySum(mapValues(scored)) AS scored_n,
            arrayMap(k -> if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128)), mapKeys(scored)) AS score_values,
            arrayReduce('quantilesExactWeightedInterpolated(0.25, 0.5, 0.75)', recall_values, mapValues(recall_map))
                AS recall_q,
            arrayReduce('quantilesExactWeightedInterpolated(0.25, 0.5, 0.75)', score_values, mapValues(scored)) AS score_q
        FROM merged
    )
SELECT
    by_route AS route,
    by_top_k_bucket AS top_k_bucket,
    by_model AS model,
    by_retriever_version AS retriever_version,
    by_scorer AS scorer,
    measured AS n,
    if(measured = 0, NULL, recall_q[1]) AS recall_p25,
    if(measured = 0, NULL, recall_q[2]) AS recall_p50,
    if(measured = 0, NULL, recall_q[3]) AS recall_p75,
    if(measured = 0, NULL, arraySum((x, w) -> x * w, recall_values, mapValues(recall_map)) / measured) AS recall_mean,
    if(empty(rank_weighted_map), NULL,
        arraySum((x, w) -> x * w, rank_weighted_values, mapValues(rank_weighted_map))
            / arraySum(mapValues(rank_weighted_map))) AS rank_weighted_mean,
    if(measured = 0, NULL,
        arraySum((k, w) -> if(bitAnd(k, 65535) > 0, w, 0), mapKeys(recall_map), mapValues(recall_map)) / measured)
        AS cited_any_ratio,
    scored_n AS score_n,
    if(scored_n = 0, NULL, score_q[1]) AS score_p25,
    if(scored_n = 0, NULL, score_q[2]) AS score_p50,
    if(scored_n = 0, NULL, score_q[3]) AS score_p75,
    if(scored_n = 0, NULL, arraySum((x, w) -> x * w, score_values, mapValues(scored)) / scored_n) AS score_mean,
    scorers,
    all_states AS states,
    all_citations AS citations,
    all_hallucinated AS hallucinated,
    all_dropped_citations AS dropped_citations,
    all_unresolved AS unresolved,
    all_ids_dropped AS ids_dropped,
    all_nonconformant AS nonconformant,
    all_recounted AS recounted
FROM counted
