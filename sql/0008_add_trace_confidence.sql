-- NULL: the trace has no top-1 score, or its route has no threshold for the scorer; also of rows written before this file.
ALTER TABLE {database}.traces
    ADD COLUMN IF NOT EXISTS low_confidence Nullable(Bool) CODEC(ZSTD(1))
        COMMENT 'top-1 score below the threshold of route and scorer'
