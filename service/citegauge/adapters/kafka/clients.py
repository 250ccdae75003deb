"""Kafka clients, made from settings with their defaults said out loud; topics and commits. No loop here."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError
from aiokafka.structs import OffsetAndMetadata

from citegauge.domain.progress import Commit
from citegauge.domain.sources import SOURCES_MAX
from citegauge.errors import ConfigError, FatalError, RetryableError
from citegauge.settings import KafkaSettings, Settings

logger = logging.getLogger(__name__)

PANES_RETENTION_MS = 48 * 3_600_000
"""The cold tier may be away for a day and still find every open pane."""


METADATA_AGE_MS_MAX = 10_000
"""How old a consumer's knowledge of topics and partitions may be."""
ADMIN_TIMEOUT_S = 30.0
MESSAGE_BYTES = "max.message.bytes"
MESSAGE_BYTES_MAX = 1_048_588
"""Kafka's default for `max.message.bytes`."""

_LOG_TIME = {"message.timestamp.type": "LogAppendTime"}


def security(settings: KafkaSettings) -> dict[str, Any]:
    """Arguments for TLS and SASL, shared by every client. Raises `ConfigError` for files that are no certificates."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers,
        "security_protocol": settings.security_protocol,
    }
    if settings.security_protocol.endswith("SSL"):
        arguments["ssl_context"] = _ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        arguments |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password.get_secret_value(),
        }
    return arguments


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile or None)
    except OSError as exc:  # an `ssl.SSLError` is one, too
        raise ConfigError(f"kafka.ssl_cafile {settings.ssl_cafile}: {exc}") from exc
    if settings.ssl_certfile:
        try:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile or None)
        except OSError as exc:
            raise ConfigError(
                f"kafka.ssl_certfile {settings.ssl_certfile} and kafka.ssl_keyfile {settings.ssl_keyfile}: {exc}"
            ) from exc
    return context


def consumer(settings: KafkaSettings, group_id: str = "") -> AIOKafkaConsumer:
    """A consumer of the hot tier's group, or of another: commits by hand, never resets by itself."""
    return AIOKafkaConsumer(
        **security(settings),
        group_id=group_id or settings.group_id,
        enable_auto_commit=False,
        auto_offset_reset="none",  # an offset outside the log must stop us, not silently skip
        session_timeout_ms=int(settings.session_timeout_s * 1_000),
        heartbeat_interval_ms=int(settings.session_timeout_s * 1_000 / 5),
        rebalance_timeout_ms=int(settings.rebalance_timeout_s * 1_000),
        max_poll_interval_ms=300_000,
        # A broker that has just started may not know a topic yet, and topics grow: look again soon, not in five minutes.
        metadata_max_age_ms=METADATA_AGE_MS_MAX,
        fetch_max_bytes=settings.fetch_bytes_max,
        max_partition_fetch_bytes=settings.partition_fetch_bytes_max,
        fetch_max_wait_ms=250,
        check_crcs=True,
        isolation_level="read_committed",
        client_id="citegauge-join",
    )


def producer(settings: KafkaSettings) -> AIOKafkaProducer:
    """For panes and dead letters: every replica acknowledges; repeats are harmless, so no idempotent producer."""
    return AIOKafkaProducer(
        **security(settings),
        acks="all",
        enable_idempotence=False,
        linger_ms=20,
        max_batch_size=256 * 1024,
        compression_type="lz4",
        request_timeout_ms=30_000,
        client_id="citegauge-publish",
    )


async def admin(settings: KafkaSettings) -> AIOKafkaAdminClient:
    """A started admin client. Raises `RetryableError` when no broker answers."""
    client = AIOKafkaAdminClient(**security(settings), client_id="citegauge-admin")
    try:
        await client.start()
    except KafkaConnectionError as exc:
        await client.close()
        raise RetryableError(f"no Kafka broker answers at {settings.bootstrap_servers} ({_access(settings)})") from exc
    return client


