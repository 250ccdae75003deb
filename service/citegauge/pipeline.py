"""The pipeline of one source partition on one screen: decode → join → score → pane → rows. Synchronous, no I/O.

feed(record)      decodes a record's value and joins its spans; a record that cannot be read becomes a dead letter
take_flush(...)   everything to publish since the last flush, and the commit that may follow once it is acknowledged
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypedDict

import msgspec

from citegauge.conventions import SpanFault
from citegauge.domain.changes import Changes, LateSpan, PaneSnapshot, TraceChange
from citegauge.domain.join import JoinCounters, JoinState, has_time
from citegauge.domain.pane import COUNTERS, HISTOGRAMS, Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Commit, Event, ProgressState
from citegauge.domain.recall import STATE_NAMES, Group
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Kind, Span
from citegauge.domain.users import SeenUsers
from citegauge.errors import DeadLetterError, FatalError
from citegauge.intake import Arrival, Ceiling, Decoder, Limits, opened
from citegauge.ports import DeadLetter, LateRow, PaneRow, TraceRow, TraceTombstone, UserRow

KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
EPOCH_MAX = (1 << 15) - 1
REPLAY_CHANGES_MAX = 10_000
"""A silent replay throws away what it would publish; this is how much it holds at a time."""


class Record(NamedTuple):
    """One Kafka record of the partition, or one line of a file."""

    offset: int
    timestamp_ns: int
    value: bytes | None


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition has to publish, and where it then stands."""

    topic: str
    partition: int
    panes: list[PaneRow]
    traces: list[TraceRow]
    tombstones: list[TraceTombstone]
    late: list[LateRow]
    users: list[UserRow]
    dead: list[DeadLetter]
    closed_through: int
    """Newest closed pane, start in unix seconds; -1 before the first. Its final rows stand in this or an earlier flush."""
    watermark_ns: int
    commit: Commit

    @property
    def rows(self) -> int:
        """Rows for ClickHouse."""
        return len(self.panes) + len(self.traces) + len(self.tombstones) + len(self.late) + len(self.users)


class Source(NamedTuple):
    """The identity of a partition in what it publishes."""

    topic: str
    partition: int
    epoch: int = 0

    @property
    def name(self) -> str:
        """`<topic>/<partition>`."""
        return f"{self.topic}/{self.partition}"

    def version(self, offset: int, odd: bool) -> int:
        """Epoch << 48 | 2 × offset (+ 1): a stale owner always loses."""
        return self.epoch << 48 | 2 * offset + odd


class _Key(TypedDict):
    """What pane rows and tombstones are keyed by."""

    pane: int
    route: str
    top_k_bucket: str
    model: str
    retriever_version: str
    scorer: str
    source: str


