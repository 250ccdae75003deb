-- What the service itself computed and alerted on; '*' stands for a merged dimension. Dashboards read this table.
CREATE TABLE IF NOT EXISTS {database}.windows
(
    window             LowCardinality(String) COMMENT '1h, 6h or 24h',
    window_start       DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)) COMMENT 'inclusive',
    window_end         DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)) COMMENT 'exclusive',
    route              LowCardinality(String),
    top_k_bucket       LowCardinality(String),
    model              LowCardinality(String),
    retriever_version  LowCardinality(String),
    scorer             LowCardinality(String),
    n                  UInt64 CODEC(T64, ZSTD(1)) COMMENT 'measured traces',
    recall_p25         Nullable(Float64) CODEC(ZSTD(1)),
    recall_p50         Nullable(Float64) CODEC(ZSTD(1)),
    recall_p75         Nullable(Float64) CODEC(ZSTD(1)),
    recall_mean        Nullable(Float64) CODEC(ZSTD(1)),
    rank_weighted_mean Nullable(Float64) CODEC(ZSTD(1)),
    cited_any_ratio    Nullable(Float64) CODEC(ZSTD(1)) COMMENT 'share of measured answers with a valid citation',
    score_n            UInt64 CODEC(T64, ZSTD(1)),
    score_p25          Nullable(Float64) CODEC(ZSTD(1)),
    score_p50          Nullable(Float64) CODEC(ZSTD(1)),
    score_p75          Nullable(Float64) CODEC(ZSTD(1)),
    states             Map(LowCardinality(String), UInt64) CODEC(ZSTD(1)),
    citations          UInt64 CODEC(T64, ZSTD(1)),
    hallucinated       UInt64 CODEC(T64, ZSTD(1)),
    dropped_citations  UInt64 CODEC(T64, ZSTD(1)),
    unresolved         UInt64 CODEC(T64, ZSTD(1)),
    nonconformant      UInt64 CODEC(T64, ZSTD(1)),
    recounted          UInt64 CODEC(T64, ZSTD(1)),
    version            UInt64 CODEC(Delta(8), ZSTD(1)) COMMENT 'as-of time in ns'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(window_end)
ORDER BY (window, window_end, route, top_k_bucket, model, retriever_version, scorer)
TTL window_end + INTERVAL 90 DAY
SETTINGS ttl_only_drop_parts = 1
