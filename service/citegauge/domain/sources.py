"""The clock of a partition that several sources feed: event time goes on with the slowest source that is not idle.

Re-keyed spans of one trace come from several source partitions, each in its own order and with its own delay. The
partition's event time is therefore the running maximum of the minimum over active sources. A source is idle when the
log's own time (record timestamps of the re-keyed topic) has advanced past its last record by `idle_ns`: a rule about the
log, never about the worker's clock, so that a replay decides the same. A source that resumes never lowers it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from citegauge.errors import FatalError

SOURCES_MAX = 150
"""Sources of one partition: so many clocks fit into Kafka's commit metadata."""


class SourceClock(NamedTuple):
    """One source, as it stands in commit metadata."""

    source: int
    """32-bit id (`source_id`)."""
    event_ns: int
    """Newest valid span end."""
    log_ns: int
    """Log time of its last record."""


_PACKED = struct.Struct(">IQI")
_LOG = struct.Struct(">Q")
_MS_NS = 1_000_000
_AGE_MS_MAX = 0xFFFFFFFF


def pack_clocks(clocks: Iterable[SourceClock]) -> bytes:
    """16 bytes a source: id, event time in ns, and how many ms its last record lies behind the newest log time.

    Log times are whole milliseconds, as Kafka keeps them. Raises `FatalError` for more than `SOURCES_MAX`.
    """
    found = list(clocks)
    if len(found) > SOURCES_MAX:
        raise FatalError(
            f"{len(found)} source partitions feed one partition of the re-keyed topic, and only {SOURCES_MAX} fit into a "
            "commit: re-key them with several instances into several topics"
        )
    if not found:
        return b""
    log_ns = max(clock.log_ns for clock in found)
    ages = (min((log_ns - clock.log_ns) // _MS_NS, _AGE_MS_MAX) for clock in found)
    return _LOG.pack(log_ns) + b"".join(
        _PACKED.pack(clock.source, clock.event_ns, age) for clock, age in zip(found, ages, strict=True)
    )


def unpack_clocks(packed: bytes) -> list[SourceClock]:
    """Inverse of `pack_clocks`. Raises ValueError for anything that it did not write."""
    if not packed:
        return []
    if (len(packed) - _LOG.size) % _PACKED.size or len(packed) <= _LOG.size:
        raise ValueError("source clocks of the wrong length")
    (log_ns,) = _LOG.unpack_from(packed)
    return [
        SourceClock(source, event_ns, log_ns - age * _MS_NS)
        for source, event_ns, age in _PACKED.iter_unpack(packed[_LOG.size :])
    ]


class SourceClocks:
    """Mutable state; what it answers depends on the sequence of `seen` calls alone."""

    __slots__ = ("_event_ns", "_idle_at_ns", "_idle_ns", "_log_ns", "_slowest", "log_ns")

    def __init__(self, idle_ns: int, clocks: Iterable[SourceClock] = ()) -> None:
        self._idle_ns = idle_ns
        self._event_ns: dict[int, int] = {}
        self._log_ns: dict[int, int] = {}
        for clock in clocks:
            self._event_ns[clock.source] = clock.event_ns
            self._log_ns[clock.source] = clock.log_ns
        self.log_ns = max(self._log_ns.values(), default=0)
        """Newest log time."""
        self._slowest = 0
        self._idle_at_ns = 0
        self._find_slowest()

    def __len__(self) -> int:
        return len(self._event_ns)

    def __contains__(self, source: int) -> bool:
        return source in self._event_ns

    def seen(self, source: int, event_ns: int, log_ns: int) -> int:
        """A span of `source` that validly ends at `event_ns`, in a record of log time `log_ns`.

        Returns the minimum over active sources, ns.
        """
        before_ns = self._event_ns.get(source)
        known = before_ns is not None and self._log_ns[source] + self._idle_ns >= self.log_ns
        if before_ns is None or event_ns > before_ns:
            self._event_ns[source] = event_ns
        # Log time is made to rise, as LogAppendTime nearly does.
        self.log_ns = max(self.log_ns, log_ns)
        self._log_ns[source] = self.log_ns
        if not known or before_ns == self._slowest or self.log_ns > self._idle_at_ns:
            self._find_slowest()
        return self._slowest

    def clocks(self) -> tuple[SourceClock, ...]:
        """The state, for a commit."""
        return tuple(
            SourceClock(source, event_ns, self._log_ns[source]) for source, event_ns in sorted(self._event_ns.items())
        )

    def _find_slowest(self) -> None:
        oldest_ns = self.log_ns - self._idle_ns
        active = [source for source, log_ns in self._log_ns.items() if log_ns >= oldest_ns]
        self._slowest = min((self._event_ns[source] for source in active), default=0)
        self._idle_at_ns = min((self._log_ns[source] for source in active), default=0) + self._idle_ns
