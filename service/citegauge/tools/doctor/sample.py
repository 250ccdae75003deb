"""Samples of a topic or of files for the doctor. It reads; what the records mean is found elsewhere (`look`).

The consumer is given, started and without a group: nothing is committed, so looking changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from citegauge.tools.replay import records_of
from citegauge.tools.simulate_spec import parse_duration

FETCH_RECORDS_MAX = 500
POLL_MS = 500
QUIET_S_MAX = 5.0
"""Reading ends when nothing has come for so long although the log goes on (aborted or unfinished transactions)."""
MILLISECOND_NS = 1_000_000


class SampleRecord(NamedTuple):
    """One record as it was found."""

    partition: int
    offset: int
    timestamp_ns: int
    """0: unknown, as in files."""
    log_append: bool
    """The broker set the timestamp. False: the producer did, or it is unknown."""
    key: bytes | None
    value: bytes | None


class Reach(NamedTuple):
    """What part of one partition was read."""

    before: bool
    """The log holds, or held, records before the first one read."""
    after: bool
    """Records after the last one were left out."""
    log_records: int
    """Offsets in the log when reading began."""


@dataclass(slots=True)
class SourceSample:
    """Records of one topic or file. `records` may be read once; `reaches` is empty for a file."""

    name: str
    is_topic: bool
    records: Iterable[SampleRecord]
    reaches: Mapping[int, Reach] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of a topic is read, whichever bound comes first."""

    records_max: int = 20_000
    """The newest so many records, spread evenly over the partitions."""
    bytes_max: int = 128 * 1024 * 1024
    seconds_max: float = 30.0
    since_ms: int | None = None
    """Start at this record time instead of counting back from the end. Unix milliseconds."""


def bounds_of(records_max: int, since: str | None, *, now_ns: int) -> Bounds:
    """Bounds as a command line gives them: `since` is an RFC 3339 time or counted from now. Raises `ConfigError`."""
    if since is None:
        return Bounds(records_max=records_max)
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        return Bounds(records_max=records_max, since_ms=(now_ns - abs(parse_duration(since))) // MILLISECOND_NS)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Bounds(records_max=records_max, since_ms=int(moment.timestamp() * 1_000))


def file_sample(path: str, lines: bool) -> SourceSample:
    """The records of a file (`-`: standard input), as `replay` reads it. Reading raises `FatalError`."""
    return SourceSample(path, False, _file_records(path, lines))


def _file_records(path: str, lines: bool) -> Iterator[SampleRecord]:
    for number, record in enumerate(records_of(path, lines)):
        yield SampleRecord(0, number, 0, False, None, record)


async def topic_sample(consumer: AIOKafkaConsumer, topic: str, bounds: Bounds) -> SourceSample:
    """The newest records of a topic, from a consumer that all its partitions are assigned to. Raises `KafkaError`."""
    partitions = sorted(found for found in consumer.assignment() if found.topic == topic)
    begins: dict[TopicPartition, int] = await consumer.beginning_offsets(partitions)
    ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
    starts = await _starts(consumer, begins, ends, bounds)
    for partition, offset in starts.items():
        consumer.seek(partition, offset)
    records = await _read(consumer, starts, dict(ends), bounds)
    reaches: dict[int, Reach] = {}
    for partition in partitions:
        end = max(ends[partition], consumer.highwater(partition) or 0)
        position = await consumer.position(partition)
        reaches[partition.partition] = Reach(
            before=starts[partition] > 0, after=position < end, log_records=end - begins[partition]
        )
    return SourceSample(topic, True, records, reaches)


async def _starts(
    consumer: AIOKafkaConsumer, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int], bounds: Bounds
) -> dict[TopicPartition, int]:
    if bounds.since_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(begins, bounds.since_ms))
        return {at: found[at].offset if found.get(at) else ends[at] for at in begins}
    # What short partitions leave over goes to the long ones.
    left, starts = bounds.records_max, {}
    for count, at in enumerate(sorted(begins, key=lambda one: ends[one] - begins[one])):
        share = min(ends[at] - begins[at], left // (len(begins) - count))
        starts[at] = ends[at] - share
        left -= share
    return starts


async def _read(
    consumer: AIOKafkaConsumer, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], bounds: Bounds
) -> list[SampleRecord]:
    records: list[SampleRecord] = []
    waiting = set(starts)
    told: set[TopicPartition] = set()
    size = 0
    started = quiet_since = time.monotonic()
    while waiting and size < bounds.bytes_max and (left := bounds.records_max - len(records)) > 0:
        now = time.monotonic()
        if now - started > bounds.seconds_max or now - quiet_since > QUIET_S_MAX:
            break
        batches = await consumer.getmany(*waiting, timeout_ms=POLL_MS, max_records=min(left, FETCH_RECORDS_MAX))
        if batches:
            quiet_since = now
        for at, found in batches.items():
            for record in found:
                if record.offset >= starts[at]:  # else it was fetched before the seek
                    size += len(record.value or b"") + len(record.key or b"")
                    records.append(_sample_record(record))
        for at in tuple(waiting):
            # The end may have been told too low (the embedded broker does); a fetch tells the true one. Only the first
            # fetch counts: a busy log would never end.
            end = consumer.highwater(at)
            if end is not None and at not in told:
                told.add(at)
                ends[at] = max(ends[at], end)
            if at in told and await consumer.position(at) >= ends[at]:
                waiting.discard(at)
    return records


def _sample_record(record: object) -> SampleRecord:
    stamp = record.timestamp  # type: ignore[attr-defined]  # aiokafka has no types
    return SampleRecord(
        record.partition,  # type: ignore[attr-defined]
        record.offset,  # type: ignore[attr-defined]
        max(0, stamp) * MILLISECOND_NS,
        record.timestamp_type == 1,  # type: ignore[attr-defined]
        record.key,  # type: ignore[attr-defined]
        record.value,  # type: ignore[attr-defined]
    )
