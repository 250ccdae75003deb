"""What an audit found: differences, counted without end and listed up to a bound. No comparing here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Values = Mapping[str, Any]
LISTED_MAX = 100
"""Differences that are named; further ones are only counted."""
TABLES = ("panes", "traces", "late")


class Unread(NamedTuple):
    """Records that should have been read."""

    records: int
    oldest_age_s: float
    """How long ago the first of them was written."""


class Difference(NamedTuple):
    """One row that is not what the log says."""

    table: str
    key: Values
    stored: Values | None
    """The fields that differ; None: the row is missing."""
    expected: Values | None
    """The fields that differ; None: there should be no such row."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in self._asdict().items()}


class PartitionReport:
    """One partition."""

    def __init__(self, source: str, start: int, end: int) -> None:
        self.source = source
        self.start = start
        """First offset that was read."""
        self.end = end
        """First offset that was not."""
        self.behind = 0
        """Records of the log that the worker has not published yet."""
        self.records = 0
        self.unreadable = 0
        """Records and spans that are dead letters."""
        self.judged_from: int | None = None
        """Start of the first judged pane, unix seconds; None: no pane was judged."""
        self.judged_to: int | None = None
        """End of the last judged pane, unix seconds."""
        self.compared = dict.fromkeys(TABLES, 0)
        """Rows that the log calls for, by table."""
        self.panes = 0
        """Closed panes that were judged."""
        self.forced = 0
        """Rows of `panes` that were closed early, of any pane."""
        self.older_epoch = 0
        """Rows of an earlier epoch that nothing in this log replaces."""
        self.different = dict.fromkeys(TABLES, 0)
        self.notes: list[str] = []
        self.unread: Unread | None = None
        """What stood in the log when the audit began and was not published when it ended."""

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        topic, _, partition = self.source.rpartition("/")
        return topic, int(partition)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "unread": self.unread and self.unread._asdict()}


