-- Rolling lines: one point each step_s, each over the window_s before it, for window ends in (from, to].
--   SELECT * FROM rolling(from = 1764457200, to = 1764460800, window_s = 3600, step_s = 300, route = '')
-- Per (route, top_k_bucket) with scorer '*' (recall), and again per scorer (recall and scores): scores never mix.
-- A group that is quiet for a step still gets its point; n = 0 has NULL values, so that lines break honestly.
CREATE VIEW IF NOT EXISTS {database}.rolling AS
WITH
    read AS
    (
        SELECT p.pane AS at, p.route AS route, p.top_k_bucket AS top_k_bucket, p.scorer AS scorer,
               p.recall_counts AS recall_counts, p.score_counts AS score_counts
        FROM {database}.panes AS p FINAL
        WHERE p.pane >= toDateTime({from:DateTime('UTC')}, 'UTC') - toIntervalSecond({window_s:UInt32})
          AND p.pane < {to:DateTime('UTC')}
          AND ({route:String} = '' OR p.route = {route:String})
    ),
    steps AS
    (
        SELECT
            intDiv(toUnixTimestamp(at), {step_s:UInt32}) + 1 AS step,
            route, top_k_bucket,
            if(grouping(scorer) = 1, '*', scorer) AS by_scorer,
            sumMap(recall_counts) AS recall_step,
            sumMap(score_counts) AS score_step
        FROM read
        GROUP BY GROUPING SETS ((step, route, top_k_bucket), (step, route, top_k_bucket, scorer))
        UNION ALL
        SELECT
            arrayJoin(range(
                intDiv(toUnixTimestamp({from:DateTime('UTC')}), {step_s:UInt32}) + 1,
                intDiv(toUnixTimestamp({to:DateTime('UTC')}), {step_s:UInt32}) + 1)) AS step,
            route, top_k_bucket,
            arrayJoin(['*', scorer]) AS by_scorer,
            CAST(map(), 'Map(UInt32, UInt64)') AS recall_step,
            CAST(map(), 'Map(Int32, UInt64)') AS score_step
        FROM (SELECT DISTINCT route, top_k_bucket, scorer FROM read)
    ),
    filled AS
    (
        SELECT step, route, top_k_bucket, by_scorer, sumMap(recall_step) AS recall_step, sumMap(score_step) AS score_step
        FROM steps
        GROUP BY step, route, top_k_bucket, by_scorer
    ),
    rolled AS
    (
        SELECT step, route, top_k_bucket, by_scorer,
               sumMap(recall_step) OVER frame AS recall_map,
               sumMap(score_step) OVER frame AS score_map
        FROM filled
        WINDOW frame AS (PARTITION BY route, top_k_bucket, by_scorer ORDER BY toInt64(step)
                         RANGE BETWEEN intDiv({window_s:UInt32}, {step_s:UInt32}) - 1 PRECEDING AND CURRENT ROW)
    ),
    counted AS
    (
        SELECT
            step, route, top_k_bucket, by_scorer, recall_map,
            arraySum(mapValues(recall_map)) AS measured,
            arrayMap(k -> bitAnd(k, 65535) / bitShiftRight(k, 16), mapKeys(recall_map)) AS recall_values,
            arrayReduce('quantilesExactWeightedInterpolated(0.25, 0.5)', recall_values, mapValues(recall_map)) AS recall_q,
            if(by_scorer = '*', CAST(map(), 'Map(Int32, UInt64)'), score_map) AS scored,
            arraySum(mapValues(scored)) AS scored_n,
            arrayReduce('quantilesExactWeightedInterpolated(0.25, 0.5, 0.75)',
                arrayMap(k -> if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128)), mapKeys(scored)),
                mapValues(scored)) AS score_q
        FROM rolled
        WHERE step > intDiv(toUnixTimestamp({from:DateTime('UTC')}), {step_s:UInt32})
          AND step <= intDiv(toUnixTimestamp({to:DateTime('UTC')}), {step_s:UInt32})
    )
SELECT
    toDateTime(step * {step_s:UInt32}, 'UTC') AS window_end,
    route,
    top_k_bucket,
    by_scorer AS scorer,
    measured AS n,
    if(measured = 0, NULL, recall_q[1]) AS recall_p25,
    if(measured = 0, NULL, recall_q[2]) AS recall_p50,
    if(measured = 0, NULL, arraySum((x, w) -> x * w, recall_values, mapValues(recall_map)) / measured) AS recall_mean,
    scored_n AS score_n,
    if(scored_n = 0, NULL, score_q[1]) AS score_p25,
    if(scored_n = 0, NULL, score_q[2]) AS score_p50,
    if(scored_n = 0, NULL, score_q[3]) AS score_p75
FROM counted
