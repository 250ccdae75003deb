"""The audit of one source partition: the log through the oracle, pane by pane against what is stored.

Only what can be known is judged. A pane is judged when it is closed by what was read and its whole hold-back was: nothing
that could belong to it lies before the first record. A late span is judged once the clock is known, which it is when it has
passed everything that a record before the first one could have said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, TraceResult
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError
from citegauge.pipeline import Decoder, Record, Source
from citegauge.tools.audit.compare import Comparer, Key
from citegauge.tools.audit.late import LateAudit, LateByOffset, LateByWatermark
from citegauge.tools.audit.oracle import Arrival, ClosedPane, Oracle, Row, SlowestSource
from citegauge.tools.audit.report import AuditReport, PartitionReport, Values
from citegauge.tools.audit.stored import StoredRows

COMPARE_ROWS = 20_000
"""Rows that are gathered before the next comparison (whole panes, so one may be larger)."""
COMPARE_PANES = 720
"""Panes that are gathered before the next comparison."""
LOOK_BACK_S = 86_400
"""How far before the first pane of a whole log rows are looked for that nothing in it explains."""
UNIX_S_MAX = 0xFFFF_FFFF
"""Where ClickHouse's DateTime ends."""
GROUP = ("route", "top_k_bucket", "model", "retriever_version", "scorer")
Opener = Callable[[Record], Iterable[Arrival | None]]
"""A record's spans, None for one that cannot be read. Raises `DeadLetterError` for a record that cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which part of a partition is read."""

    start: int
    end: int
    whole: bool
    """Nothing before `start` counts: it is the beginning of the log, or the worker began there with empty state."""
    kept_from_s: Mapping[str, int] = field(default_factory=dict)
    """By table: rows of older panes are not judged, because the table may have let go of them."""
    forgotten: frozenset[str] = frozenset()
    """Trace ids whose rows were deleted on purpose."""


def opener(source: Source, decode: Decoder, record_bytes_max: int) -> Opener:
    """Opens the records of a topic that is joined: one that is keyed by trace id, or the re-keyed one."""

    def open_record(record: Record) -> Iterable[Arrival | None]:
        if not record.value or len(record.value) > record_bytes_max:
            raise DeadLetterError("unreadable")
        for index, item in enumerate(decode(record.value)):
            if isinstance(item, Span):
                yield Arrival(item, record.timestamp_ns, (source.topic, source.partition, record.offset, index))
            elif isinstance(item, Rekeyed):
                origin = (item.topic, item.partition, item.offset, item.index)
                yield Arrival(item.span, item.record_ns, origin, item.source)
            else:
                yield None

    return open_record


