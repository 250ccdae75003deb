"""The cold tier: a Faust app on the panes topic that keeps the rolling windows. It joins nothing and decides no closing.

Each partition of the panes topic owns the roll-ups whose (route, top_k bucket) hash to it. On assignment its closed panes
are folded from ClickHouse in SQL; after that only the topic is read. Messages are acknowledged in order, and only the
prefix whose panes are closed, so that a restart finds every open pane in the topic again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import faust
import mode
import msgspec
import stamina

from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS
from citegauge.domain.recall import Group
from citegauge.domain.window import (
    WINDOWS,
    AsOf,
    Heartbeat,
    RollUp,
    WindowStore,
    bounds,
    roll_up,
    stats,
    window_end_s,
)
from citegauge.errors import RetryableError
from citegauge.pipeline import tally_of
from citegauge.ports import (
    ClosedMarker,
    HeartbeatMessage,
    PaneMessage,
    PaneRow,
    SqlReader,
    WindowRow,
    panes_partition,
)
from citegauge.settings import KafkaSettings

logger = logging.getLogger(__name__)

HELD_RUNS_MAX = 200_000
"""Runs of held messages per partition; past it the oldest is acknowledged all the same and counted."""
STALE_INTERVALS = 3
COMMIT_QUIET_S_MAX = 86_400.0
"""Faust warns past it. Open panes hold commits back, and so does a ClickHouse that is away."""
_decode = msgspec.json.Decoder(PaneMessage).decode
_GROUP = "route, top_k_bucket, model, retriever_version, scorer"
_SUMS = (
    "sumMap(states) AS states, sum(citations) AS citations, sum(hallucinated) AS hallucinated, "
    "sum(dropped_citations) AS dropped_citations, "
    "sum(unresolved) AS unresolved, sum(ids_dropped) AS ids_dropped, sum(nonconformant) AS nonconformant, "
    "sum(recounted) AS recounted, sumMap(recall_counts) AS recall_counts, "
    "sumMap(rank_weighted_counts) AS rank_weighted_counts, sumMap(score_counts) AS score_counts"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The windows as last computed: what metrics, page and the `windows` table show."""

    as_of_ns: int = 0
    caught_up: bool = False
    rows: tuple[WindowRow, ...] = ()
    roll_ups: tuple[RollUp, ...] = ()
    sources: Mapping[str, Heartbeat] = field(default_factory=dict)


class _Ack:
    """The least that Faust's consumer must know to acknowledge a message. Events themselves are too large to keep."""

    __slots__ = ("__weakref__", "acked", "offset", "topic", "tp")

    def __init__(self, tp: Any, offset: int) -> None:
        self.acked = False
        self.offset = offset
        self.topic = tp.topic
        self.tp = tp


class _Held:
    """A run of consecutive messages that wait for one pane to close."""

    __slots__ = ("first", "last", "pane_s", "source")

    def __init__(self, offset: int, source: str, pane_s: int) -> None:
        self.first = self.last = offset
        self.source = source
        self.pane_s = pane_s

    def extend(self, offset: int, source: str, pane_s: int) -> bool:
        """Take the next message, if it has nothing else to wait for: heartbeats wait for whatever is before them."""
        if offset != self.last + 1 or (pane_s >= 0 and (source, pane_s) != (self.source, self.pane_s)):
            return False
        self.last = offset
        return True


class _Owned:
    """One assigned partition of the panes topic."""

    def __init__(self) -> None:
        self.store = WindowStore()
        self.restored = asyncio.Event()
        """Also set when the partition is taken away, so that nobody waits for it any longer."""
        self.restoring: asyncio.Task[None] | None = None
        self.held: deque[_Held] = deque()

    @property
    def oldest_s(self) -> int:
        """Start of the longest window: panes before it are in none."""
        return min(bounds(window, self.store.end_s)[0] for window in WINDOWS)


