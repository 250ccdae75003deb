"""`for` and `keep_firing_for` as Prometheus applies them (rules/alerting.go), in closed form. Pure.

An alert is pending from the first evaluation that finds its expression true, and fires from the first one that still does
so `for` later; one evaluation that does not makes a pending alert start anew. A firing alert ends at the first evaluation
that is `keep_firing_for` later than the first of the evaluations in a row that found nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Firing(NamedTuple):
    """One stretch of time during which an alert fires; seconds."""

    from_s: int
    """The first evaluation at which it fires."""
    to_s: int | None
    """The first at which it does not any more; None: still firing at the end."""
    value_min: float
    value_max: float
    """Of the expression, while it was true in that stretch."""


def firings(
    points: Iterable[tuple[int, float]], *, hold_s: float, keep_s: float, step_s: int, end_s: int
) -> list[Firing]:
    """When an alert fires whose expression is true at `points` (time and value, by time) and false at all other
    evaluations, which are `step_s` apart and stop before `end_s`.
    """
    found: list[Firing] = []
    since_s = last_s = 0
    current: Firing | None = None
    pending = False
    for time_s, value in points:
        ended_s = _ended(last_s, keep_s, step_s)
        if current is not None and ended_s < time_s:
            found.append(current._replace(to_s=ended_s))
            current, pending = None, False
        if current is None:
            if not pending or time_s - last_s > step_s:
                pending, since_s = True, time_s
            if time_s - since_s >= hold_s:
                current = Firing(time_s, None, value, value)
        else:
            current = current._replace(value_min=min(current.value_min, value), value_max=max(current.value_max, value))
        last_s = time_s
    if current is not None:
        ended_s = _ended(last_s, keep_s, step_s)
        found.append(current._replace(to_s=ended_s) if ended_s < end_s else current)
    return found


def _ended(last_s: int, keep_s: float, step_s: int) -> int:
    """The evaluation at which a firing alert ends whose expression was last true at `last_s`."""
    steps = -int(-keep_s // step_s)
    return last_s + step_s + steps * step_s