class PartitionAudit:
    """Feed it the records in order, then `finish`. Its queries block."""

    def __init__(
        self,
        source: Source,
        open_record: Opener,
        policies: tuple[JoinPolicy, ScorePolicy],
        extent: Range,
        stored: StoredRows,
        report: AuditReport,
        *,
        rekeyed_partitions: int = 0,
    ) -> None:
        """`rekeyed_partitions`: how many the re-keyed topic has, if this is one of its; 0: it is another's."""
        self.report = PartitionReport(source.name, extent.start, extent.end)
        report.partitions.append(self.report)
        self._open = open_record
        self._extent = extent
        self._stored = stored
        self._policy = policies[0]
        self._pane_s = self._policy.pane_ns // SECOND_NS
        self._rekeyed = rekeyed_partitions > 0
        self._comparer = Comparer(report, self.report, source.epoch, extent.forgotten)
        late_from_s = extent.kept_from_s.get("late", 0)
        self._late: LateAudit = (
            LateByWatermark(stored, self._comparer, self._pane_s, late_from_s, rekeyed_partitions)
            if self._rekeyed
            else LateByOffset(stored, self._comparer, self._pane_s, late_from_s)
        )
        closings, self.report.forced = stored.forced()
        clock = SlowestSource(self._policy.source_idle_ns) if rekeyed_partitions else None
        self._oracle = Oracle(*policies, clock, {offset: at_s // self._pane_s for offset, at_s in closings.items()})
        self._first_judged = 0
        self._clock_known_ns = 0
        self._late_begun = self._begun = False
        self._compared_to: int | None = None
        """Pane up to which (exclusive) everything is compared."""
        self._pending: list[ClosedPane] = []
        self._pending_rows = 0

    def feed(self, records: Iterable[Record]) -> None:
        """Read records; compare what has gathered. Raises what the reader raises."""
        for record in records:
            if not self._begun:
                self._begin(record)
            try:
                found = list(self._open(record))
            except DeadLetterError:
                found = [None]
            arrivals = [arrival for arrival in found if arrival is not None]
            self.report.unreadable += len(found) - len(arrivals)
            self.report.records += 1
            self._oracle.read(record.offset, record.timestamp_ns, arrivals)
            self._gather(record.offset + 1)
            if self._pending_rows >= COMPARE_ROWS or len(self._pending) >= COMPARE_PANES:
                self._compare(record.offset + 1)

    def finish(self) -> PartitionReport:
        """Compare the rest."""
        self._compare(self._extent.end, last=True)
        if not self._extent.whole and self._oracle.frozen:
            note = "routes are frozen (join.groups_max): whether they were so before the first record cannot be known"
            self.report.notes.append(note)
        return self.report

    def _begin(self, first: Record) -> None:
        """What can be judged, if the log is read from the middle."""
        self._begun = True
        if self._extent.whole:
            self._late.begin(self._extent.start, 0)
            self._late_begun = True
            return
        policy = self._policy
        # What lies before the first record says nothing of later times. A source that only was read before it holds back
        # the worker's clock, and not the oracle's, until it is idle.
        self._clock_known_ns = first.timestamp_ns + policy.skew_ns + self._rekeyed * policy.source_idle_ns
        self._first_judged = -(-self._clock_known_ns // policy.pane_ns) + policy.trace_panes_max - 1

    def _gather(self, offset: int) -> None:
        """Take what the oracle has found before `offset`."""
        for pane in self._oracle.take_closed():
            if pane.pane >= self._first_judged:
                self._pending.append(pane)
                self._pending_rows += len(pane.rows) + len(pane.tallies)
        self._pending_rows += self._late.add(self._oracle.take_late())
        if not self._late_begun and self._oracle.event_ns > self._clock_known_ns:
            self._late.begin(offset, self._oracle.watermark_ns)
            self._late_begun = True

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, offset: int, *, last: bool = False) -> None:
        """Everything that closed and came late before `offset`."""
        if self._oracle.closed >= self._first_judged:
            self._compare_panes(self._first_judged)
        self._late.compare(offset, self._oracle.watermark_ns, last=last)
        self._pending, self._pending_rows = [], 0

    def _compare_panes(self, first_judged: int) -> None:
        first, oracle, pane_s = self._compared_to, self._oracle, self._pane_s
        if first is None:
            known = self._pending[0].pane if self._pending else oracle.closed
            first = max(first_judged, known - LOOK_BACK_S // pane_s)
        self._compared_to = oracle.closed + 1
        from_s, to_s = first * pane_s, min(self._compared_to * pane_s, UNIX_S_MAX)
        self.report.panes += len(self._pending)
        if self._pending:
            if self.report.judged_from is None:
                self.report.judged_from = self._pending[0].pane * pane_s
            self.report.judged_to = (self._pending[-1].pane + 1) * pane_s
        key = ("pane_s", *GROUP)
        self._diff_panes(
            "panes",
            key,
            (from_s, to_s),
            {
                (pane.pane * pane_s, *group): _pane_values(pane, tally)
                for pane in self._pending
                for group, tally in pane.tallies.items()
            },
        )
        self._diff_panes(
            "traces",
            (*key, "trace_id"),
            (from_s, to_s),
            {
                (pane.pane * pane_s, *group, trace_id.hex()): _trace_values(row, pane.offset)
                for pane in self._pending
                for (group, trace_id), row in pane.rows.items()
            },
        )

    def _diff_panes(
        self, table: str, names: tuple[str, ...], between: tuple[int, int], expected: Mapping[Key, Values]
    ) -> None:
        from_s, to_s = max(between[0], self._extent.kept_from_s.get(table, 0)), between[1]
        if from_s < to_s:
            read = self._stored.panes if table == "panes" else self._stored.traces
            expected = {key: values for key, values in expected.items() if key[0] >= from_s}
            self._comparer.rows(table, names, expected, read(from_s, to_s))


def _pane_values(pane: ClosedPane, tally: Tally) -> Values:
    return {
        "version": (2 * pane.offset + 1,),
        "final": True,
        "forced": pane.forced,
        "states": tally.state_counts(),
        "citations": tally.citations,
        "hallucinated": tally.hallucinated,
        "dropped_citations": tally.dropped_citations,
        "unresolved": tally.unresolved,
        "ids_dropped": tally.ids_dropped,
        "nonconformant": tally.nonconformant,
        "recounted": tally.recounted,
        "cited_top1": tally.cited_top1,
        "cited_top3": tally.cited_top3,
        "low_confidence": tally.low_confidence,
        "confidence_known": tally.confidence_known,
        "recall_counts": tally.recall_counts,
        "rank_weighted_counts": tally.rank_weighted_counts,
        "score_counts": tally.score_counts,
    }


def _trace_values(row: Row, closed_at: int) -> Values:
    result: TraceResult = row.result
    return {
        "version": tuple(2 * offset + 1 for offset in row.offsets if offset <= closed_at),
        "event_time_ns": result.event_ns,
        "state": STATE_NAMES[result.state],
        "top_k": result.top_k,
        "retrieved": len(result.retrieved),
        "cited_retrieved": len(result.cited_ranks),
        "recall": result.recall,
        "rank_weighted_recall": result.rank_weighted_recall,
        "top1_score": result.top1_score,
        "nonconformant": result.nonconformant,
        "unresolved": result.unresolved,
        "ids_dropped": result.ids_dropped,
        "synthetic_ids": result.synthetic_ids,
        "lag_ns": result.event_ns - result.retrieval_end_ns if result.retrieval_end_ns else 0,
        "chunk_ids": result.retrieved,
        "chunk_scores": result.scores,
        "cited_ids": result.cited,
        "cited_ranks": result.cited_ranks,
        "hallucinated_ids": result.hallucinated,
        "dropped_cited_ids": result.dropped_cited,
        "low_confidence": result.low_confidence,
    }


__all__ = ["PartitionAudit", "Range", "opener"]
