"""CHANGES: what the join has to tell the outside, as plain values. How it comes about stands in `domain.join`."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, TraceResult
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Span
from citegauge.domain.state import Cell


class TraceChange(NamedTuple):
    """A trace's row as of `touched`; the key is (group, pane, trace id)."""

    result: TraceResult
    touched: int


class PaneSnapshot(NamedTuple):
    """A cell as it is to be published."""

    group: Group
    pane: int
    tally: Tally
    touched: int
    kind: Literal["open", "idle", "final", "forced"]


class LateSpan(msgspec.Struct, frozen=True, gc=False):
    """A span that came after its own pane had closed."""

    span: Span
    offset: int
    index: int
    pane: int
    watermark_ns: int
    origin: Rekeyed | None = None
    """Where it was read first, for a re-keyed span."""


RowKey = tuple[Group, int, bytes]


class Changes:
    """What has to be published: taken by `JoinState.take_changes`, at record boundaries only."""

    __slots__ = ("dirty", "finals", "late", "rows", "tombstones")

    def __init__(self) -> None:
        self.dirty: dict[Cell, None] = {}
        self.finals: list[PaneSnapshot] = []
        self.rows: dict[RowKey, TraceChange] = {}
        self.tombstones: dict[RowKey, int] = {}
        """Old key to the offset at which the trace left it."""
        self.late: list[LateSpan] = []

    def __len__(self) -> int:
        return len(self.dirty) + len(self.finals) + len(self.rows) + len(self.tombstones) + len(self.late)
