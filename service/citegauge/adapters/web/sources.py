"""What the web page is given: callables and bounds. No behaviour, no globals: the composition root decides."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from citegauge.domain.drop import Limits
    from citegauge.domain.signals import Signal
    from citegauge.ports import WindowRow

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Answer of a health check: `lines` say in words what is or is not in order."""

    ok: bool
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSources:
    """Where the page's numbers come from."""

    windows: Callable[[], Sequence[WindowRow]]
    """Snapshot of the live windows. Called on the event loop, so it must not block."""
    drops: Callable[[], Sequence[Mapping[str, Any]]]
    """What dropped: `route`, `top_k_bucket`, `scorer`, `what` (`recall` or `score`), `before`, `after`, `n`, `sentence` and,
    where they can be told, `since_s` (unix s), `fall_lower` and `fall_upper`; not blocking."""
    drop_limits: Limits
    """Those of `drops`, by which the alert history judges too."""
    query: Callable[[str, Mapping[str, Any]], Rows]
    """Blocking query with bound parameters, run in a thread (`ports.SqlReader.query`)."""
    database: str
    """The ClickHouse database that holds `panes` and the view `rolling`."""
    metrics: Callable[[], tuple[bytes, str]]
    """Exposition text and its content type. Run in a thread: rendering may take 100 ms."""
    healthy: Callable[[], Health]
    """Whether the process should live on; not blocking."""
    ready: Callable[[], Health]
    """Whether its numbers are to be believed now; not blocking."""
    signals: Callable[[], Sequence[Signal]] = tuple
    """What the detectors say of each roll-up; not blocking."""
    distance_routes: frozenset[str] = frozenset()
    """Routes whose scores are distances: there a rise is what is worse."""
    now_ns: Callable[[], int] = time.time_ns
    """Wall clock, unix ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Bounds of what one visitor can make the service do."""

    request_bytes_max: int = 4096
    """Size of a request body; no endpoint wants one."""
    rows_max: int = 5000
    """Live window rows in one answer; more are cut and the answer says so."""
    points_max: int = 1500
    """Points of one rolling line."""
    queries_max: int = 2
    """ClickHouse queries at the same moment."""
    answers_max: int = 64
    """Answers kept or waited for; with that many waited for, further ones are turned away (503)."""
    answer_age_s: float = 10.0
    """How long the answer to a query is shown again without asking ClickHouse."""
    query_wait_s: float = 20.0
    """How long a visitor waits for ClickHouse."""
