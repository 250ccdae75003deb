-- Do the halves of traces meet? Per hour of the last day: unjoined and recounted traces, minutes closed early, late spans.
SELECT
    hour,
    ifNull(arraySum(mapValues(states)), 0) AS traces,
    ifNull(states['no_generation'], 0) AS no_generation,
    ifNull(states['no_retrieval'], 0) AS no_retrieval,
    if(traces = 0, NULL, (no_generation + no_retrieval) / traces) AS unjoined_ratio,
    ifNull(recounted, 0) AS recounted_traces,
    ifNull(forced, 0) AS forced_panes,
    ifNull(late, 0) AS late_spans,
    late_by_s
FROM
(
    SELECT toStartOfHour(pane) AS hour, sumMap(states) AS states, sum(recounted) AS recounted, countIf(forced) AS forced
    FROM panes FINAL
    WHERE pane >= now() - INTERVAL 24 HOUR
    GROUP BY hour
) AS joined
FULL JOIN
(
    -- By how much the typical one was behind the watermark.
    SELECT toStartOfHour(pane) AS hour, count() AS late,
           quantileExactInclusive(0.5)((watermark_ns - end_ns) / 1e9) AS late_by_s
    FROM late FINAL
    WHERE pane >= now() - INTERVAL 24 HOUR
    GROUP BY hour
) AS missed USING (hour)
ORDER BY hour
SETTINGS join_use_nulls = 1
