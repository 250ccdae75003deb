"""What ClickHouse holds of one source partition, in the terms of the log. Reads with `FINAL`, values always bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.ports import SqlReader

Rows = list[dict[str, Any]]

_RANGE = (
    "source = {source:String} "
    "AND pane >= toDateTime({from_s:UInt32}, 'UTC') AND pane < toDateTime({to_s:UInt32}, 'UTC')"
)
PANES = """
SELECT toUnixTimestamp(pane) AS pane_s, route, top_k_bucket, model, retriever_version, scorer, version, final, forced,
       states, citations, hallucinated, dropped_citations, unresolved, ids_dropped, nonconformant, recounted,
       cited_top1, cited_top3, low_confidence, confidence_known,
       recall_counts, rank_weighted_counts, score_counts
FROM {database}.panes FINAL WHERE {range}
"""
TRACES = """
SELECT toUnixTimestamp(pane) AS pane_s, route, top_k_bucket, model, retriever_version, scorer, trace_id, version,
       event_time_ns, state, top_k, retrieved, cited_retrieved, recall, rank_weighted_recall, top1_score, nonconformant,
       unresolved, ids_dropped, synthetic_ids, lag_ns, chunk_ids, chunk_scores, cited_ids, cited_ranks,
       hallucinated_ids, dropped_cited_ids, low_confidence
FROM {database}.traces FINAL WHERE {range}
"""
LATE = """
SELECT topic, partition, offset, index, trace_id, span_id, kind, route, end_ns, toUnixTimestamp(pane) AS pane_s, watermark_ns
FROM {database}.late FINAL
WHERE {where}
"""
_BY_OFFSET = (
    "topic = {topic:String} AND partition = {partition:Int32} AND offset >= {first:Int64} AND offset < {end:Int64}"
)
# As `domain.rekeyed.trace_partition`.
_BY_TRACE = """CRC32(unhex(trace_id)) % {partitions:UInt32} = {own:UInt32}
  AND watermark_ns >= {from_ns:Int64} AND watermark_ns < {to_ns:Int64}"""
_AGAIN = """topic = {topic:String} AND partition = {partition:Int32} AND offset = {offset:Int64} AND index = {index:UInt32}
  AND watermark_ns > {watermark_ns:Int64}"""
FORCED = """
SELECT toUnixTimestamp(pane) AS pane_s, max(version) AS version, count() AS n
FROM {database}.panes FINAL WHERE source = {{source:String}} AND forced GROUP BY pane
"""
VERSION_OFFSET_MASK = (1 << 48) - 1


class StoredRows:
    """The rows of one source partition."""

    def __init__(self, reader: SqlReader, database: str, topic: str, partition: int) -> None:
        """`database` is a plain identifier (a setting that is checked)."""
        self._reader = reader
        self._topic, self._partition = topic, partition
        self._source = f"{topic}/{partition}"
        self._panes_sql, self._traces_sql = (sql.format(database=database, range=_RANGE) for sql in (PANES, TRACES))
        self._forced_sql = FORCED.format(database=database)
        self._late_sql, self._late_by_trace_sql, self._again_sql = (
            LATE.format(database=database, where=where) for where in (_BY_OFFSET, _BY_TRACE, _AGAIN)
        )

    def panes(self, from_s: int, to_s: int) -> Rows:
        """Rows of `panes` in [from, to), unix seconds."""
        return self._reader.query(self._panes_sql, self._range(from_s, to_s))

    def traces(self, from_s: int, to_s: int) -> Rows:
        """Rows of `traces` in [from, to), unix seconds."""
        return self._reader.query(self._traces_sql, self._range(from_s, to_s))

    def late(self, first: int, end: int) -> Rows:
        """Rows of `late` that come from the offsets [first, end)."""
        bound = {"topic": self._topic, "partition": self._partition, "first": first, "end": end}
        return self._reader.query(self._late_sql, bound)

    def late_by_trace(self, partitions: int, from_ns: int, to_ns: int) -> Rows:
        """Rows of `late` of re-keyed traces of this partition that watermarks in [from, to) had passed."""
        bound = {"partitions": partitions, "own": self._partition, "from_ns": from_ns, "to_ns": to_ns}
        return self._reader.query(self._late_by_trace_sql, bound)

    def late_again(self, origin: tuple[Any, ...], late: Mapping[str, Any]) -> bool:
        """Whether this late span has a row of a later time."""
        names = ("topic", "partition", "offset", "index")
        bound = dict(zip(names, origin, strict=True)) | {"watermark_ns": late["watermark_ns"]}
        return bool(self._reader.query(self._again_sql, bound))

    def forced(self) -> tuple[dict[int, int], int]:
        """Early closings, as offset to pane (start, unix seconds), and the number of rows that they are of."""
        rows = self._reader.query(self._forced_sql, {"source": self._source})
        closings: dict[int, int] = {}
        for row in rows:
            offset = (int(row["version"]) & VERSION_OFFSET_MASK) >> 1
            closings[offset] = max(int(row["pane_s"]), closings.get(offset, -1))
        return closings, sum(int(row["n"]) for row in rows)

    def _range(self, from_s: int, to_s: int) -> Mapping[str, Any]:
        return {"source": self._source, "from_s": from_s, "to_s": to_s}
