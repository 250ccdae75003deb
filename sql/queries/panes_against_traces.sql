-- Do the panes say what the trace rows say? Closed panes of the last hour that differ; no row means that they agree.
SELECT pane, route, top_k_bucket, model, retriever_version, scorer, source, p.recall_counts, t.recall_counts
FROM (SELECT * FROM panes FINAL WHERE pane >= now() - INTERVAL 1 HOUR AND `final` AND notEmpty(states)) AS p
FULL JOIN (SELECT * FROM recount(from = toDateTime(now() - INTERVAL 1 HOUR), to = now())) AS t
    USING (pane, route, top_k_bucket, model, retriever_version, scorer, source)
-- A map remembers the order in which it was written, and compares by it.
WHERE (mapSort(p.states), mapSort(p.recall_counts), mapSort(p.score_counts))
    != (mapSort(t.states), mapSort(t.recall_counts), mapSort(t.score_counts))
  AND pane <= (SELECT maxIf(pane, `final`) FROM panes WHERE pane >= now() - INTERVAL 1 HOUR)
ORDER BY pane
