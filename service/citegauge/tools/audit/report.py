"""What an audit found: differences, counted without end and listed up to a bound. No comparing here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Values = Mapping[str, Any]
LISTED_MAX = 100
"""Differences that are named; further ones are only counted."""
TABLES = ("panes", "traces", "late")


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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))


class AuditReport:
    """All partitions."""

    def __init__(self) -> None:
        self.partitions: list[PartitionReport] = []
        self.listed: list[Difference] = []

    def found(self, partition: PartitionReport, difference: Difference) -> None:
        """Count a difference, and name it while there is room."""
        partition.different[difference.table] += 1
        if len(self.listed) < LISTED_MAX:
            self.listed.append(difference)

    @property
    def differences(self) -> int:
        """How many rows differ."""
        return sum(sum(partition.different.values()) for partition in self.partitions)

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
            "equal": not self.differences,
            "judged_panes": self.judged,
            "differences": self.differences,
            "forced": self.forced,
            "partitions": [partition.as_dict() for partition in self.partitions],
            "listed": [difference.as_dict() for difference in self.listed],
        }


def lines(report: AuditReport) -> Iterator[str]:
    """The report as text: partitions, what differs, and the verdict."""
    for one in report.partitions:
        judged = f"{one.panes} minutes judged"
        if one.judged_from is not None and one.judged_to is not None:
            judged += f", {_utc(one.judged_from)} to {_utc(one.judged_to)}"
        rows = ", ".join(f"{n} {table}" for table, n in one.compared.items())
        yield f"{one.source}: {one.records} records, offsets {one.start} to {one.end}; {judged}; rows: {rows}"
        if one.unreadable:
            yield f"  {one.unreadable} records or spans cannot be read (dead letters)"
        if one.behind:
            yield f"  {one.behind} records are not published yet, and not judged"
        if one.forced:
            yield f"  {one.forced} rows of minutes that were closed early (join.traces_max), judged as such"
        if one.older_epoch:
            yield f"  {one.older_epoch} rows of an earlier epoch, not judged"
        yield from (f"  {note}" for note in one.notes)
    for found in report.listed:
        key = " ".join(f"{name}={_shown(name, value)}" for name, value in found.key.items())
        yield f"DIFFERENT {found.table}: {key}"
        yield f"    stored:   {_values(found.stored)}"
        yield f"    expected: {_values(found.expected)}"
    if report.differences > len(report.listed):
        yield f"… and {report.differences - len(report.listed)} more"
    if report.differences:
        by_table = ", ".join(f"{sum(one.different[table] for one in report.partitions)} in {table}" for table in TABLES)
        yield f"{report.differences} rows differ: {by_table}"
    elif report.judged:
        yield f"all rows of {report.judged} minutes are what the log says"
    else:
        yield "nothing to judge: no minute is closed yet whose whole hold-back was read"


def _values(values: Values | None) -> str:
    return "no such row" if values is None else " ".join(f"{name}={value}" for name, value in values.items())


def _shown(name: str, value: Any) -> str:
    return _utc(value) if name == "pane_s" else str(value)


def _utc(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
