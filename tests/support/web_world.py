"""A day of panes for the page to show: same seed, same world. One route loses half of its recall in the last hour.

Panes go to ClickHouse and, through the window arithmetic of the core, become the live rows, so both tell one story.
"""

from __future__ import annotations

import math
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aiohttp.test_utils import TestServer
from msgspec.structs import replace as change

from citegauge.adapters.rolling.view import window_row
from citegauge.adapters.web import Health, WebSources, build_web_app
from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.domain.drop import LIMITS, Limits
from citegauge.domain.pane import COUNTERS, Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.signals import UNKNOWN, Past, Signal, signals_of
from citegauge.domain.window import WindowStore, roll_up, window_end_s
from citegauge.ports import PaneRow, TraceRow, WindowRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from citegauge.domain.window import RollUp

DATABASE = "citegauge_web_page"
PANE_EVERY_S = 300
SOURCE = "rag.traces/0"
FALLEN = ("support", "1-5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one group does all day."""

    group: Group
    per_pane: int
    retrieved: int
    recall: float
    score: float
    recall_last_hour: float | None = None
    hours: tuple[int, int] = (25, 0)
    """When it is there: from so many hours before the end to so many."""


NEW_VERSION_HOURS = 9
"""So long before the end the fallen group got its retriever version r8."""
TRAFFIC = (
    Traffic(
        group=Group(*FALLEN, "m-large-2", "r8", "reranker:bge-v2"),
        per_pane=14,
        retrieved=5,
        recall=0.52,
        score=0.82,
        recall_last_hour=0.24,
        hours=(NEW_VERSION_HOURS, 0),
    ),
    Traffic(
        group=Group(*FALLEN, "m-large-2", "r7", "reranker:bge-v2"),
        per_pane=14,
        retrieved=5,
        recall=0.52,
        score=0.82,
        hours=(25, NEW_VERSION_HOURS),
    ),
    Traffic(group=Group(*FALLEN, "m-small-1", "r7", "retriever:e5"), per_pane=5, retrieved=3, recall=0.45, score=0.61),
    Traffic(
        group=Group("support", "6-10", "m-large-2", "r7", "reranker:bge-v2"),
        per_pane=9,
        retrieved=8,
        recall=0.31,
        score=0.78,
    ),
    Traffic(
        group=Group("docs-search", "6-10", "m-large-2", "r8", "reranker:bge-v2"),
        per_pane=22,
        retrieved=10,
        recall=0.37,
        score=0.7,
    ),
    Traffic(
        group=Group("docs-search", "11-20", "m-large-2", "r8", "reranker:bge-v2"),
        per_pane=6,
        retrieved=20,
        recall=0.22,
        score=0.66,
    ),
    Traffic(
        group=Group("contracts", "21-50", "m-large-2", "r7", "unknown"),
        per_pane=2,
        retrieved=40,
        recall=0.08,
        score=0.9,
    ),
    Traffic(
        group=Group("billing/refunds-and-chargebacks-eu", "1-5", "m-small-1", "r7", "retriever:e5"),
        per_pane=1,
        retrieved=4,
        recall=0.6,
        score=0.58,
    ),
)


@dataclass(slots=True, kw_only=True)
class World:
    """What the page is given; tests change it while the page looks."""

    as_of_ns: int
    now_ns: int
    panes: list[PaneRow]
    traces: list[TraceRow]
    windows: list[WindowRow]
    drops: list[Mapping[str, Any]]
    signals: list[Signal]
    query: Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]
    ready: Health = field(default_factory=lambda: Health(ok=True, lines=("caught up",)))
    healthy: Health = field(default_factory=lambda: Health(ok=True, lines=("alive",)))
    metrics: Callable[[], tuple[bytes, str]] = lambda: (
        b"# HELP citegauge_up Up.\n",
        "text/plain; version=0.0.4; charset=utf-8",
    )
    drop_limits: Limits = LIMITS
    queries: int = 0

    def copy(self) -> World:
        """A world to change without changing this one."""
        return replace(self, queries=0)

    def sources(self, database: str = "citegauge_web") -> WebSources:
        """Sources that read this world as it then is."""
        return WebSources(
            windows=lambda: self.windows,
            drops=lambda: self.drops,
            drop_limits=self.drop_limits,
            signals=lambda: self.signals,
            query=self._counted_query,
            database=database,
            metrics=lambda: self.metrics(),  # noqa: PLW0108  # as it is then, not as it is now
            healthy=lambda: self.healthy,
            ready=lambda: self.ready,
            now_ns=lambda: self.now_ns,
        )

    def _counted_query(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.queries += 1
        return self.query(sql, parameters)


@asynccontextmanager
async def served(world: World) -> AsyncIterator[str]:
    """The page on a port of loopback."""
    async with TestServer(build_web_app(world.sources(DATABASE)), host="127.0.0.1") as server:
        yield str(server.make_url("/"))


def no_clickhouse(_sql: str, _parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A query function for worlds whose history nobody asks for."""
    raise AssertionError("this test asks nothing of ClickHouse")


def make_world(as_of_ns: int, seed: int = 7) -> World:
    """The world at `as_of_ns`, ClickHouse left out."""
    rng = random.Random(seed)
    end_s = window_end_s(as_of_ns)
    store = WindowStore(end_s)
    panes: list[PaneRow] = []
    first_s = (end_s - 25 * 3600) // PANE_EVERY_S * PANE_EVERY_S
    for version, pane_s in enumerate(range(first_s, end_s, PANE_EVERY_S), start=1):
        for traffic in TRAFFIC:
            first, last = traffic.hours
            if not last * 3600 < end_s - pane_s <= first * 3600:
                continue
            tally = _tally(rng, traffic, pane_s, end_s)
            store.upsert(SOURCE, pane_s, traffic.group, version, tally)
            panes.append(_pane_row(pane_s, traffic.group, version, tally))
    groups = list(store.group_windows())
    rows = [window_row(item, as_of_ns) for item in (*roll_up(groups), *groups)]
    before, after = (_fallen(rows, window) for window in ("24h", "1h"))
    count = after.n
    return World(
        as_of_ns=as_of_ns,
        now_ns=as_of_ns + 4_000_000_000,
        panes=panes,
        traces=[_trace_row(rng, end_s, number) for number in range(60)] + odd_traces(rng, end_s),
        windows=rows,
        drops=[
            {
                "route": FALLEN[0],
                "top_k_bucket": FALLEN[1],
                "what": "recall",
                "before": before.recall_p50,
                "after": after.recall_p50,
                "n": count,
                "sentence": (
                    f"support, top_k 1-5: median recall fell from {before.recall_p50:.2f} (24 h) to "
                    f"{after.recall_p50:.2f} (last hour, n = {count})."
                ),
            }
        ],
        signals=_signals(groups, end_s),
        query=no_clickhouse,
    )


def _signals(windows: list[RollUp], end_s: int) -> list[Signal]:
    """What the detectors say without knowing what is usual: the comparison of the last hour, like for like."""
    found: list[Signal] = []
    days = [item for item in windows if item.window.name == "24h"]
    for key in sorted({item.group[:2] for item in days}):
        pasts = []
        for day in (item for item in days if item.group[:2] == key):
            hours = [item.tally for item in windows if item.window.name == "1h" and item.group == day.group]
            hour = hours[0] if hours else Tally()
            past = Past(group=day.group, hour=hour, day=day.tally, recent=(), usual_day=UNKNOWN, usual_week=UNKNOWN)
            pasts.append(past)
        found += signals_of(pasts, end_s)
    return found


def _tally(rng: random.Random, traffic: Traffic, pane_s: int, end_s: int) -> Tally:
    tally = Tally()
    day = 1.0 + 0.5 * math.sin(pane_s / 86_400 * 2 * math.pi)
    recall = traffic.recall
    if traffic.recall_last_hour is not None and pane_s >= end_s - 3600:
        recall = traffic.recall_last_hour
    for _ in range(max(0, round(rng.gauss(traffic.per_pane * day, 1)))):
        tally.score_counts = _bumped(
            tally.score_counts, histogram_key(min(1.0, max(0.01, rng.gauss(traffic.score, 0.09))))
        )
        state = rng.choices([State.measured, State.no_output, State.nonconformant, State.no_generation], [93, 3, 3, 1])[
            0
        ]
        tally.states = _bumped(tally.states, int(state))
        tally.nonconformant += state == State.nonconformant
        if state != State.measured:
            continue
        own = min(1.0, max(0.0, rng.gauss(recall, 0.15)))
        cited = sum(rng.random() < own for _ in range(traffic.retrieved))
        tally.recall_counts = _bumped(tally.recall_counts, fraction_key(cited, traffic.retrieved))
        tally.rank_weighted_counts = _bumped(
            tally.rank_weighted_counts, histogram_key(min(1.0, 1.1 * cited / traffic.retrieved))
        )
        tally.citations += cited
        if rng.random() < 0.05:
            tally.citations += 1
            tally.hallucinated += 1
    return tally


def _bumped(counts: dict[int, int], key: int) -> dict[int, int]:
    counts[key] = counts.get(key, 0) + 1
    return counts


def _pane_row(pane_s: int, group: Group, version: int, tally: Tally) -> PaneRow:
    return PaneRow(
        pane=pane_s,
        **group._asdict(),
        source=SOURCE,
        version=version,
        final=True,
        forced=False,
        states=tally.state_counts(),
        **{name: getattr(tally, name) for name in COUNTERS},
        recall_counts=tally.recall_counts,
        rank_weighted_counts=tally.rank_weighted_counts,
        score_counts=tally.score_counts,
    )


def _trace_row(rng: random.Random, end_s: int, number: int) -> TraceRow:
    """One of the fallen group's traces of the last hour; the later ones cite less."""
    ids = [f"kb-{rng.randrange(16**6):06x}" for _ in range(5)]
    cited = sorted(rng.sample(range(1, 6), k=max(0, 3 - number // 15)))
    event_ns = (end_s - 3500 + number * 55) * 1_000_000_000
    return TraceRow(
        pane=event_ns // 60_000_000_000 * 60,
        **TRAFFIC[0].group._asdict(),
        trace_id=f"{rng.randrange(16**32):032x}",
        version=number + 1,
        event_time_ns=event_ns,
        state="measured",
        top_k=5,
        retrieved=5,
        cited_retrieved=len(cited),
        recall=len(cited) / 5,
        rank_weighted_recall=len(cited) / 5,
        top1_score=0.8,
        nonconformant=False,
        unresolved=0,
        ids_dropped=0,
        synthetic_ids=False,
        lag_ns=40_000_000,
        chunk_ids=ids,
        chunk_scores=[0.8 - 0.07 * rank for rank in range(5)],
        cited_ids=[ids[rank - 1] for rank in cited],
        cited_ranks=cited,
        hallucinated_ids=["kb-invented"] if number % 20 == 0 else [],
        source=SOURCE,
    )


def odd_traces(rng: random.Random, end_s: int) -> list[TraceRow]:
    """One unmeasured trace of each of four states, and a measured one whose citations go astray."""
    whole = _trace_row(rng, end_s, 7)
    unmeasured: dict[str, Any] = {
        "recall": None,
        "rank_weighted_recall": None,
        "cited_ids": [],
        "cited_ranks": [],
        "cited_retrieved": 0,
    }
    empty: dict[str, Any] = {"retrieved": 0, "chunk_ids": [], "chunk_scores": [], "top1_score": None}
    return [
        change(whole, trace_id=f"{0xA1:032x}", state="no_generation", lag_ns=0, **unmeasured),
        change(whole, trace_id=f"{0xA2:032x}", state="nonconformant", nonconformant=True, **unmeasured),
        change(whole, trace_id=f"{0xA3:032x}", state="empty_retrieval", **unmeasured, **empty),
        change(
            whole,
            trace_id=f"{0xA4:032x}",
            hallucinated_ids=["kb-invented", "kb-reranked-away"],
            dropped_cited_ids=["kb-reranked-away"],
            unresolved=2,
            ids_dropped=1,
        ),
        change(
            whole,
            trace_id=f"{0xA5:032x}",
            state="truncated",
            **(
                unmeasured | {"cited_ids": [whole.chunk_ids[1], "kb-cut-off"], "cited_ranks": [2], "cited_retrieved": 1}
            ),
            unresolved=1,
            top1_score=None,
            hallucinated_ids=[],
        ),
    ]


def worst_traces(world: World) -> list[TraceRow]:
    """The fallen group's measured traces as the page orders them: lowest recall first, newest first among equals."""
    measured = [row for row in world.traces if row.state == "measured"]
    return sorted(measured, key=lambda row: (row.recall, -row.event_time_ns))


def _fallen(rows: list[WindowRow], window: str) -> WindowRow:
    key = (window, *FALLEN, "*", "*")
    return next(row for row in rows if (row.window, row.route, row.top_k_bucket, row.model, row.scorer) == key)
