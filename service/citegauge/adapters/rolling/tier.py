"""The cold tier: a Faust app on the panes topic that keeps the rolling windows. It joins nothing and decides no closing.

Each partition of the panes topic owns the roll-ups whose (route, top_k bucket) hash to it. On assignment its closed panes
are folded from ClickHouse in SQL; after that only the topic is read. Messages are acknowledged in order, and only the
prefix whose panes are closed, so that a restart finds every open pane in the topic again. A source whose topic is no longer
read closes nothing any more: its panes count (a restart has them from ClickHouse), but neither as-of nor this prefix waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import stamina

from citegauge.adapters.rolling.detectors import Detectors
from citegauge.adapters.rolling.restore import restored_store
from citegauge.adapters.rolling.view import View, view_of
from citegauge.adapters.rolling.week import usual_week
from citegauge.domain.policy import SECOND_NS
from citegauge.domain.recall import Group
from citegauge.domain.signals import Signal
from citegauge.domain.window import (
    WINDOWS,
    AsOf,
    Heartbeat,
    RollUp,
    WindowStore,
    bounds,
    window_end_s,
)
from citegauge.errors import CitegaugeError, RetryableError
from citegauge.pipeline import tally_of
from citegauge.ports import (
    ClosedMarker,
    HeartbeatMessage,
    PaneMessage,
    PaneRow,
    SqlReader,
    WindowRow,
)

logger = logging.getLogger(__name__)

HELD_RUNS_MAX = 200_000
"""Runs of held messages per partition; past it the oldest is acknowledged all the same and counted."""
WEEK_EVERY_S = 3_600
"""How often, in as-of time, the 7 days are read again."""
JUST_NOW_NS = 60 * SECOND_NS
"""Age up to which a stranger's heartbeat says that it is writing here at present."""
MET_MAX = 64
"""Installations that are remembered: one is its own, and any other is refused somewhere."""
_decode = msgspec.json.Decoder(PaneMessage).decode


class Meet(Protocol):
    """Asked of an installation whose heartbeat was read."""

    def __call__(self, stranger: str, *, just_now: bool) -> Awaitable[bool]:
        """Whether it is this one. Raises `FatalError` when the topic is not ours."""


class _Ack:
    """The least that Faust's consumer must know to acknowledge a message. Events themselves are too large to keep."""

    __slots__ = ("__weakref__", "acked", "offset", "topic", "tp")

    def __init__(self, tp: Any, offset: int) -> None:
        self.acked = False
        self.offset = offset
        self.topic = tp.topic
        self.tp = tp


class _Held:
    """A run of consecutive messages that wait for one pane to close."""

    __slots__ = ("first", "last", "pane_s", "source")

    def __init__(self, offset: int, source: str, pane_s: int) -> None:
        self.first = self.last = offset
        self.source = source
        self.pane_s = pane_s

    def extend(self, offset: int, source: str, pane_s: int) -> bool:
        """Take the next message, if it has nothing else to wait for: heartbeats wait for whatever is before them."""
        if offset != self.last + 1 or (pane_s >= 0 and (source, pane_s) != (self.source, self.pane_s)):
            return False
        self.last = offset
        return True


