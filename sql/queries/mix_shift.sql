-- Did answers get worse, or did the traffic move? The last hour against the day before it, group by group.
-- The columns `within` to `gone` add up to the change of the mean over all; within: the same group cites less or more; mix:
-- traffic moved to groups that always cited less or more. The sums, with how sure they are: citegauge explain.
WITH
    toStartOfMinute(now()) - INTERVAL 1 HOUR AS since,
    sides AS
    (
        SELECT
            route, top_k_bucket, model, retriever_version, scorer,
            sumMapIf(recall_counts, pane < since) AS old,
            sumMapIf(recall_counts, pane >= since) AS new,
            arraySum(mapValues(old)) AS n0,
            arraySum(mapValues(new)) AS n1,
            arraySum((k, w) -> bitAnd(k, 65535) / bitShiftRight(k, 16) * w, mapKeys(old), mapValues(old)) / n0 AS m0,
            arraySum((k, w) -> bitAnd(k, 65535) / bitShiftRight(k, 16) * w, mapKeys(new), mapValues(new)) / n1 AS m1
        FROM panes FINAL
        WHERE pane >= since - INTERVAL 24 HOUR AND pane < since + INTERVAL 1 HOUR
        GROUP BY route, top_k_bucket, model, retriever_version, scorer
        HAVING n0 > 0 OR n1 > 0
    ),
    shares AS
    (
        SELECT
            *,
            n0 / sum(n0) OVER () AS w0,
            n1 / sum(n1) OVER () AS w1,
            sum(if(n0 > 0, n0 * m0, 0)) OVER () / sum(n0) OVER () AS whole
        FROM sides
    )
SELECT
    route, top_k_bucket, model, retriever_version, scorer,
    n0 AS n_before,
    n1 AS n_after,
    w0 AS share_before,
    w1 AS share_after,
    if(n0 > 0, m0, NULL) AS mean_before,
    if(n1 > 0, m1, NULL) AS mean_after,
    if(n0 > 0 AND n1 > 0, w0 * (m1 - m0), 0) AS within,
    if(n0 > 0 AND n1 > 0, (w1 - w0) * (m0 - whole), 0) AS mix,
    if(n0 > 0 AND n1 > 0, (w1 - w0) * (m1 - m0), 0) AS interaction,
    if(n0 = 0, w1 * (m1 - whole), 0) AS `new`,
    if(n1 = 0, -w0 * (m0 - whole), 0) AS gone
FROM shares
ORDER BY abs(within + mix + interaction + `new` + gone) DESC, route, top_k_bucket, model, retriever_version, scorer
