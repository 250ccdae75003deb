-- Panes counted again from the trace rows, for panes in [from, to): the check that `panes` tells the truth.
--   SELECT * FROM recount(from = 1764457200, to = 1764460800)
-- Without `recounted`, `final`, `forced` and `version`, which trace rows do not carry; emptied panes have no row here.
-- Replaces the view of 0011: citations are counted only where the whole retrieved set is known (measured, nonconformant,
-- empty_retrieval). Panes of before keep what they counted in every state. Of rows older than 0008 no confidence is known.
-- The histogram key is branch-free on purpose: a multiIf evaluates log2(0) for NULL rows and throws.
CREATE OR REPLACE VIEW {database}.recount AS
WITH ('measured', 'nonconformant', 'empty_retrieval') AS judged
SELECT
    t.pane AS pane,
    t.route AS route,
    t.top_k_bucket AS top_k_bucket,
    t.model AS model,
    t.retriever_version AS retriever_version,
    t.scorer AS scorer,
    t.source AS source,
    sumMap(map(t.state, toUInt64(1))) AS states,
    sumIf(length(t.cited_ranks) + length(t.hallucinated_ids) + t.unresolved, t.state IN judged) AS citations,
    sumIf(length(t.hallucinated_ids), t.state IN judged) AS hallucinated,
    sumIf(length(t.dropped_cited_ids), t.state IN judged) AS dropped_citations,
    sumIf(t.unresolved, t.state IN judged) AS unresolved,
    sum(t.ids_dropped) AS ids_dropped,
    countIf(t.nonconformant) AS nonconformant,
    countIf(t.state = 'measured' AND has(t.cited_ranks, 1)) AS cited_top1,
    countIf(t.state = 'measured' AND hasAny(t.cited_ranks, [1, 2, 3])) AS cited_top3,
    countIf(ifNull(t.low_confidence, false)) AS low_confidence,
    countIf(t.low_confidence IS NOT NULL) AS confidence_known,
    sumMapIf(
        map(toUInt32(t.retrieved * 65536 + t.cited_retrieved), toUInt64(1)),
        t.state = 'measured' AND t.retrieved > 0) AS recall_counts,
    sumMapIf(
        map(toInt32(sign(ifNull(t.rank_weighted_recall, 0.))
            * (ceil(log2(least(greatest(abs(ifNull(t.rank_weighted_recall, 0.)), 1e-38), 1e38)) * 128) + 20000)), toUInt64(1)),
        t.state = 'measured' AND t.rank_weighted_recall IS NOT NULL) AS rank_weighted_counts,
    sumMapIf(
        map(toInt32(sign(ifNull(t.top1_score, 0.))
            * (ceil(log2(least(greatest(abs(ifNull(t.top1_score, 0.)), 1e-38), 1e38)) * 128) + 20000)), toUInt64(1)),
        t.top1_score IS NOT NULL) AS score_counts
FROM {database}.traces AS t FINAL
WHERE t.pane >= {from:DateTime('UTC')} AND t.pane < {to:DateTime('UTC')}
GROUP BY pane, route, top_k_bucket, model, retriever_version, scorer, source
