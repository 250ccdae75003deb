"""Samples on their way into Prometheus: a remote-write request is a protobuf of series, each with labels and samples.

The three messages of that protocol are written by hand: a dozen lines, and ten times as fast as objects for each sample.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

Labels = tuple[tuple[str, str], ...]
"""Names and values; `__name__` among them."""

STALE = b"\x02\x00\x00\x00\x00\x00\xf0\x7f"
"""The NaN by which Prometheus marks that a series has ended."""
_double = struct.Struct("<d").pack


def labels_of(name: str, pairs: Iterable[tuple[str, str]]) -> Labels:
    """As the protocol wants them: sorted, and none that is empty."""
    return tuple(sorted([("__name__", name), *((key, value) for key, value in pairs if value)]))


class WriteBuffer:
    """Samples that wait to be sent. Those of one series come in the order of time."""

    def __init__(self) -> None:
        self._series: dict[Labels, bytearray] = {}
        self._heads: dict[Labels, bytes] = {}
        self._moments: dict[int, bytes] = {}
        self._present: set[Labels] = set()
        self.samples = 0

    def at(self, time_s: int, samples: Mapping[Labels, float]) -> None:
        """What is shown at one time, as at a scrape: series shown the time before and not now end here."""
        for labels, value in samples.items():
            self._add(labels, time_s, _double(value))
        for labels in self._present - samples.keys():
            self._add(labels, time_s, STALE)
        self._present = set(samples)

    def along(self, labels: Labels, points: Sequence[tuple[int, float]], times: range, present: bool) -> bool:
        """What one series has over `times`, ending it where it has nothing; `present`: it had a value before them.

        Returns whether it has one at the last of them.
        """
        next_s = times.start
        for time_s, value in points:
            if time_s != next_s and present:
                self._add(labels, next_s, STALE)
            self._add(labels, time_s, _double(value))
            present, next_s = True, time_s + times.step
        if present and next_s in times:
            self._add(labels, next_s, STALE)
            present = False
        return present

    def take(self) -> bytes:
        """The request with everything so far."""
        parts = []
        for labels, samples in self._series.items():
            head = self._heads.get(labels)
            if head is None:
                head = self._heads[labels] = b"".join(_label(name, value) for name, value in labels)
            parts.append(b"\x0a" + _varint(len(head) + len(samples)) + head + samples)
        self._series, self._moments, self.samples = {}, {}, 0
        return b"".join(parts)

    def _add(self, labels: Labels, time_s: int, value: bytes) -> None:
        moment = self._moments.get(time_s)
        if moment is None:
            moment = self._moments[time_s] = b"\x10" + _varint(time_s * 1_000)
        samples = self._series.get(labels)
        if samples is None:
            samples = self._series[labels] = bytearray()
        # Field 2 of the series: a sample with field 1, the value, and field 2, the time in ms.
        samples += b"\x12" + bytes((9 + len(moment),)) + b"\x09" + value + moment
        self.samples += 1


def _label(name: str, value: str) -> bytes:
    """Field 1 of a series: a label with field 1, its name, and field 2, its value."""
    return _text(b"\x0a", _text(b"\x0a", name.encode()) + _text(b"\x12", value.encode()))


def _text(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(n: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)