class _Owned:
    """One assigned partition of the panes topic."""

    def __init__(self, distance_routes: frozenset[str]) -> None:
        self.store = WindowStore()
        self.restored = asyncio.Event()
        """Also set when the partition is taken away, so that nobody waits for it any longer."""
        self.restoring: asyncio.Task[None] | None = None
        self.held: deque[_Held] = deque()
        self.detectors = Detectors(distance_routes)
        self.signals: tuple[Signal, ...] = ()
        self.week_hour = 0
        """The hour of as-of in which the 7 days were last asked for."""
        self.reading: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What runs for it in the background."""
        return [task for task in (self.restoring, self.reading) if task is not None]

    @property
    def oldest_s(self) -> int:
        """Start of the longest window: panes before it are in none."""
        return min(bounds(window, self.store.end_s)[0] for window in WINDOWS)


class RollTier:
    """Everything of the cold tier but Faust itself, which calls it from one event loop."""

    def __init__(
        self,
        reader: SqlReader,
        store_rows: Callable[[list[WindowRow]], object],
        *,
        database: str,
        partitions: int,
        as_of: AsOf,
        distance_routes: frozenset[str] = frozenset(),
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`store_rows` takes rows for the `windows` table; it must not block. `partitions`: of the panes topic.

        `as_of`: what the windows wait for. `distance_routes`: whose scores are distances.
        """
        self._reader = reader
        self._store_rows = store_rows
        self._database = database
        self._partitions = partitions
        self._distance_routes = distance_routes
        self._wall_ns = wall_ns
        self._owned: dict[int, _Owned] = {}
        self._as_of = as_of
        self._told: set[str] = set()
        """Ignored sources that the log knows of."""
        self._stored_end_s = 0
        self._signals_end_s = 0
        self._signals_caught_up = False
        self._signalling: asyncio.Task[None] | None = None
        self._week_turn = asyncio.Lock()
        self._week_failed = False
        self._met: dict[tuple[str, bool], bool] = {}
        self.meet: Meet | None = None
        """None: every heartbeat is our own."""
        self.view = View()
        self.acked_early = 0
        self.unreadable = 0
        self.turned_ns = time.monotonic_ns()
        """Monotonic time of the last publish, for the watchdog."""

    # -- assignment ---------------------------------------------------------------------------------------------------

    def assign(self, partitions: set[int]) -> None:
        """Own exactly these partitions; new ones are restored from ClickHouse in the background."""
        for partition in self._owned.keys() - partitions:
            gone = self._owned.pop(partition)
            for task in gone.tasks:
                task.cancel()
            gone.restored.set()
        for partition in partitions - self._owned.keys():
            owned = self._owned[partition] = _Owned(self._distance_routes)
            owned.restoring = asyncio.create_task(self._restore(partition, owned), name=f"restore-{partition}")

    async def _restore(self, partition: int, owned: _Owned) -> None:
        async for attempt in stamina.retry_context(on=RetryableError, attempts=None, timeout=None, wait_max=10.0):
            with attempt:
                owned.store = await asyncio.to_thread(
                    restored_store, self._reader, self._database, partition, self._partitions
                )
        owned.restored.set()
        logger.info("windows of panes partition %d restored up to %d", partition, owned.store.end_s)

    # -- messages -------------------------------------------------------------------------------------------------------

    async def take(self, event: Any) -> None:
        """One event of the panes topic, not yet acknowledged. Waits until its partition is restored."""
        message = event.message
        owned = self._owned.get(message.partition)
        if owned is not None:
            await owned.restored.wait()
        if owned is None or self._owned.get(message.partition) is not owned:
            return  # taken away; the new owner reads it
        source, pane_s = await self._apply(owned, event.value, int(message.timestamp * SECOND_NS))
        held = owned.held
        if not held or not held[-1].extend(message.offset, source, pane_s):
            held.append(_Held(message.offset, source, pane_s))
        self._acknowledge(owned, event.app.consumer, message.tp)

    async def _apply(self, owned: _Owned, value: bytes, sent_ns: int) -> tuple[str, int]:
        """The source and pane that hold the message back; pane -1: nothing does. `sent_ns`: the message's timestamp."""
        try:
            message = _decode(value)
            if isinstance(message, HeartbeatMessage):
                # Not older than it is: a restart reads old heartbeats again, and they say nothing of the present.
                seen_ns = min(sent_ns, self._wall_ns())
                if not await self._ours(message.installation, seen_ns):
                    return "", -1
                beat = Heartbeat(message.closed_through, message.watermark_ns, message.caught_up, seen_ns)
                self._as_of.beat(message.source, beat)
            elif isinstance(message, ClosedMarker):
                owned.store.close(message.source, message.through)
            else:
                row = message.row
                owned.store.upsert(row.source, row.pane, _row_group(row), row.version, tally_of(row))
                return row.source, row.pane
        except (msgspec.MsgspecError, KeyError) as exc:
            self.unreadable += 1
            logger.warning("a message of the panes topic is not ours and is left out: %s", exc)
        return "", -1

    async def _ours(self, installation: str, seen_ns: int) -> bool:
        """Whether a heartbeat counts. Without an id it is of an older release, and counts."""
        if not installation or self.meet is None:
            return True
        just_now = seen_ns >= self._wall_ns() - JUST_NOW_NS
        known = self._met.get((installation, just_now))
        if known is None:
            known = await self.meet(installation, just_now=just_now)
            if len(self._met) >= MET_MAX:
                self._met.clear()
            self._met[installation, just_now] = known
        return known

    def _acknowledge(self, owned: _Owned, consumer: Any, tp: Any) -> None:
        """In order, the prefix whose panes are closed: that is what a restart needs not read again."""
        held, oldest_s = owned.held, owned.oldest_s
        while held:
            first = held[0]
            waits = (
                first.pane_s >= oldest_s
                and not owned.store.is_closed(first.source, first.pane_s)
                and not self._as_of.ignores(first.source)
            )
            if waits and len(held) <= HELD_RUNS_MAX:
                return
            self.acked_early += waits
            for offset in range(first.first, first.last + 1):
                consumer.ack(_Ack(tp, offset))
            held.popleft()

    # -- publishing -----------------------------------------------------------------------------------------------------

    async def publish(self) -> View:
        """Compute the windows as of now. Rows go to ClickHouse once a minute of as-of time."""
        for task in self._tasks():
            if task.done():
                task.result()  # raises what it raised
        self.turned_ns = time.monotonic_ns()
        wall_ns = self._wall_ns()
        as_of_ns = self._as_of.update(wall_ns) or self._restored_ns
        end_s = window_end_s(as_of_ns) if as_of_ns else 0
        windows: dict[int, list[RollUp]] = {}
        for partition, owned in list(self._owned.items()):
            if owned.restored.is_set():
                owned.store.advance(end_s)
                windows[partition] = list(owned.store.group_windows())
                await asyncio.sleep(0)
        before = self.view
        sources = dict(self._as_of.sources)
        self._tell_ignored()
        groups = [item for found in windows.values() for item in found]
        view = await view_of(groups, as_of_ns, caught_up=self._as_of.caught_up(wall_ns), sources=sources)
        self.view = replace(view, signals=self._signals())
        self._detect(windows, end_s, caught_up=view.caught_up)
        if self.view.rows and end_s > self._stored_end_s:
            self._stored_end_s = end_s
            # The minute that is over once more: its first row was computed when it had just begun.
            self._store_rows([*before.rows, *self.view.rows])
        return self.view

    def _tell_ignored(self) -> None:
        for source in sorted(set(self._as_of.ignored) - self._told):
            self._told.add(source)
            logger.warning("the windows do not wait for %s: its topic is not among those of the settings", source)

    # -- detectors ------------------------------------------------------------------------------------------------------

    def _detect(self, windows: dict[int, list[RollUp]], end_s: int, *, caught_up: bool) -> None:
        """Start the detectors, once a minute of as-of; they run beside the windows, which do not wait for them.

        Also at once when everything is read: what was judged earlier in that minute was judged on a part.
        """
        due = end_s > self._signals_end_s or (caught_up and not self._signals_caught_up)
        if not due or (self._signalling is not None and not self._signalling.done()):
            return
        self._signals_end_s, self._signals_caught_up = end_s, caught_up
        self._signalling = asyncio.create_task(self._signal(windows), name="detectors")
        for partition in windows:
            owned = self._owned.get(partition)
            if owned is None or owned.week_hour >= end_s // WEEK_EVERY_S:
                continue
            if owned.reading is None or owned.reading.done():
                owned.week_hour = end_s // WEEK_EVERY_S
                owned.reading = asyncio.create_task(self._read_week(partition, owned), name=f"week-{partition}")

    async def _signal(self, windows: dict[int, list[RollUp]]) -> None:
        for partition, items in windows.items():
            owned = self._owned.get(partition)
            if owned is not None:
                owned.signals = await owned.detectors.signals(owned.store, items)
        self.view = replace(self.view, signals=self._signals())

    async def _read_week(self, partition: int, owned: _Owned) -> None:
        """One partition after the other: however long ClickHouse takes, it holds up one thread and nothing else."""
        try:
            async with self._week_turn:
                owned.detectors.week = await asyncio.to_thread(
                    usual_week, self._reader, self._database, partition, self._partitions, owned.store.end_s
                )
            self._week_failed = False
        except CitegaugeError as exc:
            owned.week_hour = 0  # asked for again in the next minute: an hour is long to test without what is usual
            if not self._week_failed:
                self._week_failed = True
                logger.warning("no 7 d baseline, the last 24 h stand alone until ClickHouse answers: %s", exc)

    def _signals(self) -> tuple[Signal, ...]:
        return tuple(signal for owned in self._owned.values() for signal in owned.signals)

    def _tasks(self) -> list[asyncio.Task[None]]:
        found = [task for owned in self._owned.values() for task in owned.tasks]
        return found if self._signalling is None else [*found, self._signalling]

    async def settle(self) -> View:
        """Wait for what runs in the background; the view with its results. For who computes one moment after the other."""
        await asyncio.gather(*self._tasks())
        return self.view

    @property
    def _restored_ns(self) -> int:
        """As-of before the first heartbeat: the last moment of what was restored; 0 when that is nothing."""
        return max(0, max((owned.store.end_s for owned in self._owned.values()), default=0) * SECOND_NS - 1)

    @property
    def ready(self) -> bool:
        """Every assigned partition is restored, and there is one."""
        return bool(self._owned) and all(owned.restored.is_set() for owned in self._owned.values())

    @property
    def unacked(self) -> int:
        """Messages that are held back."""
        return sum(held.last - held.first + 1 for owned in self._owned.values() for held in owned.held)


def _row_group(row: PaneRow) -> Group:
    return Group(row.route, row.top_k_bucket, row.model, row.retriever_version, row.scorer)
