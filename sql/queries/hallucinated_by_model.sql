-- Citations of chunks that were never retrieved, as a share of all citations, per model and hour of the last day.
SELECT
    toStartOfHour(pane) AS hour,
    model,
    sum(citations) AS citations,
    sum(hallucinated) AS hallucinated,
    if(citations = 0, NULL, hallucinated / citations) AS hallucinated_ratio
FROM panes FINAL
WHERE pane >= now() - INTERVAL 24 HOUR
GROUP BY hour, model
ORDER BY hour, model
