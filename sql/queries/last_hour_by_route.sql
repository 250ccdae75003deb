-- The last full hour, per route and top_k bucket: how many answers, how much of what was retrieved they cite.
SELECT route, top_k_bucket, n, recall_p25, recall_p50, recall_mean, cited_any_ratio, states
FROM window_quantiles(
    start = toStartOfMinute(now()) - INTERVAL 1 HOUR, end = toStartOfMinute(now()), dims = ['route', 'top_k_bucket'])
ORDER BY route, top_k_bucket
