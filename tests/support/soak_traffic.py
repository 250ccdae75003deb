"""What flows while `tests/fault/soak.py` breaks things: traces as they happen, and somebody's log lines."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer

from citegauge.tools.simulate_output import records
from support.fault_inputs import LOG_RECORD
from support.faults import SKEWED
from support.worker import traffic

if TYPE_CHECKING:
    from support.worker import Site

LOUD = (0, 1, 2, 3)
"""Source partitions that are not quiet."""
LOGS_PER_S = 20


class Sender(threading.Thread):
    """Sends in the background until `stop`; then all is acknowledged."""

    def __init__(self, kafka: str) -> None:
        super().__init__(daemon=True)
        self._kafka = kafka
        self._stopping = threading.Event()
        self.failure: BaseException | None = None

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """Send until `stop`."""
        try:
            asyncio.run(self._run())
        except BaseException as exc:  # noqa: BLE001 - told at the end
            self.failure = exc

    async def _run(self) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._kafka, linger_ms=5) as producer:
            await self.send(producer)

    async def send(self, producer: AIOKafkaProducer) -> None:
        """What it sends."""
        raise NotImplementedError


class Logs(Sender):
    """Somebody's log lines."""

    def __init__(self, kafka: str, topic: str) -> None:
        super().__init__(kafka)
        self._topic = topic

    async def send(self, producer: AIOKafkaProducer) -> None:
        """At a steady rate."""
        while not self._stopping.is_set():
            await producer.send_and_wait(self._topic, LOG_RECORD)
            await asyncio.sleep(1 / LOGS_PER_S)


class Live(Sender):
    """Traces as they happen, without keys, into the loud partitions."""

    def __init__(self, site: Site, seed: int, minutes: float, per_s: float) -> None:
        super().__init__(site.kafka)
        self._topic, self._seed = site.topic, seed
        start_ns = time.time_ns()
        spec = traffic(seed, minutes=1, per_minute=per_s * 60, end_ns=start_ns + int(minutes * 60e9), routes=SKEWED)
        self._records = records(replace(spec, start_ns=start_ns))

    async def send(self, producer: AIOKafkaProducer) -> None:
        """Each record at its time."""
        chance = random.Random(self._seed)
        waiting: list[asyncio.Future[object]] = []
        for record in self._records:
            while (early_s := (record.emit_ns - time.time_ns()) / 1e9) > 0 and not self._stopping.is_set():  # noqa: ASYNC110
                await asyncio.sleep(min(0.2, early_s))
            if self._stopping.is_set():
                break
            waiting.append(await producer.send(self._topic, record.value, partition=chance.choice(LOUD)))
            if len(waiting) > 1_000:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
