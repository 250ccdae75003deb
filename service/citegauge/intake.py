"""INTAKE: what may be read, what becomes of a record that cannot be, and when there are too many of those. Pure.

Both readers of Kafka (the join and the re-key stage) open records here, so that a bad one has the same fate in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from citegauge.conventions import SpanFault
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError, FatalError
from citegauge.ports import DeadLetter

Decoder = Callable[[bytes], Iterable[Span | SpanFault | Rekeyed]]
"""A source's records to spans, or the re-keyed topic's to spans with their origin; each is made when it is asked for."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is read and set aside."""

    record_bytes_max: int = 4 * 1024 * 1024
    dead_letter_payload: bool = False
    dead_letters_max: int = 10_000


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One record as it was read, with where it stands."""

    topic: str
    partition: int
    offset: int
    timestamp_ns: int
    value: bytes | None

    def dead_letter(self, limits: Limits, index: int, reason: str, detail: str) -> DeadLetter:
        """It, or the span at `index` of it (-1: the record as a whole), as a dead letter."""
        return DeadLetter(
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            index=index,
            reason=reason,
            detail=detail,
            timestamp_ns=self.timestamp_ns,
            size_bytes=len(self.value or b""),
            payload=self.value if limits.dead_letter_payload else None,
        )


def opened(decode: Decoder, value: bytes | None, limits: Limits) -> Iterable[Span | SpanFault | Rekeyed]:
    """What a record's value holds. Raises `DeadLetterError` for a record that cannot be read as a whole, here or at its
    first span.
    """
    if not value:
        raise DeadLetterError("empty_record")
    if len(value) > limits.record_bytes_max:
        raise DeadLetterError("record_too_large", f"{len(value)} bytes")
    return decode(value)


class Ceiling:
    """When there are so many unreadable records of one partition that its encoding is probably wrong.

    Counted are those of one flush, and those in a row however slowly they come.
    """

    def __init__(self, dead_letters_max: int) -> None:
        self._dead_letters_max = dead_letters_max
        self._in_a_row = 0

    def read(self, dead: int, *, readable: bool) -> None:
        """One record: `dead` letters come of it; `readable`: something else as well, if only that it is none of ours."""
        self._in_a_row = 0 if readable else self._in_a_row + dead

    def check(self, of_one_flush: int, newest: DeadLetter) -> None:
        """Raise `FatalError` past the bound."""
        if max(of_one_flush, self._in_a_row) > self._dead_letters_max:
            raise FatalError(
                f"more than {self._dead_letters_max} unreadable records at once or in a row in "
                f"{newest.topic}/{newest.partition}, the last one {newest.reason!r}: check kafka.encoding"
            )
