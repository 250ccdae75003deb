"""What a worker needs before it reads: tables, topics, names. What is away is waited for, what is refused ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

import mode
import stamina

from citegauge.adapters.kafka import clients
from citegauge.adapters.kafka.installation import Installation
from citegauge.errors import RetryableError
from citegauge.metrics import Sample
from citegauge.settings import Settings

logger = logging.getLogger(__name__)

WAIT_S_MAX = 5.0
"""Longest pause between two tries to reach what a start needs."""


class Preparation:
    """Makes what is missing, and knows what it waits for."""

    def __init__(self, settings: Settings, migrate: Callable[[], Sequence[str]], installation: Installation) -> None:
        """`migrate`: applies the migrations and names them; blocking."""
        self._settings = settings
        self._migrate = migrate
        self._installation = installation
        self._waiting_for = "clickhouse"
        """What is needed next; empty once all is there."""

    async def run(self) -> None:
        """One try. Raises `FatalError`, or `RetryableError` for what is away."""
        kafka = self._settings.kafka
        self._waiting_for = "clickhouse"
        if self._settings.clickhouse.migrate_on_start:
            applied = await asyncio.to_thread(self._migrate)
            if applied:
                logger.info("applied %s", ", ".join(applied))
        await self._installation.read_own()
        self._waiting_for = "kafka"
        with clients.translated(kafka):
            admin = await clients.admin(kafka)
            try:
                await clients.ensure_topics(admin, kafka, clients.topics(self._settings))
                await clients.check_sources(admin, self._settings)
            finally:
                await admin.close()
            await self._installation.claim()
        self._waiting_for = ""

    @property
    def waiting(self) -> str:
        """What it waits for, in words; empty once all is there."""
        if not self._waiting_for:
            return ""
        if self._waiting_for == "kafka":
            return f"waiting for Kafka at {self._settings.kafka.bootstrap_servers}"
        return f"waiting for ClickHouse at {self._settings.clickhouse.url}"

    def samples(self) -> Iterator[Sample]:
        """The same for `/metrics`."""
        for what in ("clickhouse", "kafka"):
            yield Sample("citegauge_waiting", (what,), what == self._waiting_for)


class PrepareService(mode.Service):
    """Stands before the services that read: they start when it has started. Stopping it ends its wait at once."""

    def __init__(self, preparation: Preparation, done: Callable[[], None]) -> None:
        """`done` is called once all is there."""
        super().__init__()
        self._preparation = preparation
        self._done = done

    async def on_start(self) -> None:
        """Wait until everything is there, or this is stopped."""
        await self.wait(self._prepared())

    async def _prepared(self) -> None:
        async for attempt in stamina.retry_context(
            on=RetryableError, attempts=None, timeout=None, wait_initial=0.5, wait_max=WAIT_S_MAX
        ):
            with attempt:
                await self._preparation.run()
        self._done()
