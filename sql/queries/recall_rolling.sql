-- How did recall go? The rolling hour per route and top_k bucket, a point every 5 minutes of the last day.
-- NULL where nothing was measured in the hour, so that a line breaks instead of falling to 0.
SELECT window_end, route, top_k_bucket, n, recall_p25, recall_p50, recall_mean
FROM rolling(
    from = toStartOfFiveMinutes(now()) - INTERVAL 24 HOUR, to = toStartOfFiveMinutes(now()),
    window_s = 3600, step_s = 300, route = '')
WHERE scorer = '*'
ORDER BY route, top_k_bucket, window_end
