"""The composition root: the one file that knows every concrete class and ties them into a running worker.

Both tiers run under Faust's worker: it installs the signal handlers, supervises the services below and stops them in
order. The services are thin shells; what they run stands in the adapters.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import faust
import mode

from citegauge.adapters import clickhouse, migrations, supervise
from citegauge.adapters.embedded import EmbeddedBroker
from citegauge.adapters.kafka import clients
from citegauge.adapters.kafka.hot import HotTier
from citegauge.adapters.kafka.installation import Installation
from citegauge.adapters.kafka.looking import looking
from citegauge.adapters.kafka.publisher import Publisher
from citegauge.adapters.kafka.rekey import RekeyTier
from citegauge.adapters.kafka.writer import RowWriter
from citegauge.adapters.prometheus import Exporter
from citegauge.adapters.rolling import RollTier, View, build_app
from citegauge.adapters.web import Health, Past, WebSources
from citegauge.conventions import decoder, reader
from citegauge.domain import rekeyed
from citegauge.domain.drop import Drop, drops
from citegauge.domain.policy import SECOND_NS
from citegauge.domain.window import AsOf
from citegauge.errors import FatalError
from citegauge.metrics import Sample
from citegauge.pipeline import Decoder
from citegauge.ports import WindowRow
from citegauge.settings import Settings
from citegauge.tools import backtest as backtesting
from citegauge.tools import explain as explaining
from citegauge.tools import simulate_output
from citegauge.tools.audit import Asked, AuditReport, KafkaSide, Progress, run_audit
from citegauge.tools.demo import DemoOptions, DemoService, demo_settings
from citegauge.tools.doctor import Bounds, SourceSample, topic_sample
from citegauge.tools.prepare import Preparation, PrepareService
from citegauge.tools.retries import log_retries
from citegauge.tools.samples import hot_samples, rekey_samples, roll_samples, stalled, writer_samples
from citegauge.tools.services import Claims, HotService, RekeyService, WebService, WriterService, faust_credentials
from citegauge.tools.simulate_output import Encoding, WallClock
from citegauge.tools.simulate_spec import TrafficSpec
from citegauge.tools.watchdog import watchdog

logger = logging.getLogger(__name__)

Role = Literal["all", "rekey", "join", "roll"]
STALE_INTERVALS = 3
"""Publish intervals after which a heartbeat says nothing of the present."""
STOP_MARGIN_S = 10.0
"""What stopping may take beside draining: leaving the groups, closing the clients."""
THREADS_MAX = 8
"""Blocking calls at the same time: two writers, the page's queries, rendering, restoring."""


def open_clickhouse(settings: Settings) -> clickhouse.ClickHouse:
    """The ClickHouse of the settings: a server, or `chdb:` for the engine in this process. Raises `ConfigError`."""
    target = settings.clickhouse
    if target.url.startswith("chdb:"):
        path = urlsplit(target.url).path
        embedded = clickhouse.EmbeddedTarget(path=Path(path) if path else None)
        return clickhouse.connect(embedded, target.database)
    server = clickhouse.HttpTarget(
        url=target.url,
        user=target.user,
        password=target.password,
        verify=target.verify,
        ca_file=Path(target.ca_cert) if target.ca_cert else None,
    )
    return clickhouse.connect(server, target.database)


def build_decoder(settings: Settings) -> Decoder:
    """A decoder for files: the encoding of `kafka.encoding`, the routes and mappings of the settings."""
    return decoder(settings.kafka.encoding, settings.decode_policy())


def build_decoders(settings: Settings, *, keyed: bool) -> dict[str, Decoder]:
    """Decoders by source topic, of the sources that are keyed by trace id or of those that are not."""
    return {
        topic: reader(source.encoding, settings.decode_policy(source))
        for topic, source in settings.source_topics().items()
        if source.keyed == keyed
    }


