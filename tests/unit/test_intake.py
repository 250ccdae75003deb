"""The ceiling on unreadable records: at once, or in a row however slowly they come."""

from __future__ import annotations

import pytest

from citegauge.errors import FatalError
from citegauge.intake import Arrival, Ceiling, Limits

LETTER = Arrival("traces", 3, 7, 1, b"x").dead_letter(Limits(), -1, "not_json", "")


def test_too_many_of_one_flush() -> None:
    """They need not come in a row: one flush holds them."""
    ceiling = Ceiling(10)
    ceiling.check(10, LETTER)
    with pytest.raises(
        FatalError, match=r"more than 10 unreadable .* traces/3, the last one 'not_json': check kafka.encoding"
    ):
        ceiling.check(11, LETTER)


def test_in_a_row_however_slowly() -> None:
    """A record at a time, each published at once: a topic of nothing but rubbish trips it all the same."""
    ceiling = Ceiling(10)
    for _ in range(10):
        ceiling.read(1, readable=False)
        ceiling.check(1, LETTER)
    ceiling.read(1, readable=False)
    with pytest.raises(FatalError, match="in a row"):
        ceiling.check(1, LETTER)


def test_one_that_can_be_read_begins_the_row_anew() -> None:
    """A tenth of poison, for ever, is no wrong encoding."""
    ceiling = Ceiling(10)
    for number in range(1_000):
        ceiling.read(int(number % 10 == 0), readable=number % 10 != 0)
        ceiling.check(1, LETTER)
