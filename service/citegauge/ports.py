"""Protocols that the edges implement, and the rows that cross them. No behaviour here.

Rows are plain structs: what an adapter stores is exactly what stands here, under the same names (see `sql/`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class TraceRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `traces`, keyed (route, top_k_bucket, model, retriever_version, scorer, pane, trace_id)."""

    pane: int
    """Start of the pane, unix seconds."""
    route: str
    top_k_bucket: str
    model: str
    retriever_version: str
    scorer: str
    trace_id: str
    """32 lower-case hex digits."""
    version: int
    event_time_ns: int
    state: str
    top_k: int
    retrieved: int
    """How many distinct chunks were retrieved."""
    cited_retrieved: int
    """How many of them are cited."""
    recall: float | None
    rank_weighted_recall: float | None
    top1_score: float | None
    nonconformant: bool
    unresolved: int
    ids_dropped: int
    synthetic_ids: bool
    lag_ns: int
    """Event time minus the end of the last retrieval; 0 where there is none."""
    chunk_ids: list[str]
    chunk_scores: list[float | None]
    cited_ids: list[str]
    cited_ranks: list[int]
    hallucinated_ids: list[str]
    """Empty where the retrieved set is not known."""
    source: str
    """`<topic>/<partition>`."""
    dropped_cited_ids: list[str] = []
    """Those of `hallucinated_ids` that an earlier stage had returned."""
    low_confidence: bool | None = None
    """The top-1 score is below the route's threshold for its scorer; None without a score or a threshold."""


