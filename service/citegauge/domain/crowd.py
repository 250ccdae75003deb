"""CROWD: the kept spans of an oversize trace, so that one more costs as much as any span does. Knows no panes, no policy.

A trace id that a client uses for ever brings spans without end. What is kept of them is what is kept of any trace, the
newest; but such a trace is judged by at most four of them, its *representatives*: its newest retrieval, its newest rerank,
its newest generation, and the newest span that names the route best. These are found anew without looking at the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from citegauge.domain.kept import KIND, first_offset, with_copy
from citegauge.domain.span import Kind, Span

_AGE = slice(0, 16)
_ID = slice(8, 16)
_OTHER = int(Kind.OTHER)
_NO_ROUTE = -1


def route_class(span: Span) -> int:
    """How well a span names the route, best first: by rank, then whether it is a root. -1: it names none."""
    return 2 * span.route_rank + bool(span.parent_id) if span.route else _NO_ROUTE


class Crowd:
    """Distinct kept spans of one trace, each with its `route_class`."""

    __slots__ = ("_ages", "_by_id", "_kinds", "_routes")

    def __init__(self, spans: Sequence[bytes], routes: Sequence[int]) -> None:
        """`spans` in order of arrival, distinct by id, and of each the `route_class`."""
        self._by_id = {kept[_ID]: (kept, route) for kept, route in zip(spans, routes, strict=True)}
        """In order of arrival: so the first one has the smallest offset."""
        self._ages = sorted(kept[_AGE] for kept in spans)
        self._kinds: dict[int, bytes] = {}
        self._routes: dict[int, bytes] = {}
        """The newest span of each kind, and of each class of route."""
        self._look_through()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def spans(self) -> tuple[bytes, ...]:
        """All of them, in order of arrival."""
        return tuple(kept for kept, _ in self._by_id.values())

    @property
    def first_offset(self) -> int:
        """The smallest offset at which any copy of them was read."""
        return first_offset((next(iter(self._by_id.values()))[0],))

    def representatives(self) -> tuple[bytes, ...]:
        """The spans by which the trace is judged: one to four, or none."""
        found = list(self._kinds.values())
        if self._routes:
            best = self._routes[min(self._routes)]
            if best not in found:
                found.append(best)
        return tuple(found)

    def put(self, kept: bytes, route: int) -> bool:
        """Add a span, or a copy of one; returns whether it says anything new. `route`: its `route_class`."""
        span_id = kept[_ID]
        known = self._by_id.get(span_id)
        if known is None:
            self._by_id[span_id] = kept, route
            insort(self._ages, kept[_AGE])
            self._note(kept, route)
            return True
        other, other_route = known
        (merged,) = with_copy((other,), kept)
        if merged is other:
            return False
        del self._ages[bisect_left(self._ages, other[_AGE])]
        insort(self._ages, merged[_AGE])
        richer = merged[KIND:] != other[KIND:]
        route = route if richer else other_route
        self._by_id[span_id] = merged, route
        if other[KIND] == merged[KIND] and other_route == route:
            self._note(merged, route)
        else:
            self._look_through()
        return richer

    def drop_oldest(self) -> bytes:
        """Take out the oldest one and return it."""
        span_id = self._ages.pop(0)[_ID]
        kept, route = self._by_id.pop(span_id)
        # Whatever the oldest of all is the newest of, it is the only one of.
        if self._kinds.get(kept[KIND]) is kept:
            del self._kinds[kept[KIND]]
        if self._routes.get(route) is kept:
            del self._routes[route]
        return kept

    def drop_before(self, oldest_ns: int) -> None:
        """Take out those that end before `oldest_ns`."""
        oldest = oldest_ns.to_bytes(8, "big")
        while self._ages and self._ages[0] < oldest:
            self.drop_oldest()

    def _note(self, kept: bytes, route: int) -> None:
        kind = kept[KIND]
        if kind != _OTHER and _newer(kept, self._kinds.get(kind)):
            self._kinds[kind] = kept
        if route != _NO_ROUTE and _newer(kept, self._routes.get(route)):
            self._routes[route] = kept

    def _look_through(self) -> None:
        self._kinds.clear()
        self._routes.clear()
        for kept, route in self._by_id.values():
            self._note(kept, route)


def _newer(kept: bytes, known: bytes | None) -> bool:
    """A later copy of the same span takes its place."""
    return known is None or kept[_AGE] >= known[_AGE]