def build_joined_decoders(settings: Settings) -> dict[str, Decoder]:
    """Decoders of the topics that the join reads: keyed sources, and the re-keyed topic if any source is not keyed."""
    found = build_decoders(settings, keyed=True)
    if settings.rekey.spans_topic in settings.joined_topics():
        found[settings.rekey.spans_topic] = rekeyed.decode
    return found


def migrate(database: clickhouse.ClickHouse, settings: Settings) -> list[str]:
    """Apply `sql/` and make the installation's id; the names of what was applied. Blocking."""
    applied = migrations.migrate(database, settings.clickhouse.database)
    migrations.own_ids(database, settings.clickhouse.database, settings.installation())
    return applied


def run_worker(settings: Settings, role: Role = "all") -> None:
    """Run until a signal; returns after a clean stop. Raises what made it crash."""
    worker = Worker(settings, role)
    with _event_loop(worker) as loop:
        preparing = PrepareService(worker.preparation, worker.prepared)
        with watchdog(worker.stalled, settings.web.stall_exit_s):
            supervise.run(worker.supervisor(preparing, loop=loop), settings.kafka.drain_timeout_s + STOP_MARGIN_S)


@contextmanager
def _event_loop(worker: Worker) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop and its threads. They have ended before an embedded database is closed, which must not go under a query;
    a call to a server may hang, and is left to `supervise.leave`.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="blocking")
    loop.set_default_executor(threads)
    supervise.tame_collector()
    log_retries()
    try:
        yield loop
    finally:
        embedded = worker.settings.clickhouse.url.startswith("chdb:")
        threads.shutdown(wait=embedded, cancel_futures=True)
        worker.database.close()


