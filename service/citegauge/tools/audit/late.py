"""The audit's late spans: gathered, and compared by the stretch of log that they come from.

Rows of a keyed topic are found by their offsets. A re-keyed span keeps the origin of its first reading, so its rows are
found by its trace, which names the partition, and by the watermark that had passed it, which only rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from citegauge.domain.span import Kind
from citegauge.tools.audit.compare import Comparer, Key
from citegauge.tools.audit.oracle import Late
from citegauge.tools.audit.report import Values
from citegauge.tools.audit.stored import Rows, StoredRows

KEY = ("topic", "partition", "offset", "index")


class LateAudit(Protocol):
    """Late spans of one partition."""

    def begin(self, offset: int, watermark_ns: int) -> None:
        """Late spans count from here on: the clock is known."""

    def add(self, late: list[Late]) -> int:
        """Gather; returns how many were."""

    def compare(self, offset: int, watermark_ns: int, *, last: bool) -> None:
        """Compare what came before `offset`, when the watermark stood at `watermark_ns`."""


class LateByOffset:
    """Of a topic that is joined as it is."""

    def __init__(self, stored: StoredRows, comparer: Comparer, pane_s: int, kept_from_s: int) -> None:
        self._stored, self._comparer = stored, comparer
        self._pane_s, self._kept_from_s = pane_s, kept_from_s
        self._from: int | None = None
        self._pending: list[Late] = []

    def begin(self, offset: int, watermark_ns: int) -> None:
        """See `LateAudit`."""
        self._from = offset

    def add(self, late: list[Late]) -> int:
        """See `LateAudit`."""
        if self._from is None:
            return 0
        self._pending += late
        return len(late)

    def compare(self, offset: int, watermark_ns: int, *, last: bool) -> None:
        """See `LateAudit`."""
        if self._from is None:
            return
        rows = self._stored.late(self._from, offset)
        self._from = offset
        expected = {late.arrival.origin: _values(late, self._pane_s) for late in self._pending}
        self._pending = []
        self._comparer.rows("late", KEY, *_kept(expected, rows, self._kept_from_s))


class LateByWatermark:
    """Of the re-keyed topic."""

    def __init__(self, stored: StoredRows, comparer: Comparer, pane_s: int, kept_from_s: int, partitions: int) -> None:
        """`partitions`: of the re-keyed topic."""
        self._stored, self._comparer = stored, comparer
        self._pane_s, self._kept_from_s = pane_s, kept_from_s
        self._partitions = partitions
        self._from_ns: int | None = None
        self._pending: list[Late] = []

    def begin(self, offset: int, watermark_ns: int) -> None:
        """See `LateAudit`."""
        # The next higher one: of the present one, some may have come before. A log's own beginning has none before it.
        self._from_ns = watermark_ns + 1 if watermark_ns else 0

    def add(self, late: list[Late]) -> int:
        """See `LateAudit`."""
        if self._from_ns is None:
            return 0
        found = [one for one in late if one.watermark_ns >= self._from_ns]
        self._pending += found
        return len(found)

    def compare(self, offset: int, watermark_ns: int, *, last: bool) -> None:
        """See `LateAudit`. What came at the present watermark waits, since more may come at it."""
        if self._from_ns is None:
            return
        ready = [late for late in self._pending if late.watermark_ns < watermark_ns]
        self._pending = [late for late in self._pending if late.watermark_ns >= watermark_ns]
        rows = self._stored.late_by_trace(self._partitions, self._from_ns, watermark_ns)
        self._from_ns = max(self._from_ns, watermark_ns)
        self._compare(ready, rows)
        if last:
            # The worker may have gone on at this watermark: rows of spans that were not read are none of ours.
            expected = {late.arrival.origin for late in self._pending}
            rows = self._stored.late_by_trace(self._partitions, watermark_ns, watermark_ns + 1)
            self._compare(self._pending, [row for row in rows if _key(row) in expected])

    def _compare(self, ready: list[Late], rows: Rows) -> None:
        expected, rows = _kept(
            {late.arrival.origin: _values(late, self._pane_s) for late in ready}, rows, self._kept_from_s
        )
        # Re-keyed twice, a span is late twice, and its row tells of the second time: then it is compared there.
        again = [
            key for key in expected.keys() - {_key(row) for row in rows} if self._stored.late_again(key, expected[key])
        ]
        self._comparer.rows("late", KEY, {key: values for key, values in expected.items() if key not in again}, rows)


def _key(row: Mapping[str, object]) -> Key:
    return tuple(row[name] for name in KEY)


def _kept(expected: Mapping[Key, Values], rows: Rows, from_s: int) -> tuple[dict[Key, Values], Rows]:
    """Without what the table may have let go of."""
    wanted = {key: values for key, values in expected.items() if values["pane_s"] >= from_s}
    return wanted, [row for row in rows if row["pane_s"] >= from_s]


def _values(late: Late, pane_s: int) -> Values:
    span = late.arrival.span
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "kind": Kind(span.kind).name.lower(),
        "route": span.route,
        "end_ns": late.end_ns,
        "pane_s": late.pane * pane_s,
        "watermark_ns": late.watermark_ns,
    }
