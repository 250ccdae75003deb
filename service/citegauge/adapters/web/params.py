"""What may be asked: query parameters, checked and bounded. A wrong one is one line that says what would be right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from citegauge.domain.recall import STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOW_S: Mapping[str, int] = {"1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600}
STEP_S_MIN = 60
SPAN_S_MAX = 31 * 24 * 3600
UNIX_S_MAX = 4_102_444_800
"""2100-01-01: a later time is a mistake, most likely milliseconds."""
TEXT_MAX = 200


class ParamError(ValueError):
    """A parameter is missing, unknown or out of range; the message is one line for the visitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParams:
    """One route x top_k bucket."""

    route: str
    top_k_bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionParams(GroupParams):
    """Which distribution: `window` is a key of `WINDOW_S`."""

    window: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesParams(DistributionParams):
    """Which traces: those that ended in `state`."""

    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceParams:
    """One trace, and near which time it is to be looked for (None: anywhere)."""

    trace_id: str
    at_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesParams(GroupParams):
    """Which rolling line: windows of `window_s` ending at each `step_s` of (from_s, to_s], unix seconds."""

    window_s: int
    from_s: int
    to_s: int
    step_s: int


def group_params(query: Mapping[str, str]) -> GroupParams | None:
    """The group whose rows are wanted, None for all roll-ups. Raises `ParamError`."""
    _only(query, "route", "top_k_bucket")
    if not query:
        return None
    return GroupParams(route=_text(query, "route"), top_k_bucket=_text(query, "top_k_bucket"))


def no_params(query: Mapping[str, str]) -> None:
    """Refuse any parameter. Raises `ParamError`."""
    _only(query)


def distribution_params(query: Mapping[str, str]) -> DistributionParams:
    """Raises `ParamError`."""
    _only(query, "route", "top_k_bucket", "window")
    window = _choice(query, "window", "1h", tuple(WINDOW_S))
    return DistributionParams(route=_text(query, "route"), top_k_bucket=_text(query, "top_k_bucket"), window=window)


def traces_params(query: Mapping[str, str]) -> TracesParams:
    """The measured traces unless asked otherwise. Raises `ParamError`."""
    _only(query, "route", "top_k_bucket", "window", "state")
    return TracesParams(
        route=_text(query, "route"),
        top_k_bucket=_text(query, "top_k_bucket"),
        window=_choice(query, "window", "1h", tuple(WINDOW_S)),
        state=_choice(query, "state", "measured", STATE_NAMES),
    )


def trace_params(query: Mapping[str, str]) -> TraceParams:
    """Raises `ParamError`."""
    _only(query, "trace_id", "at")
    trace_id = query.get("trace_id", "")
    if not re.fullmatch(r"[0-9a-f]{32}", trace_id):
        raise ParamError("trace_id must be 32 lower-case hexadecimal digits")
    return TraceParams(trace_id=trace_id, at_s=_integer(query, "at", 0, 0, UNIX_S_MAX) if "at" in query else None)


def series_params(query: Mapping[str, str], *, to_default_s: int, points_max: int) -> SeriesParams:
    """The last 24 h up to `to_default_s` in steps of 5 min unless asked otherwise. Raises `ParamError`.

    Both ends are rounded down to whole steps: every point is then a whole window, and pages opened at about the same
    time ask the same question.
    """
    _only(query, "route", "top_k_bucket", "window_s", "from", "to", "step_s")
    step_s = _integer(query, "step_s", 300, STEP_S_MIN, WINDOW_S["24h"])
    window_s = _integer(query, "window_s", WINDOW_S["1h"], STEP_S_MIN, WINDOW_S["24h"])
    to_s = _down(_integer(query, "to", to_default_s, 0, UNIX_S_MAX), step_s)
    from_s = _down(_integer(query, "from", max(0, to_s - WINDOW_S["24h"]), 0, UNIX_S_MAX), step_s)
    if step_s % 60:
        raise ParamError("step_s must be a multiple of 60, the length of a pane")
    if window_s % step_s:
        raise ParamError("window_s must be a multiple of step_s")
    if not 0 < to_s - from_s <= SPAN_S_MAX:
        raise ParamError(f"from must be before to, by at most {SPAN_S_MAX} s")
    if (to_s - from_s) // step_s > points_max:
        raise ParamError(f"from, to and step_s ask for more than {points_max} points; make step_s larger")
    return SeriesParams(
        route=_text(query, "route"),
        top_k_bucket=_text(query, "top_k_bucket"),
        window_s=window_s,
        from_s=from_s,
        to_s=to_s,
        step_s=step_s,
    )


def _only(query: Mapping[str, str], *names: str) -> None:
    unknown = sorted(set(query) - set(names))
    if unknown:
        known = f"known here: {', '.join(names)}" if names else "none is known here"
        raise ParamError(f"unknown parameter {unknown[0][:TEXT_MAX]!r}; {known}")


def _text(query: Mapping[str, str], name: str) -> str:
    value = query.get(name, "")
    if not value:
        raise ParamError(f"{name} is missing")
    if len(value) > TEXT_MAX or not value.isprintable():
        raise ParamError(f"{name} must be at most {TEXT_MAX} printable characters")
    return value


def _choice(query: Mapping[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    value = query.get(name, default)
    if value not in known:
        raise ParamError(f"{name} must be one of {', '.join(known)}")
    return value


def _integer(query: Mapping[str, str], name: str, default: int, lowest: int, highest: int) -> int:
    raw = query.get(name)
    if raw is None:
        return default
    # isdecimal alone lets other scripts' digits through, and int() would take "1_000" and " 7 ".
    if not (raw.isascii() and raw.isdecimal() and len(raw) <= 12 and lowest <= int(raw) <= highest):
        raise ParamError(f"{name} must be an integer from {lowest} to {highest}")
    return int(raw)


def _down(value_s: int, step_s: int) -> int:
    return value_s // step_s * step_s
