-- One row per minute, group and source partition: absolute counts, so that a repeated insert changes nothing.
-- Never sum over this table without FINAL, and never hang an additive materialised view on it.
CREATE TABLE IF NOT EXISTS {database}.panes
(
    pane                 DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
    route                LowCardinality(String),
    top_k_bucket         LowCardinality(String),
    model                LowCardinality(String),
    retriever_version    LowCardinality(String),
    scorer               LowCardinality(String),
    source               LowCardinality(String) COMMENT '<topic>/<partition> that owns this partial',
    version              UInt64 CODEC(Delta(8), ZSTD(1)),
    final                Bool CODEC(ZSTD(1)) COMMENT 'closed: this row never changes again',
    forced               Bool CODEC(ZSTD(1)) COMMENT 'closed early, because too many traces were in flight',
    states               Map(LowCardinality(String), UInt64) CODEC(ZSTD(1)),
    citations            UInt64 CODEC(T64, ZSTD(1)),
    hallucinated         UInt64 CODEC(T64, ZSTD(1)),
    dropped_citations    UInt64 CODEC(T64, ZSTD(1)) COMMENT 'hallucinated ones that an earlier stage had returned',
    unresolved           UInt64 CODEC(T64, ZSTD(1)),
    ids_dropped          UInt64 CODEC(T64, ZSTD(1)),
    nonconformant        UInt64 CODEC(T64, ZSTD(1)),
    recounted            UInt64 CODEC(T64, ZSTD(1)),
    recall_counts        Map(UInt32, UInt64) CODEC(ZSTD(1)) COMMENT 'retrieved * 65536 + cited -> traces',
    rank_weighted_counts Map(Int32, UInt64) CODEC(ZSTD(1)) COMMENT 'histogram key -> traces',
    score_counts         Map(Int32, UInt64) CODEC(ZSTD(1)) COMMENT 'histogram key -> traces'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(pane)
-- Time first: a one-hour window reads one hour, whatever the number of groups.
ORDER BY (pane, route, top_k_bucket, model, retriever_version, scorer, source)
TTL pane + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
