"""Thin shells under Faust's supervision: each opens its clients, runs one loop, and closes them. No logic of its own.

The end of a loop that nobody asked for crashes the process: nothing stops in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import faust
import mode
from aiohttp import web

from citegauge.adapters.kafka import clients
from citegauge.adapters.kafka.hot import HotTier
from citegauge.adapters.kafka.installation import Installation
from citegauge.adapters.kafka.places import Places
from citegauge.adapters.kafka.publisher import Publisher
from citegauge.adapters.kafka.rekey import RekeyTier
from citegauge.adapters.kafka.spans import SpanSender
from citegauge.adapters.kafka.starts import Newest, Starts
from citegauge.adapters.kafka.writer import RowWriter
from citegauge.adapters.web import WebGuard, WebLimits, WebSources, build_web_app
from citegauge.errors import FatalError
from citegauge.intake import Decoder
from citegauge.settings import KafkaSettings, Settings, WebSettings

logger = logging.getLogger(__name__)


class HotService(mode.Service):
    """The hot tier with its clients. Stopping it drains: what was read is published and committed."""

    def __init__(
        self,
        settings: Settings,
        decoders: Mapping[str, Decoder],
        writer: RowWriter,
        newest: Newest,
        installation: Installation,
        ready: Callable[[HotTier, Publisher], None],
    ) -> None:
        """`decoders` by topic; `newest` asks ClickHouse; `ready` is told the tier once it is made."""
        super().__init__()
        self._settings = settings
        self._decoders = decoders
        self._writer = writer
        self._newest = newest
        self._installation = installation
        self._ready = ready
        self._hot: HotTier | None = None
        self._ended = asyncio.Event()

    async def on_start(self) -> None:
        """Connect, then read in the background."""
        kafka = self._settings.kafka
        self._admin = await clients.admin(kafka)
        self._producer, self._consumer = clients.producer(kafka), clients.consumer(kafka)
        await self._producer.start()
        await self._consumer.start()
        publisher = Publisher(self._producer, kafka, self._installation.id)
        starts = Starts(self._consumer, self._admin, self._settings, self._newest)
        self._hot = HotTier(self._settings, self._decoders, self._consumer, starts, publisher, self._writer)
        self._ready(self._hot, publisher)
        self.add_future(self._run(self._hot))

    async def _run(self, hot: HotTier) -> None:
        try:
            await hot.run()
        finally:
            self._ended.set()
        if not self.should_stop:
            raise FatalError("the reading loop ended by itself")

    async def on_stop(self) -> None:
        """Drain within the time allowed, then leave the group."""
        if self._hot is None:
            return
        self._hot.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), self._settings.kafka.drain_timeout_s + 5)
        await self._consumer.stop()
        await self._producer.stop()
        await self._admin.close()


class RekeyService(mode.Service):
    """The re-key stage with its clients."""

    def __init__(
        self,
        settings: Settings,
        decoders: Mapping[str, Decoder],
        installation: Installation,
        ready: Callable[[RekeyTier], None],
    ) -> None:
        """`decoders` by source topic; `ready` is told the tier once it is made."""
        super().__init__()
        self._settings = settings
        self._decoders = decoders
        self._installation = installation
        self._ready = ready
        self._rekey: RekeyTier | None = None
        self._ended = asyncio.Event()

    async def on_start(self) -> None:
        """Connect, then re-key in the background."""
        settings, kafka = self._settings, self._settings.kafka
        self._admin = await clients.admin(kafka)
        self._producer = clients.producer(kafka)
        self._consumer = clients.consumer(kafka, settings.rekey.group_id)
        await self._producer.start()
        await self._consumer.start()
        spans_topic = settings.rekey.spans_topic
        sender = SpanSender(self._producer, spans_topic, partial(clients.message_bytes_max, self._admin, spans_topic))
        places = Places(self._consumer, self._admin, settings)
        publisher = Publisher(self._producer, kafka, self._installation.id)
        self._rekey = RekeyTier(settings, self._decoders, self._consumer, places, sender, publisher)
        self._ready(self._rekey)
        self.add_future(self._run(self._rekey))

    async def _run(self, rekey: RekeyTier) -> None:
        try:
            await rekey.run()
        finally:
            self._ended.set()
        if not self.should_stop:
            raise FatalError("the re-key stage ended by itself")

    async def on_stop(self) -> None:
        """Finish what was read, then leave the group."""
        if self._rekey is None:
            return
        self._rekey.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), self._settings.kafka.drain_timeout_s)
        await self._consumer.stop()
        await self._producer.stop()
        await self._admin.close()


class Claims(mode.Service):
    """Looks from time to time whether the names in Kafka are still ours."""

    def __init__(self, installation: Installation) -> None:
        super().__init__()
        self._installation = installation

    async def on_start(self) -> None:
        """Look in the background."""
        self.add_future(self._installation.watch())


class WriterService(mode.Service):
    """A buffer in front of ClickHouse."""

    def __init__(self, writer: RowWriter) -> None:
        super().__init__()
        self._writer = writer

    async def on_start(self) -> None:
        """Insert in the background."""
        self.add_future(self._writer.run())


class WebService(mode.Service):
    """Page, /metrics, /healthz, /readyz."""

    def __init__(self, settings: WebSettings, sources: WebSources, listening: Callable[[int], None]) -> None:
        """`listening` is told the port. Raises `ConfigError` when anyone could read the numbers."""
        super().__init__()
        self._settings = settings
        self._app = build_web_app(
            sources,
            limits=WebLimits(request_bytes_max=settings.request_bytes_max),
            guard=WebGuard(
                host=settings.host,
                token=settings.token,
                hosts=settings.hosts,
                requests_per_s=settings.requests_per_s,
                requests_burst=settings.requests_burst,
            ),
        )
        self._listening = listening
        self._runner: web.AppRunner | None = None

    async def on_start(self) -> None:
        """Listen. Raises `FatalError` naming the settings when the port is taken."""
        host, port = self._settings.host, self._settings.port
        self._runner = web.AppRunner(self._app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as exc:
            raise FatalError(
                f"cannot listen on {host}:{port} (web.host, web.port; demo --port): {exc.strerror}"
            ) from exc
        found = int(self._runner.addresses[0][1])
        self._listening(found)
        logger.info("page, /metrics, /healthz and /readyz at http://%s:%d/", host, found)

    async def on_stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()


def faust_credentials(kafka: KafkaSettings) -> Any:
    """Faust's form of the TLS and SASL settings; None for plain text."""
    context = clients.security(kafka).get("ssl_context")
    if kafka.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.get_secret_value(),
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None
