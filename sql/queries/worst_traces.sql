-- The measured traces of the last hour that cite least of what they retrieved, to look at by hand.
SELECT
    trace_id, event_time, route, model, recall, retrieved, cited_retrieved, top1_score,
    chunk_ids, cited_ids, hallucinated_ids
FROM traces FINAL
WHERE pane >= now() - INTERVAL 1 HOUR AND recall IS NOT NULL
ORDER BY recall, retrieved DESC, event_time DESC
LIMIT 50
