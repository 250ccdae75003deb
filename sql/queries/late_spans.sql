-- Spans that came after their pane had closed, per hour and partition, and by how much the typical one missed it.
SELECT
    toStartOfHour(pane) AS hour,
    topic,
    `partition`,
    kind,
    count() AS spans,
    quantile(0.5)((watermark_ns - end_ns) / 1e9) AS median_lateness_s
FROM late FINAL
WHERE pane >= now() - INTERVAL 24 HOUR
GROUP BY hour, topic, `partition`, kind
ORDER BY hour, topic, `partition`, kind
