-- Did the new retriever version change anything? The last 24 hours per route, bucket and version, side by side.
SELECT route, top_k_bucket, retriever_version, n, recall_p25, recall_p50, recall_mean, cited_any_ratio, rank_weighted_mean
FROM window_quantiles(
    start = toStartOfMinute(now()) - INTERVAL 24 HOUR, end = toStartOfMinute(now()),
    dims = ['route', 'top_k_bucket', 'retriever_version'])
ORDER BY route, top_k_bucket, retriever_version
