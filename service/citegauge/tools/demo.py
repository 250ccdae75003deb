"""The demo: what it sets, its traffic as a child process, its screen, and the check behind `--smoke`.

Everything else is the worker as it runs in production; only broker and database are embedded.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp
import mode
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from citegauge.adapters.clickhouse_http import ClickHouseHttp, Engine
from citegauge.adapters.embedded import EmbeddedBroker
from citegauge.adapters.rolling import View
from citegauge.domain.drop import Drop
from citegauge.domain.policy import SECOND_NS
from citegauge.domain.words import percent
from citegauge.errors import FatalError
from citegauge.settings import ClosedSettings, Settings
from citegauge.tools.replay import rfc3339
from citegauge.tools.tables import window_table

DEGRADED_ROUTE = "support"
DEGRADE_MINUTES = 40
REFRESH_S = 2.0
CAUGHT_UP_S_MAX = 300.0
"""The back-fill has to be shown within two minutes of the set-up's end."""
SMOKE_TRIES = 20
TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Arguments of the command."""

    hours: int = 24
    seed: int = 1
    port: int = 9464
    clickhouse_port: int = 8124
    smoke: bool = False


def demo_settings(options: DemoOptions, bootstrap_servers: str) -> Settings:
    """The worker's settings over the embedded broker and engine; quick, because there is nothing to wait for.

    Whoever has the settings of a production in the environment must not find the demo's traffic there.
    """
    return ClosedSettings.model_validate(
        {
            "kafka": {
                "bootstrap_servers": bootstrap_servers,
                "encoding": "jsonl",
                "keyed": True,
                "source_partitions": 2,
                "panes_partitions": 2,
                "session_timeout_s": 6.0,  # the embedded broker delays a group join by half of it
                "drain_timeout_s": 5.0,
            },
            "clickhouse": {"url": "chdb:"},
            "publish": {"interval_s": 2.0},
            "web": {"port": options.port},
        }
    )


class DemoService(mode.Service):
    """Traffic, ClickHouse's HTTP interface and the screen, beside the worker."""

    def __init__(
        self,
        options: DemoOptions,
        settings: Settings,
        *,
        view: Callable[[], View],
        drops: Callable[[], Sequence[Drop]],
        web_port: Callable[[], int],
        broker: EmbeddedBroker,
    ) -> None:
        super().__init__()
        self.failure = ""
        self._options = options
        self._settings = settings
        self._view = view
        self._drops = drops
        self._web_port = web_port
        self._broker = broker
        self._traffic: subprocess.Popen[bytes] | None = None
        self._engine = Engine(None, read_only=True)
        self._http = ClickHouseHttp(self._engine, port=options.clickhouse_port, database=settings.clickhouse.database)
        self._started_ns = time.time_ns()
        self._console = Console(stderr=False)

    async def on_start(self) -> None:
        """Start the traffic and the HTTP interface, then draw in the background."""
        await self._http.start()
        self._traffic = self._start_traffic()
        self.add_future(self._smoke() if self._options.smoke else self._draw())

    async def on_stop(self) -> None:
        """Stop what was started, by its id."""
        await self._stop_traffic()
        await self._http.stop()
        await asyncio.to_thread(self._engine.close)  # an engine that is open at exit crashes there

    async def _stop_traffic(self) -> None:
        traffic, self._traffic = self._traffic, None
        if traffic is not None:
            traffic.terminate()
            await asyncio.to_thread(traffic.wait)

    def _start_traffic(self) -> subprocess.Popen[bytes]:
        options, kafka = self._options, self._settings.kafka
        arguments = [
            "--seed",
            str(options.seed),
            "--hours",
            str(options.hours),
            "--end-ns",
            str(self._started_ns),
            "--bootstrap",
            kafka.bootstrap_servers,
            "--topic",
            kafka.source_topic,
        ]
        return subprocess.Popen(  # noqa: S603 - our own module, our own arguments
            [sys.executable, "-m", "citegauge.tools.demo_traffic", *arguments], stdin=subprocess.DEVNULL
        )

    # -- screen -------------------------------------------------------------------------------------------------------

    async def _draw(self) -> None:
        if not self._console.is_terminal:
            self._announce()
            await self._caught_up()
            self._console.print(self._screen())
            await self._watch()
            return
        with Live(self._screen(), console=self._console, refresh_per_second=4, screen=False) as live:
            while not self.should_stop:
                live.update(self._screen())
                self._check_parts()
                await self.sleep(REFRESH_S)

    def _announce(self) -> None:
        """Where nothing is drawn meanwhile, a word before the wait."""
        self._console.print(
            f"citegauge demo: back-filling {self._options.hours} hours of traffic, live in about a minute"
        )

    async def _watch(self) -> None:
        while not self.should_stop:
            self._check_parts()
            await self.sleep(REFRESH_S)

    def _check_parts(self) -> None:
        self._broker.check()
        if self._traffic is not None and self._traffic.poll() is not None and not self.should_stop:
            raise FatalError(f"the traffic generator ended with status {self._traffic.returncode}")

    def _screen(self) -> Group:
        view = self._view()
        since = "waiting for the first windows" if not view.as_of_ns else f"as of {rfc3339(view.as_of_ns)[:19]}Z"
        if view.as_of_ns and not view.caught_up:
            done = 1 - (self._started_ns - view.as_of_ns) / (self._options.hours * 3600 * SECOND_NS)
            since = f"back-filling {self._options.hours} h of simulated traffic: {percent(max(0.0, min(1.0, done)))}"
        fallen = self._drops()
        return Group(
            Text(f"citegauge demo · {since}", style="bold"),
            window_table(view.roll_ups, fallen),
            *(Text(f"▼ {drop.sentence}", style="red") for drop in fallen),
            Text(
                f"page http://127.0.0.1:{self._web_port()}/   metrics http://127.0.0.1:{self._web_port()}/metrics   "
                f"ClickHouse http://127.0.0.1:{self._http.port}/   Ctrl-C ends it",
                style="dim",
            ),
        )

    async def _caught_up(self) -> None:
        """Wait until the windows are live. Raises `FatalError` after `CAUGHT_UP_S_MAX`."""
        deadline = time.monotonic() + CAUGHT_UP_S_MAX
        while not (self._view().caught_up and self._drops()):
            self._check_parts()
            if time.monotonic() > deadline:
                raise FatalError(f"the demo's windows were not live within {CAUGHT_UP_S_MAX:.0f} s")
            await asyncio.sleep(0.2)

    # -- smoke --------------------------------------------------------------------------------------------------------

    async def _smoke(self) -> None:
        """The check of CI: the degraded route is named and no other, and three places tell the same numbers."""
        try:
            self._announce()
            await self._caught_up()
            self._console.print(self._screen())
            self._console.print(
                f"smoke: live {(time.time_ns() - self._started_ns) / SECOND_NS:.1f} s after the set-up's end"
            )
            self._check_drops()
            # Numbers can only be compared while they stand still.
            await self._stop_traffic()
            await self._check_agreement()
        except FatalError as exc:
            self.failure = f"smoke: {exc}"
        signal.raise_signal(signal.SIGTERM)  # the way in which everybody else ends it, too

    def _check_drops(self) -> None:
        named = {drop.route for drop in self._drops()}
        if named != {DEGRADED_ROUTE}:
            raise FatalError(f"expected a drop of {DEGRADED_ROUTE!r} and nothing else, found {sorted(named)}")

    async def _check_agreement(self) -> None:
        """/metrics and ClickHouse over HTTP agree for the same start and end; retried while new data comes in."""
        async with aiohttp.ClientSession() as session:
            differences: list[str] = []
            for _ in range(SMOKE_TRIES):
                differences = await self._differences(session)
                if not differences:
                    self._console.print("smoke: /metrics and ClickHouse agree on n, p25, p50 and mean of every window")
                    return
                await asyncio.sleep(REFRESH_S / 2)
        raise FatalError(f"/metrics and ClickHouse disagree: {'; '.join(differences[:3])}")

    async def _differences(self, session: aiohttp.ClientSession) -> list[str]:
        view = self._view()
        found = []
        compared = 0
        metrics = await _metrics(session, self._web_port())
        for item in view.roll_ups:
            if item.group.scorer != "*":
                continue
            sql = (
                f"SELECT n, recall_p25, recall_p50, recall_mean FROM window_quantiles(start = {item.start_s}, "
                f"end = {item.end_s}, dims = ['route', 'top_k_bucket']) WHERE route = {{route:String}} "
                f"AND top_k_bucket = {{bucket:String}} FORMAT JSONCompact"
            )
            parameters = {"query": sql, "param_route": item.group.route, "param_bucket": item.group.top_k_bucket}
            async with session.get(f"http://127.0.0.1:{self._http.port}/", params=parameters) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise FatalError(f"ClickHouse's HTTP interface answered {answer.status}: {text[:200]}")
            rows = json.loads(text)["data"]
            expected = [
                metrics.get((name, item.group.route, item.group.top_k_bucket, item.window.name, stat))
                for name, stat in (
                    ("citegauge_window_traces", "measured"),
                    ("citegauge_cited_chunk_recall_ratio", "p25"),
                    ("citegauge_cited_chunk_recall_ratio", "p50"),
                    ("citegauge_cited_chunk_recall_ratio", "mean"),
                )
            ]
            compared += 1
            if not rows or not all(_same(mine, theirs) for mine, theirs in zip(rows[0], expected, strict=True)):
                found.append(f"{item.group.route} {item.window.name}: ClickHouse {rows}, /metrics {expected}")
        return found if compared else ["no window was compared"]


def _same(mine: float | str | None, theirs: float | None) -> bool:
    """Equal within 1e-12; a number that is not there must be missing in both places. ClickHouse quotes 64-bit integers."""
    if mine is None or theirs is None:
        return mine is None and theirs is None
    return abs(float(mine) - theirs) <= TOLERANCE * max(1.0, abs(theirs))


async def _metrics(session: aiohttp.ClientSession, port: int) -> dict[tuple[str, ...], float]:
    """Quality series of /metrics by (name, route, bucket, window, stat or state)."""
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        text = await answer.text()
    return {
        (
            sample.name,
            sample.labels["route"],
            sample.labels["top_k_bucket"],
            sample.labels["window"],
            sample.labels.get("stat", sample.labels.get("state", "")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "window" in sample.labels
    }
