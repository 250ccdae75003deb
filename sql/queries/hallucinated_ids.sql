-- What do answers cite that was not retrieved? The most frequent ids of the last day, with the newest trace to read.
-- `dropped`: in so many of the traces an earlier stage had returned it, and a reranker or the context let it go.
SELECT
    route,
    model,
    id,
    count() AS traces,
    countIf(has(dropped_cited_ids, id)) AS dropped,
    argMax(trace_id, event_time_ns) AS newest_trace
FROM traces FINAL
ARRAY JOIN hallucinated_ids AS id
WHERE pane >= now() - INTERVAL 24 HOUR
GROUP BY route, model, id
ORDER BY traces DESC, route, model, id
LIMIT 100
