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


def check_ceiling(dead: int, newest: DeadLetter, dead_letters_max: int) -> None:
    """Raise `FatalError` when so many of a partition could not be read at once that its encoding is probably wrong."""
    if dead > dead_letters_max:
        raise FatalError(
            f"more than {dead_letters_max} unreadable records at once in {newest.topic}/{newest.partition}, the last one "
            f"{newest.reason!r}: check kafka.encoding"
        )
