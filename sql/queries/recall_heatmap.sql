-- How is recall spread? Traces by tenths of recall per quarter of an hour of the last day, for a heat map of one route.
SELECT
    toStartOfInterval(pane, INTERVAL 15 MINUTE) AS at,
    intDiv(bitAnd(counted.1, 65535) * 10, bitShiftRight(counted.1, 16)) / 10 AS recall_from,
    sum(counted.2) AS traces
FROM
(
    SELECT pane, arrayJoin(recall_counts) AS counted
    FROM panes FINAL
    WHERE pane >= now() - INTERVAL 24 HOUR AND route = {route:String}
)
GROUP BY at, recall_from
ORDER BY at, recall_from
