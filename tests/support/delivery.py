"""A seeded simulation of the delivery rules: workers, zombies, crashes and lost acknowledgements around the pipeline.

Everything outside the pipeline is a few dictionaries: the log, the committed offset with its metadata text, ClickHouse
(ReplacingMergeTree: highest version wins, at equal versions the last insert) and the panes topic. A `Schedule` picks random
steps, and at the end lets one owner finish. What then stands in the stores is compared with the oracle by `differences`.

Not here: time-outs, rebalancing protocols, real clients. Those are the fault tests' part.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.domain.recall import STATE_NAMES, Group
from citegauge.domain.window import WINDOWS, WindowStore
from citegauge.pipeline import Flush, PartitionPipeline, Record, Source, tally_of
from citegauge.ports import ClosedMarker, LateRow, PaneRow, TraceRow, TraceTombstone
from support.core_logs import Log
from support.oracle import NUMBER_NAMES, PARTITION, TOPIC, LateKey, Truth

Stored = PaneRow | TraceRow | TraceTombstone | LateRow
SOURCE = Source(TOPIC, PARTITION)


class FakeClickHouse:
    """Three ReplacingMergeTree tables, as `FINAL` would read them."""

    def __init__(self) -> None:
        self.panes: dict[tuple[int, Group], PaneRow] = {}
        self.traces: dict[tuple[int, Group, str], TraceRow | TraceTombstone] = {}
        self.late: dict[LateKey, LateRow] = {}

    def insert(self, row: Stored) -> None:
        """One row; rows of a lower version are replaced, at equal versions the last insert wins."""
        if isinstance(row, LateRow):
            self.late[row.topic, row.partition, row.offset, row.index] = row
        elif isinstance(row, PaneRow):
            key = (row.pane, group_of(row))
            known = self.panes.get(key)
            if known is None or known.version <= row.version:
                self.panes[key] = row
        else:
            trace_key = (row.pane, group_of(row), row.trace_id)
            there = self.traces.get(trace_key)
            if there is None or there.version <= row.version:
                self.traces[trace_key] = row

    def insert_all(self, rows: Iterable[Stored]) -> None:
        """Several rows."""
        for row in rows:
            self.insert(row)

    @property
    def live_traces(self) -> dict[tuple[int, Group, str], TraceRow]:
        """Rows that are not deleted."""
        return {key: row for key, row in self.traces.items() if isinstance(row, TraceRow)}


def group_of(row: PaneRow | TraceRow | TraceTombstone) -> Group:
    """The group of a row's key."""
    return Group(row.route, row.top_k_bucket, row.model, row.retriever_version, row.scorer)


