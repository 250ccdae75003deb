"""Totals of the hot tier since start, for metrics. Numbers only."""

from __future__ import annotations

from collections.abc import Iterable

from citegauge.domain.join import JoinCounters
from citegauge.pipeline import Flush, PartitionPipeline


class HotTotals:
    """Totals of what was read, since start."""

    def __init__(self, records: int = 0, join: JoinCounters | None = None) -> None:
        self.records = records
        self.join = join or JoinCounters()

    def add(self, other: HotTotals) -> None:
        """Add another's totals."""
        self.records += other.records
        mine, theirs = self.join, other.join
        for into, counts in ((mine.spans, theirs.spans), (mine.traces_closed, theirs.traces_closed)):
            for key, n in counts.items():
                into[key] = into.get(key, 0) + n
        mine.duplicates += theirs.duplicates
        mine.late += theirs.late
        mine.bad_time += theirs.bad_time
        mine.recounted += theirs.recounted
        mine.oversize_traces += theirs.oversize_traces


def pipeline_totals(pipeline: PartitionPipeline) -> HotTotals:
    """Totals of one partition."""
    return HotTotals(pipeline.records, pipeline.join.counters)


class HotCounters:
    """Totals of what was published, since start."""

    def __init__(self) -> None:
        self.pane_rows = 0
        self.trace_rows = 0
        self.tombstones = 0
        self.dead_letters: dict[str, int] = {}
        self.commits_lost = 0
        self.commits_failed = 0
        self.forced_panes = 0

    def count(self, flushes: Iterable[Flush]) -> None:
        """Add what these flushes hold."""
        for flush in flushes:
            self.pane_rows += len(flush.panes)
            self.trace_rows += len(flush.traces)
            self.tombstones += len(flush.tombstones)
            self.forced_panes += sum(row.forced for row in flush.panes)
            for letter in flush.dead:
                self.dead_letters[letter.reason] = self.dead_letters.get(letter.reason, 0) + 1
