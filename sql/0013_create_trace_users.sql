-- Which traces have spans of which user, by a keyed hash; empty unless `privacy.user_hmac_key` is set. Only `citegauge forget`
-- reads it. Kept as long as `late`, which outlives `traces`.
CREATE TABLE IF NOT EXISTS {database}.trace_users
(
    user_hash String CODEC(ZSTD(1)) COMMENT 'HMAC-SHA256 of the user id, the first 16 bytes in hex',
    trace_id  String CODEC(ZSTD(1)),
    seen      DateTime('UTC') CODEC(Delta(4), ZSTD(1)) COMMENT 'timestamp of the newest record that said so'
)
ENGINE = ReplacingMergeTree(seen)
ORDER BY (user_hash, trace_id)
TTL seen + INTERVAL 30 DAY
