"""Record batches of every codec that producers use."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer

from citegauge.tools.simulate_output import records
from support.worker import WorkerProcess, traffic

if TYPE_CHECKING:
    from pathlib import Path

    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
CODECS = ("gzip", "lz4", "snappy", "zstd")


async def _produce(kafka: str, topic: str, codec: str, seed: int) -> int:
    spec = traffic(seed, minutes=2, per_minute=60, end_ns=time.time_ns(), duplicate_ratio=0.0, late_ratio=0.0)
    sent = 0
    async with AIOKafkaProducer(bootstrap_servers=kafka, compression_type=codec, linger_ms=50) as producer:
        for record in records(spec):
            await producer.send(topic, record.value, record.key)
            sent += 1
        await producer.flush()
    return sent


def test_every_codec_is_read(kafka: str, make_site: MakeSite, tmp_path: Path) -> None:
    """gzip, lz4, snappy and zstd batches in one topic: every span arrives, none is a dead letter."""
    site = make_site()
    spans = sum(asyncio.run(_produce(kafka, site.topic, codec, seed)) for seed, codec in enumerate(CODECS))
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: worker.value("citegauge_spans_total") == spans, f"{spans} spans are joined")
        assert worker.value("citegauge_dead_letters_total") == 0
        assert worker.end() == 0