def _access(settings: KafkaSettings) -> str:
    """The settings that decide whether a broker answers us; aiokafka logs why one did not, and does not raise it."""
    if settings.security_protocol == "PLAINTEXT":
        return "kafka.bootstrap_servers, kafka.security_protocol"
    names = ["bootstrap_servers", "security_protocol", "ssl_cafile", "ssl_certfile"]
    if settings.security_protocol.startswith("SASL"):
        names += ["sasl_mechanism", "sasl_username", "sasl_password"]
    return "see the line above; " + ", ".join(f"kafka.{name}" for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it should be."""

    name: str
    partitions: int
    config: dict[str, str]
    exact: bool = False
    """True: another number of partitions is an error, because both tiers compute with it."""
    source: bool = False
    """Somebody else writes it."""


def source_topics(settings: Settings) -> tuple[Topic, ...]:
    """The topics of traces. LogAppendTime, because lateness is judged against the log's own clock."""
    return tuple(
        Topic(name=name, partitions=settings.kafka.source_partitions, config=_LOG_TIME, source=True)
        for name in settings.source_topics()
    )


def topics(settings: Settings) -> tuple[Topic, ...]:
    """Every topic of this worker."""
    kafka, rekey = settings.kafka, settings.rekey
    found = [
        *source_topics(settings),
        Topic(
            name=kafka.panes_topic,
            partitions=kafka.panes_partitions,
            config={"cleanup.policy": "delete", "retention.ms": str(PANES_RETENTION_MS)} | _LOG_TIME,
            exact=True,
        ),
        Topic(name=kafka.dead_letter_topic, partitions=1, config={}),
    ]
    if rekey.spans_topic in settings.joined_topics():
        retention_ms = rekey.spans_retention_s * 1_000
        config = {"cleanup.policy": "delete", "retention.ms": str(retention_ms)} | _LOG_TIME
        found.append(Topic(name=rekey.spans_topic, partitions=rekey.spans_partitions, config=config, exact=True))
    return tuple(found)


async def check_sources(client: AIOKafkaAdminClient, settings: Settings) -> None:
    """Raise `FatalError` when more source partitions are re-keyed than fit into a commit."""
    unkeyed = [topic for topic, source in settings.source_topics().items() if not source.keyed]
    total = sum([await partitions_of(client, topic) for topic in unkeyed])
    if total > SOURCES_MAX:
        raise FatalError(
            f"{total} source partitions are to be re-keyed into one topic, and a commit holds the clocks of {SOURCES_MAX}: "
            "declare keyed what is keyed by trace id, or run several instances with a rekey.spans_topic each"
        )


async def ensure_topics(client: AIOKafkaAdminClient, settings: KafkaSettings, wanted: Iterable[Topic]) -> None:
    """Create what is missing and check what is there. Raises `FatalError` naming the setting to change."""
    present = set(await client.list_topics())
    for topic in wanted:
        if topic.name not in present:
            if not settings.create_topics:
                raise FatalError(f"topic {topic.name} does not exist (and kafka.create_topics is off)")
            new = NewTopic(topic.name, topic.partitions, settings.replication_factor, topic_configs=topic.config)
            try:
                response = await client.create_topics([new])
            except TopicAlreadyExistsError:
                continue
            for error in response.topic_errors:
                if error[1] not in (0, 36):  # 36: another worker was faster
                    raise FatalError(f"cannot create topic {topic.name}: error {error[1]} {error[2:]}")
            if topic.source:
                logger.warning("created %s: if traces should be there already, the topic's name is wrong", topic.name)
        elif topic.exact:
            found = await partitions_of(client, topic.name)
            if found != topic.partitions:
                raise FatalError(
                    f"topic {topic.name} has {found} partitions, not {topic.partitions}: set kafka.panes_partitions "
                    f"(or rekey.spans_partitions) to {found}"
                )


async def partitions_of(client: AIOKafkaAdminClient, topic: str) -> int:
    """How many partitions a topic has; 0 when it does not exist.

    A broker may create a topic that it is asked about by name, so it is asked for all names first.
    """
    if topic not in await client.list_topics():
        return 0
    described = await client.describe_topics([topic])
    return len(described[0]["partitions"]) if described and not described[0]["error_code"] else 0


async def message_bytes_max(client: AIOKafkaAdminClient, topic: str) -> int:
    """The largest message that a topic takes (`max.message.bytes`). Raises a `KafkaError` when no broker answers.

    A broker that does not tell is taken for one with Kafka's own default.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={MESSAGE_BYTES: ""})
    call = timely(client.describe_configs([resource]), ADMIN_TIMEOUT_S, f"the configuration of {topic}")
    for response in await call:
        for error_code, _, _, _, entries in response.resources:
            if not error_code:
                found = {entry[0]: entry[1] for entry in entries}
                return int(found.get(MESSAGE_BYTES) or MESSAGE_BYTES_MAX)
    return MESSAGE_BYTES_MAX


async def group_commit(
    client: AIOKafkaAdminClient, group_id: str, partition: TopicPartition
) -> OffsetAndMetadata | None:
    """A group's commit as it stands, None without one. Raises `RetryableError` when no broker answers."""
    name = f"the commit of group {group_id} at {partition.topic}/{partition.partition}"
    call = client.list_consumer_group_offsets(group_id, partitions=[partition])
    try:
        offsets = await timely(call, ADMIN_TIMEOUT_S, name)
    except KafkaError as exc:
        raise RetryableError(f"cannot read {name}: {exc!r}") from exc
    found = offsets.get(partition)
    return None if found is None or found.offset < 0 else found


async def read_commit(client: AIOKafkaAdminClient, settings: Settings, partition: TopicPartition) -> Commit | None:
    """The group's commit with its metadata, None without one.

    Read by the admin client, because the consumer's `committed()` drops the metadata. Raises `FatalError` for a commit
    that we did not write, `RetryableError` when no broker answers.
    """
    group_id = settings.kafka.group_id
    found = await group_commit(client, group_id, partition)
    if found is None:
        return None
    try:
        return Commit.from_metadata(found.offset, found.metadata or "")
    except ValueError as exc:
        raise FatalError(
            f"group {group_id} has a commit at {partition.topic}/{partition.partition} offset {found.offset} "
            f"that citegauge did not write ({exc}): use another kafka.group_id, or start with "
            f"--rebuild-from <offset|time> and a raised {settings.epoch_setting(partition.topic)}"
        ) from exc


async def read_offset(client: AIOKafkaAdminClient, group_id: str, partition: TopicPartition) -> int | None:
    """The offset that a group has committed, None without one. Raises `RetryableError` when no broker answers."""
    found = await group_commit(client, group_id, partition)
    return None if found is None else int(found.offset)


async def timely(call: Any, timeout_s: float, what: str) -> Any:
    """Await a client call with a deadline of our own; aiokafka retries some of them for ever."""
    try:
        return await asyncio.wait_for(call, timeout_s)
    except TimeoutError as exc:
        raise RetryableError(f"{what} got no answer for {timeout_s:g} s") from exc


def warn_create_time(topic: str) -> None:
    """Say once that lateness is judged by clocks that are not the log's own."""
    logger.warning(
        "topic %s has CreateTime timestamps: a producer with a wrong clock can close minutes early; "
        "set message.timestamp.type=LogAppendTime",
        topic,
    )
