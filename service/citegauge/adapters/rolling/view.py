"""What the windows show at one moment: `view_of` makes it, for the live tier and for `backtest` alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from citegauge.domain.signals import Signal
from citegauge.domain.summary import stats
from citegauge.domain.window import Heartbeat, RollUp, roll_up
from citegauge.ports import WindowRow

_T = TypeVar("_T")
YIELD_EVERY_ROWS = 50
"""Rows computed between two turns of the event loop: a few milliseconds. The hot tier's heartbeats share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The windows as last computed: what metrics, page and the `windows` table show."""

    as_of_ns: int = 0
    caught_up: bool = False
    rows: tuple[WindowRow, ...] = ()
    roll_ups: tuple[RollUp, ...] = ()
    signals: tuple[Signal, ...] = ()
    """What the detectors say, as of the last whole minute."""
    sources: Mapping[str, Heartbeat] = field(default_factory=dict)


async def view_of(
    groups: Sequence[RollUp],
    as_of_ns: int,
    *,
    caught_up: bool,
    sources: Mapping[str, Heartbeat] | None = None,
    roll_ups_only: bool = False,
) -> View:
    """The view of these windows of full groups (`WindowStore.group_windows`), which hold counts of their own.

    `roll_ups_only`: no rows of full groups, which no metric shows.
    """
    # Each has its own counts by now, so what is read meanwhile does not show in some of them only.
    roll_ups = tuple([item async for item in _in_turns(roll_up(groups))])
    shown = roll_ups if roll_ups_only else (*roll_ups, *groups)
    rows = tuple([window_row(item, as_of_ns) async for item in _in_turns(shown)])
    return View(as_of_ns=as_of_ns, caught_up=caught_up, rows=rows, roll_ups=roll_ups, sources=sources or {})


async def _in_turns(items: Iterable[_T]) -> AsyncIterator[_T]:
    """The same, letting others run now and then."""
    for number, item in enumerate(items, 1):
        yield item
        if number % YIELD_EVERY_ROWS == 0:
            await asyncio.sleep(0)


def window_row(item: RollUp, as_of_ns: int) -> WindowRow:
    """The row of one window; scores stay out where several scorers are merged."""
    tally = item.tally
    numbers = stats(tally, with_scores=item.scorers == 1)
    return WindowRow(
        window=item.window.name,
        window_start=item.start_s,
        window_end=item.end_s,
        **item.group._asdict(),
        **msgspec.structs.asdict(numbers),
        states=tally.state_counts(),
        citations=tally.citations,
        hallucinated=tally.hallucinated,
        dropped_citations=tally.dropped_citations,
        unresolved=tally.unresolved,
        nonconformant=tally.nonconformant,
        recounted=tally.recounted,
        cited_top1=tally.cited_top1,
        cited_top3=tally.cited_top3,
        low_confidence=tally.low_confidence,
        confidence_known=tally.confidence_known,
        version=as_of_ns,
    )
