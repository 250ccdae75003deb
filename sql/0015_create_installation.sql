-- Who this installation is: one id, made at the first start or given as `kafka.installation`; more where two workers started
-- at once or the name was changed, and each of them is its own. Compared with what stands in Kafka's `citegauge.installations`.
CREATE TABLE IF NOT EXISTS {database}.installation
(
    id    String,
    since DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (since, id)