class PartitionPipeline:
    """Everything between a partition's bytes and its rows."""

    def __init__(
        self,
        source: Source,
        decode: Decoder,
        join_policy: JoinPolicy,
        score_policy: ScorePolicy,
        start: Commit,
        limits: Limits | None = None,
    ) -> None:
        """`start`: the commit to resume from; without one, `Commit(offset, offset, Clock())`."""
        if not 0 <= source.epoch <= EPOCH_MAX:
            raise FatalError(f"epoch {source.epoch} of {source.name} is outside 0..{EPOCH_MAX}")
        self.source = source
        self.limits = limits or Limits()
        self.join = JoinState(join_policy, score_policy, start.clock)
        self.progress = ProgressState(start.offset, start.clock, start.events)
        self.live_from = start.position
        """Offsets below it were published before: they are read again in silence."""
        self.dead: list[DeadLetter] = []
        self.ceiling = Ceiling(self.limits.dead_letters_max)
        self.users = SeenUsers()
        self.records = 0  # read, without those that are read again in silence
        self._decode = decode
        self._unfinished: Iterator[None] = iter(())

    @property
    def replaying(self) -> bool:
        """Whether what is being read was already published by an earlier run."""
        return self.progress.position < self.live_from

    @property
    def pending(self) -> int:
        """How much a flush would publish now, in rows or letters."""
        return len(self.join.changes) + len(self.users) + len(self.dead)

    def feed(self, record: Record) -> None:
        """Read one record. Offsets must rise. Raises `FatalError` when a bound leaves no way on."""
        for _ in self.slices(record):
            pass

    def slices(self, record: Record) -> Iterator[None]:
        """Read one record, and let go between its spans. Whatever needs the record read whole finishes it by itself."""
        self._finish()
        self._unfinished = self._slices(record)
        return self._unfinished

    def _finish(self) -> None:
        list(self._unfinished)

    def _slices(self, record: Record) -> Iterator[None]:
        offset = record.offset
        replaying = offset < self.live_from
        if not replaying and self.progress.position < self.live_from:
            self._go_live()
        self.progress.before_record(offset, self.join.clock_before)
        dead_before, items = len(self.dead), 0
        try:
            for index, item in enumerate(self._read(record)):
                items += 1
                if index:  # most records have one
                    yield
                if isinstance(item, Span):
                    self.users.note(item, record.timestamp_ns)
                    self.join.apply(item, offset, index, record.timestamp_ns)
                elif isinstance(item, Rekeyed):
                    if not has_time(item.record_ns):
                        self._set_aside(record, index, "bad_record_time", str(item.record_ns))
                        continue
                    self.users.note(item.span, item.record_ns)
                    self.join.apply(item.span, offset, index, item.record_ns, item, record.timestamp_ns)
                else:
                    self._set_aside(record, item.index, item.reason, item.detail)
        except DeadLetterError as exc:
            self._set_aside(record, -1, exc.reason, exc.detail)
        dead = len(self.dead) - dead_before
        self.ceiling.read(dead, readable=items > dead or not dead)
        if replaying:
            self._repeat_events(offset)
            if len(self.join.changes) > REPLAY_CHANGES_MAX:
                self.join.take_changes()
            self.users.take()
            self.dead.clear()
        else:
            self.records += 1
            self._keep_bounds(offset)
        self.progress.after_record(offset)
        if replaying and not self.replaying:
            self._go_live()

    def skip_to(self, position: int) -> None:
        """The log has no more records before `position` (compacted or aborted ones): count them as read."""
        self._finish()
        if position > self.progress.position:
            was_replaying = self.replaying
            self.progress.after_record(position - 1)
            if was_replaying and not self.replaying:
                self._go_live()

    def take_flush(self, *, idle_wall_ns: int | None = None) -> Flush:
        """All that changed since the last flush. `idle_wall_ns`: the wall clock, when there is nothing left to read."""
        self._finish()
        assert not self.replaying, "a silent replay publishes nothing"
        changes = self.join.take_changes()
        panes = self._panes(changes)
        traces = [self._trace_row(key[0], key[1], change) for key, change in changes.rows.items()]
        if idle_wall_ns is not None:
            for snapshot, rows in self.join.idle_snapshots(idle_wall_ns):
                panes.append(self._pane_row(snapshot))
                for row in rows:
                    # It may have left this very key since the last flush, and come back: one row per key and flush.
                    changes.tombstones.pop((snapshot.group, snapshot.pane, row.result.trace_id), None)
                    traces.append(self._trace_row(snapshot.group, snapshot.pane, row))
        dead, self.dead = self.dead, []
        return Flush(
            topic=self.source.topic,
            partition=self.source.partition,
            panes=panes,
            traces=traces,
            tombstones=[
                TraceTombstone(
                    **self._key(group, pane), trace_id=trace_id.hex(), version=self.source.version(offset, False)
                )
                for (group, pane, trace_id), offset in changes.tombstones.items()
            ],
            late=[self._late_row(late) for late in changes.late],
            users=[
                UserRow(user_hash=user.hex(), trace_id=trace_id.hex(), seen=record_ns // SECOND_NS)
                for user, trace_id, record_ns in self.users.take()
            ],
            dead=dead,
            closed_through=self._pane_s(self.join.closed_through) if self.join.closed_through >= 0 else -1,
            watermark_ns=self.join.watermark_ns,
            commit=self.progress.commit_point(self.join.first_kept_offset),
        )

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, record: Record) -> Iterable[Span | SpanFault | Rekeyed]:
        readable = record.value and len(record.value) <= self.limits.record_bytes_max
        if readable and not has_time(record.timestamp_ns):
            raise DeadLetterError("bad_record_time", f"{record.timestamp_ns} ns")
        return opened(self._decode, record.value, self.limits)

    def _set_aside(self, record: Record, index: int, reason: str, detail: str) -> None:
        arrival = Arrival(self.source.topic, self.source.partition, record.offset, record.timestamp_ns, record.value)
        self.dead.append(arrival.dead_letter(self.limits, index, reason, detail))

    def _go_live(self) -> None:
        self.join.take_changes()
        self.join.counters = JoinCounters()  # an earlier run has counted what was read again
        self.users.take()
        self.dead.clear()

    # -- bounds: decided live, repeated from the commit in a replay ---------------------------------------------------

    def _keep_bounds(self, offset: int) -> None:
        join, policy = self.join, self.join.policy
        while len(join.traces) > policy.traces_max and join.slots:
            self._happen(Event(offset, "force_close", min(join.slots)))
        frozen = join.clock.routes_frozen
        if not frozen and len(join.open_groups) >= policy.groups_max:
            self._happen(Event(offset, "freeze"))
        elif frozen and len(join.open_groups) < policy.groups_max // 2:
            self._happen(Event(offset, "thaw"))

    def _happen(self, event: Event) -> None:
        self.progress.record(event)
        self._apply_event(event)

    def _repeat_events(self, offset: int) -> None:
        for event in self.progress.events_at(offset):
            self._apply_event(event)

    def _apply_event(self, event: Event) -> None:
        if event.kind == "force_close":
            self.join.force_close(event.pane, event.offset)
        else:
            self.join.freeze_routes(event.kind == "freeze")

    # -- rows -------------------------------------------------------------------------------------------------------

    def _panes(self, changes: Changes) -> list[PaneRow]:
        open_ones = [
            PaneSnapshot(cell.group, cell.slot.pane, cell.tally, cell.touched, "open") for cell in changes.dirty
        ]
        return [self._pane_row(snapshot) for snapshot in (*open_ones, *changes.finals)]

    def _pane_row(self, snapshot: PaneSnapshot) -> PaneRow:
        tally = snapshot.tally
        return PaneRow(
            **self._key(snapshot.group, snapshot.pane),
            version=self.source.version(snapshot.touched, snapshot.kind != "open"),
            final=snapshot.kind in ("final", "forced"),
            forced=snapshot.kind == "forced",
            states=tally.state_counts(),
            citations=tally.citations,
            hallucinated=tally.hallucinated,
            dropped_citations=tally.dropped_citations,
            unresolved=tally.unresolved,
            ids_dropped=tally.ids_dropped,
            nonconformant=tally.nonconformant,
            recounted=tally.recounted,
            cited_top1=tally.cited_top1,
            cited_top3=tally.cited_top3,
            low_confidence=tally.low_confidence,
            confidence_known=tally.confidence_known,
            recall_counts=dict(tally.recall_counts),
            rank_weighted_counts=dict(tally.rank_weighted_counts),
            score_counts=dict(tally.score_counts),
        )

    def _trace_row(self, group: Group, pane: int, change: TraceChange) -> TraceRow:
        result = change.result
        return TraceRow(
            pane=self._pane_s(pane),
            route=group.route,
            top_k_bucket=group.top_k_bucket,
            model=group.model,
            retriever_version=group.retriever_version,
            scorer=group.scorer,
            source=self.source.name,
            trace_id=result.trace_id.hex(),
            version=self.source.version(change.touched, True),
            event_time_ns=result.event_ns,
            state=STATE_NAMES[result.state],
            top_k=result.top_k,
            retrieved=len(result.retrieved),
            cited_retrieved=len(result.cited_ranks),
            recall=result.recall,
            rank_weighted_recall=result.rank_weighted_recall,
            top1_score=result.top1_score,
            nonconformant=result.nonconformant,
            unresolved=result.unresolved,
            ids_dropped=result.ids_dropped,
            synthetic_ids=result.synthetic_ids,
            lag_ns=result.event_ns - result.retrieval_end_ns if result.retrieval_end_ns else 0,
            chunk_ids=result.retrieved,
            chunk_scores=result.scores,
            cited_ids=result.cited,
            cited_ranks=result.cited_ranks,
            hallucinated_ids=result.hallucinated,
            dropped_cited_ids=result.dropped_cited,
            low_confidence=result.low_confidence,
        )

    def _late_row(self, late: LateSpan) -> LateRow:
        """Keyed by where the span was read first, so that a span re-keyed twice gives one row."""
        source, place = (self.source, late) if late.origin is None else (late.origin, late.origin)
        return LateRow(
            topic=source.topic,
            partition=source.partition,
            offset=place.offset,
            index=place.index,
            trace_id=late.span.trace_id.hex(),
            span_id=late.span.span_id.hex(),
            kind=KIND_NAMES[late.span.kind],
            route=late.span.route,
            end_ns=late.span.end_ns,
            pane=self._pane_s(late.pane),
            watermark_ns=late.watermark_ns,
        )

    def _key(self, group: Group, pane: int) -> _Key:
        return {
            "pane": self._pane_s(pane),
            "route": group.route,
            "top_k_bucket": group.top_k_bucket,
            "model": group.model,
            "retriever_version": group.retriever_version,
            "scorer": group.scorer,
            "source": self.source.name,
        }

    def _pane_s(self, pane: int) -> int:
        return pane * self.join.policy.pane_ns // SECOND_NS


def tally_of(row: PaneRow) -> Tally:
    """The tally that a pane row carries. KeyError for an unknown state name."""
    tally = Tally()
    tally.set_state_counts(row.states)
    for name in (*COUNTERS, *HISTOGRAMS):
        value = getattr(row, name)
        setattr(tally, name, dict(value) if isinstance(value, dict) else value)
    return tally


__all__ = ["DeadLetter", "Decoder", "Flush", "Limits", "PartitionPipeline", "Record", "Source", "tally_of"]