@dataclass(slots=True)
class Roller:
    """A reader of the panes topic: the real `WindowStore`, with acknowledgement of the prefix whose panes are closed."""

    store: WindowStore
    position: int = 0
    acknowledged: int = 0
    unacked: deque[int] = field(default_factory=deque)
    """Pane of each message since `acknowledged`; -1: it holds nothing back."""

    def read(self, topic: list[PaneRow | ClosedMarker]) -> None:
        """All that is new in the topic."""
        for message in topic[self.position :]:
            if isinstance(message, ClosedMarker):
                self.store.close(message.source, message.through)
                self.unacked.append(-1)
            else:
                self.store.upsert(message.source, message.pane, group_of(message), message.version, tally_of(message))
                self.unacked.append(message.pane)
        self.position = len(topic)
        while self.unacked and self.store.is_closed(SOURCE.name, self.unacked[0]):
            self.unacked.popleft()
            self.acknowledged += 1

    def restarted(self, stores: FakeClickHouse, end_s: int) -> Roller:
        """A new owner: closed panes folded from ClickHouse, later ones in detail, the topic from the acknowledged prefix."""
        store = WindowStore(end_s)
        closed = max((pane for (pane, _), row in stores.panes.items() if row.final), default=-1)
        for (pane, group), row in stores.panes.items():
            if pane <= closed:
                for window in WINDOWS:
                    store.restore_cell(window, pane // window.cell_s * window.cell_s, group, tally_of(row))
        store.closed_through[SOURCE.name] = closed
        for (pane, group), row in stores.panes.items():
            if pane > closed:
                store.upsert(SOURCE.name, pane, group, row.version, tally_of(row))
        return Roller(store, position=self.acknowledged, acknowledged=self.acknowledged)


@dataclass(slots=True)
class Sending:
    """One flush on its way."""

    commit: Commit
    closed_through: int
    panes: list[Stored]
    """For the panes topic."""
    rows: list[Stored]
    """Trace, late and deletion rows for ClickHouse."""
    upserts: list[Stored]
    """Pane rows for ClickHouse, after the others: one insert, whole or not at all (see `Rules.panes_are_atomic`)."""
    dead: set[tuple[int, int]]
    marked: bool = False

    @property
    def acknowledged(self) -> bool:
        """Everything has arrived for sure."""
        return not (self.panes or self.rows or self.upserts or self.dead)


class Worker:
    """One process that owns the partition, or believes so."""

    def __init__(self, world: World) -> None:
        self.world = world
        start = world.start()
        self.pipeline = PartitionPipeline(SOURCE, world.log.decode, world.join, world.scoring, start)
        self.next = next(
            (i for i, record in enumerate(world.log.records) if record.offset >= start.offset), len(world.log.records)
        )
        self.sending: deque[Sending] = deque()
        self.alive = True

    @property
    def at_end(self) -> bool:
        """Nothing is left to read."""
        return self.next >= len(self.world.log.records)

    def read(self, n: int) -> None:
        """Read up to `n` records."""
        for record in self.world.log.records[self.next : self.next + n]:
            self.pipeline.feed(Record(record.offset, record.timestamp_ns, b"%d" % record.offset))
        self.next = min(self.next + n, len(self.world.log.records))
        if self.at_end:
            self.pipeline.skip_to(self.world.end)

    def flush(self, idle_wall_ns: int | None) -> None:
        """Take what changed, unless it is being read again in silence."""
        if self.pipeline.replaying:
            return
        flush: Flush = self.pipeline.take_flush(idle_wall_ns=idle_wall_ns)
        self.world.check_flush(flush)
        rows: list[Stored] = [*flush.tombstones, *flush.traces, *flush.late]
        dead = {(letter.offset, letter.index) for letter in flush.dead}
        self.sending.append(
            Sending(flush.commit, flush.closed_through, list(flush.panes), rows, list(flush.panes), dead)
        )

    def send(self, rng: random.Random) -> None:
        """One step of an unfinished flush: some rows, the markers, or the commit."""
        unsent = [one for one in self.sending if not one.acknowledged]
        if unsent and rng.random() < 0.8:
            self._send_some(rng, rng.choice(unsent))
            return
        head = self.sending[0] if self.sending else None
        if head is None or not self.world.may_mark(head):
            return
        if not head.marked:
            self.world.topic.append(ClosedMarker(SOURCE.name, head.closed_through))
            head.marked = True
        else:
            self.world.commit(self, head.commit)
            self.sending.popleft()

    def _send_some(self, rng: random.Random, one: Sending) -> None:
        insert = self.world.clickhouse.insert
        # The writer in front of ClickHouse keeps the order of flushes; the topic and the dead letters need none.
        unwritten = next((first for first in self.sending if first.rows or first.upserts), None)
        ways = [name for name in ("panes", "dead") if getattr(one, name)] + ["insert"] * (unwritten is not None)
        what = rng.choice(ways)
        if what == "dead":
            self.world.dead |= one.dead
            one.dead = set()
        elif what == "panes":
            one.panes = self._write(rng, one.panes, self.world.publish)
        elif unwritten is not None and unwritten.rows:
            unwritten.rows = self._write(rng, unwritten.rows, insert)
        elif unwritten is not None:
            whole = self.world.rules.panes_are_atomic
            unwritten.upserts = self._write(rng, unwritten.upserts, insert, whole=whole)

    def _write(
        self, rng: random.Random, rows: list[Stored], write: Callable[[Stored], None], *, whole: bool = False
    ) -> list[Stored]:
        """Write some of `rows`; returns what is not confirmed. Some of it may have been applied, or will be much later."""
        size = len(rows) if whole else rng.choice([1, 3, 10, len(rows)])
        batch, rest = rows[:size], rows[size:]
        outcome = rng.random()
        if outcome < 0.1:  # never arrived
            return rows
        if outcome < 0.2:  # arrives whenever it likes, and will be sent again
            self.world.limbo.append((batch, write))
            return rows
        for row in batch:
            write(row)
        return rows if outcome < 0.3 else rest  # applied, but perhaps not confirmed


@dataclass(slots=True, kw_only=True)
class Rules:
    """What surrounds the pipeline, so that a test can break it."""

    acknowledge_first: bool = True
    """Markers and commit wait for every acknowledgement of their flush."""
    panes_are_atomic: bool = True
    """A flush's pane rows reach ClickHouse in one insert. A new reader's fold of `final` panes relies on it."""
    zombies_commit: bool = False


class World:
    """Everything that outlives a worker."""

    def __init__(self, log: Log, join: JoinPolicy, scoring: ScorePolicy, rules: Rules | None = None) -> None:
        self.log = log
        self.join = join
        self.scoring = scoring
        self.rules = rules or Rules()
        self.clickhouse = FakeClickHouse()
        self.topic: list[PaneRow | ClosedMarker] = []
        self.dead: set[tuple[int, int]] = set()
        self.committed: tuple[int, str] | None = None
        self.owner: Worker | None = None
        self.limbo: list[tuple[list[Stored], Callable[[Stored], None]]] = []
        self.end = log.records[-1].offset + 1

    def start(self) -> Commit:
        """Where a new owner begins, from the committed offset and its metadata."""
        if self.committed is None:
            first = self.log.records[0].offset
            return Commit(first, first, Clock())
        return Commit.from_metadata(*self.committed)

    def publish(self, row: Stored) -> None:
        """Append to the panes topic."""
        assert isinstance(row, PaneRow)
        self.topic.append(row)

    def commit(self, worker: Worker, commit: Commit) -> None:
        """The group coordinator takes commits of the owner only."""
        if worker is self.owner or self.rules.zombies_commit:
            self.committed = (commit.offset, commit.to_metadata())

    def may_mark(self, head: Sending) -> bool:
        """Markers and commit wait for every acknowledgement of their flush."""
        return head.acknowledged or not self.rules.acknowledge_first

    def check_flush(self, flush: Flush) -> None:
        """At most one row per trace key and flush."""
        rows: list[TraceRow | TraceTombstone] = [*flush.traces, *flush.tombstones]
        keys = [(row.pane, group_of(row), row.trace_id) for row in rows]
        assert len(keys) == len(set(keys)), "two rows of one key in one flush"


class Schedule:
    """Random steps over one world, then a calm end."""

    def __init__(self, seed: int, world: World) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.workers: list[Worker] = []
        self.rollers: list[Roller] = [Roller(WindowStore(end_s(world)))]

    def run(self, steps: int) -> None:
        """`steps` random steps, then one owner reads to the end and everything is sent."""
        rng, world = self.rng, self.world
        for _ in range(steps):
            self._step()
        if world.owner is None or not world.owner.alive or rng.random() < 0.3:
            self._take_over()
        owner = world.owner
        assert owner is not None
        while True:
            owner.read(rng.randint(1, 50))
            if rng.random() < 0.2:
                self._zombie_step()
            owner.flush(self._idle_wall(owner))
            while owner.sending:
                owner.send(rng)
            if owner.at_end:
                break
        for _ in range(rng.choice([0, 50, 200])):
            self._zombie_step()
        while world.limbo:
            self._apply_limbo()
        for roller in self.rollers:
            roller.read(world.topic)

    def _step(self) -> None:
        rng, world = self.rng, self.world
        owner = world.owner
        if owner is None or not owner.alive:
            self._take_over()
            return
        dice = rng.random()
        if dice < 0.3:
            owner.read(rng.randint(1, 12))
        elif dice < 0.48:
            owner.flush(self._idle_wall(owner))
        elif dice < 0.84:
            owner.send(rng)
        elif dice < 0.92:
            self._zombie_step()
        elif dice < 0.95:
            owner.alive = False  # crash: memory and unsent rows are gone
        elif dice < 0.97:
            self._take_over()  # the old owner does not know yet
        elif dice < 0.985:
            self._apply_limbo()
        elif dice < 0.992 and len(self.rollers) < 4:
            self.rollers.append(rng.choice(self.rollers).restarted(world.clickhouse, end_s(world)))
        else:
            rng.choice(self.rollers).read(world.topic)

    def _take_over(self) -> None:
        self.world.owner = Worker(self.world)
        self.workers = [worker for worker in self.workers if worker.alive][-3:]
        self.workers.append(self.world.owner)

    def _zombie_step(self) -> None:
        zombies = [worker for worker in self.workers if worker.alive and worker is not self.world.owner]
        if not zombies:
            return
        zombie, dice = self.rng.choice(zombies), self.rng.random()
        if dice < 0.35:
            zombie.read(self.rng.randint(1, 20))
        elif dice < 0.55:
            zombie.flush(self._idle_wall(zombie))
        elif dice < 0.97:
            zombie.send(self.rng)
        else:
            zombie.alive = False

    def _idle_wall(self, worker: Worker) -> int | None:
        """Sometimes an idle flush, at any wall clock: versions must make even a wrong one harmless."""
        if self.rng.random() < 0.6:
            return None
        return worker.pipeline.join.clock.max_event_ns + self.rng.choice([0, 200, 10_000]) * SECOND_NS

    def _apply_limbo(self) -> None:
        limbo = self.world.limbo
        if limbo:
            rows, write = limbo.pop(self.rng.randrange(len(limbo)))
            for row in rows:
                write(row)


def end_s(world: World) -> int:
    """A window end after every pane of the log."""
    return world.log.records[-1].timestamp_ns // SECOND_NS // 60 * 60 + 3_600


ROW_FIELDS = {
    "event_time_ns": "event_ns",
    "top_k": "top_k",
    "recall": "recall",
    "rank_weighted_recall": "rank_weighted_recall",
    "top1_score": "top1_score",
    "nonconformant": "nonconformant",
    "unresolved": "unresolved",
    "ids_dropped": "ids_dropped",
    "synthetic_ids": "synthetic_ids",
    "chunk_ids": "retrieved",
    "chunk_scores": "scores",
    "cited_ids": "cited",
    "cited_ranks": "cited_ranks",
    "hallucinated_ids": "hallucinated",
    "dropped_cited_ids": "dropped_cited",
    "low_confidence": "low_confidence",
}


def differences(world: World, truth: Truth, rollers: list[Roller], *, versions: bool = True) -> list[str]:
    """Everything in which the stores differ from the oracle; empty: nothing was lost, nothing counted twice.

    `versions=False` does not look at the version of a final pane, but only at its numbers.
    """
    found: list[str] = []
    pane_s = world.join.pane_ns // SECOND_NS
    names = [*NUMBER_NAMES, "forced", "final"] + ["version"] * versions
    panes = {key: {name: getattr(row, name) for name in names} for key, row in world.clickhouse.panes.items()}
    closed = {
        (pane * pane_s, group): {name: {**row, "final": True}[name] for name in names}
        for (pane, group), row in truth.panes.items()
    }
    _compare(found, "pane", closed, panes)
    rows = {
        key: {name: getattr(row, name) for name in ("state", *ROW_FIELDS)}
        for key, row in world.clickhouse.live_traces.items()
    }
    expected = {
        (pane * pane_s, group, trace_id.hex()): {
            "state": STATE_NAMES[result.state],
            **{ours: getattr(result, theirs) for ours, theirs in ROW_FIELDS.items()},
        }
        for (pane, group, trace_id), result in truth.rows.items()
    }
    _compare(found, "trace row", expected, rows)
    late = {key: (row.trace_id, row.span_id, row.pane, row.watermark_ns) for key, row in world.clickhouse.late.items()}
    for key in truth.late.keys() | late.keys():
        told = [(trace, span, pane * pane_s, mark) for trace, span, pane, mark in truth.late.get(key, [])]
        if late.get(key) not in told:
            found.append(f"late row {key} expected one of {told}, found {late.get(key)}")
    _compare(found, "dead letter", dict.fromkeys(truth.dead, 1), dict.fromkeys(world.dead, 1))
    sums: dict[Group, Tally] = {}
    for (_, group), numbers in truth.panes.items():
        row = {**numbers}
        tally = Tally()
        tally.set_state_counts(row.pop("states"))  # type: ignore[arg-type]
        for name in NUMBER_NAMES[1:]:
            setattr(tally, name, row[name])
        sums.setdefault(group, Tally()).merge(tally)
    windows = {group: tally for group, tally in sums.items() if tally.states}
    for number, roller in enumerate(rollers):
        day = {item.group: item.tally for item in roller.store.group_windows() if item.window.name == "24h"}
        _compare(found, f"24 h window of reader {number}", windows, day)
        if roller.store.open_panes:
            found.append(f"reader {number} still has {roller.store.open_panes} open panes")
    return found


def _compare(found: list[str], what: str, expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> None:
    for key in expected.keys() | actual.keys():
        want, have = expected.get(key), actual.get(key)
        if want != have:
            detail = ""
            if isinstance(want, dict) and isinstance(have, dict):
                names = [name for name in want if want[name] != have.get(name)]
                detail = f" in {names}: "
                want = [want[name] for name in names]
                have = [have.get(name) for name in names]
            found.append(f"{what} {key}{detail} expected {want}, found {have}")


__all__ = ["FakeClickHouse", "Roller", "Rules", "Schedule", "Worker", "World", "differences", "end_s", "msgspec"]
