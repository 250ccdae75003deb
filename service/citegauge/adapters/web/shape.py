"""How live windows become JSON for the page. Pure; computes no statistic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from citegauge.domain.score import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from citegauge.adapters.web.params import GroupParams
    from citegauge.domain.signals import Signal
    from citegauge.ports import WindowRow

MERGED = "*"
NS_PER_MS = 1_000_000
DROP_FIELDS = (
    "route",
    "top_k_bucket",
    "scorer",
    "what",
    "before",
    "after",
    "n",
    "since_s",
    "fall_lower",
    "fall_upper",
    "sentence",
)

Json = dict[str, Any]


def overview(rows: Sequence[WindowRow], signals: Sequence[Signal], now_ns: int, rows_max: int) -> Json:
    """All roll-ups, one entry per route x top_k bucket, scores per scorer beside them, and what changed.

    A route's traces that have no bucket stand with its largest one, as `apart`: their states by window.
    """
    rollups = [row for row in rows if row.model == MERGED and row.retriever_version == MERGED]
    groups = _changed(_groups(rollups[:rows_max]), signals)
    return {**_clock(rows, now_ns), "cut": len(rollups) > rows_max, "groups": _folded(groups)}


def detail(
    rows: Sequence[WindowRow], signals: Sequence[Signal], group: GroupParams, now_ns: int, rows_max: int
) -> Json:
    """One route x top_k bucket: its roll-up (None if it has no window) and the full groups it is made of."""
    route, top_k_bucket = group.route, group.top_k_bucket
    own = [row for row in rows if row.route == route and row.top_k_bucket == top_k_bucket]
    groups = _changed(_groups(row for row in own if row.model == MERGED and row.retriever_version == MERGED), signals)
    full = [row for row in own if MERGED not in (row.model, row.retriever_version, row.scorer)]
    return {
        **_clock(rows, now_ns),
        "cut": len(full) > rows_max,
        "group": groups[0] if groups else None,
        "parts": _parts(full[:rows_max]),
    }


def drops(found: Iterable[Mapping[str, Any]]) -> list[Json]:
    """What dropped, with the fields the page knows and no others; None where the rule cannot tell."""
    return [{name: drop.get(name) for name in DROP_FIELDS} for drop in found]


def bounds(rows: Sequence[WindowRow], route: str, top_k_bucket: str, window: str) -> tuple[int, int] | None:
    """[start, end) in unix seconds of a group's live window, so that history is asked for exactly that one."""
    for row in rows:
        if (row.route, row.top_k_bucket, row.window) == (route, top_k_bucket, window):
            return row.window_start, row.window_end
    return None


def as_of_ns(rows: Sequence[WindowRow]) -> int | None:
    """The newest as-of among the windows, unix ns."""
    return max((row.version for row in rows), default=None)


def _clock(rows: Sequence[WindowRow], now_ns: int) -> Json:
    newest_ns = as_of_ns(rows)
    return {"now_ms": now_ns // NS_PER_MS, "as_of_ms": None if newest_ns is None else newest_ns // NS_PER_MS}


def _groups(rollups: Iterable[WindowRow]) -> list[Json]:
    found: dict[tuple[str, str], Json] = {}
    for row in rollups:
        entry = found.setdefault(
            (row.route, row.top_k_bucket),
            {"route": row.route, "top_k_bucket": row.top_k_bucket, "windows": {}, "scores": {}, "changes": {}},
        )
        if row.scorer == MERGED:
            entry["windows"][row.window] = _window(row)
        elif row.score_n:
            entry["scores"].setdefault(row.scorer, {})[row.window] = _score(row)
    return [found[key] for key in sorted(found, key=lambda key: (key[0], _bucket_order(key[1])))]


def _folded(groups: Sequence[Json]) -> list[Json]:
    """Without the groups of traces that have no bucket, such as halves, unless a route has nothing else."""
    bare = {group["route"]: group for group in groups if _is_bare(group)}
    kept = [group for group in groups if bare.get(group["route"]) is not group]
    largest: dict[str, Json] = {}
    for group in kept:
        group["apart"] = {}
        if group["route"] not in largest or _n(group) > _n(largest[group["route"]]):
            largest[group["route"]] = group
    for route, group in bare.items():
        if route in largest:
            largest[route]["apart"] = {name: window["states"] for name, window in group["windows"].items()}
    return [{"apart": {}, **group} for group in groups if "apart" in group or group["route"] not in largest]


def _is_bare(group: Json) -> bool:
    return group["top_k_bucket"] == UNKNOWN and not _n(group) and not group["scores"]


def _n(group: Json) -> int:
    """Measured traces of the longest window that it has."""
    return max((int(window["n"]) for window in group["windows"].values()), default=0)


def _changed(groups: list[Json], signals: Iterable[Signal]) -> list[Json]:
    """Add what the last hour is to the day before it, like for like: `*` is recall, else a scorer."""
    by_key = {(group["route"], group["top_k_bucket"]): group for group in groups}
    for signal in signals:
        group, compared = by_key.get((signal.route, signal.top_k_bucket)), signal.compared
        if group is None or compared is None or compared.fall is None or compared.fall_interval is None:
            continue
        group["changes"][signal.scorer] = {
            "before": compared.before,
            "after": compared.after,
            "n_before": compared.n_before,
            "n": compared.n_after,
            "change": -compared.fall,
            "lower": -compared.fall_interval.upper,
            "upper": -compared.fall_interval.lower,
        }
    return groups


def _parts(full: Iterable[WindowRow]) -> list[Json]:
    found: dict[tuple[str, str, str], Json] = {}
    for row in full:
        key = (row.model, row.retriever_version, row.scorer)
        entry = found.setdefault(key, {"model": key[0], "retriever_version": key[1], "scorer": key[2], "windows": {}})
        entry["windows"][row.window] = {**_window(row), "score": _score(row)}
    return [found[key] for key in sorted(found)]


def _window(row: WindowRow) -> Json:
    return {
        "start_s": row.window_start,
        "end_s": row.window_end,
        "n": row.n,
        "p25": row.recall_p25,
        "p50": row.recall_p50,
        "p75": row.recall_p75,
        "mean": row.recall_mean,
        "mean_lower": row.recall_mean_lower,
        "mean_upper": row.recall_mean_upper,
        "p25_lower": row.recall_p25_lower,
        "p25_upper": row.recall_p25_upper,
        "p50_lower": row.recall_p50_lower,
        "p50_upper": row.recall_p50_upper,
        "rank_weighted_mean": row.rank_weighted_mean,
        "cited_any_ratio": row.cited_any_ratio,
        "states": {name: n for name, n in row.states.items() if n},
        "citations": row.citations,
        "hallucinated": row.hallucinated,
        "unresolved": row.unresolved,
        "nonconformant": row.nonconformant,
        "recounted": row.recounted,
        "dropped_citations": row.dropped_citations,
    }


def _score(row: WindowRow) -> Json:
    return {"n": row.score_n, "p25": row.score_p25, "p50": row.score_p50, "p75": row.score_p75}


def _bucket_order(bucket: str) -> tuple[int, str]:
    """By lower bound: `6-10` before `11-20`; labels without a number last."""
    digits = bucket.split("-", maxsplit=1)[0].rstrip("+")
    return (int(digits) if digits.isascii() and digits.isdecimal() else 2**31, bucket)
