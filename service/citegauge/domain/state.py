"""What the join holds in memory: open minutes, their cells, live traces. Data; the rules stand in `domain.join`."""

from __future__ import annotations

import msgspec

from citegauge.domain.crowd import Crowd
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group


class PaneSlot:
    """One open minute of a partition."""

    __slots__ = ("cells", "closed", "first_offset", "latest", "pane", "unmatched")

    def __init__(self, pane: int) -> None:
        self.pane = pane
        self.closed = False
        self.cells: dict[Group, Cell] = {}
        self.unmatched: set[bytes] = set()
        """Traces that wait here for their other half."""
        self.latest: set[bytes] = set()
        """Traces whose newest span lies here: they leave memory when this slot closes."""
        self.first_offset: int | None = None
        """Smallest offset that must be read again to rebuild what this slot knows."""

    def hold(self, offset: int) -> None:
        """Note that rebuilding this slot needs the log from `offset` on."""
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset


class Cell:
    """One group's pane: its tally, and the last offset that touched it."""

    __slots__ = ("group", "idle_touched", "slot", "tally", "touched")

    def __init__(self, group: Group, slot: PaneSlot) -> None:
        self.group = group
        self.slot = slot
        self.tally = Tally()
        self.touched = -1
        self.idle_touched = -1
        """Value of `touched` when it was last published by an idle flush."""


class TraceState(msgspec.Struct, gc=False):  # gc=False: nothing it refers to refers back, and millions may live
    """One trace in memory."""

    spans: tuple[bytes, ...]
    """Kept spans, distinct by span id; of an oversize trace its representatives only."""
    latest: PaneSlot
    first_offset: int
    cell: Cell | None = None
    """Where it is counted or waits. Its slot may have closed since: then it is there for good."""
    matched: bool = False
    """Its result is in the cell's tally."""
    recounted: bool = False
    """It was counted in a pane that has closed, and again in `cell`."""
    touched: int = -1
    frozen: bool = False
    """Whether routes were frozen when `cell` was found: what was added then must be taken out by the same rule."""
    crowd: Crowd | None = None
    """All kept spans of an oversize trace."""
