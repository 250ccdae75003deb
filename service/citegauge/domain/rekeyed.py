"""The compact span of the re-keyed topic: a normalised span and where it was read first. Encoding only.

Every re-keyed span carries its origin, so that lateness is judged by the origin's clock, a late span keeps its origin, and a
span that was re-keyed twice is recognised by its ids.
"""

from __future__ import annotations

import zlib

import msgspec

from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError


class Rekeyed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One span on its way to the partition of its trace."""

    topic: str
    partition: int
    offset: int
    index: int
    """Position of the span in its first record."""
    record_ns: int
    """Timestamp of its first record, which bounds its event time."""
    span: Span

    @property
    def source(self) -> int:
        """32-bit id of the source partition it comes from."""
        return source_id(self.topic, self.partition)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Rekeyed).decode


def source_id(topic: str, partition: int) -> int:
    """CRC-32 of `<topic>/<partition>`: small enough for 150 of them to fit into a commit's metadata."""
    return zlib.crc32(f"{topic}/{partition}".encode())


def trace_partition(trace_id: bytes, partitions: int) -> int:
    """The re-keyed topic's partition of a trace."""
    return zlib.crc32(trace_id) % partitions


def encode(rekeyed: Rekeyed) -> bytes:
    """The record's value."""
    return _encode(rekeyed)


def decode(record: bytes) -> list[Rekeyed]:
    """Inverse of `encode`, in the form of a decoder. Raises `DeadLetterError`."""
    try:
        found = _decode(record)
    except msgspec.MsgspecError as exc:
        raise DeadLetterError("not_rekeyed", str(exc)[:120]) from exc
    if len(found.span.trace_id) != 16 or len(found.span.span_id) != 8:
        raise DeadLetterError("not_rekeyed", "ids of the wrong length")
    return [found]
