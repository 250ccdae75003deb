"""Policies: what the settings mean to the core, as frozen data. No reading of files or environment here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
LABELS_REMEMBERED_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePolicy:
    """How the answers of one route are to be read."""

    position_base: int = 1
    """What the first retrieved chunk is called by a positional marker: `[1]` (1) or `[0]` (0)."""
    numbers_name_chunks: bool = True
    """False: numbers in an answer count something else than the retrieved list, such as the re-split sources of a
    citation engine; an answer that cites by number alone is then a `granularity_mismatch`."""
    cites: bool = True
    """False: answers of this route never cite, so their recall is not measurable (`no_citation_format`)."""
    answer_format: Literal["auto", "json", "text"] = "auto"
    """`json`: an answer that is not the JSON object with `citations` is nonconformant. `auto`: believe the span."""
    score_direction: Literal["higher", "lower"] = "higher"
    """`lower`: this route's scores are distances, and are meant to be; otherwise recorded distances are not scores."""
    low_confidence_below: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """By scorer, the top-1 score below which a retrieval is of low confidence; of distances, the one above which it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKBuckets:
    """Upper, inclusive bounds of the top_k buckets; the last bucket is open."""

    upper_bounds: tuple[int, ...] = (5, 10, 20, 50)

    def label(self, top_k: int) -> str:
        """`1-5`, `6-10`, …, `51+`; `unknown` for a top_k below 1."""
        return _label(self.upper_bounds, top_k)


@functools.lru_cache(maxsize=LABELS_REMEMBERED_MAX)
def _label(upper_bounds: tuple[int, ...], top_k: int) -> str:
    if top_k < 1:
        return "unknown"
    lower = 1
    for upper in upper_bounds:
        if top_k <= upper:
            return f"{lower}-{upper}"
        lower = upper + 1
    return f"{lower}+"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePolicy:
    """Everything beside the spans that a trace's result depends on."""

    buckets: TopKBuckets = field(default_factory=TopKBuckets)
    routes: Mapping[str, RoutePolicy] = field(default_factory=lambda: MappingProxyType({}))
    """Routes named in the settings. They survive `routes_frozen` and `only_listed_routes`."""
    default_route: RoutePolicy = field(default_factory=RoutePolicy)
    only_listed_routes: bool = False
    """True: a route that the settings do not list is counted under `other`."""
    nonconformant_as_zero: bool = False
    """True: a nonconformant answer enters the ratio with recall 0 (it keeps its flag)."""

    @property
    def distance_routes(self) -> frozenset[str]:
        """Routes whose scores are distances: there a rise is what is worse."""
        return frozenset(name for name, route in self.routes.items() if route.score_direction == "lower")

    def for_route(self, route: str) -> RoutePolicy:
        """The policy of a route, else the default one."""
        return self.routes.get(route, self.default_route)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPolicy:
    """Time and size bounds of the join. All times in ns; a pane is one minute of event time by default."""

    pane_ns: int = MINUTE_NS
    join_window_ns: int = 5 * MINUTE_NS
    """How long after its end a pane waits for the missing half of its traces. Must exceed the longest gap in a trace."""
    out_of_orderness_ns: int = 30 * SECOND_NS
    skew_ns: int = MINUTE_NS
    """How far ahead of its Kafka record's timestamp a span may end before it is `bad_time`."""
    trace_panes_max: int = 60
    """A trace's result uses only spans of the newest so many panes of that trace."""
    trace_spans_max: int = 400
    """A trace with more distinct spans than this, within its newest `trace_panes_max` panes, is `truncated`."""
    traces_max: int = 500_000
    """Traces in flight per worker partition; past it the oldest open pane is closed early and counted."""
    groups_max: int = 2_000
    """Open (group, pane) cells' distinct groups per partition; past it unlisted routes become `other`, and so
    do their models, retriever versions and scorers (without top-1 scores)."""
    source_idle_ns: int = MINUTE_NS
    """Re-keyed partitions: a source that is silent for so long, while the log goes on, no longer holds up the clock."""