class RollTier:
    """Everything of the cold tier but Faust itself, which calls it from one event loop."""

    def __init__(
        self,
        reader: SqlReader,
        store_rows: Callable[[list[WindowRow]], object],
        *,
        database: str,
        partitions: int,
        interval_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`store_rows` takes rows for the `windows` table; it must not block. `partitions`: of the panes topic."""
        self._reader = reader
        self._store_rows = store_rows
        self._database = database
        self._partitions = partitions
        self._wall_ns = wall_ns
        self._owned: dict[int, _Owned] = {}
        self._as_of = AsOf(int(STALE_INTERVALS * interval_s * SECOND_NS))
        self._stored_end_s = 0
        self.view = View()
        self.acked_early = 0
        self.unreadable = 0
        self.turned_ns = time.monotonic_ns()
        """Monotonic time of the last publish, for the watchdog."""

    # -- assignment ---------------------------------------------------------------------------------------------------

    def assign(self, partitions: set[int]) -> None:
        """Own exactly these partitions; new ones are restored from ClickHouse in the background."""
        for partition in self._owned.keys() - partitions:
            gone = self._owned.pop(partition)
            if gone.restoring is not None:
                gone.restoring.cancel()
            gone.restored.set()
        for partition in partitions - self._owned.keys():
            owned = self._owned[partition] = _Owned()
            owned.restoring = asyncio.create_task(self._restore(partition, owned), name=f"restore-{partition}")

    async def _restore(self, partition: int, owned: _Owned) -> None:
        async for attempt in stamina.retry_context(on=RetryableError, attempts=None, timeout=None, wait_max=10.0):
            with attempt:
                owned.store = await asyncio.to_thread(self._restored_store, partition)
        owned.restored.set()
        logger.info("windows of panes partition %d restored up to %d", partition, owned.store.end_s)

    def _restored_store(self, partition: int) -> WindowStore:
        """Closed panes folded in SQL by cell, later ones in detail. Blocking."""
        panes = f"{self._database}.panes"
        closed = {
            str(row["source"]): _seconds(row["through"])
            for row in self._reader.query(
                f"SELECT source, max(pane) AS through FROM {panes} FINAL WHERE final GROUP BY source"
            )
        }
        end_s = max(closed.values(), default=-60) + 60
        store = WindowStore(end_s)
        closed_filter = "pane <= transform(source, {sources:Array(String)}, {through:Array(UInt32)}, toUInt32(0))"
        known = {"sources": list(closed), "through": list(closed.values())}
        for window in WINDOWS if closed else ():
            start_s, _ = bounds(window, end_s)
            rows = self._reader.query(
                f"SELECT toUnixTimestamp(toStartOfInterval(pane, toIntervalSecond({window.cell_s}))) AS cell, {_GROUP}, "
                f"{_SUMS} FROM {panes} FINAL WHERE pane >= {{start:DateTime}} AND {closed_filter} "
                f"GROUP BY cell, {_GROUP}",
                {"start": start_s, **known},
            )
            for row in rows:
                group = _group(row)
                if self._owns(partition, group):
                    store.restore_cell(window, int(row["cell"]), group, _tally(row))
        store.closed_through.update(closed)
        for row in self._reader.query(
            f"SELECT toUnixTimestamp(pane) AS pane_s, {_GROUP}, source, version, states, citations, hallucinated, dropped_citations, "
            f"unresolved, ids_dropped, nonconformant, recounted, recall_counts, rank_weighted_counts, score_counts "
            f"FROM {panes} FINAL WHERE NOT ({closed_filter})",
            known,
        ):
            group = _group(row)
            if self._owns(partition, group):
                store.upsert(str(row["source"]), int(row["pane_s"]), group, int(row["version"]), _tally(row))
        return store

    def _owns(self, partition: int, group: Group) -> bool:
        return panes_partition(group.route, group.top_k_bucket, self._partitions) == partition

    # -- messages -------------------------------------------------------------------------------------------------------

    async def take(self, event: Any) -> None:
        """One event of the panes topic, not yet acknowledged. Waits until its partition is restored."""
        message = event.message
        owned = self._owned.get(message.partition)
        if owned is not None:
            await owned.restored.wait()
        if owned is None or self._owned.get(message.partition) is not owned:
            return  # taken away; the new owner reads it
        source, pane_s = self._apply(owned, event.value, int(message.timestamp * SECOND_NS))
        held = owned.held
        if not held or not held[-1].extend(message.offset, source, pane_s):
            held.append(_Held(message.offset, source, pane_s))
        self._acknowledge(owned, event.app.consumer, message.tp)

    def _apply(self, owned: _Owned, value: bytes, sent_ns: int) -> tuple[str, int]:
        """The source and pane that hold the message back; pane -1: nothing does. `sent_ns`: the message's timestamp."""
        try:
            message = _decode(value)
            if isinstance(message, HeartbeatMessage):
                # Not older than it is: a restart reads old heartbeats again, and they say nothing of the present.
                seen_ns = min(sent_ns, self._wall_ns())
                beat = Heartbeat(message.closed_through, message.watermark_ns, message.caught_up, seen_ns)
                self._as_of.beat(message.source, beat)
            elif isinstance(message, ClosedMarker):
                owned.store.close(message.source, message.through)
            else:
                row = message.row
                owned.store.upsert(row.source, row.pane, _row_group(row), row.version, tally_of(row))
                return row.source, row.pane
        except (msgspec.MsgspecError, KeyError) as exc:
            self.unreadable += 1
            logger.warning("a message of the panes topic is not ours and is left out: %s", exc)
        return "", -1

    def _acknowledge(self, owned: _Owned, consumer: Any, tp: Any) -> None:
        """In order, the prefix whose panes are closed: that is what a restart needs not read again."""
        held, oldest_s = owned.held, owned.oldest_s
        while held:
            first = held[0]
            waits = first.pane_s >= oldest_s and not owned.store.is_closed(first.source, first.pane_s)
            if waits and len(held) <= HELD_RUNS_MAX:
                return
            self.acked_early += waits
            for offset in range(first.first, first.last + 1):
                consumer.ack(_Ack(tp, offset))
            held.popleft()

    # -- publishing -----------------------------------------------------------------------------------------------------

    async def publish(self) -> View:
        """Compute the windows as of now. Rows go to ClickHouse once a minute of as-of time."""
        for owned in self._owned.values():
            if owned.restoring is not None and owned.restoring.done():
                owned.restoring.result()  # raises what the restoring raised
        self.turned_ns = time.monotonic_ns()
        wall_ns = self._wall_ns()
        as_of_ns = self._as_of.update(wall_ns)
        end_s = window_end_s(as_of_ns) if as_of_ns else 0
        groups: list[RollUp] = []
        for owned in list(self._owned.values()):
            if owned.restored.is_set():
                owned.store.advance(end_s)
                groups.extend(owned.store.group_windows())
                await asyncio.sleep(0)
        roll_ups = tuple(roll_up(groups))
        rows = tuple(window_row(item, as_of_ns) for item in (*roll_ups, *groups))
        self.view = View(
            as_of_ns=as_of_ns,
            caught_up=self._as_of.caught_up(wall_ns),
            rows=rows,
            roll_ups=roll_ups,
            sources=dict(self._as_of.sources),
        )
        if rows and end_s > self._stored_end_s:
            self._stored_end_s = end_s
            self._store_rows(list(rows))
        return self.view

    @property
    def ready(self) -> bool:
        """Every assigned partition is restored, and there is one."""
        return bool(self._owned) and all(owned.restored.is_set() for owned in self._owned.values())

    @property
    def unacked(self) -> int:
        """Messages that are held back."""
        return sum(held.last - held.first + 1 for owned in self._owned.values() for held in owned.held)


def build_app(tier: RollTier, settings: KafkaSettings, interval_s: float, credentials: Any = None) -> faust.App:
    """The Faust app of the cold tier. No table, no web server, no changelog; one agent, one timer.

    Its consumer group is named after the panes topic, so that two installations on one Kafka do not share a group.
    """
    app = faust.App(
        f"{settings.panes_topic}.roll",
        broker=[f"kafka://{server.strip()}" for server in settings.bootstrap_servers.split(",")],
        broker_credentials=credentials,
        store="memory://",
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

    @app.timer(interval=interval_s)  # type: ignore[untyped-decorator]  # Faust's own
    async def publish() -> None:
        await tier.publish()

    cast("Any", app.on_partitions_assigned).connect(on_assigned, weak=False)
    return app


def window_row(item: RollUp, as_of_ns: int) -> WindowRow:
    """The row of one window; scores stay out where several scorers are merged."""
    tally = item.tally
    numbers = stats(tally, with_scores=item.scorers == 1)
    return WindowRow(
        window=item.window.name,
        window_start=item.start_s,
        window_end=item.end_s,
        **item.group._asdict(),
        **asdict(numbers),
        states=tally.state_counts(),
        citations=tally.citations,
        hallucinated=tally.hallucinated,
        dropped_citations=tally.dropped_citations,
        unresolved=tally.unresolved,
        nonconformant=tally.nonconformant,
        recounted=tally.recounted,
        version=as_of_ns,
    )


def _row_group(row: PaneRow) -> Group:
    return Group(row.route, row.top_k_bucket, row.model, row.retriever_version, row.scorer)


def _group(row: Mapping[str, Any]) -> Group:
    return Group(*(str(row[name]) for name in Group._fields))


def _tally(row: Mapping[str, Any]) -> Tally:
    tally = Tally()
    tally.set_state_counts(row["states"])
    for name in (
        "citations",
        "hallucinated",
        "dropped_citations",
        "unresolved",
        "ids_dropped",
        "nonconformant",
        "recounted",
    ):
        setattr(tally, name, int(row[name]))
    for name in ("recall_counts", "rank_weighted_counts", "score_counts"):
        setattr(tally, name, {int(key): int(n) for key, n in row[name].items() if n})
    return tally


def _seconds(moment: Any) -> int:
    return int(moment.timestamp())
