"""Which shares of traces there are alerts on: of a slice or of a route, and what each is a share of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROUTE = ("job", "route")
SLICE = (*ROUTE, "top_k_bucket")
SHARE_OF = {
    "hallucinated": 'citegauge_window_citations{{window="{window}"}}',
    "nonconformant": 'citegauge_window_traces{{window="{window}",state!~"no_generation|no_output"}}',
}
"""What each share of a slice is a share of, as in the table of metrics."""
ROUTE_SHARES = {
    "zero_results": ('state="empty_retrieval"', 'state!="no_retrieval"'),
    "unmeasurable": (
        'state=~"no_output|ids_missing|truncated|granularity_mismatch|bad_time"',
        'state!~"no_retrieval|no_generation"',
    ),
    "unjoined": ('state=~"no_retrieval|no_generation"', ""),
}
"""Shares of a route: states of the part and of the whole. The bucket follows from what was retrieved unless top_k was
recorded, so what retrieved nothing, or no ids, stands in the bucket `unknown`, and what it is a share of stands in others:
within one bucket the share of empty retrievals would be 0 or 1 at all times. A generation alone never has a bucket.

`unmeasurable` is what has both halves and can yet not be told. The states beside these have alerts of their own, or the
settings or the source say them (`no_citation_format`, `retrieved_is_cited`).
"""


class Rise(NamedTuple):
    """An alert on a share that rose."""

    name: str
    """Of its recorded series, before `_value` and the like."""
    labels: Sequence[str]
    alert: str
    runbook: str
    what: str


RISES = (
    Rise(
        "slice:citegauge_hallucinated",
        SLICE,
        "CitegaugeHallucinatedCitations",
        "hallucinated-citations",
        "of citations name chunks that were not retrieved",
    ),
    Rise(
        "slice:citegauge_nonconformant",
        SLICE,
        "CitegaugeNonconformantAnswers",
        "nonconformant-answers",
        "of answers are not in the agreed form",
    ),
    Rise("route:citegauge_zero_results", ROUTE, "CitegaugeZeroResults", "zero-results", "of retrievals return nothing"),
    Rise(
        "route:citegauge_unmeasurable",
        ROUTE,
        "CitegaugeUnmeasurable",
        "unmeasurable",
        "of joined traces cannot be measured",
    ),
)
