-- Rows written before this file count 0: for the length of a window after the update, shares of rank 1 and of ranks 1 to 3
-- that reach back before it are too small.
ALTER TABLE {database}.panes
    ADD COLUMN IF NOT EXISTS cited_top1 UInt64 CODEC(T64, ZSTD(1)) COMMENT 'measured traces that cite rank 1',
    ADD COLUMN IF NOT EXISTS cited_top3 UInt64 CODEC(T64, ZSTD(1))
        COMMENT 'measured traces that cite a rank of 1 to 3',
    ADD COLUMN IF NOT EXISTS low_confidence UInt64 CODEC(T64, ZSTD(1))
        COMMENT 'traces with a top-1 score below their threshold',
    ADD COLUMN IF NOT EXISTS confidence_known UInt64 CODEC(T64, ZSTD(1))
        COMMENT 'traces with a top-1 score and a threshold'
