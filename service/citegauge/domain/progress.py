"""Where a partition stands in its log: clock, commit point, recorded events, silent replay. Pure; no Kafka here.

The log is the snapshot. A commit names offset c, from which re-reading rebuilds every open pane and live trace, and
carries as metadata the position up to which everything has been published, the clock just before c, and the events since
c that the log alone does not tell (early closings, frozen routes).
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from citegauge.errors import FatalError

METADATA_VERSION = 1
METADATA_BYTES_MAX = 4_096
"""Kafka's own default limit (`offset.metadata.max.bytes`)."""
EVENTS_MAX = 150
"""Recorded events between c and the position; past it the worker stops, because the metadata would not fit."""
CHECKPOINT_EVERY = 1_000
"""Offsets between two clock checkpoints: how far c may be rounded down."""

EventKind = Literal["force_close", "freeze", "thaw"]
_EVENT_CODES: tuple[EventKind, ...] = ("force_close", "freeze", "thaw")


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """All that closing and lateness depend on."""

    max_event_ns: int = 0
    forced_through: int = -1
    """Newest pane that was closed early."""
    routes_frozen: bool = False
    sources: bytes = b""
    """Clocks per source of a re-keyed partition (`domain.sources.pack_clocks`); filled in for checkpoints only."""

    def advanced(self, event_ns: int) -> Clock:
        """The clock after a valid span that ends at `event_ns`."""
        return Clock(event_ns, self.forced_through, self.routes_frozen)

    def forced(self, pane: int) -> Clock:
        """The clock after an early closing up to `pane`."""
        return Clock(self.max_event_ns, max(pane, self.forced_through), self.routes_frozen)

    def with_frozen(self, frozen: bool) -> Clock:
        """The clock after routes were frozen or thawed."""
        return Clock(self.max_event_ns, self.forced_through, frozen)


class Event(msgspec.Struct, frozen=True):
    """Something that happened right after the record at `offset` and must happen there again in a replay."""

    offset: int
    kind: EventKind
    pane: int = -1


class Commit(msgspec.Struct, frozen=True):
    """What is committed for a partition."""

    offset: int
    """c: where a restart begins to read."""
    position: int
    """Next offset to read: everything before it has been published."""
    clock: Clock
    """The clock just before `offset`."""
    events: tuple[Event, ...] = ()

    def to_metadata(self) -> str:
        """Base64 of a version byte and a MessagePack array. Raises `FatalError` when Kafka would refuse its size."""
        events = [(event.offset, _EVENT_CODES.index(event.kind), event.pane) for event in self.events]
        body = msgspec.msgpack.encode((self.position, self.clock, events))
        text = base64.b64encode(bytes((METADATA_VERSION,)) + body).decode("ascii")
        if len(text) > METADATA_BYTES_MAX:
            raise FatalError(
                f"commit metadata of {len(text)} bytes exceeds Kafka's {METADATA_BYTES_MAX}: "
                "raise join.traces_max (panes are closed early too often), or re-key fewer source partitions into one topic"
            )
        return text

    @classmethod
    def from_metadata(cls, offset: int, text: str) -> Commit:
        """Inverse of `to_metadata`. Raises ValueError for anything that it did not write."""
        if len(text) > METADATA_BYTES_MAX:
            raise ValueError("too long")
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as exc:
            raise ValueError("not base64") from exc
        if not raw or raw[0] != METADATA_VERSION:
            raise ValueError("unknown version")
        try:
            position, clock, events = _metadata.decode(raw[1:])
        except msgspec.DecodeError as exc:
            raise ValueError("cut off or malformed") from exc
        if not 0 <= offset <= position:
            raise ValueError("position lies before the offset")
        if not all(offset <= at < position and 0 <= code < len(_EVENT_CODES) for at, code, _ in events):
            raise ValueError("an event that cannot have happened")
        commit = cls(offset, position, clock, tuple(Event(at, _EVENT_CODES[code], pane) for at, code, pane in events))
        if commit.to_metadata() != text:
            raise ValueError("written in another way")
        return commit


_metadata = msgspec.msgpack.Decoder(tuple[int, Clock, list[tuple[int, int, int]]])


class ProgressState:
    """Clock checkpoints and recorded events of one partition, from which commit points are made."""

    def __init__(self, start: int, clock: Clock, events: Iterable[Event] = ()) -> None:
        """`start`: the first offset that will be read; `clock`: the clock before it; `events`: those of a replay."""
        self.position = start
        self._checkpoints: deque[tuple[int, Clock]] = deque([(start, clock)])
        self._events: deque[Event] = deque(events)

    def before_record(self, offset: int, clock: Callable[[], Clock]) -> None:
        """Note the clock before the record at `offset`, sparsely."""
        if offset >= self._checkpoints[-1][0] + CHECKPOINT_EVERY:
            self._checkpoints.append((offset, clock()))

    def after_record(self, offset: int) -> None:
        """The record at `offset` has been read."""
        self.position = offset + 1

    def record(self, event: Event) -> None:
        """Remember an event. Raises `FatalError` past `EVENTS_MAX`."""
        if len(self._events) >= EVENTS_MAX:
            raise FatalError(
                f"more than {EVENTS_MAX} panes were closed early within one hold-back: "
                "raise join.traces_max or add partitions"
            )
        self._events.append(event)

    def events_at(self, offset: int) -> list[Event]:
        """Recorded events of the record at `offset` (for a silent replay)."""
        return [event for event in self._events if event.offset == offset]

    def commit_point(self, first_kept: int | None) -> Commit:
        """The commit for the present position; `first_kept` is the join's hold-back.

        Checkpoints and events before it are forgotten: commit points never move backwards.
        """
        wanted = self.position if first_kept is None else min(first_kept, self.position)
        while len(self._checkpoints) > 1 and self._checkpoints[1][0] <= wanted:
            self._checkpoints.popleft()
        offset, clock = self._checkpoints[0]
        while self._events and self._events[0].offset < offset:
            self._events.popleft()
        return Commit(offset, self.position, clock, tuple(self._events))
