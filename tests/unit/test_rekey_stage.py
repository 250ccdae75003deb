"""What the re-key stage decides between two turns, without a broker: who waits for whom, and what counts as sent."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from citegauge.adapters.kafka.rekey import RekeyTier
from citegauge.adapters.kafka.source import Held, Source
from citegauge.domain.policy import SECOND_NS
from citegauge.settings import Settings

A, B = TopicPartition("traces", 0), TopicPartition("traces", 1)
NOW_NS = 1_800_000_000 * SECOND_NS


class Client:
    """A consumer that has read everything up to `end`."""

    def __init__(self, end: int) -> None:
        self.end = end

    def highwater(self, _: TopicPartition) -> int:
        """The end of each log."""
        return self.end

    def last_stable_offset(self, _: TopicPartition) -> int:
        """There are no transactions."""
        return -1


def tier(end: int) -> RekeyTier:
    """The stage over a client, with nobody to send to."""
    return RekeyTier(Settings(), {}, cast("Any", Client(end)), cast("Any", None), cast("Any", None), cast("Any", None))


def held(offset: int, at_s: int) -> Held:
    """A record without spans of ours."""
    return Held(offset, NOW_NS + at_s * SECOND_NS, 0, [], 1)


async def test_a_partition_whose_place_is_not_found_holds_the_others() -> None:
    """Else the first to be placed would run ahead of one that lies an hour behind."""
    stage = tier(end=10)
    stage._sources[A] = Source(0, 0, 10)
    stage._sources[A].hold(held(0, 0))
    alone = stage._bound_ns()
    stage._placing[B] = asyncio.create_task(asyncio.sleep(60, 0))
    assert stage._bound_ns() < NOW_NS < alone
    stage._placing[B].cancel()


@pytest.mark.parametrize("records", [1, 3])
def test_what_is_on_its_way_is_not_sent(records: int) -> None:
    """A send that takes for ever is lag: nothing counts as sent before it is acknowledged."""
    source = Source(0, 0, 10)
    for offset in range(records):
        source.hold(held(offset, offset))
    source.queue.clear()
    assert source.position(records)[:2] == (0, records)
    assert source.position(records).still_ns > 0
    source.sent(NOW_NS)
    assert source.position(records)[:3] == (records, records, NOW_NS)
    assert source.position(records).still_ns == 0