class TraceTombstone(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Deletes the `traces` row of the same key with a lower version (`is_deleted = 1`)."""

    pane: int
    route: str
    top_k_bucket: str
    model: str
    retriever_version: str
    scorer: str
    trace_id: str
    version: int
    source: str


class PaneRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One absolute upsert of a pane, keyed (pane, group, source); also the value of a panes-topic message."""

    pane: int
    """Start of the pane, unix seconds."""
    route: str
    top_k_bucket: str
    model: str
    retriever_version: str
    scorer: str
    source: str
    """`<topic>/<partition>` that owns this partial."""
    version: int
    final: bool
    """The pane is closed: this row never changes again."""
    forced: bool
    """It was closed early, because too many traces were in flight."""
    states: dict[str, int]
    """Traces by state name; states that did not occur are left out."""
    citations: int
    hallucinated: int
    unresolved: int
    ids_dropped: int
    nonconformant: int
    recounted: int
    recall_counts: dict[int, int]
    """Key `retrieved << 16 | cited` of measured traces (`domain.distribution`)."""
    rank_weighted_counts: dict[int, int]
    """Histogram key of the rank-weighted recall."""
    score_counts: dict[int, int]
    """Histogram key of the top-1 score."""
    dropped_citations: int = 0
    """Hallucinated citations of chunks that an earlier stage had returned."""
    cited_top1: int = 0
    """Measured traces that cite the chunk of rank 1."""
    cited_top3: int = 0
    """Measured traces that cite a chunk of ranks 1 to 3."""
    low_confidence: int = 0
    """Traces whose top-1 score is below their route's threshold for the scorer."""
    confidence_known: int = 0
    """Traces with a top-1 score and such a threshold."""


class LateRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One span that came after its pane had closed, keyed by its source."""

    topic: str
    partition: int
    offset: int
    index: int
    trace_id: str
    span_id: str
    kind: str
    route: str
    end_ns: int
    pane: int
    """Start of the span's own pane, unix seconds."""
    watermark_ns: int


class UserRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """That a trace has spans of a user, keyed (user_hash, trace_id)."""

    user_hash: str
    """32 lower-case hex digits."""
    trace_id: str
    seen: int
    """Timestamp of the newest record that said so, unix seconds."""


class WindowRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `windows`: what the service computed. `'*'` stands for a merged dimension."""

    window: str
    """`1h`, `6h` or `24h`."""
    window_start: int
    """Unix seconds, inclusive."""
    window_end: int
    """Unix seconds, exclusive."""
    route: str
    top_k_bucket: str
    model: str
    retriever_version: str
    scorer: str
    n: int
    """Measured traces."""
    recall_p25: float | None
    recall_p50: float | None
    recall_p75: float | None
    recall_mean: float | None
    rank_weighted_mean: float | None
    cited_any_ratio: float | None
    """Share of measured answers with at least one valid citation."""
    score_n: int
    score_p25: float | None
    score_p50: float | None
    score_p75: float | None
    states: dict[str, int]
    citations: int
    hallucinated: int
    unresolved: int
    nonconformant: int
    recounted: int
    version: int
    """As-of time in ns: a later computation of the same window replaces an earlier one."""
    dropped_citations: int = 0
    recall_sd: float | None = None
    """None below two traces, as `score_sd`."""
    recall_mean_lower: float | None = None
    """All `*_lower` and `*_upper` are ends of 95 % intervals, None where there are too few traces for one."""
    recall_mean_upper: float | None = None
    recall_mid_p25: float | None = None
    """Mid-distribution quantile, which moves with the whole distribution where the plain one stands on a lattice point."""
    recall_mid_p50: float | None = None
    recall_p25_lower: float | None = None
    recall_p25_upper: float | None = None
    recall_p50_lower: float | None = None
    recall_p50_upper: float | None = None
    score_mean: float | None = None
    score_sd: float | None = None
    score_p25_lower: float | None = None
    score_p25_upper: float | None = None
    score_p50_lower: float | None = None
    score_p50_upper: float | None = None
    cited_any_lower: float | None = None
    cited_any_upper: float | None = None
    cites_rank1_ratio: float | None = None
    """Of measured answers, as `cited_any`; so `cites_rank1_3`, those that cite any of the first three chunks."""
    cites_rank1_lower: float | None = None
    cites_rank1_upper: float | None = None
    cites_rank1_3_ratio: float | None = None
    cites_rank1_3_lower: float | None = None
    cites_rank1_3_upper: float | None = None
    hallucinated_ratio: float | None = None
    """Of citations."""
    hallucinated_lower: float | None = None
    hallucinated_upper: float | None = None
    nonconformant_ratio: float | None = None
    """Of traces that may have an answer."""
    nonconformant_lower: float | None = None
    nonconformant_upper: float | None = None
    zero_results_ratio: float | None = None
    """Of traces whose retrieval is known."""
    zero_results_lower: float | None = None
    zero_results_upper: float | None = None
    low_confidence_ratio: float | None = None
    """Of traces with a top-1 score and a threshold for it."""
    low_confidence_lower: float | None = None
    low_confidence_upper: float | None = None
    unjoined_ratio: float | None = None
    """Of all traces; the join rate is what is left."""
    unjoined_lower: float | None = None
    unjoined_upper: float | None = None
    cited_top1: int = 0
    cited_top3: int = 0
    low_confidence: int = 0
    confidence_known: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record or span that could not be read, with its origin. The payload stays out unless a setting asks for it."""

    topic: str
    partition: int
    offset: int
    index: int
    """Position of the span in the record; -1: the record as a whole."""
    reason: str
    detail: str
    timestamp_ns: int
    size_bytes: int
    payload: bytes | None = None


Row = TraceRow | TraceTombstone | PaneRow | LateRow | UserRow | WindowRow


class RowSink(Protocol):
    """Where rows go. One call is one batch of one row type; it may be repeated with the same rows."""

    def insert(self, rows: Sequence[Row]) -> None:
        """Blocking insert of rows of one type.

        Raises `RetryableError` when the outcome is unknown or the server is busy, `FatalError` when the rows or the
        schema are wrong.
        """


class SqlReader(Protocol):
    """Read access to ClickHouse with bound parameters; never string formatting of values."""

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Blocking query. Raises `RetryableError` or `FatalError` as `RowSink.insert` does."""


class PaneUpdate(msgspec.Struct, frozen=True, gc=False, tag="pane"):
    """Panes topic: an absolute upsert, keyed by (route, top_k bucket)."""

    row: PaneRow


class ClosedMarker(msgspec.Struct, frozen=True, gc=False, tag="closed"):
    """Panes topic, every partition: the source's panes up to `through` are final, and acknowledged by both sinks."""

    source: str
    through: int
    """Start of the newest closed pane, unix seconds."""


class HeartbeatMessage(msgspec.Struct, frozen=True, gc=False, tag="heartbeat", omit_defaults=True):
    """Panes topic, every partition, each publish: how far a source partition is."""

    source: str
    closed_through: int
    watermark_ns: int
    caught_up: bool
    """Nothing was left to read at that moment."""
    installation: str = ""
    """Id of the installation that sent it (`domain.identity`); empty: a release that had none."""


PaneMessage = PaneUpdate | ClosedMarker | HeartbeatMessage


def panes_partition(route: str, top_k_bucket: str, partitions: int) -> int:
    """The panes-topic partition that owns a roll-up. Both tiers compute it, so it must not depend on a client library."""
    return zlib.crc32(f"{route}\0{top_k_bucket}".encode()) % partitions
