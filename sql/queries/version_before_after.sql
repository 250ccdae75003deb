-- What did a new retriever version do? Each version of the last week beside the one that came up before it, by model.
-- For model versions swap the two names. `citegauge explain` gives verdicts, and compares canaries over the same hours.
WITH
    versions AS
    (
        SELECT
            route, top_k_bucket, model, retriever_version, scorer,
            minIf(pane, notEmpty(recall_counts)) AS first_seen,
            maxIf(pane, notEmpty(recall_counts)) AS last_seen,
            sumMap(recall_counts) AS recalls,
            sumMap(score_counts) AS scores,
            arraySum(mapValues(recalls)) AS n,
            arrayMap(k -> bitAnd(k, 65535) / bitShiftRight(k, 16), mapKeys(recalls)) AS ratios,
            arraySum((x, w) -> x * w, ratios, mapValues(recalls)) / n AS mean,
            arraySum((x, w) -> pow(x - mean, 2) * w, ratios, mapValues(recalls)) / (n - 1) AS variance,
            arraySum((k, w) -> if(bitAnd(k, 65535) > 0, w, 0), mapKeys(recalls), mapValues(recalls)) / n AS cited_any_ratio,
            if(sum(citations) = 0, NULL, sum(hallucinated) / sum(citations)) AS hallucinated_ratio,
            arraySum(mapValues(scores)) AS score_n,
            if(score_n = 0, NULL, arraySum(
                (k, w) -> if(k = 0, 0., sign(k) * exp2((abs(k) - 20000 - 0.5) / 128)) * w,
                mapKeys(scores), mapValues(scores)) / score_n) AS score_mean
        FROM panes FINAL
        WHERE pane >= now() - INTERVAL 7 DAY
        GROUP BY route, top_k_bucket, model, retriever_version, scorer
        HAVING n > 1
    ),
    followed AS
    (
        SELECT
            *,
            lagInFrame(toNullable(retriever_version)) OVER series AS before,
            mean - lagInFrame(toNullable(mean)) OVER series AS recall_change,
            1.96 * sqrt(variance / n + lagInFrame(toNullable(variance / n)) OVER series) AS half,
            -- Scores of two scorers cannot be compared.
            if(lagInFrame(toNullable(scorer)) OVER series = scorer, score_mean - lagInFrame(score_mean) OVER series, NULL)
                AS score_change
        FROM versions
        WINDOW series AS (
            PARTITION BY route, top_k_bucket, model ORDER BY first_seen, retriever_version, scorer
            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
    )
SELECT
    route, top_k_bucket, model, retriever_version, scorer, first_seen, last_seen, n, mean AS recall_mean, cited_any_ratio,
    hallucinated_ratio, score_mean, before, recall_change, recall_change - half AS change_lower,
    recall_change + half AS change_upper, score_change
FROM followed
ORDER BY route, top_k_bucket, model, first_seen, retriever_version, scorer
