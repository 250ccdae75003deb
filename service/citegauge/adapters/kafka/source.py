"""One source partition of the re-key stage: what was read of it and not sent yet, and how far it is."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from aiokafka import ConsumerRecord

from citegauge.adapters.kafka.spans import Outgoing, outgoing
from citegauge.conventions import SpanFault
from citegauge.domain.join import EARLIEST_NS
from citegauge.domain.rekeyed import Rekeyed
from citegauge.errors import DeadLetterError, FatalError
from citegauge.intake import Arrival, Ceiling, Decoder, Limits, opened
from citegauge.ports import DeadLetter
from citegauge.settings import Settings

TURN_NS_MAX = 5_000_000
"""How long spans are decoded between two turns of the event loop: a single record may hold seconds of them."""
SPAN_BYTES = 400
"""What a held span takes beside its bytes, about."""


class SourcePosition(NamedTuple):
    """Where one source partition stands, for metrics and health."""

    position: int
    """Next offset to re-key: everything before it is in the spans topic."""
    end: int
    """End of the log as far as known; -1: not yet."""
    watermark_ns: int
    """Newest span end that was re-keyed; 0: none."""
    commit_age_ns: int
    still_ns: int
    """For how long something has been waiting without anything of it being re-keyed."""


class Held(NamedTuple):
    """One decoded record that was not sent yet."""

    offset: int
    time_ns: int
    """Newest valid span end, or the record's own time where it holds no span."""
    newest_ns: int
    """Newest valid span end; 0 for none."""
    spans: list[Outgoing]
    size_bytes: int


class Source:
    """One source partition in one assignment. It holds at most what one fetch gave: it is paused until that is sent."""

    def __init__(self, next_offset: int, fetches: int, dead_letters_max: int) -> None:
        self.ceiling = Ceiling(dead_letters_max)
        self.next_offset = next_offset
        self.sent_offset = next_offset
        """Everything before it is in the spans topic."""
        self.after_fetch = fetches
        """Fetches that had begun when it was given its place know nothing of that place."""
        self.committed = -1
        self.committed_at_ns = time.monotonic_ns()
        self.clock_ns = 0
        self.watermark_ns = 0
        self.queue: deque[Held] = deque()
        self.moved_at_ns = time.monotonic_ns()
        self.end_before = -1
        """Where the log ended one heartbeat ago; -1: not known."""

    def hold(self, held: Held) -> None:
        """Keep a record until it may be sent."""
        self.queue.append(held)
        self.clock_ns = max(self.clock_ns, held.time_ns)
        self.next_offset = held.offset + 1

    def sent(self, newest_ns: int) -> None:
        """What is not held any more is in the spans topic; `newest_ns`: the newest span end of it, 0 for none."""
        self.sent_offset = self.queue[0].offset if self.queue else self.next_offset
        self.moved_at_ns = time.monotonic_ns()
        self.watermark_ns = max(self.watermark_ns, newest_ns)

    def skip_to(self, position: int) -> None:
        """Nothing is held, and the log has no record before `position`."""
        self.next_offset = self.sent_offset = max(self.next_offset, position)

    def position(self, end: int) -> SourcePosition:
        """Where it stands; `end`: of the log, -1 while not known."""
        now_ns = time.monotonic_ns()
        still_ns = 0 if 0 <= end <= self.sent_offset else now_ns - self.moved_at_ns
        return SourcePosition(self.sent_offset, end, self.watermark_ns, now_ns - self.committed_at_ns, still_ns)


class Opening:
    """Decodes records of all sources, and lets the event loop turn meanwhile."""

    def __init__(self, settings: Settings, decoders: Mapping[str, Decoder]) -> None:
        """`decoders`: by source topic."""
        join = settings.join
        self._decoders = decoders
        self._limits = Limits(record_bytes_max=join.record_bytes_max, dead_letter_payload=join.dead_letter_payload)
        self._skew_ns = settings.join_policy().skew_ns
        self._partitions = settings.rekey.spans_partitions
        self._turned_ns = 0

    async def open(self, record: ConsumerRecord, dead: list[DeadLetter]) -> Held:
        """A record decoded; what cannot be read of it goes to `dead`."""
        record_ns = record.timestamp * 1_000_000
        arrival = Arrival(record.topic, record.partition, record.offset, record_ns, record.value)
        spans: list[Outgoing] = []
        newest_ns = 0
        try:
            for index, item in enumerate(opened(self._decoders[record.topic], record.value, self._limits)):
                await self._breathe()
                if isinstance(item, SpanFault):
                    dead.append(arrival.dead_letter(self._limits, item.index, item.reason, item.detail))
                    continue
                if isinstance(item, Rekeyed):
                    raise FatalError(f"{record.topic} is a re-keyed topic: it cannot be a source")
                rekeyed = Rekeyed(record.topic, record.partition, record.offset, index, record_ns, item)
                spans.append(outgoing(rekeyed, self._partitions))
                if EARLIEST_NS <= item.end_ns <= record_ns + self._skew_ns:
                    newest_ns = max(newest_ns, item.end_ns)
        except DeadLetterError as exc:
            dead.append(arrival.dead_letter(self._limits, -1, exc.reason, exc.detail))
        size_bytes = SPAN_BYTES + sum(len(span.value) + SPAN_BYTES for span in spans)
        return Held(record.offset, newest_ns or max(record_ns, 1), newest_ns, spans, size_bytes)

    async def _breathe(self) -> None:
        if time.monotonic_ns() - self._turned_ns > TURN_NS_MAX:
            await asyncio.sleep(0)
            self._turned_ns = time.monotonic_ns()
