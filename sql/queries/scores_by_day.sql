-- How good did the retriever think it was? Top-1 scores per day of the last week and the share of low confidence.
-- One row per scorer, because scores of different scorers cannot be compared. NULL: no threshold in the settings.
SELECT
    day,
    route,
    scorer,
    arraySum(mapValues(scores)) AS score_n,
    arrayReduce(
        'quantilesExactWeightedInterpolated(0.25, 0.5, 0.75)',
        -- A bucket of the histogram is read as its geometric mid-point, as the service does.
        arrayMap(k -> if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128)), mapKeys(scores)),
        mapValues(scores)) AS quartiles,
    quartiles[1] AS score_p25,
    quartiles[2] AS score_p50,
    quartiles[3] AS score_p75,
    if(known = 0, NULL, low / known) AS low_confidence_ratio
FROM
(
    SELECT toDate(pane) AS day, route, scorer, sumMap(score_counts) AS scores,
           sum(low_confidence) AS low, sum(confidence_known) AS known
    FROM panes FINAL
    WHERE pane >= toStartOfDay(now()) - INTERVAL 6 DAY
    GROUP BY day, route, scorer
)
WHERE notEmpty(scores)
ORDER BY route, scorer, day
