-- The last hour against the same hour of the day before: what lost most stands first. NULL: nothing to compare with.
SELECT
    today.route AS route,
    today.top_k_bucket AS top_k_bucket,
    today.n AS n,
    yesterday.n AS n_yesterday,
    today.recall_mean AS recall_mean,
    today.recall_mean - yesterday.recall_mean AS recall_change,
    today.cited_any_ratio - yesterday.cited_any_ratio AS cited_any_change
FROM window_quantiles(
    start = toStartOfMinute(now()) - INTERVAL 1 HOUR, end = toStartOfMinute(now()),
    dims = ['route', 'top_k_bucket']) AS today
LEFT JOIN window_quantiles(
    start = toStartOfMinute(now()) - INTERVAL 25 HOUR, end = toStartOfMinute(now()) - INTERVAL 24 HOUR,
    dims = ['route', 'top_k_bucket']) AS yesterday
    ON today.route = yesterday.route AND today.top_k_bucket = yesterday.top_k_bucket
ORDER BY recall_change ASC NULLS LAST
SETTINGS join_use_nulls = 1
