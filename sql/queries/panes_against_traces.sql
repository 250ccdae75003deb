-- Do the panes say what the trace rows say? Closed panes of the last hour that differ; no row means that they agree.
SELECT pane, route, top_k_bucket, model, retriever_version, scorer, source, p.recall_counts, t.recall_counts
FROM (SELECT * FROM panes FINAL WHERE pane >= now() - INTERVAL 1 HOUR AND `final` AND notEmpty(states)) AS p
FULL JOIN (
    SELECT r.*
    FROM recount(from = toDateTime(now() - INTERVAL 1 HOUR), to = now()) AS r
    -- Each source closes its own panes, some later than others.
    INNER JOIN (
        SELECT source, maxIf(pane, `final`) AS closed_through
        FROM panes
        WHERE pane >= now() - INTERVAL 1 HOUR
        GROUP BY source
    ) AS c USING (source)
    WHERE r.pane <= c.closed_through
) AS t
    USING (pane, route, top_k_bucket, model, retriever_version, scorer, source)
-- A map remembers the order in which it was written, and compares by it.
WHERE (mapSort(p.states), mapSort(p.recall_counts), mapSort(p.score_counts))
    != (mapSort(t.states), mapSort(t.recall_counts), mapSort(t.score_counts))
ORDER BY pane
