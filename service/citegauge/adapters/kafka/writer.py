"""The bounded buffer in front of ClickHouse: takes batches in order, inserts in a thread, retries, never drops.

It knows nothing of offsets: `submit` returns a future that is done when the rows are acknowledged, and the caller owns
what may be committed then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import stamina

from citegauge.errors import CitegaugeError, RetryableError
from citegauge.ports import PaneRow, Row, RowSink
from citegauge.settings import ClickHouseSettings

DAY_S = 86_400
SLICE_ROWS_MAX = 10_000
"""Rows made into columns at a time: the windows of thousands of groups come at once, and take a kilobyte each."""


class _Batch(NamedTuple):
    rows: Sequence[Row]
    done: asyncio.Future[None]


class RowWriter:
    """One writer per worker: at most one insert in flight, rows of a later batch never overtake an earlier one's."""

    def __init__(self, sink: RowSink, settings: ClickHouseSettings) -> None:
        self._sink = sink
        self._settings = settings
        self._queue: deque[_Batch] = deque()
        self._wake = asyncio.Event()
        self.backlog_rows = 0
        self.inserted_rows: dict[str, int] = {}
        self.failures = 0
        self.failing = False
        """The last try failed; the same rows are being tried again."""

    def submit(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Queue rows; the future is done once they are acknowledged."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not rows:
            done.set_result(None)
            return done
        self._queue.append(_Batch(rows, done))
        self.backlog_rows += len(rows)
        self._wake.set()
        return done

    async def run(self) -> None:
        """Insert until cancelled. Raises what is not worth a retry."""
        while True:
            await self._wake.wait()
            batches = self._take()
            if not batches:
                self._wake.clear()
                continue
            try:
                for rows in _by_type(batch.rows for batch in batches):
                    await self._insert(rows)
            except CitegaugeError as exc:
                for batch in batches:
                    if not batch.done.done():
                        batch.done.set_exception(exc)
                raise
            self.backlog_rows -= sum(len(batch.rows) for batch in batches)
            for batch in batches:
                if not batch.done.done():
                    batch.done.set_result(None)

    def _take(self) -> list[_Batch]:
        taken: list[_Batch] = []
        rows = 0
        while self._queue and (not taken or rows + len(self._queue[0].rows) <= self._settings.insert_rows_max):
            taken.append(self._queue.popleft())
            rows += len(taken[-1].rows)
        return taken

    async def _insert(self, rows: Sequence[Row]) -> None:
        async for attempt in stamina.retry_context(
            on=RetryableError,
            attempts=None,
            timeout=None,
            wait_initial=0.2,
            wait_max=self._settings.retry_wait_s_max,
        ):
            with attempt:
                self.failing = attempt.num > 1
                self.failures += attempt.num > 1
                await asyncio.to_thread(self._sink.insert, rows)
        self.failing = False
        name = type(rows[0]).__name__
        self.inserted_rows[name] = self.inserted_rows.get(name, 0) + len(rows)


def _by_type(batches: Iterable[Sequence[Row]]) -> list[Sequence[Row]]:
    """Rows of one type each, in order; of several upserts of one pane only the newest goes out."""
    by_type: dict[type[Row], list[Row]] = {}
    panes: dict[tuple[object, ...], PaneRow] = {}
    for rows in batches:
        for row in rows:
            if isinstance(row, PaneRow):
                key = (row.pane, row.route, row.top_k_bucket, row.model, row.retriever_version, row.scorer, row.source)
                known = panes.get(key)
                if known is None or known.version <= row.version:
                    panes[key] = row
            else:
                by_type.setdefault(type(row), []).append(row)
    return [*(part for rows in by_type.values() for part in _slices(rows)), *_by_day(panes.values())]


def _slices(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Not for panes: who restores windows must not find one half of a minute's final rows."""
    return [rows[start : start + SLICE_ROWS_MAX] for start in range(0, len(rows), SLICE_ROWS_MAX)]


def _by_day(panes: Iterable[PaneRow]) -> list[Sequence[Row]]:
    """Panes, the older day first: an insert over two of ClickHouse's partitions may be applied by halves, and whoever
    restores windows takes everything before the newest final pane for complete.
    """
    days: dict[int, list[Row]] = {}
    for row in panes:
        days.setdefault(row.pane // DAY_S, []).append(row)
    return [days[day] for day in sorted(days)]
