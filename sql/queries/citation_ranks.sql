-- Which ranks get cited? Of the measured traces of the last day with a chunk at this rank, the share that cites it.
-- A curve that does not fall with the rank says that the order of the retriever, or of the reranker, means little.
SELECT
    route,
    top_k_bucket,
    rank,
    count() AS traces,
    countIf(has(cited_ranks, rank)) AS cited,
    cited / traces AS cited_ratio
FROM
(
    SELECT route, top_k_bucket, cited_ranks, arrayJoin(range(1, least(retrieved, 50) + 1)) AS rank
    FROM traces FINAL
    WHERE pane >= now() - INTERVAL 24 HOUR AND recall IS NOT NULL
)
GROUP BY route, top_k_bucket, rank
ORDER BY route, top_k_bucket, rank
