"""Tables for the terminal: windows per route × top_k bucket, traces, and what dropped. Formatting only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from citegauge.domain.drop import Drop
from citegauge.domain.recall import CITATIONS_JUDGED, STATE_NAMES, State
from citegauge.domain.score import UNKNOWN
from citegauge.domain.summary import WindowStats, stats
from citegauge.domain.window import MERGED, WINDOWS, RollUp
from citegauge.tools.replay import Replay, rfc3339

TRACES_SHOWN_MAX = 1_000


def number(value: float | None, digits: int = 3) -> str:
    """A value, or a dash where nothing was measured."""
    return "–" if value is None else f"{value:.{digits}f}"


def window_table(items: Iterable[RollUp], drops: Sequence[Drop] = (), title: str | None = None) -> Table:
    """One row per (route, top_k bucket): recall for every window and the newest hour's top-1 score; ▼ where one dropped.

    Traces of a route that have no bucket, such as halves, are told with its first row. Fits into 80 columns as long as names
    are short.
    """
    recall: dict[tuple[str, str], dict[str, WindowStats]] = {}
    scores: dict[tuple[str, str], list[tuple[str, WindowStats]]] = {}
    apart: dict[str, Mapping[int, int]] = {}
    """By route: states over 24 h of traces that have no bucket, since their retrieval is missing or returned nothing."""
    for item in items:
        if item.group.model != MERGED:
            continue
        key = (item.group.route, item.group.top_k_bucket)
        if item.group.scorer == MERGED:
            recall.setdefault(key, {})[item.window.name] = stats(item.tally, with_scores=False)
            if key[1] == UNKNOWN and item.window is WINDOWS[-1]:
                apart[key[0]] = item.tally.states
        elif item.window.name == "1h":
            scores.setdefault(key, []).append((item.group.scorer, stats(item.tally, with_scores=True)))
    fallen = {(drop.route, drop.top_k_bucket) for drop in drops}
    table = Table(
        title=title,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption="recall: share of the retrieved chunks that the answer cites (a proxy); 95 %: where its mean lies",
    )
    for name in ("route", "top_k", "last"):
        table.add_column(name, no_wrap=True)
    for name in ("n", "p25", "p50", "mean", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("top-1 (1h)\np25/p50/p75", no_wrap=True)
    bare = {key[0] for key, found in recall.items() if key[1] == UNKNOWN and not any(one.n for one in found.values())}
    lines_of = {key[0]: key for key in sorted(recall, reverse=True) if key[1] != UNKNOWN or key[0] not in bare}
    for key in sorted(recall):
        if key[0] in bare and key[1] == UNKNOWN and key[0] in lines_of:
            continue  # told with the route's first line
        beside = apart.get(key[0], {}) if lines_of.get(key[0], key) == key and key[0] in bare else {}
        found = [recall[key].get(window.name) for window in WINDOWS]
        columns = (
            [window.name for window in WINDOWS],
            [str(one.n) if one else "0" for one in found],
            [number(one.recall_p25 if one else None, 2) for one in found],
            [number(one.recall_p50 if one else None, 2) for one in found],
            [number(one.recall_mean if one else None) for one in found],
            [_between(one.recall_mean_lower, one.recall_mean_upper) if one else "–" for one in found],
            [_score(scorer, one) for scorer, one in sorted(scores.get(key, []))] or ["–"],
        )
        table.add_row(
            "\n".join((f"▼ {key[0]}" if key in fallen else key[0], *_beside(beside))),
            key[1],
            *("\n".join(lines) for lines in columns),
            style="bold red" if key in fallen else None,
            end_section=True,
        )
    if bare:
        table.caption = (
            f"{table.caption}; +n: traces of 24 h without a top_k, such as a generation without its retrieval"
        )
    return table


def _beside(states: Mapping[int, int]) -> Iterator[str]:
    """What a route's line says of traces that have no bucket."""
    halves = states.get(State.no_retrieval, 0) + states.get(State.no_generation, 0)
    empty = states.get(State.empty_retrieval, 0)
    for what, n in (("halves", halves), ("empty", empty), ("other", sum(states.values()) - halves - empty)):
        if n:
            yield f"+{n} {what}"


def _between(lower: float | None, upper: float | None) -> str:
    return "–" if lower is None else f"{number(lower, 2)}…{number(upper, 2)}"


def _score(scorer: str, found: WindowStats) -> str:
    values = "/".join(number(value, 2) for value in (found.score_p25, found.score_p50, found.score_p75))
    return f"{values}\n{scorer}"


def trace_table(found: Replay) -> Table:
    """One row per trace, the newest last."""
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption="time: UTC; cited: of the retrieved chunks; hall: cited but never retrieved",
    )
    for name in ("trace", "time", "state", "route", "top_k"):
        table.add_column(name, no_wrap=name != "route", min_width=8 if name == "route" else None)
    for name in ("cited", "hall", "recall", "top-1"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = found.results[-TRACES_SHOWN_MAX:]
    for result in shown:
        table.add_row(
            result.trace_id.hex()[:8],
            rfc3339(result.event_ns)[11:19],
            STATE_NAMES[result.state],
            result.group.route,
            result.group.top_k_bucket,
            f"{len(result.cited_ranks)}/{len(result.retrieved)}",
            str(len(result.hallucinated)) if result.state in CITATIONS_JUDGED else "–",
            number(result.recall),
            number(result.top1_score),
            style=None if result.state == State.measured else "dim",
        )
    if len(shown) < len(found.results):
        table.caption = f"the newest {len(shown)} of {len(found.results)} traces; --json prints all"
    return table
