-- One row per span that came after its pane had closed. It changed no trace and no pane; here is what it was.
-- Not partitioned: the key has no time in it, and a span read twice must replace itself.
CREATE TABLE IF NOT EXISTS {database}.late
(
    topic        LowCardinality(String),
    `partition`  Int32 CODEC(ZSTD(1)),
    `offset`     Int64 CODEC(Delta(8), ZSTD(1)),
    `index`      UInt32 CODEC(ZSTD(1)) COMMENT 'position of the span in its record',
    trace_id     String CODEC(ZSTD(1)),
    span_id      String CODEC(ZSTD(1)),
    kind         LowCardinality(String),
    route        LowCardinality(String),
    end_ns       Int64 CODEC(Delta(8), ZSTD(1)),
    pane         DateTime('UTC') CODEC(Delta(4), ZSTD(1)) COMMENT 'start of the span''s own pane',
    watermark_ns Int64 CODEC(Delta(8), ZSTD(1)) COMMENT 'the watermark that had passed it',
    end_time     DateTime64(9, 'UTC') ALIAS fromUnixTimestamp64Nano(end_ns, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, `partition`, `offset`, `index`)
TTL pane + INTERVAL 30 DAY
