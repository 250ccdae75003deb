-- Any window [start, end) over any subset of the group's dimensions, from panes; exact at pane edges.
--   SELECT * FROM window_quantiles(start = 1764460800, end = 1764464400, dims = ['route', 'top_k_bucket'])
-- Replaces the view of 0005. *_lower and *_upper are ends of 95 % intervals; the formulas are those of the service.
-- Quantiles are R-7 (NumPy's default). Recall is exact; a score is the midpoint of its bucket, at most 0.28 % off.
-- score_* is NULL unless exactly one scorer has scores in the row: scores of different scorers are never mixed.
CREATE OR REPLACE VIEW {database}.window_quantiles AS
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
            sum(p.recounted) AS all_recounted,
            sum(p.cited_top1) AS all_cited_top1,
            sum(p.cited_top3) AS all_cited_top3,
            sum(p.low_confidence) AS all_low_confidence,
            sum(p.confidence_known) AS all_confidence_known
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
            arrayReduce('quantilesExactWeightedInterpolated(0.25, 0.5, 0.75)', score_values, mapValues(scored)) AS score_q,
            -- Distinct values in order, how often each occurs, and how many there are up to each.
            arrayReduce('sumMap', [recall_values], [mapValues(recall_map)]) AS recall_points,
            arrayReduce('sumMap', [score_values], [mapValues(scored)]) AS score_points,
            arrayCumSum(recall_points.2) AS recall_through,
            arrayCumSum(score_points.2) AS score_through,
            -- Twice n times F(x) - p(x) / 2, which the mid-distribution quantile is linear between.
            arrayMap((up_to, own) -> 2 * up_to - own, recall_through, recall_points.2) AS recall_middles,
            arraySum((x, w) -> x * w, recall_values, mapValues(recall_map)) / measured AS recall_centre,
            arraySum((x, w) -> x * w, score_values, mapValues(scored)) / scored_n AS score_centre,
            sqrt(arraySum((x, w) -> pow(x - recall_centre, 2) * w, recall_values, mapValues(recall_map)) / (measured - 1))
                AS recall_spread,
            sqrt(arraySum((x, w) -> pow(x - score_centre, 2) * w, score_values, mapValues(scored)) / (scored_n - 1))
                AS score_spread,
            1.959963984540054 AS z,
            arraySum(mapValues(all_states)) AS all_traces,
            -- Shares, in this order: cited_any, cites_rank1, cites_rank1_3, hallucinated, nonconformant, zero_results,
            -- low_confidence, unjoined.
            arrayMap(x -> toFloat64(x), [
                arraySum((k, w) -> if(bitAnd(k, 65535) > 0, w, 0), mapKeys(recall_map), mapValues(recall_map)),
                all_cited_top1, all_cited_top3, all_hallucinated, all_nonconformant, all_states['empty_retrieval'],
                all_low_confidence, all_states['no_retrieval'] + all_states['no_generation']]) AS parts,
            [toFloat64(measured), toFloat64(measured), toFloat64(measured), toFloat64(all_citations),
                toFloat64(all_traces) - all_states['no_generation'] - all_states['no_output'],
                toFloat64(all_traces) - all_states['no_retrieval'], toFloat64(all_confidence_known), toFloat64(all_traces)]
                AS wholes,
            arrayMap((part, whole) -> part / whole, parts, wholes) AS share_values,
            arrayMap((share, whole) -> (share + z * z / (2 * whole)) / (1 + z * z / whole), share_values, wholes)
                AS share_middles,
            arrayMap((share, whole) -> z / (1 + z * z / whole)
                * sqrt(greatest(share * (1 - share), 0.) / whole + z * z / (4 * whole * whole)), share_values, wholes)
                AS share_halves,
            arrayMap((share, middle, half) -> greatest(0., least(share, middle - half)),
                share_values, share_middles, share_halves) AS share_lowers,
            arrayMap((share, middle, half) -> least(1., greatest(share, middle + half)),
                share_values, share_middles, share_halves) AS share_uppers,
            -- How likely at most so many of n values are below a quantile: binomial, written out to n = 100.
            arrayCumSum(arrayMap(k -> exp(lgamma(measured + 1) - lgamma(k + 1) - lgamma(measured - k + 1)
                + k * log(0.25) + (measured - k) * log(0.75)),
                range(if(measured <= 100, measured, 0)))) AS recall_p25_at_most,
            if(measured <= 100, toInt64(arrayCount(x -> x <= 0.025, recall_p25_at_most)),
                toInt64(floor(measured * 0.25 - z * sqrt(measured * 0.25 * 0.75)))) AS recall_p25_from,
            if(measured <= 100, toInt64(arrayFirstIndex(x -> x >= 0.975, recall_p25_at_most)),
                toInt64(ceil(measured * 0.25 + z * sqrt(measured * 0.25 * 0.75))) + 1) AS recall_p25_to,
            arrayCumSum(arrayMap(k -> exp(lgamma(measured + 1) - lgamma(k + 1) - lgamma(measured - k + 1)
                + k * log(0.5) + (measured - k) * log(0.5)),
                range(if(measured <= 100, measured, 0)))) AS recall_p50_at_most,
            if(measured <= 100, toInt64(arrayCount(x -> x <= 0.025, recall_p50_at_most)),
                toInt64(floor(measured * 0.5 - z * sqrt(measured * 0.5 * 0.5)))) AS recall_p50_from,
            if(measured <= 100, toInt64(arrayFirstIndex(x -> x >= 0.975, recall_p50_at_most)),
                toInt64(ceil(measured * 0.5 + z * sqrt(measured * 0.5 * 0.5))) + 1) AS recall_p50_to,
            arrayCumSum(arrayMap(k -> exp(lgamma(scored_n + 1) - lgamma(k + 1) - lgamma(scored_n - k + 1)
                + k * log(0.25) + (scored_n - k) * log(0.75)),
                range(if(scored_n <= 100, scored_n, 0)))) AS score_p25_at_most,
            if(scored_n <= 100, toInt64(arrayCount(x -> x <= 0.025, score_p25_at_most)),
                toInt64(floor(scored_n * 0.25 - z * sqrt(scored_n * 0.25 * 0.75)))) AS score_p25_from,
            if(scored_n <= 100, toInt64(arrayFirstIndex(x -> x >= 0.975, score_p25_at_most)),
                toInt64(ceil(scored_n * 0.25 + z * sqrt(scored_n * 0.25 * 0.75))) + 1) AS score_p25_to,
            arrayCumSum(arrayMap(k -> exp(lgamma(scored_n + 1) - lgamma(k + 1) - lgamma(scored_n - k + 1)
                + k * log(0.5) + (scored_n - k) * log(0.5)),
                range(if(scored_n <= 100, scored_n, 0)))) AS score_p50_at_most,
            if(scored_n <= 100, toInt64(arrayCount(x -> x <= 0.025, score_p50_at_most)),
                toInt64(floor(scored_n * 0.5 - z * sqrt(scored_n * 0.5 * 0.5)))) AS score_p50_from,
            if(scored_n <= 100, toInt64(arrayFirstIndex(x -> x >= 0.975, score_p50_at_most)),
                toInt64(ceil(scored_n * 0.5 + z * sqrt(scored_n * 0.5 * 0.5))) + 1) AS score_p50_to,
            arrayFirstIndex(x -> x >= 2 * 0.25 * measured, recall_middles) AS mid_p25_at,
            arrayFirstIndex(x -> x >= 2 * 0.5 * measured, recall_middles) AS mid_p50_at
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
    if(measured < 2, NULL, recall_spread) AS recall_sd,
    if(measured < 30, NULL, greatest(0., recall_centre - z * recall_spread / sqrt(measured))) AS recall_mean_lower,
    if(measured < 30, NULL, least(1., recall_centre + z * recall_spread / sqrt(measured))) AS recall_mean_upper,
    multiIf(measured = 0, NULL, mid_p25_at = 0, recall_points.1[-1], mid_p25_at = 1, recall_points.1[1],
        recall_points.1[mid_p25_at - 1] + (recall_points.1[mid_p25_at] - recall_points.1[mid_p25_at - 1])
            * (2 * 0.25 * measured - recall_middles[mid_p25_at - 1])
            / (recall_middles[mid_p25_at] - recall_middles[mid_p25_at - 1]))
        AS recall_mid_p25,
    multiIf(measured = 0, NULL, mid_p50_at = 0, recall_points.1[-1], mid_p50_at = 1, recall_points.1[1],
        recall_points.1[mid_p50_at - 1] + (recall_points.1[mid_p50_at] - recall_points.1[mid_p50_at - 1])
            * (2 * 0.5 * measured - recall_middles[mid_p50_at - 1])
            / (recall_middles[mid_p50_at] - recall_middles[mid_p50_at - 1]))
        AS recall_mid_p50,
    if(scored_n < 2, NULL, score_spread) AS score_sd,
    if(recall_p25_from < 1 OR recall_p25_to < 1, NULL,
        recall_points.1[arrayFirstIndex(x -> x >= recall_p25_from, recall_through)]) AS recall_p25_lower,
    if(recall_p25_from < 1 OR recall_p25_to < 1, NULL,
        recall_points.1[arrayFirstIndex(x -> x >= recall_p25_to, recall_through)]) AS recall_p25_upper,
    if(recall_p50_from < 1 OR recall_p50_to < 1, NULL,
        recall_points.1[arrayFirstIndex(x -> x >= recall_p50_from, recall_through)]) AS recall_p50_lower,
    if(recall_p50_from < 1 OR recall_p50_to < 1, NULL,
        recall_points.1[arrayFirstIndex(x -> x >= recall_p50_to, recall_through)]) AS recall_p50_upper,
    if(score_p25_from < 1 OR score_p25_to < 1, NULL,
        score_points.1[arrayFirstIndex(x -> x >= score_p25_from, score_through)]) AS score_p25_lower,
    if(score_p25_from < 1 OR score_p25_to < 1, NULL,
        score_points.1[arrayFirstIndex(x -> x >= score_p25_to, score_through)]) AS score_p25_upper,
    if(score_p50_from < 1 OR score_p50_to < 1, NULL,
        score_points.1[arrayFirstIndex(x -> x >= score_p50_from, score_through)]) AS score_p50_lower,
    if(score_p50_from < 1 OR score_p50_to < 1, NULL,
        score_points.1[arrayFirstIndex(x -> x >= score_p50_to, score_through)]) AS score_p50_upper,
    if(wholes[1] = 0, NULL, share_lowers[1]) AS cited_any_lower,
    if(wholes[1] = 0, NULL, share_uppers[1]) AS cited_any_upper,
    if(wholes[2] = 0, NULL, share_values[2]) AS cites_rank1_ratio,
    if(wholes[2] = 0, NULL, share_lowers[2]) AS cites_rank1_lower,
    if(wholes[2] = 0, NULL, share_uppers[2]) AS cites_rank1_upper,
    if(wholes[3] = 0, NULL, share_values[3]) AS cites_rank1_3_ratio,
    if(wholes[3] = 0, NULL, share_lowers[3]) AS cites_rank1_3_lower,
    if(wholes[3] = 0, NULL, share_uppers[3]) AS cites_rank1_3_upper,
    if(wholes[4] = 0, NULL, share_values[4]) AS hallucinated_ratio,
    if(wholes[4] = 0, NULL, share_lowers[4]) AS hallucinated_lower,
    if(wholes[4] = 0, NULL, share_uppers[4]) AS hallucinated_upper,
    if(wholes[5] = 0, NULL, share_values[5]) AS nonconformant_ratio,
    if(wholes[5] = 0, NULL, share_lowers[5]) AS nonconformant_lower,
    if(wholes[5] = 0, NULL, share_uppers[5]) AS nonconformant_upper,
    if(wholes[6] = 0, NULL, share_values[6]) AS zero_results_ratio,
    if(wholes[6] = 0, NULL, share_lowers[6]) AS zero_results_lower,
    if(wholes[6] = 0, NULL, share_uppers[6]) AS zero_results_upper,
    if(wholes[7] = 0, NULL, share_values[7]) AS low_confidence_ratio,
    if(wholes[7] = 0, NULL, share_lowers[7]) AS low_confidence_lower,
    if(wholes[7] = 0, NULL, share_uppers[7]) AS low_confidence_upper,
    if(wholes[8] = 0, NULL, share_values[8]) AS unjoined_ratio,
    if(wholes[8] = 0, NULL, share_lowers[8]) AS unjoined_lower,
    if(wholes[8] = 0, NULL, share_uppers[8]) AS unjoined_upper,
    scorers,
    all_states AS states,
    all_citations AS citations,
    all_hallucinated AS hallucinated,
    all_dropped_citations AS dropped_citations,
    all_unresolved AS unresolved,
    all_ids_dropped AS ids_dropped,
    all_nonconformant AS nonconformant,
    all_recounted AS recounted,
    all_cited_top1 AS cited_top1,
    all_cited_top3 AS cited_top3,
    all_low_confidence AS low_confidence,
    all_confidence_known AS confidence_known
FROM counted
