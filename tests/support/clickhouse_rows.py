"""Rows for ClickHouse tests: one maker per row type, every field settable, and panes counted from trace rows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec

from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.ports import LateRow, PaneRow, TraceRow, TraceTombstone, UserRow, WindowRow
from support.oracle import JUDGED

GROUP_FIELDS = ("route", "top_k_bucket", "model", "retriever_version", "scorer")
_GROUP: dict[str, Any] = {
    "route": "support",
    "top_k_bucket": "1-5",
    "model": "m1",
    "retriever_version": "r7",
    "scorer": "reranker:bge",
}
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def trace_row(pane: int, **changes: Any) -> TraceRow:
    """A measured trace: 3 retrieved, 1 cited."""
    fields: dict[str, Any] = _GROUP | {
        "pane": pane,
        "trace_id": TRACE_ID,
        "version": 1,
        "event_time_ns": pane * 1_000_000_000 + 123_456_789,
        "state": "measured",
        "top_k": 3,
        "retrieved": 3,
        "cited_retrieved": 1,
        "recall": 1 / 3,
        "rank_weighted_recall": 6 / 11,
        "top1_score": 0.875,
        "nonconformant": False,
        "unresolved": 0,
        "ids_dropped": 0,
        "synthetic_ids": False,
        "lag_ns": 41_000_000,
        "chunk_ids": ["c9", "c1", "c3"],
        "chunk_scores": [0.875, None, 0.5],
        "cited_ids": ["c9"],
        "cited_ranks": [1],
        "hallucinated_ids": [],
        "source": "spans/0",
    }
    return TraceRow(**fields | changes)


def tombstone(row: TraceRow, version: int) -> TraceTombstone:
    """What deletes `row`."""
    key = {name: getattr(row, name) for name in ("pane", *GROUP_FIELDS, "trace_id", "source")}
    return TraceTombstone(**key, version=version)


def pane_row(pane: int, **changes: Any) -> PaneRow:
    """A pane with two measured traces."""
    fields: dict[str, Any] = _GROUP | {
        "pane": pane,
        "source": "spans/0",
        "version": 1,
        "final": False,
        "forced": False,
        "states": {"measured": 2},
        "citations": 2,
        "hallucinated": 0,
        "unresolved": 0,
        "ids_dropped": 0,
        "nonconformant": 0,
        "recounted": 0,
        "recall_counts": {fraction_key(1, 3): 2},
        "rank_weighted_counts": {histogram_key(6 / 11): 2},
        "score_counts": {histogram_key(0.875): 2},
    }
    return PaneRow(**fields | changes)


def late_row(pane: int, **changes: Any) -> LateRow:
    """A late generation span."""
    fields: dict[str, Any] = {
        "topic": "spans",
        "partition": 0,
        "offset": 7,
        "index": 0,
        "trace_id": TRACE_ID,
        "span_id": "53995c3f42cd8ad8",
        "kind": "generation",
        "route": "support",
        "end_ns": pane * 1_000_000_000,
        "pane": pane,
        "watermark_ns": (pane + 600) * 1_000_000_000,
    }
    return LateRow(**fields | changes)


def user_row(user_hash: str, trace_id: str, seen: int) -> UserRow:
    """A trace of a user."""
    return UserRow(user_hash=user_hash, trace_id=trace_id, seen=seen)


def window_row(end: int, **changes: Any) -> WindowRow:
    """A roll-up of an hour."""
    fields: dict[str, Any] = {
        "window": "1h",
        "window_start": end - 3600,
        "window_end": end,
        "route": "support",
        "top_k_bucket": "1-5",
        "model": "*",
        "retriever_version": "*",
        "scorer": "*",
        "n": 2,
        "recall_p25": 1 / 3,
        "recall_p50": 1 / 3,
        "recall_p75": 1 / 3,
        "recall_mean": 1 / 3,
        "rank_weighted_mean": 6 / 11,
        "cited_any_ratio": 1.0,
        "score_n": 0,
        "score_p25": None,
        "score_p50": None,
        "score_p75": None,
        "states": {"measured": 2},
        "citations": 2,
        "hallucinated": 0,
        "unresolved": 0,
        "nonconformant": 0,
        "recounted": 0,
        "version": end * 1_000_000_000,
    }
    return WindowRow(**fields | changes)


def random_traces(rng: random.Random, start: int, minutes: int, n: int) -> list[TraceRow]:
    """`n` traces of several groups, states and sources in the panes [start, start + minutes)."""
    states = ["measured"] * 6 + ["no_generation", "empty_retrieval", "nonconformant"]
    rows = []
    for index in range(n):
        retrieved = rng.choice((1, 3, 5, 8, 50, 128, 65_535))
        cited = rng.randint(0, min(retrieved, 130))
        first = rng.randint(1, retrieved - cited + 1)
        state = rng.choice(states)
        measured = state == "measured"
        scorer = rng.choice(("bge", "bm25", "unknown"))
        hallucinated = rng.choice((0, 0, 0, 2))
        rows.append(
            trace_row(
                start + 60 * rng.randrange(minutes),
                route=rng.choice(("support", "sales", "legal")),
                top_k_bucket=rng.choice(("1-5", "6-10")),
                model=rng.choice(("m1", "m2")),
                retriever_version=rng.choice(("r7", "r8")),
                scorer=scorer,
                source=rng.choice(("spans/0", "spans/1")),
                trace_id=f"{rng.getrandbits(128):032x}",
                version=2 * index + 1,
                state=state,
                top_k=retrieved,
                retrieved=retrieved,
                cited_retrieved=cited,
                recall=cited / retrieved if measured else None,
                rank_weighted_recall=rng.choice((0.0, 1.0, rng.random())) if measured else None,
                top1_score=None if scorer == "unknown" else _score(rng),
                nonconformant=state == "nonconformant",
                unresolved=rng.choice((0, 0, 1)),
                ids_dropped=rng.choice((0, 3)),
                cited_ranks=list(range(first, first + cited)),
                hallucinated_ids=["h"] * hallucinated,
                low_confidence=rng.choice((True, False, False)) if scorer == "bge" else None,
            )
        )
    return rows


def _score(rng: random.Random) -> float:
    return rng.choice(
        (0.0, 1.0, -1.0, rng.random(), -rng.random() * 40, 10 ** rng.uniform(-45, 45), rng.uniform(0.6, 0.9))
    )


def panes_of(rows: list[TraceRow]) -> list[PaneRow]:
    """The panes of trace rows, counted in Python."""
    cells: dict[tuple[Any, ...], list[TraceRow]] = {}
    for row in rows:
        cells.setdefault(pane_key(row), []).append(row)
    return [_pane(key, members) for key, members in sorted(cells.items())]


def pane_key(row: Any) -> tuple[Any, ...]:
    """(pane, group…, source) of a row struct or of a row read back."""
    if isinstance(row, msgspec.Struct):
        return tuple(getattr(row, name) for name in ("pane", *GROUP_FIELDS, "source"))
    return (int(row["pane"].timestamp()), *(row[name] for name in (*GROUP_FIELDS, "source")))


def _pane(key: tuple[Any, ...], members: list[TraceRow]) -> PaneRow:
    pane, *group, source = key
    measured = [row for row in members if row.state == "measured"]
    judged = [row for row in members if row.state in JUDGED]
    return PaneRow(
        pane=pane,
        **dict(zip(GROUP_FIELDS, group, strict=True)),
        source=source,
        version=max(row.version for row in members),
        final=True,
        forced=False,
        states=dict(Counter(row.state for row in members)),
        citations=sum(len(row.cited_ranks) + len(row.hallucinated_ids) + row.unresolved for row in judged),
        hallucinated=sum(len(row.hallucinated_ids) for row in judged),
        dropped_citations=sum(len(row.dropped_cited_ids) for row in judged),
        unresolved=sum(row.unresolved for row in judged),
        ids_dropped=sum(row.ids_dropped for row in members),
        nonconformant=sum(row.nonconformant for row in members),
        recounted=0,
        cited_top1=sum(1 in row.cited_ranks for row in measured),
        cited_top3=sum(not {1, 2, 3}.isdisjoint(row.cited_ranks) for row in measured),
        low_confidence=sum(row.low_confidence is True for row in members),
        confidence_known=sum(row.low_confidence is not None for row in members),
        recall_counts=dict(Counter(fraction_key(row.cited_retrieved, row.retrieved) for row in measured)),
        rank_weighted_counts=dict(
            Counter(histogram_key(row.rank_weighted_recall) for row in measured if row.rank_weighted_recall is not None)
        ),
        score_counts=dict(Counter(histogram_key(row.top1_score) for row in members if row.top1_score is not None)),
    )
