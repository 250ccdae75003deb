"""What reaches ClickHouse together, and what does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from citegauge.adapters.kafka.writer import SLICE_ROWS_MAX, RowWriter
from citegauge.ports import LateRow, PaneRow
from citegauge.sections import ClickHouseSettings
from support.clickhouse_rows import late_row, pane_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from citegauge.ports import Row


class Sizes:
    """A sink that notes how many rows of which type came at a time."""

    def __init__(self) -> None:
        self.seen: list[tuple[type[Row], int]] = []

    def insert(self, rows: Sequence[Row]) -> None:
        """Nothing is kept of them."""
        self.seen.append((type(rows[0]), len(rows)))


async def inserted(rows: Sequence[Row]) -> list[tuple[type[Row], int]]:
    """The inserts that these rows became."""
    sink = Sizes()
    writer = RowWriter(sink, ClickHouseSettings())
    running = asyncio.create_task(writer.run())
    await asyncio.wait_for(writer.submit(rows), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert writer.backlog_rows == 0
    return sink.seen


async def test_many_rows_go_in_slices() -> None:
    """Columns of all of them at once would take as much memory again."""
    rows = [late_row(0, offset=offset) for offset in range(2 * SLICE_ROWS_MAX + 1)]
    assert await inserted(rows) == [(LateRow, SLICE_ROWS_MAX), (LateRow, SLICE_ROWS_MAX), (LateRow, 1)]


async def test_panes_of_one_day_stay_together() -> None:
    """Whoever restores windows takes what it finds of a closed minute for the whole of it."""
    rows = [pane_row(0, route=f"r{number}") for number in range(SLICE_ROWS_MAX + 1)]
    assert await inserted(rows) == [(PaneRow, SLICE_ROWS_MAX + 1)]
