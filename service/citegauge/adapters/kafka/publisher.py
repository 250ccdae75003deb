"""Panes, closed markers, heartbeats and dead letters on their way to Kafka. Returns when every replica has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import stamina
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from citegauge.errors import FatalError, RetryableError
from citegauge.ports import (
    ClosedMarker,
    DeadLetter,
    HeartbeatMessage,
    PaneMessage,
    PaneRow,
    PaneUpdate,
    panes_partition,
)
from citegauge.settings import KafkaSettings

_encode = msgspec.json.Encoder().encode
PAYLOAD_BYTES_MAX = 512 * 1024
"""In Base64 it takes a third more, and a topic takes a megabyte unless told otherwise."""
Message = tuple[str, int | None, bytes | None, bytes]
"""Topic, partition (None: any), key, value."""


class Publisher:
    """Sends to the panes topic and the dead-letter topic. A repeat is harmless: panes are absolute and versioned."""

    def __init__(self, producer: AIOKafkaProducer, settings: KafkaSettings, installation: str = "") -> None:
        """`installation`: the id that stands in every heartbeat."""
        self._producer = producer
        self._installation = installation
        self._panes_topic = settings.panes_topic
        self._partitions = settings.panes_partitions
        self._dead_letter_topic = settings.dead_letter_topic
        self.retries = 0

    async def panes(self, rows: Iterable[PaneRow]) -> None:
        """Upserts, each on the partition that owns its roll-up."""
        await self._send(
            [
                (
                    self._panes_topic,
                    panes_partition(row.route, row.top_k_bucket, self._partitions),
                    f"{row.route}\0{row.top_k_bucket}".encode(),
                    _encode(PaneUpdate(row)),
                )
                for row in rows
            ]
        )

    async def closed(self, markers: Iterable[ClosedMarker]) -> None:
        """Markers, to every panes partition."""
        await self._send(self._everywhere(markers))

    async def heartbeats(self, beats: Iterable[HeartbeatMessage]) -> None:
        """Heartbeats, to every panes partition."""
        signed = (msgspec.structs.replace(beat, installation=self._installation) for beat in beats)
        await self._send(self._everywhere(signed))

    async def dead_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Dead letters, keyed by their origin so that repeats can be told. A payload that Kafka would refuse stays out."""
        await self._send(
            [
                (
                    self._dead_letter_topic,
                    None,
                    f"{letter.topic}/{letter.partition}/{letter.offset}/{letter.index}".encode(),
                    _encode(_sendable(letter)),
                )
                for letter in letters
            ]
        )

    def _everywhere(self, messages: Iterable[PaneMessage]) -> list[Message]:
        return [
            (self._panes_topic, partition, None, _encode(message))
            for message in messages
            for partition in range(self._partitions)
        ]

    async def _send(self, messages: list[Message]) -> None:
        """All or an error; tries again for ever on what passes by itself, since nothing may be dropped."""
        if not messages:
            return
        async for attempt in stamina.retry_context(
            on=RetryableError, attempts=None, timeout=None, wait_initial=0.2, wait_max=10.0
        ):
            with attempt:
                self.retries += attempt.num > 1
                await self._send_once(messages)

    async def _send_once(self, messages: list[Message]) -> None:
        try:
            sent = [
                await self._producer.send(topic, value=value, key=key, partition=partition)
                for topic, partition, key, value in messages
            ]
            await asyncio.gather(*sent)
        except MessageSizeTooLargeError as exc:
            raise FatalError(f"Kafka refused a message as too large: raise max.message.bytes ({exc})") from exc
        except KafkaError as exc:
            raise RetryableError(f"publishing failed: {exc!r}") from exc


def _sendable(letter: DeadLetter) -> DeadLetter:
    too_large = letter.payload is not None and len(letter.payload) > PAYLOAD_BYTES_MAX
    return msgspec.structs.replace(letter, payload=None) if too_large else letter
