-- How current each source partition is: its newest pane, and its newest pane that is closed and will not change again.
SELECT
    source,
    max(pane) AS newest_pane,
    maxIf(pane, `final`) AS closed_through,
    dateDiff('second', closed_through + INTERVAL 1 MINUTE, now()) AS closed_age_s,
    countIf(forced) AS forced_panes
FROM panes FINAL
WHERE pane >= now() - INTERVAL 24 HOUR
GROUP BY source
ORDER BY source
