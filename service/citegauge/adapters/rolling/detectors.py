"""The detectors of one store: they run over its groups in turns, once a minute of as-of, and keep what changes rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group
from citegauge.domain.signals import UNKNOWN, Past, Signal, Usual, signals_of, usual_bounds, usual_of
from citegauge.domain.window import WINDOWS, RollUp, WindowStore

_HOUR, _SIX_HOURS, _DAY = WINDOWS


class Detectors:
    """What is usual for the groups of one store: of the day, looked at once an hour, and of the week."""

    def __init__(self, distance_routes: frozenset[str] = frozenset()) -> None:
        """`distance_routes`: whose scores are distances."""
        self.week: Mapping[Group, Usual] = {}
        """From ClickHouse; empty until it answers."""
        self._distance_routes = distance_routes
        self._day: dict[Group, Usual] = {}
        self._day_within = (0, 0)

    async def signals(self, store: WindowStore, windows: Iterable[RollUp]) -> tuple[Signal, ...]:
        """Of all roll-ups of a store, from its `group_windows` of now. Lets others run after every group."""
        end_s = store.end_s
        hours: dict[Group, Tally] = {}
        slices: dict[tuple[str, str], list[RollUp]] = {}
        for item in windows:
            if item.window == _HOUR:
                hours[item.group] = item.tally
            elif item.window == _DAY:
                slices.setdefault((item.group.route, item.group.top_k_bucket), []).append(item)
        found: list[Signal] = []
        for key in sorted(slices):
            pasts = []
            for item in sorted(slices[key], key=lambda item: item.group):
                pasts.append(
                    Past(
                        group=item.group,
                        hour=hours.get(item.group, Tally()),
                        day=item.tally,
                        recent=store.cells(item.group, _SIX_HOURS, keep=True),
                        usual_day=self._usual_day(store, item.group),
                        usual_week=self.week.get(item.group, UNKNOWN),
                    )
                )
                await asyncio.sleep(0)
            # In a thread, because a slice of many versions takes longer than a turn; what it reads is its own.
            found += await asyncio.to_thread(signals_of, pasts, end_s, lower_is_better=key[0] in self._distance_routes)
        return tuple(found)

    def _usual_day(self, store: WindowStore, group: Group) -> Usual:
        within = usual_bounds(_DAY.length_s, store.end_s)
        if within != self._day_within:
            self._day_within = within
            self._day.clear()
        known = self._day.get(group)
        if known is None:
            start_s, until_s = within
            cells = store.cells(group, _DAY)
            known = self._day[group] = usual_of(cell for cell in cells if start_s <= cell.start_s < until_s)
        return known
