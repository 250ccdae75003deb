-- What became of the answers of the last 24 hours: the share of each state per route. Only `measured` enters a ratio.
SELECT
    route,
    state,
    sum(traces) AS traces,
    traces / sum(traces) OVER (PARTITION BY route) AS share
FROM
(
    SELECT route, arrayJoin(states) AS counted, counted.1 AS state, counted.2 AS traces
    FROM panes FINAL
    WHERE pane >= now() - INTERVAL 24 HOUR
)
GROUP BY route, state
ORDER BY route, traces DESC
