"""WORDS: how numbers are written for people, everywhere: `27 %`, with a space; 95 % intervals in brackets; times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def percent(share: float) -> str:
    """Whole percent of a share that has no sign."""
    return f"{100 * share:.0f} %"


def signed_percent(change: float) -> str:
    """Of a relative change; what rounds to 0 has no sign, and minus is a minus."""
    whole = round(100 * change)
    return f"{'−' if whole < 0 else '+' if whole > 0 else ''}{abs(whole)} %"


def between(lower: float, upper: float) -> str:
    """A 95 % interval of shares."""
    return f"(95 %: {100 * lower:.0f} to {percent(upper)})"


def clock(at_s: int) -> str:
    """Unix seconds as hours and minutes of the day."""
    return f"{at_s // 3_600 % 24:02d}:{at_s // 60 % 60:02d}"


def day_clock(at_s: int) -> str:
    """The same with the day."""
    moment = datetime.fromtimestamp(at_s, UTC)
    return f"{moment.day} {moment:%b %H:%M}"
