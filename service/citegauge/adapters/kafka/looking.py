"""A consumer that only looks: without a group, committing nothing, for the doctor. Not the hot tier's (`clients`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from citegauge.adapters.kafka.clients import admin, partitions_of, security
from citegauge.errors import FatalError, RetryableError
from citegauge.settings import KafkaSettings

TOPICS_NAMED_MAX = 12


@asynccontextmanager
async def looking(settings: KafkaSettings, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A started consumer with every partition of an existing topic. Raises `FatalError` or `RetryableError`."""
    await _must_exist(settings, topic)
    consumer = AIOKafkaConsumer(
        topic,
        **security(settings),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # retention may remove what we seek to
        fetch_max_bytes=settings.fetch_bytes_max,
        max_partition_fetch_bytes=settings.partition_fetch_bytes_max,
        isolation_level="read_committed",
        client_id="citegauge-doctor",
    )
    try:
        await consumer.start()
        yield consumer
    except KafkaError as exc:
        raise RetryableError(f"cannot read topic {topic}: {exc!r}") from exc
    finally:
        await consumer.stop()


async def _must_exist(settings: KafkaSettings, topic: str) -> None:
    client = await admin(settings)
    try:
        if await partitions_of(client, topic):
            return
        others = sorted(name for name in await client.list_topics() if not name.startswith("_"))
    except KafkaError as exc:
        raise RetryableError(f"cannot look for topic {topic}: {exc!r}") from exc
    finally:
        await client.close()
    named = ", ".join(others[:TOPICS_NAMED_MAX]) + (", …" if len(others) > TOPICS_NAMED_MAX else "")
    raise FatalError(
        f"there is no topic {topic} (--topic, kafka.source_topic, sources) at {settings.bootstrap_servers}; "
        + (f"there are: {named}" if named else "there is no topic at all")
    )
