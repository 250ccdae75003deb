-- Top-1 scores of the last hour. One row per scorer, because scores of different scorers cannot be compared.
SELECT route, scorer, score_n, score_p25, score_p50, score_p75, score_mean
FROM window_quantiles(
    start = toStartOfMinute(now()) - INTERVAL 1 HOUR, end = toStartOfMinute(now()), dims = ['route', 'scorer'])
WHERE score_n > 0
ORDER BY route, scorer
