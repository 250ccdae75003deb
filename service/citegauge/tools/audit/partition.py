"""The audit of one source partition: the log through the oracle, pane by pane against what is stored.

Only what can be known is judged. A pane is judged when it is closed by what was read and its whole hold-back was: nothing
that could belong to it lies before the first record. A late span is judged once the clock is known, which it is when it has
passed everything that a record before the first one could have said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from citegauge.domain import rekeyed
from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, TraceResult
from citegauge.domain.span import Kind, Span
from citegauge.errors import DeadLetterError
from citegauge.pipeline import Decoder, Record, Source
from citegauge.tools.audit.oracle import Arrival, ClosedPane, EventClock, Late, Oracle, Row
from citegauge.tools.audit.report import AuditReport, Difference, PartitionReport, Values
from citegauge.tools.audit.stored import VERSION_OFFSET_MASK, Rows, StoredRows

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
Key = tuple[Any, ...]


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


def keyed_opener(source: Source, decode: Decoder, record_bytes_max: int) -> Opener:
    """Opens the records of a topic that is keyed by trace id."""

    def open_record(record: Record) -> Iterable[Arrival | None]:
        if not record.value or len(record.value) > record_bytes_max:
            raise DeadLetterError("unreadable")
        for index, item in enumerate(decode(record.value)):
            origin = (source.topic, source.partition, record.offset, index)
            yield Arrival(item, record.timestamp_ns, origin) if isinstance(item, Span) else None

    return open_record


def rekeyed_opener(record_bytes_max: int) -> Opener:
    """Opens the records of the re-keyed topic, where every span carries its origin."""

    def open_record(record: Record) -> Iterable[Arrival | None]:
        if not record.value or len(record.value) > record_bytes_max:
            raise DeadLetterError("unreadable")
        for one in rekeyed.decode(record.value):
            yield Arrival(one.span, one.record_ns, (one.topic, one.partition, one.offset, one.index), one.source)

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
        clock: EventClock | None = None,
    ) -> None:
        """`clock`: of a partition that several sources feed; else its newest span is its time."""
        self.report = PartitionReport(source.name, extent.start, extent.end)
        report.partitions.append(self.report)
        self._all = report
        self._source = source
        self._open = open_record
        self._extent = extent
        self._stored = stored
        self._policy = policies[0]
        closings, self.report.forced = stored.forced()
        self._pane_s = self._policy.pane_ns // SECOND_NS
        self._oracle = Oracle(*policies, clock, {offset: at_s // self._pane_s for offset, at_s in closings.items()})
        self._first_judged: int | None = 0 if extent.whole else None
        self._clock_known_ns = 0
        self._late_from: int | None = extent.start if extent.whole else None
        self._compared_to: int | None = None
        """Pane up to which (exclusive) everything is compared."""
        self._late_compared_to = extent.start
        self._pending: list[ClosedPane] = []
        self._pending_late: list[Late] = []
        self._pending_rows = 0

    def feed(self, records: Iterable[Record]) -> None:
        """Read records; compare what has gathered. Raises what the reader raises."""
        for record in records:
            if self._first_judged is None:
                self._begin(record)
            try:
                found = list(self._open(record))
            except DeadLetterError:
                found = [None]
            arrivals = [arrival for arrival in found if arrival is not None]
            self.report.unreadable += len(found) - len(arrivals)
            self.report.records += 1
            self._oracle.read(record.offset, record.timestamp_ns, arrivals)
            self._gather()
            if self._late_from is None and self._oracle.event_ns >= self._clock_known_ns:
                self._late_from = self._late_compared_to = record.offset + 1
            if self._pending_rows >= COMPARE_ROWS or len(self._pending) >= COMPARE_PANES:
                self._compare(record.offset + 1)

    def finish(self) -> PartitionReport:
        """Compare the rest."""
        self._compare(self._extent.end)
        if not self._extent.whole and self._oracle.frozen:
            note = "routes are frozen (join.groups_max): whether they were so before the first record cannot be known"
            self.report.notes.append(note)
        return self.report

    def _begin(self, first: Record) -> None:
        """What can be judged when the log is read from the middle."""
        policy = self._policy
        self._clock_known_ns = first.timestamp_ns + policy.skew_ns
        first_whole = -(-self._clock_known_ns // policy.pane_ns)
        self._first_judged = first_whole + policy.trace_panes_max - 1

    def _gather(self) -> None:
        for pane in self._oracle.take_closed():
            if self._first_judged is not None and pane.pane >= self._first_judged:
                self._pending.append(pane)
                self._pending_rows += len(pane.rows) + len(pane.tallies)
        late = self._oracle.take_late()
        if self._late_from is not None:
            self._pending_late += late
            self._pending_rows += len(late)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, offset: int) -> None:
        """Everything that closed and came late before `offset`."""
        if self._first_judged is not None and self._oracle.closed >= self._first_judged:
            self._compare_panes(self._first_judged)
        if self._late_from is not None:
            from_s = self._extent.kept_from_s.get("late", 0)
            expected = {late.arrival.origin: self._late_values(late) for late in self._pending_late}
            self._diff(
                "late",
                ("topic", "partition", "offset", "index"),
                {key: values for key, values in expected.items() if values["pane_s"] >= from_s},
                [row for row in self._stored.late(self._late_compared_to, offset) if row["pane_s"] >= from_s],
            )
            self._late_compared_to = offset
        self._pending, self._pending_late, self._pending_rows = [], [], 0

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
            self._diff(table, names, expected, read(from_s, to_s))

    def _late_values(self, late: Late) -> Values:
        span = late.arrival.span
        return {
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "kind": Kind(span.kind).name.lower(),
            "route": span.route,
            "end_ns": late.end_ns,
            "pane_s": late.pane * self._pane_s,
            "watermark_ns": late.watermark_ns,
        }

    def _diff(self, table: str, names: tuple[str, ...], expected: Mapping[Key, Values], stored: Rows) -> None:
        seen: set[Key] = set()
        for row in stored:
            key = tuple(row.pop(name) for name in names)
            seen.add(key)
            self._judge(table, names, key, row, expected.get(key))
        for key, values in expected.items():
            if key not in seen:
                self._judge(table, names, key, None, values)
        self.report.compared[table] += len(expected)

    def _judge(
        self, table: str, names: tuple[str, ...], key: Key, stored: dict[str, Any] | None, expected: Values | None
    ) -> None:
        if stored is None or expected is None:
            if table == "panes" and _is_empty(stored or expected):
                return  # a group that nothing is left of may be published as zeros, or never have been
            if stored is not None and self._is_older(table, stored):
                self.report.older_epoch += 1
                return
            if table == "traces" and key[-1] in self._extent.forgotten:
                return
            named = dict(zip(names, key, strict=True))
            self._all.found(self.report, Difference(table, named, stored, _shown(expected)))
            return
        wrong = [name for name, value in stored.items() if not self._agrees(name, value, expected[name])]
        if wrong:
            theirs, ours = {name: stored[name] for name in wrong}, {name: expected[name] for name in wrong}
            self._all.found(self.report, Difference(table, dict(zip(names, key, strict=True)), theirs, _shown(ours)))

    def _agrees(self, name: str, stored: Any, expected: Any) -> bool:
        if name != "version":
            return bool(stored == expected)
        # A later epoch starts the same log again; a row from before it stands, where nothing replaced it.
        return stored >> 48 <= self._source.epoch and (stored & VERSION_OFFSET_MASK) in expected

    def _is_older(self, table: str, stored: Values) -> bool:
        """Of a row that this log knows nothing of: whether it may be of the log that was there before."""
        if table == "late":
            return self._source.epoch > 0
        return bool(stored["version"] >> 48 < self._source.epoch)


def _is_empty(values: Values | None) -> bool:
    return values is not None and not values["states"]


def _shown(expected: Values | None) -> Values | None:
    """Versions as one number, or the first few that would do."""
    if expected is None or "version" not in expected:
        return expected
    return {**expected, "version": list(expected["version"])[:10]}


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
    }


__all__ = ["PartitionAudit", "Range", "keyed_opener", "rekeyed_opener"]
