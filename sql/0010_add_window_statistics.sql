-- *_lower and *_upper are 95 % intervals: order statistics of a quantile, Wilson's of a share. NULL: nothing is known of it,
-- also in rows written before this file.
ALTER TABLE {database}.windows
    ADD COLUMN IF NOT EXISTS recall_sd Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS recall_mean_lower Nullable(Float64) CODEC(ZSTD(1))
        COMMENT '95 % interval, NULL below n = 30',
    ADD COLUMN IF NOT EXISTS recall_mean_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS recall_mid_p25 Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'mid-distribution quantile',
    ADD COLUMN IF NOT EXISTS recall_mid_p50 Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'mid-distribution quantile',
    ADD COLUMN IF NOT EXISTS recall_p25_lower Nullable(Float64) CODEC(ZSTD(1))
        COMMENT '95 % interval, NULL below n = 13',
    ADD COLUMN IF NOT EXISTS recall_p25_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS recall_p50_lower Nullable(Float64) CODEC(ZSTD(1))
        COMMENT '95 % interval, NULL below n = 6',
    ADD COLUMN IF NOT EXISTS recall_p50_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS score_mean Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS score_sd Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS score_p25_lower Nullable(Float64) CODEC(ZSTD(1))
        COMMENT '95 % interval, NULL below score_n = 13',
    ADD COLUMN IF NOT EXISTS score_p25_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS score_p50_lower Nullable(Float64) CODEC(ZSTD(1))
        COMMENT '95 % interval, NULL below score_n = 6',
    ADD COLUMN IF NOT EXISTS score_p50_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cited_any_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cited_any_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cites_rank1_ratio Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'share of measured answers that cite rank 1',
    ADD COLUMN IF NOT EXISTS cites_rank1_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cites_rank1_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cites_rank1_3_ratio Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'share of measured answers that cite a rank of 1 to 3',
    ADD COLUMN IF NOT EXISTS cites_rank1_3_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cites_rank1_3_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS hallucinated_ratio Nullable(Float64) CODEC(ZSTD(1)) COMMENT 'share of citations',
    ADD COLUMN IF NOT EXISTS hallucinated_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS hallucinated_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS nonconformant_ratio Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'share of traces that may have an answer',
    ADD COLUMN IF NOT EXISTS nonconformant_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS nonconformant_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS zero_results_ratio Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'share of traces whose retrieval is known',
    ADD COLUMN IF NOT EXISTS zero_results_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS zero_results_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS low_confidence_ratio Nullable(Float64) CODEC(ZSTD(1))
        COMMENT 'share of traces with a score and a threshold',
    ADD COLUMN IF NOT EXISTS low_confidence_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS low_confidence_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS unjoined_ratio Nullable(Float64) CODEC(ZSTD(1)) COMMENT 'share of all traces',
    ADD COLUMN IF NOT EXISTS unjoined_lower Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS unjoined_upper Nullable(Float64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cited_top1 UInt64 CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS cited_top3 UInt64 CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS low_confidence UInt64 CODEC(T64, ZSTD(1)),
    ADD COLUMN IF NOT EXISTS confidence_known UInt64 CODEC(T64, ZSTD(1))
