"""What a call of `explain` asks: which routes, and which two periods. Parsing only; told the time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from citegauge.domain.window import PANE_S
from citegauge.errors import ConfigError
from citegauge.tools.simulate_spec import SECOND_NS, parse_duration

AFTER_S = 3_600
BEFORE_S = 24 * 3_600
CELL_LENGTHS_S = (300, 900, 3_600, 6 * 3_600, 24 * 3_600)
CELLS_MAX = 48
"""Stretches into which the two periods are cut, at most (unless they span more than so many days)."""


class Period(NamedTuple):
    """[start, end) in unix seconds, whole minutes."""

    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The command's arguments, as written."""

    route: str | None = None
    family: str | None = None
    starts: str | None = None
    ends: str | None = None
    against: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be explained."""

    what: str
    """In words."""
    route_like: str
    """Pattern of SQL's LIKE."""
    before: Period
    after: Period

    @property
    def cell_s(self) -> int:
        """Length of the cells that versions are compared in."""
        span_s = self.after.end_s - self.before.start_s
        return next((length for length in CELL_LENGTHS_S if span_s <= CELLS_MAX * length), CELL_LENGTHS_S[-1])


def asked_of(arguments: Arguments, *, now_ns: int) -> Asked:
    """Defaults: the last hour, against the day before it. Raises `ConfigError`."""
    if arguments.route is not None and arguments.family is not None:
        raise ConfigError("--route names one route and --family a pattern of several: give one of them")
    end_s = _moment_s("--to", arguments.ends, now_ns) if arguments.ends else now_ns // SECOND_NS // PANE_S * PANE_S
    start_s = _moment_s("--from", arguments.starts, now_ns) if arguments.starts else end_s - AFTER_S
    after = _period("--from and --to", start_s, end_s)
    before = Period(start_s - BEFORE_S, start_s)
    if arguments.against:
        first, _, last = arguments.against.partition("/")
        before_end_s = _moment_s("--against", last, now_ns) if last else start_s
        before = _period("--against", _moment_s("--against", first, now_ns), before_end_s)
    if before.end_s > after.start_s:
        raise ConfigError("--against must end before --from: a period is not compared with itself")
    what, route_like = "all routes", "%"
    if arguments.route is not None:
        what, route_like = f"route {arguments.route}", _like(arguments.route)
    elif arguments.family is not None:
        what = f"routes {arguments.family}"
        route_like = _like(arguments.family).replace("*", "%").replace("?", "_")
    return Asked(what=what, route_like=route_like, before=before, after=after)


def _like(text: str) -> str:
    """A pattern of LIKE that matches this text alone."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _period(name: str, start_s: int, end_s: int) -> Period:
    if start_s >= end_s:
        raise ConfigError(f"{name}: the period must end after it starts")
    return Period(start_s, end_s)


def _moment_s(name: str, text: str, now_ns: int) -> int:
    """An RFC 3339 time, or a duration that is counted back from now (`-2h`, `2h`), down to the minute."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment_s = (now_ns - abs(parse_duration(text))) // SECOND_NS
        except ConfigError as exc:
            raise ConfigError(f"{name} {text!r} is neither an RFC 3339 time nor a duration such as -2h") from exc
    else:
        moment_s = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    return moment_s // PANE_S * PANE_S