async def produce(
    settings: Settings,
    spec: TrafficSpec,
    *,
    encoding: Encoding = "native",
    realtime: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Send simulated traffic to the source topic, which is created when it is missing; returns the number of spans."""
    admin = await clients.admin(settings.kafka)
    try:
        await clients.ensure_topics(admin, settings.kafka, clients.source_topics(settings))
    finally:
        await admin.close()
    producer = clients.producer(settings.kafka)
    await producer.start()
    try:
        return await simulate_output.produce(
            spec,
            producer,
            settings.kafka.source_topic,
            realtime=realtime,
            clock=WallClock(now_ns=time.time_ns),
            encoding=encoding,
            on_progress=on_progress,
        )
    finally:
        await producer.stop()


async def sample_topic(settings: Settings, topic: str, bounds: Bounds) -> SourceSample:
    """The newest records of a topic for the doctor. Raises `FatalError` or `RetryableError`."""
    async with looking(settings.kafka, topic) as consumer:
        return await topic_sample(consumer, topic, bounds)


async def audit(settings: Settings, asked: Asked, on_progress: Progress | None = None) -> AuditReport:
    """Whether ClickHouse holds what the source topics say. Raises `FatalError` or `RetryableError`."""
    kafka, database = settings.kafka, open_clickhouse(settings)
    admin = await clients.admin(kafka)
    decoders = build_joined_decoders(settings)
    rekeyed_to = partial(clients.read_offset, admin, settings.rekey.group_id)
    kafka_side = KafkaSide(partial(looking, kafka), partial(clients.read_commit, admin, settings), rekeyed_to)
    unkeyed = build_decoders(settings, keyed=False)
    try:
        return await run_audit(settings, decoders, database, kafka_side, asked, on_progress, unkeyed=unkeyed)
    finally:
        await admin.close()
        database.close()


def explain(settings: Settings, asked: explaining.Asked) -> explaining.Explanation:
    """Why the recall changed between two periods. Blocking. Raises `FatalError` or `RetryableError`."""
    database = open_clickhouse(settings)
    try:
        name, distances = settings.clickhouse.database, settings.score_policy().distance_routes
        past = Past(database.query, name, settings.drop_limits(), distances)
        return explaining.explain(database, name, asked, past.of)
    finally:
        database.close()


def backtest(
    settings: Settings, asked: backtesting.Asked, rules: str, on_progress: backtesting.Progress | None = None
) -> backtesting.Report:
    """When the rules of a rule file's text would have fired. Raises `ConfigError`, `FatalError` or `RetryableError`."""
    read = backtesting.read_rules(rules)
    database = open_clickhouse(settings)
    try:
        return asyncio.run(backtesting.run_backtest(database, settings.clickhouse.database, read, asked, on_progress))
    finally:
        database.close()


def run_demo(options: DemoOptions) -> None:
    """Broker, ClickHouse, traffic, worker and page in one place, until Ctrl-C or (smoke) the check is done."""
    broker = EmbeddedBroker()
    asyncio.run(broker.start())
    settings = demo_settings(options, broker.bootstrap_servers)
    worker = Worker(settings)
    screen = DemoService(
        options,
        settings,
        view=lambda: worker.roll.view if worker.roll is not None else View(),
        drops=worker.drops,
        web_port=lambda: worker.web_port,
        broker=broker,
    )
    try:
        with _event_loop(worker) as loop:
            loop.run_until_complete(worker.preparation.run())
            supervise.run(worker.supervisor(screen, loop=loop), settings.kafka.drain_timeout_s + STOP_MARGIN_S)
    finally:
        asyncio.run(broker.stop())
    if screen.failure:
        raise FatalError(screen.failure)


class Worker:
    """Both tiers, or one of them, with their clients and their endpoints."""

    def __init__(self, settings: Settings, role: Role = "all", database: clickhouse.ClickHouse | None = None) -> None:
        """`database`: an engine that is open already (the demo's), else the one of the settings."""
        self.settings = settings
        self.role = role
        self._drop_limits = settings.drop_limits()
        self.database = database or open_clickhouse(settings)
        self.hot: HotTier | None = None
        self.publisher: Publisher | None = None
        self.rekey: RekeyTier | None = None
        own = partial(migrations.own_ids, self.database, settings.clickhouse.database, settings.installation())
        self.installation = Installation(settings, role, own)
        self.hot_writer = RowWriter(self.database, settings.clickhouse)
        self.roll_writer = RowWriter(self.database, settings.clickhouse)
        self.roll: RollTier | None = None
        if role in ("all", "roll"):
            self.roll = RollTier(
                self.database,
                self._store_windows,
                database=settings.clickhouse.database,
                partitions=settings.kafka.panes_partitions,
                as_of=AsOf(
                    int(STALE_INTERVALS * settings.publish.interval_s * SECOND_NS),
                    settings.joined_topics(),
                    settings.rekeyed_topics(),
                ),
                distance_routes=settings.score_policy().distance_routes,
            )
            self.roll.meet = self.installation.meet
        self.web_port = 0
        self.preparation = Preparation(settings, lambda: migrate(self.database, settings), self.installation)
        self._exporter = Exporter(self.samples)
        self._web = WebService(settings.web, self.web_sources(), self._listening)

    # -- running --------------------------------------------------------------------------------------------------------

    def supervisor(self, *extra: mode.Service, loop: asyncio.AbstractEventLoop | None = None) -> mode.Worker:
        """Faust's worker around everything; `supervise.run` runs it until a signal or a crash."""
        settings, role = self.settings, self.role
        services: list[mode.Service] = [self._web, *extra, Claims(self.installation)]
        unkeyed = build_decoders(settings, keyed=False)
        if role in ("all", "rekey") and unkeyed:
            services.append(RekeyService(settings, unkeyed, self.installation, self._rekeying))
        if role in ("all", "join"):
            decoders = build_joined_decoders(settings)
            asked = self._newest_version, self.installation
            services.append(HotService(settings, decoders, self.hot_writer, *asked, self._joining))
        options: dict[str, Any] = {"override_logging": False, "redirect_stdouts": False, "quiet": True, "loop": loop}
        if self.roll is None:
            return mode.Worker(*services, **options)
        services.append(WriterService(self.roll_writer))
        app = build_app(self.roll, settings.kafka, settings.publish.interval_s, faust_credentials(settings.kafka))
        return faust.Worker(app, *services, **options)

    def prepared(self) -> None:
        """All is there: from now on standing still is a fault."""
        if self.roll is not None:
            self.roll.turned_ns = time.monotonic_ns()

    def _joining(self, hot: HotTier, publisher: Publisher) -> None:
        self.hot, self.publisher = hot, publisher

    def _newest_version(self, source: str) -> int:
        """The newest version stored of a source partition's panes; 0 for none. Blocking."""
        panes = f"`{self.settings.clickhouse.database}`.panes"
        sql = f"SELECT max(version) AS version FROM {panes} WHERE source = {{source:String}}"
        return int(self.database.query(sql, {"source": source})[0]["version"])

    def _rekeying(self, rekey: RekeyTier) -> None:
        self.rekey = rekey

    def _listening(self, port: int) -> None:
        self.web_port = port

    # -- what the endpoints show --------------------------------------------------------------------------------------

    def web_sources(self) -> WebSources:
        """The page's and the endpoints' sources."""
        return WebSources(
            windows=self.windows,
            drops=lambda: [drop.as_dict() for drop in self.drops()],
            drop_limits=self._drop_limits,
            signals=lambda: self.roll.view.signals if self.roll is not None else (),
            query=self.database.query,
            database=self.settings.clickhouse.database,
            metrics=self._exporter.render,
            healthy=self.healthy,
            ready=self.ready,
            distance_routes=self.settings.score_policy().distance_routes,
        )

    def windows(self) -> Sequence[WindowRow]:
        """The live windows."""
        return self.roll.view.rows if self.roll is not None else ()

    def drops(self) -> list[Drop]:
        """What dropped, worst first: what a ticket would be raised for."""
        return drops(self.roll.view.signals, self._drop_limits) if self.roll is not None else []

    def samples(self) -> Iterator[Sample]:
        """Everything that `/metrics` shows."""
        yield from self.preparation.samples()
        writers: list[tuple[str, RowWriter]] = []
        if self.roll is not None:
            limits = self.settings.web.series_max, self.settings.alerts.as_of_stale_s
            yield from roll_samples(self.roll, *limits, time.time_ns())
            writers.append(("roll", self.roll_writer))
        if self.hot is not None and self.publisher is not None:
            yield from hot_samples(self.hot, self.publisher)
            writers.append(("join", self.hot_writer))
        if self.rekey is not None:
            yield from rekey_samples(self.rekey)
        yield from writer_samples(writers)

    def stalled(self, limit_s: float) -> Sequence[str]:
        """A line for each part that has made no progress for longer than `limit_s`; waiting at the start is no stall."""
        return () if self.preparation.waiting else stalled(self.hot, self.roll, self.rekey, limit_s)

    def healthy(self) -> Health:
        """Progress, not mere liveness."""
        lines = self.stalled(self.settings.web.stall_s)
        return Health(ok=not lines, lines=tuple(lines) or (self.preparation.waiting or "making progress",))

    def ready(self) -> Health:
        """Whether the windows are to be believed: restored, and nothing is being re-read in silence."""
        if self.preparation.waiting:
            return Health(ok=False, lines=(self.preparation.waiting,))
        lines = []
        if self.roll is not None and not self.roll.ready:
            lines.append("the windows are not restored from ClickHouse yet")
        if self.hot is not None:
            lines += [
                f"{at.topic}/{at.partition} is re-reading its hold-back"
                for at, standing in self.hot.positions().items()
                if standing.replaying
            ]
        return Health(ok=not lines, lines=tuple(lines) or ("windows are live",))

    def _store_windows(self, rows: list[WindowRow]) -> None:
        if self.roll_writer.backlog_rows + len(rows) > self.settings.clickhouse.buffer_rows_max:
            logger.warning("ClickHouse is behind: %d rows of the windows table are left out", len(rows))
            return
        # Nobody waits for it: the windows can be computed again from panes.
        self.roll_writer.submit(rows).add_done_callback(lambda done: done.exception())
