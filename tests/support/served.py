"""A day as the service would have stored it: simulated traffic through the real pipeline, its rows as they were flushed.

It has everything that queries are asked about: two routes of a family and one beside it, hours in which the traffic moves
to the hard route, a new retriever version, a second model, late spans, duplicates, missing halves, hallucinated citations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.distribution import fraction_value
from citegauge.domain.pane import Tally
from citegauge.domain.policy import JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.domain.recall import Group
from citegauge.pipeline import PartitionPipeline, Record, Source, tally_of
from citegauge.ports import LateRow, PaneRow, TraceRow, TraceTombstone
from citegauge.tools.simulate_output import records
from citegauge.tools.simulate_spec import HOUR_NS, SECOND_NS, RouteSpec, ScenarioSpec, TrafficSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from citegauge.ports import RowSink

END_S = 2_208_988_800
"""2040-01-01T00:00:00Z: always the same, so that always the same traffic comes out, and no TTL is over."""
BLOCKS = 5
FLUSH_EVERY = 500
"""Records between flushes, so that most panes and traces are stored in several versions."""
EASY = RouteSpec(name="support/easy", weight=3.0, top_ks=((5, 1.0),), models=("m1", "m2"), cited_share=0.7)
HARD = replace(EASY, name="support/hard", weight=1.0, cited_share=0.25, score_level=0.6)
OTHER = replace(EASY, name="sales_eu", top_ks=((5, 1.0), (10, 1.0)), cited_share=0.4, scorer="retriever:e5")


@dataclass(slots=True)
class Served:
    """What was stored, in the order of the flushes."""

    end_s: int
    """The traffic's end, a whole minute."""
    panes: list[PaneRow] = field(default_factory=list)
    traces: list[TraceRow | TraceTombstone] = field(default_factory=list)
    late: list[LateRow] = field(default_factory=list)

    def store(self, sink: RowSink) -> None:
        """Insert everything, in blocks: one block would be rid of its old versions by itself, and FINAL without work.

        Traces have older versions, too, which tell another story.
        """
        stale = {"version": 0, "recall": 1.0, "cited_ranks": [1], "hallucinated_ids": ["stale"], "lag_ns": 1}
        old = [msgspec.structs.replace(row, **stale) for row in self.newest_traces()[::3]]
        for kind in (TraceRow, TraceTombstone, PaneRow, LateRow):
            rows = [row for row in (*old, *self.traces, *self.panes, *self.late) if isinstance(row, kind)]
            for block in range(BLOCKS if rows else 0):
                sink.insert(rows[len(rows) * block // BLOCKS : len(rows) * (block + 1) // BLOCKS])

    def newest_panes(self) -> list[PaneRow]:
        """Each pane in its last version, emptied ones left out: what FINAL shows."""
        newest = {(row.pane, *(getattr(row, name) for name in Group._fields), row.source): row for row in self.panes}
        return [row for row in newest.values() if row.states]

    def newest_traces(self) -> list[TraceRow]:
        """Each trace row that was not moved away, in its last version."""
        newest: dict[tuple[object, ...], TraceRow | TraceTombstone] = {}
        for row in self.traces:
            key = (row.pane, *(getattr(row, name) for name in Group._fields), row.trace_id)
            if key not in newest or newest[key].version <= row.version:
                newest[key] = row
        return [row for row in newest.values() if isinstance(row, TraceRow)]

    def tallies(self, start_s: int, end_s: int, *dims: str) -> dict[tuple[str, ...], Tally]:
        """The service's own counts of [start, end), merged to these dimensions."""
        merged: dict[tuple[str, ...], Tally] = {}
        for row in self.newest_panes():
            if start_s <= row.pane < end_s:
                key = tuple(getattr(row, name) for name in dims)
                merged.setdefault(key, Tally()).merge(tally_of(row))
        return merged


def day(end_s: int = END_S) -> tuple[TrafficSpec, ...]:
    """25 hours of the old versions, beside which r8 runs for three hours on the easy route; in the last hour the traffic
    moves to the hard route, and m3 takes m2's place in sales.
    """
    end_ns = end_s * SECOND_NS
    old = TrafficSpec(
        seed=1,
        start_ns=end_ns - 26 * HOUR_NS,
        end_ns=end_ns - HOUR_NS,
        traces_per_minute=4.0,
        routes=tuple(replace(route, retriever_versions=("r7",)) for route in (EASY, HARD, OTHER)),
        disorder_ns=5 * SECOND_NS,
        duplicate_ratio=0.02,
        scenarios=(ScenarioSpec(kind="hallucinated-citations", route="sales_eu", from_ns=end_ns - 2 * HOUR_NS),),
        late_ratio=0.02,
        missing_retrieval_ratio=0.03,
        missing_generation_ratio=0.04,
    )
    canary = replace(
        old,
        seed=2,
        start_ns=end_ns - 4 * HOUR_NS,
        traces_per_minute=2.0,
        routes=(replace(EASY, retriever_versions=("r8",), cited_share=0.5),),
        scenarios=(),
    )
    moved = replace(
        old,
        seed=3,
        start_ns=end_ns - HOUR_NS,
        end_ns=end_ns,
        traces_per_minute=10.0,
        routes=tuple(
            replace(route, retriever_versions=("r7",), weight=weight)
            for route, weight in ((EASY, 1.0), (HARD, 3.0), (replace(OTHER, models=("m1", "m3")), 3.0))
        ),
        scenarios=(),
    )
    return old, canary, moved


def serve(specs: Iterable[TrafficSpec], end_s: int = END_S, scoring: ScorePolicy | None = None) -> Served:
    """Everything that one partition publishes, with a last flush as of a partition that has been idle for an hour."""
    served = Served(end_s)
    every = sorted(chain.from_iterable(map(records, specs)), key=lambda record: record.emit_ns)
    pipeline = PartitionPipeline(
        Source("spans", 0),
        decoder("auto", DecodePolicy()),
        JoinPolicy(),
        scoring or ScorePolicy(),
        Commit(0, 0, Clock()),
    )
    for offset, record in enumerate(every):
        pipeline.feed(Record(offset, record.emit_ns, record.value))
        if offset % FLUSH_EVERY == 0:
            _flush(pipeline, served)
    _flush(pipeline, served, idle_wall_ns=end_s * SECOND_NS + HOUR_NS)
    return served


def _flush(pipeline: PartitionPipeline, served: Served, idle_wall_ns: int | None = None) -> None:
    flush = pipeline.take_flush(idle_wall_ns=idle_wall_ns)
    assert not flush.dead
    served.panes += flush.panes
    served.traces += [*flush.traces, *flush.tombstones]
    served.late += flush.late


def recall_of(tally: Tally) -> list[float]:
    """Every measured recall, written out."""
    return [fraction_value(key) for key, n in tally.recall_counts.items() for _ in range(n)]