class SourceReport:
    """One source partition that is re-keyed, against the spans topic."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        """First offset that was read."""
        self.end = end
        """Where re-keying stands, says its commit."""
        self.records = 0
        self.spans = 0
        """Found in the spans topic."""
        self.again = 0
        """Found there more than once, which is harmless; further copies are counted and not compared."""
        self.dead_letters = 0
        """Records and spans that are dead letters by rule."""
        self.missing = 0
        """Spans and records that are neither re-keyed nor dead letters."""
        self.differing = 0
        """Spans that were re-keyed as something else, or into another partition."""
        self.unjudged = 0
        """Spans that the spans topic, or records that the dead-letter topic, may have let go of by its retention."""
        self.overflowed = 0
        """Spans and records that are not judged because too many were missing at once."""
        self.skipped = 0
        """Records before `start` that are still in the log."""
        self.removed = 0
        """Offsets that retention took before they were re-keyed."""
        self.unread: Unread | None = None
        """What stood in the log when the audit began and was not re-keyed when it ended."""

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def source(self) -> str:
        """`<topic>/<partition>`."""
        return f"{self.topic}/{self.partition}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"source": self.source, **vars(self), "unread": self.unread and self.unread._asdict()}


class AuditReport:
    """All partitions."""

    def __init__(self) -> None:
        self.partitions: list[PartitionReport] = []
        self.listed: list[Difference] = []
        self.sources: list[SourceReport] = []
        """Source partitions that are re-keyed."""

    def found(self, partition: PartitionReport, difference: Difference) -> None:
        """Count a difference, and name it while there is room."""
        partition.different[difference.table] += 1
        self.listed_or_not(difference)

    def listed_or_not(self, difference: Difference) -> None:
        """Name a difference that is counted elsewhere, while there is room."""
        if len(self.listed) < LISTED_MAX:
            self.listed.append(difference)

    @property
    def differences(self) -> int:
        """How many rows and re-keyed spans differ."""
        rows = sum(sum(partition.different.values()) for partition in self.partitions)
        return rows + self.spans_different

    @property
    def spans_different(self) -> int:
        """How many spans are not in the spans topic as their source says."""
        return sum(source.missing + source.differing for source in self.sources)

    @property
    def unread(self) -> int:
        """Records of any topic that should have been read, and were not, or can no longer be."""
        read: list[PartitionReport | SourceReport] = [*self.partitions, *self.sources]
        return sum(one.unread.records for one in read if one.unread) + sum(one.removed for one in self.sources)

    @property
    def equal(self) -> bool:
        """Nothing differs, and nothing is left unread."""
        return not self.differences and not self.unread

    @property
    def judged(self) -> int:
        """Closed panes that were judged, over all partitions."""
        return sum(partition.panes for partition in self.partitions)

    @property
    def forced(self) -> int:
        """Rows of `panes` that were closed early."""
        return sum(partition.forced for partition in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "equal": self.equal,
            "judged_panes": self.judged,
            "differences": self.differences,
            "forced": self.forced,
            "partitions": [partition.as_dict() for partition in self.partitions],
            "listed": [difference.as_dict() for difference in self.listed],
            "unread": self.unread,
            "sources": [source.as_dict() for source in self.sources],
        }


def lines(report: AuditReport) -> Iterator[str]:
    """The report as text: partitions, what differs, and the verdict."""
    for one in report.partitions:
        yield f"{one.source}: {one.records} records, offsets {one.start} to {one.end}"
        judged = f"  {one.panes} minutes judged"
        if one.judged_from is not None and one.judged_to is not None:
            judged += f", {_utc(one.judged_from)} to {_utc(one.judged_to)}"
        yield judged
        yield "  rows: " + ", ".join(f"{n} {table}" for table, n in one.compared.items())
        if one.unreadable:
            yield f"  {one.unreadable} records or spans cannot be read (dead letters)"
        if one.behind:
            yield f"  {one.behind} records are not published yet, and not judged"
        if one.forced:
            yield f"  {one.forced} rows of minutes that were closed early (join.traces_max), judged as such"
        if one.older_epoch:
            yield f"  {one.older_epoch} rows of an earlier epoch, not judged"
        yield from (f"  {note}" for note in one.notes)
        yield from _unread(one.unread, "published")
    for source in report.sources:
        yield from _source(source)
    for found in report.listed:
        key = " ".join(f"{name}={_shown(name, value)}" for name, value in found.key.items())
        yield f"DIFFERENT {found.table}: {key}"
        yield f"    stored:   {_values(found.stored)}"
        yield f"    expected: {_values(found.expected)}"
    if report.differences > len(report.listed):
        yield f"… and {report.differences - len(report.listed)} more"
    if report.differences:
        by_table = ", ".join(f"{sum(one.different[table] for one in report.partitions)} in {table}" for table in TABLES)
        spans = f", {report.spans_different} in re-keyed spans" if report.sources else ""
        yield f"{report.differences} rows differ: {by_table}{spans}"
    elif report.judged:
        yield f"all rows of {report.judged} minutes are what the log says"
    else:
        yield "nothing to judge: no minute is closed yet whose whole hold-back was read"
    if report.unread:
        yield f"{report.unread} records should have been read, and were not"


def _source(one: SourceReport) -> Iterator[str]:
    yield f"{one.source}: {one.records} records, offsets {one.start} to {one.end}; {one.spans} spans re-keyed"
    if one.again:
        yield f"  {one.again} were re-keyed once more, which is harmless"
    if one.dead_letters:
        yield f"  {one.dead_letters} records or spans are dead letters"
    if one.missing or one.differing:
        yield f"  {one.missing} are missing, {one.differing} were re-keyed as something else"
    if one.unjudged:
        yield f"  {one.unjudged} older than what the spans topic still holds, not judged"
    if one.overflowed:
        yield f"  {one.overflowed} not judged: too many were missing at once"
    if one.skipped:
        yield f"  {one.skipped} records before that were not compared"
    if one.removed:
        yield f"  {one.removed} records were removed by retention before they were re-keyed"
    yield from _unread(one.unread, "re-keyed")


def _unread(unread: Unread | None, done: str) -> Iterator[str]:
    if unread is not None:
        yield f"  UNREAD: {unread.records} records are not {done}, the oldest {unread.oldest_age_s:.0f} s old"


def _values(values: Values | None) -> str:
    return "no such row" if values is None else " ".join(f"{name}={value}" for name, value in values.items())


def _shown(name: str, value: Any) -> str:
    return _utc(value) if name == "pane_s" else str(value)


def _utc(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
