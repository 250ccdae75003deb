-- How long do answers take? From the end of the last retrieval to the end of the answer, per route and hour of the last day.
SELECT
    toStartOfHour(pane) AS hour,
    route,
    count() AS traces,
    quantilesExactInclusive(0.5, 0.95)(lag_ns / 1e9) AS q,
    q[1] AS answer_s_p50,
    q[2] AS answer_s_p95
FROM traces FINAL
-- 0 stands for a trace without one of the two.
WHERE pane >= now() - INTERVAL 24 HOUR AND lag_ns != 0
GROUP BY hour, route
ORDER BY route, hour
