"""What `citegauge explain` understands by its arguments."""

from __future__ import annotations

import fnmatch
import re

import pytest

from citegauge.errors import ConfigError
from citegauge.tools.explain import Arguments, asked_of
from citegauge.tools.explain.asked import CELLS_MAX, Period

NOW_S = 1_764_460_830
MINUTE_S = 1_764_460_800
HOUR_S = 3_600
NOW_NS = NOW_S * 1_000_000_000 + 5


def periods(**arguments: str) -> tuple[Period, Period]:
    """(before, after)."""
    asked = asked_of(Arguments(**arguments), now_ns=NOW_NS)
    return asked.before, asked.after


def test_the_last_hour_against_the_day_before_it() -> None:
    """Without arguments: whole minutes, and the hour is not part of what it is compared with."""
    hour = Period(MINUTE_S - HOUR_S, MINUTE_S)
    assert periods() == (Period(hour.start_s - 24 * HOUR_S, hour.start_s), hour)


@pytest.mark.parametrize(
    ("arguments", "before", "after"),
    [
        ({"starts": "-2h"}, (-26 * HOUR_S, -2 * HOUR_S), (-2 * HOUR_S, 0)),
        ({"starts": "2h", "ends": "30m"}, (-26 * HOUR_S, -2 * HOUR_S), (-2 * HOUR_S, -1_800)),
        ({"against": "-8h"}, (-8 * HOUR_S, -HOUR_S), (-HOUR_S, 0)),
        ({"against": "-25h/-24h"}, (-25 * HOUR_S, -24 * HOUR_S), (-HOUR_S, 0)),
        ({"ends": "2025-11-29T23:00:00Z"}, (-26 * HOUR_S, -2 * HOUR_S), (-2 * HOUR_S, -HOUR_S)),
        ({"starts": "2025-11-29T23:00:59+00:00"}, (-25 * HOUR_S, -HOUR_S), (-HOUR_S, 0)),
        ({"starts": "2025-11-30T00:00:00+01:00"}, (-25 * HOUR_S, -HOUR_S), (-HOUR_S, 0)),
    ],
)
def test_periods_are_said_as_times_or_from_now(
    arguments: dict[str, str], before: tuple[int, int], after: tuple[int, int]
) -> None:
    """RFC 3339, or a duration back from now; down to the minute."""
    # Durations count from now, which is half a minute into its minute.
    assert periods(**arguments) == tuple(Period(*(MINUTE_S + at for at in side)) for side in (before, after))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"route": "a", "family": "b"}, ["--route", "--family"]),
        ({"starts": "yesterday"}, ["--from", "'yesterday'", "RFC 3339"]),
        ({"ends": "5"}, ["--to", "'5'"]),
        ({"against": "-25h/never"}, ["--against", "'never'"]),
        ({"starts": "-1h", "ends": "-2h"}, ["--from", "--to", "after it starts"]),
        ({"against": "-24h/-25h"}, ["--against", "after it starts"]),
        ({"against": "-24h/-30m"}, ["--against", "--from"]),
        ({"against": "-30m"}, ["--against"]),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, str], words: list[str]) -> None:
    """One line that names the argument."""
    with pytest.raises(ConfigError) as refused:
        periods(**arguments)
    assert all(word in str(refused.value) for word in words)
    assert "\n" not in str(refused.value)


def like(pattern: str, route: str) -> bool:
    """SQL's LIKE, by its definition."""
    parts = re.findall(r"\\.|.", pattern, flags=re.DOTALL)
    wild = {"%": ".*", "_": "."}
    text = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(text, route, flags=re.DOTALL) is not None


ROUTES = ["support", "support/a", "support/b/c", "support_a", "supportXa", "a%b", "aXb", "a\\b", "a*b", ""]


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_is_that_route_alone(route: str) -> None:
    """No letter of a route's name is a wildcard."""
    pattern = asked_of(Arguments(route=route), now_ns=NOW_NS).route_like
    assert [each for each in ROUTES if like(pattern, each)] == [route]


@pytest.mark.parametrize("family", ["support/*", "support_*", "support?a", "*", "a%*", "*b", "a\\*", "sup*/?"])
def test_a_family_is_a_shell_pattern(family: str) -> None:
    """`*` is any text and `?` any letter, as in a shell; everything else is itself."""
    pattern = asked_of(Arguments(family=family), now_ns=NOW_NS).route_like
    assert [each for each in ROUTES if like(pattern, each)] == [
        each for each in ROUTES if fnmatch.fnmatchcase(each, family)
    ]


@pytest.mark.parametrize(
    ("against", "cell_s"), [("-2h", 300), ("-13h", 3_600), ("-25h", 3_600), ("-7d", 6 * 3_600), ("-29d", 24 * 3_600)]
)
def test_cells_grow_with_the_periods(against: str, cell_s: int) -> None:
    """Hours for a day, so that a bounded number of cells is read whatever is asked for."""
    asked = asked_of(Arguments(against=against), now_ns=NOW_NS)
    assert asked.cell_s == cell_s
    assert (asked.after.end_s - asked.before.start_s) / cell_s <= CELLS_MAX
