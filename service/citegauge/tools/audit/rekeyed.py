"""The audit of re-keying: does every span that the source says stand in the spans topic, as it was read? Pure, no Kafka.

Both sides are fed in step. What the source says waits until the spans topic shows it, and what waits is all that is held:
what is found leaves. What still waits at the end is a dead letter, cannot be judged, or is missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from citegauge.conventions import SpanFault
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Kind, Span
from citegauge.errors import DeadLetterError
from citegauge.pipeline import Decoder, Record
from citegauge.tools.audit.report import AuditReport, Difference, SourceReport, Values

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Spans that wait for the spans topic, packed; about four times that in memory. Past it the oldest are not judged."""
LETTERS_MAX = 100_000
"""Dead letters that are looked for; further ones are not judged."""
Origin = tuple[str, int, int, int]
"""Topic, partition, offset, and position of the span in the record (-1: the record itself)."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Span).decode


class Bounds(NamedTuple):
    """What can be judged, and what is compared."""

    partitions: int
    """Of the spans topic."""
    kept_from_ns: Mapping[int, int]
    """By partition of the spans topic: what was recorded before may have left it; none: it has lost nothing."""
    from_first_found: bool = False
    """Re-keying may have begun in the middle of a source (`kafka.start_from = latest`): only from its first span on."""
    users: bool = True
    """False: the key of the user ids is not known here, so their hashes are not compared."""
    waiting_bytes_max: int = WAITING_BYTES_MAX


class _Waiting(NamedTuple):
    packed: bytes
    record_ns: int
    partition: int
    """Of the spans topic, where its trace belongs."""


class RekeyedComparison:
    """Feed it `said` and `found`, each source partition in the order of its log, and `finish` with the dead letters."""

    def __init__(self, report: AuditReport, bounds: Bounds) -> None:
        """`report.sources` must have every source partition that is compared."""
        self._all = report
        self._bounds = bounds
        self._reports = {(one.topic, one.partition): one for one in report.sources}
        self._waiting: dict[Origin, _Waiting] = {}
        self._unlike: dict[Origin, _Waiting] = {}
        """Of what waits: the first span that stood under its origin and was another."""
        self._waiting_bytes = 0
        self._letters: dict[Origin, int] = {}
        self._first_found: dict[tuple[str, int], int] = {}

    @property
    def waiting(self) -> int:
        """Spans that the spans topic has not shown yet."""
        return len(self._waiting)

    def said(self, source: SourceReport, record: Record, decode: Decoder, record_bytes_max: int) -> None:
        """A record of the source that is re-keyed, says its commit."""
        source.records += 1
        if not record.value or len(record.value) > record_bytes_max:
            self._await_letter(source, record, -1)
            return
        try:
            items = list(decode(record.value))  # what cannot be read is said at the first span, at the latest
        except DeadLetterError:
            self._await_letter(source, record, -1)
            return
        for index, item in enumerate(items):
            if isinstance(item, Span):
                self._await((source.topic, source.partition, record.offset, index), record.timestamp_ns, item)
            elif isinstance(item, SpanFault):
                self._await_letter(source, record, item.index)

    def found(self, partition: int, rekeyed: Rekeyed) -> None:
        """A span of the spans topic's `partition`. Its source must have been fed up to its origin, where it is compared."""
        source = self._reports.get((rekeyed.topic, rekeyed.partition))
        if source is None or not source.start <= rekeyed.offset < source.end:
            return
        first = self._first_found.setdefault((source.topic, source.partition), rekeyed.offset)
        self._first_found[source.topic, source.partition] = min(first, rekeyed.offset)
        origin = rekeyed.topic, rekeyed.partition, rekeyed.offset, rekeyed.index
        expected = self._waiting.get(origin)
        if expected is None:
            source.again += not self._may_be_gone(rekeyed.record_ns, partition)
            return
        found = _Waiting(self._packed(rekeyed.span), rekeyed.record_ns, partition)
        if found.record_ns < expected.record_ns:
            # A source that was made anew counts its offsets again: it may be the span of an older record of this offset.
            self._unlike.setdefault(origin, found)
            return
        del self._waiting[origin]
        self._unlike.pop(origin, None)
        self._waiting_bytes -= len(expected.packed)
        if found == expected:
            source.spans += 1
        else:
            self._differs(origin, expected, found)

    def _differs(self, origin: Origin, expected: _Waiting, found: _Waiting) -> None:
        source = self._reports[origin[:2]]
        source.spans += 1
        source.differing += 1
        ours, theirs = _fields(expected), _fields(found)
        unlike = [name for name in ours if ours[name] != theirs[name]]
        stored, right = ({name: side[name] for name in unlike} for side in (theirs, ours))
        key = _key(origin) | {"trace_id": ours["trace_id"]}
        self._all.listed_or_not(Difference("spans", key, stored, right))

    def wanted_letters(self) -> AbstractSet[str]:
        """Keys of the dead letters that would explain what is missing, or that must be there."""
        whole = {(*origin[:3], -1) for origin in self._waiting}
        return {_letter_key(origin) for origin in (*self._waiting, *whole, *self._letters)}

    def finish(self, letters: AbstractSet[str], letters_from_ns: int = 0) -> None:
        """Judge what still waits. `letters`: those of `wanted_letters` that the dead-letter topic has.

        `letters_from_ns`: what was recorded before may have left that topic; 0: it has lost nothing.
        """
        for origin, expected in self._waiting.items():
            source = self._reports[origin[:2]]
            if origin in self._unlike:
                self._differs(origin, expected, self._unlike[origin])
            elif _letter_key(origin) in letters or _letter_key((*origin[:3], -1)) in letters:
                source.dead_letters += 1
            elif self._before_the_first(origin):
                source.unjudged += 1
            else:
                source.missing += 1
                fields = _fields(expected)
                named = {name: fields[name] for name in ("span_id", "kind", "route", "end_ns")}
                key = _key(origin) | {"trace_id": fields["trace_id"]}
                self._all.listed_or_not(Difference("spans", key, None, named))
        for origin, record_ns in self._letters.items():
            source = self._reports[origin[:2]]
            if _letter_key(origin) in letters:
                source.dead_letters += 1
            elif record_ns < letters_from_ns or self._before_the_first(origin):
                source.unjudged += 1
            else:
                source.missing += 1
                self._all.listed_or_not(Difference("dead_letters", _key(origin), None, {"record_ns": record_ns}))
        self._waiting, self._letters, self._unlike = {}, {}, {}

    def _await(self, origin: Origin, record_ns: int, span: Span) -> None:
        source = self._reports[origin[:2]]
        partition = zlib.crc32(span.trace_id) % self._bounds.partitions
        if self._may_be_gone(record_ns, partition):
            source.unjudged += 1
            return
        self._waiting[origin] = _Waiting(self._packed(span), record_ns, partition)
        self._waiting_bytes += len(self._waiting[origin].packed)
        while self._waiting_bytes > self._bounds.waiting_bytes_max:
            oldest = next(iter(self._waiting))
            self._waiting_bytes -= len(self._waiting.pop(oldest).packed)
            self._reports[oldest[:2]].overflowed += 1

    def _await_letter(self, source: SourceReport, record: Record, index: int) -> None:
        if len(self._letters) < LETTERS_MAX:
            self._letters[source.topic, source.partition, record.offset, index] = record.timestamp_ns
        else:
            source.overflowed += 1

    def _may_be_gone(self, record_ns: int, partition: int) -> bool:
        return record_ns < self._bounds.kept_from_ns.get(partition, 0)

    def _before_the_first(self, origin: Origin) -> bool:
        if not self._bounds.from_first_found:
            return False
        first = self._first_found.get(origin[:2])
        return first is None or origin[2] < first

    def _packed(self, span: Span) -> bytes:
        return _pack(span if self._bounds.users else msgspec.structs.replace(span, user_hash=b""))


def _letter_key(origin: Origin) -> str:
    return "/".join(str(part) for part in origin)


def _key(origin: Origin) -> dict[str, Any]:
    return dict(zip(("topic", "partition", "offset", "index"), origin, strict=True))


def _fields(waiting: _Waiting) -> dict[str, Any]:
    fields = msgspec.structs.asdict(_unpack(waiting.packed))
    found: Values = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    kind = Kind(fields["kind"]).name.lower()
    return {**found, "kind": kind, "record_ns": waiting.record_ns, "spans_partition": waiting.partition}
