"""Compares rows that the log calls for with rows that are stored, key by key. Knows nothing of panes or offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.tools.audit.report import AuditReport, Difference, PartitionReport, Values
from citegauge.tools.audit.stored import VERSION_OFFSET_MASK, Rows

Key = tuple[Any, ...]


class Comparer:
    """Of one source partition; what differs goes to the report."""

    def __init__(self, report: AuditReport, partition: PartitionReport, epoch: int, forgotten: frozenset[str]) -> None:
        """`epoch`: the present one; `forgotten`: trace ids whose rows were deleted on purpose."""
        self._all = report
        self._partition = partition
        self._epoch = epoch
        self._forgotten = forgotten

    def rows(self, table: str, names: tuple[str, ...], expected: Mapping[Key, Values], stored: Rows) -> None:
        """Both sides of the same range. `names`: the columns of the key; the other columns are compared."""
        seen: set[Key] = set()
        for row in stored:
            key = tuple(row.pop(name) for name in names)
            seen.add(key)
            self._row(table, dict(zip(names, key, strict=True)), row, expected.get(key))
        for key, values in expected.items():
            if key not in seen:
                self._row(table, dict(zip(names, key, strict=True)), None, values)
        self._partition.compared[table] += len(expected)

    def _row(self, table: str, key: dict[str, Any], stored: dict[str, Any] | None, expected: Values | None) -> None:
        if stored is None or expected is None:
            if table == "panes" and _is_empty(stored or expected):
                return  # a group that nothing is left of may be published as zeros, or never have been
            if stored is not None and self._is_older(table, stored):
                self._partition.older_epoch += 1
            elif key.get("trace_id") not in self._forgotten:
                self._all.found(self._partition, Difference(table, key, stored, _shown(expected)))
            return
        wrong = [name for name, value in stored.items() if not self._agrees(name, value, expected[name])]
        if wrong:
            theirs, ours = {name: stored[name] for name in wrong}, {name: expected[name] for name in wrong}
            self._all.found(self._partition, Difference(table, key, theirs, _shown(ours)))

    def _agrees(self, name: str, stored: Any, expected: Any) -> bool:
        if name != "version":
            return bool(stored == expected)
        # A later epoch starts the same log again; a row from before it stands, where nothing replaced it.
        return stored >> 48 <= self._epoch and (stored & VERSION_OFFSET_MASK) in expected

    def _is_older(self, table: str, stored: Values) -> bool:
        """Of a row that this log knows nothing of: whether it may be of the log that was there before."""
        if table == "late":
            return self._epoch > 0
        return bool(stored["version"] >> 48 < self._epoch)


def _is_empty(values: Values | None) -> bool:
    return values is not None and not values["states"]


def _shown(expected: Values | None) -> Values | None:
    """With the first few of the versions that would do."""
    if expected is None or "version" not in expected:
        return expected
    return {**expected, "version": list(expected["version"])[:10]}
