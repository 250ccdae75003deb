"""What nobody has read: records that stood in a log when the audit began, and that no commit has passed when it ends.

Under live traffic a few records are always on their way, so age alone tells little: the end of each log is noted first, and
given time to be passed. The join's topics and the sources that are re-keyed are treated alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

from aiokafka import AIOKafkaConsumer, TopicPartition

from citegauge.tools.audit.reading import NS_PER_MS, Reader
from citegauge.tools.audit.report import Unread

POLL_S = 0.5
Looking = Callable[[str], AbstractAsyncContextManager[AIOKafkaConsumer]]
PositionOf = Callable[[TopicPartition], Awaitable[int | None]]
"""Up to where a partition is read, says the commit; None: nobody reads it."""
Ends = Mapping[TopicPartition, int]


async def ends_of(looking: Looking, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """The ends of all partitions as they are now."""
    found: dict[TopicPartition, int] = {}
    for topic in topics:
        async with looking(topic) as consumer:
            found |= await consumer.end_offsets(sorted(consumer.assignment()))
    return found


async def unread(
    looking: Looking, ends: Ends, position_of: PositionOf, until_s: float
) -> Mapping[TopicPartition, Unread]:
    """Which partitions are not read up to `ends`, also after waiting until `until_s` of the monotonic clock."""
    while True:
        behind: dict[TopicPartition, int] = {}
        for partition, end in ends.items():
            position = await position_of(partition)
            if position is not None and position < end:
                behind[partition] = position
        if not behind or time.monotonic() >= until_s:
            break
        await asyncio.sleep(POLL_S)
    found: dict[TopicPartition, Unread] = {}
    for partition, position in behind.items():
        async with looking(partition.topic) as consumer:
            first = (await consumer.beginning_offsets([partition]))[partition]
            start = max(position, first)
            oldest = await Reader(consumer, partition, start, ends[partition]).first()
        # None: what is left are the marks of transactions, which nobody reads.
        if oldest is not None:
            age_s = max(0.0, (time.time_ns() - oldest.timestamp * NS_PER_MS) / 1e9)
            found[partition] = Unread(ends[partition] - start, round(age_s, 3))
    return found
