"""How far the re-key stage may send: source partitions go on side by side in time, and none waits for another for ever.

Spans of one trace lie in several source partitions. Where there is a backlog, what lies far ahead of the slowest partition
is held back, so that the join need not keep what lies between them, and nothing is late merely because another partition was
read first. A partition that is read to its end holds nobody: what it gets next is new. What one that is not may do to the
others has two bounds, one on how long it holds them and one on how far behind it is: past either it is *overruled*, which is
counted, and no longer waited for until it has caught up. The clock of a partition is the newest span end that was read of
it, and the time of its records where they hold no span of ours, so that a topic of logs moves on, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

UNBOUNDED_NS = 1 << 62
Key = TypeVar("Key", bound=Hashable)


class Standing(NamedTuple):
    """Where one source partition stands."""

    clock_ns: int
    """Newest time that was read of it; 0: nothing was read yet, so nobody knows how far behind it is."""
    head_ns: int | None
    """Time of the oldest record that waits to be sent; None: none waits."""
    at_end: bool
    """The last fetch left nothing to read."""


class Alignment(Generic[Key]):
    """Mutable state over the calls of one assignment; told the time, asks nobody."""

    def __init__(self, *, ahead_ns: int, hold_ns: int, behind_ns: int) -> None:
        """`ahead_ns`: how far a partition may go ahead of the slowest; `hold_ns`: how long one may hold others in one go;
        `behind_ns`: who is further behind than this what was sent holds nobody, since it would be late all the same.
        """
        self._ahead_ns = ahead_ns
        self._hold_ns = hold_ns
        self._behind_ns = behind_ns
        self._since_ns: dict[Key, int] = {}
        self._overruled: set[Key] = set()
        self._sent_ns = 0

    @property
    def overruled(self) -> frozenset[Key]:
        """Partitions that are not waited for, because they held others for too long or are too far behind."""
        return frozenset(self._overruled)

    def sent(self, time_ns: int) -> None:
        """Something of this time was sent."""
        self._sent_ns = max(self._sent_ns, time_ns)

    def bound_ns(self, standings: Mapping[Key, Standing], now_ns: int, *, full: bool = False) -> tuple[int, list[Key]]:
        """Up to which time may be sent, and who is overruled from now on.

        `now_ns`: a clock that only rises. `full`: no more may be held, so whoever holds others is overruled at once.
        """
        self._forget(standings)
        overruled: list[Key] = []
        while True:
            waited_for = {
                key: standing.clock_ns
                for key, standing in standings.items()
                if not standing.at_end and key not in self._overruled
            }
            bound_ns = min(waited_for.values(), default=UNBOUNDED_NS - self._ahead_ns) + self._ahead_ns
            newest_ns = max((one.head_ns for one in standings.values() if one.head_ns is not None), default=0)
            holding = [key for key, clock_ns in waited_for.items() if clock_ns + self._ahead_ns < newest_ns]
            self._since_ns = {key: self._since_ns.get(key, now_ns) for key in holding}
            over = [key for key in holding if full or self._is_over(key, waited_for[key], now_ns)]
            if not over:
                return bound_ns, overruled
            self._overruled.update(over)
            overruled += over

    def _is_over(self, key: Key, clock_ns: int, now_ns: int) -> bool:
        too_far = 0 < clock_ns < self._sent_ns - self._behind_ns
        return too_far or now_ns - self._since_ns[key] > self._hold_ns

    def _forget(self, standings: Mapping[Key, Standing]) -> None:
        """Who has caught up with what was sent and what is held, or is gone, is waited for again."""
        newest_ns = max([self._sent_ns, *(one.head_ns for one in standings.values() if one.head_ns is not None)])
        self._overruled = {
            key
            for key in self._overruled
            if key in standings and not 0 < standings[key].clock_ns >= newest_ns - self._ahead_ns
        }
