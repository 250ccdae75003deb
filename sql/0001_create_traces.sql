-- One row per trace: what was retrieved, what was cited, and the state it ended in. The truth behind every pane.
-- A correction is the same key with a higher version; a move to another key leaves a tombstone (is_deleted = 1) behind.
CREATE TABLE IF NOT EXISTS {database}.traces
(
    pane                 DateTime('UTC') CODEC(Delta(4), ZSTD(1)) COMMENT 'start of the pane that counts this trace',
    route                LowCardinality(String),
    top_k_bucket         LowCardinality(String),
    model                LowCardinality(String),
    retriever_version    LowCardinality(String),
    scorer               LowCardinality(String),
    trace_id             String CODEC(ZSTD(1)) COMMENT '32 lower-case hex digits',
    version              UInt64 CODEC(Delta(8), ZSTD(1)),
    is_deleted           UInt8 DEFAULT 0 CODEC(ZSTD(1)),
    event_time_ns        Int64 CODEC(Delta(8), ZSTD(1)),
    state                LowCardinality(String),
    top_k                Int64 CODEC(T64, ZSTD(1)),
    retrieved            UInt32 CODEC(T64, ZSTD(1)) COMMENT 'distinct chunks retrieved',
    cited_retrieved      UInt32 CODEC(T64, ZSTD(1)) COMMENT 'how many of them are cited',
    recall               Nullable(Float64) CODEC(ZSTD(1)),
    rank_weighted_recall Nullable(Float64) CODEC(ZSTD(1)),
    top1_score           Nullable(Float64) CODEC(ZSTD(1)),
    nonconformant        Bool CODEC(ZSTD(1)),
    unresolved           UInt32 CODEC(T64, ZSTD(1)),
    ids_dropped          UInt32 CODEC(T64, ZSTD(1)),
    synthetic_ids        Bool CODEC(ZSTD(1)),
    lag_ns               Int64 CODEC(T64, ZSTD(1)),
    chunk_ids            Array(String) CODEC(ZSTD(1)),
    chunk_scores         Array(Nullable(Float64)) CODEC(ZSTD(1)),
    cited_ids            Array(String) CODEC(ZSTD(1)),
    cited_ranks          Array(UInt32) CODEC(ZSTD(1)),
    hallucinated_ids     Array(String) CODEC(ZSTD(1)) COMMENT 'cited, but not in the retrieved set',
    dropped_cited_ids    Array(String) CODEC(ZSTD(1)) COMMENT 'those of hallucinated_ids that an earlier stage had returned',
    source               LowCardinality(String) COMMENT '<topic>/<partition>',
    event_time           DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(event_time_ns, 'UTC'),
    INDEX trace_id_bloom trace_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(version, is_deleted)
-- A function of the key: versions of one row must meet in one partition, or they never replace each other.
PARTITION BY toDate(pane)
ORDER BY (pane, route, top_k_bucket, model, retriever_version, scorer, trace_id)
TTL pane + INTERVAL 14 DAY
SETTINGS ttl_only_drop_parts = 1
