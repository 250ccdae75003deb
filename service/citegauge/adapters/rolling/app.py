"""The Faust app around the cold tier: one agent, one timer, no table."""

from __future__ import annotations

import tempfile
import time
from typing import Any, cast

import faust
import mode

from citegauge.adapters.rolling.tier import RollTier
from citegauge.settings import KafkaSettings

COMMIT_QUIET_S_MAX = 86_400.0
"""Faust warns past it. Open panes hold commits back, and so does a ClickHouse that is away."""
REST_RATIO = 2.0
"""How long computing the windows rests, in times of what it took: with thousands of groups it takes longer than the
interval, and reading and joining need the same event loop."""
METADATA_AGE_MS_MAX = 10_000
"""A broker that has just started may not know the topic yet; left to Faust, its partitions come back after five minutes."""


def build_app(tier: RollTier, settings: KafkaSettings, interval_s: float, credentials: Any = None) -> faust.App:
    """The Faust app of the cold tier. No table, no web server, no changelog; one agent, one timer.

    Its consumer group is named after the panes topic, so that two installations on one Kafka do not share a group.
    """
    app = faust.App(
        f"{settings.panes_topic}.roll",
        broker=[f"kafka://{server.strip()}" for server in settings.bootstrap_servers.split(",")],
        broker_credentials=credentials,
        store="memory://",
        datadir=tempfile.gettempdir(),  # it makes the folder although it keeps nothing there
        web_enabled=False,
        autodiscover=False,
        processing_guarantee="at_least_once",
        consumer_auto_offset_reset="earliest",
        stream_wait_empty=False,  # open panes stay unacknowledged on purpose
        topic_disable_leader=True,
        topic_partitions=settings.panes_partitions,
        topic_replication_factor=settings.replication_factor,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.session_timeout_s / 5,
        broker_rebalance_timeout=min(settings.rebalance_timeout_s, settings.session_timeout_s),
        broker_request_timeout=max(90.0, settings.session_timeout_s * 2),
        broker_max_poll_interval=300.0,
        consumer_metadata_max_age_ms=METADATA_AGE_MS_MAX,
        broker_commit_livelock_soft_timeout=COMMIT_QUIET_S_MAX,
    )
    topic = app.topic(
        settings.panes_topic,
        partitions=settings.panes_partitions,
        value_type=bytes,
        value_serializer="raw",
        key_type=bytes,
        key_serializer="raw",
    )

    # Not Faust's own choice, which starts the agent again in silence, without the message that it failed on.
    @app.agent(topic, concurrency=1, name="roll", supervisor_strategy=mode.CrashingSupervisor)
    async def roll(stream: Any) -> None:
        async for event in stream.noack().events():
            await tier.take(event)

    async def on_assigned(_: Any, assigned: Any, **__: Any) -> None:
        tier.assign({tp.partition for tp in assigned if tp.topic == settings.panes_topic})

    resting_until_s = 0.0

    @app.timer(interval=interval_s)  # type: ignore[untyped-decorator]  # Faust's own
    async def publish() -> None:
        nonlocal resting_until_s
        begun_s = time.monotonic()
        tier.turned_ns = time.monotonic_ns()
        if begun_s >= resting_until_s:
            await tier.publish()
            took_s = time.monotonic() - begun_s
            resting_until_s = begun_s + took_s + REST_RATIO * took_s

    cast("Any", app.on_partitions_assigned).connect(on_assigned, weak=False)
    return app
