"""SCORE's values: what one trace's spans amount to. The computation stands in `domain.score`."""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec


class State(enum.IntEnum):
    """Result state of a trace. Only MEASURED enters a ratio; every state is counted. The name is the public label."""

    measured = 0
    empty_retrieval = 1
    no_retrieval = 2
    no_generation = 3
    no_output = 4
    nonconformant = 5
    no_citation_format = 6
    ids_missing = 7
    truncated = 8
    granularity_mismatch = 9
    retrieved_is_cited = 10
    bad_time = 11


STATE_NAMES: tuple[str, ...] = tuple(state.name for state in State)

CITATIONS_JUDGED: frozenset[int] = frozenset({State.measured, State.nonconformant, State.empty_retrieval})
"""States in which the whole retrieved set is known and the answer's citations are resolved against it.

Only there can a citation be called valid, hallucinated or unresolved, and only there is it counted. An empty retrieval is
known, too: whatever its answer cites was not retrieved. Elsewhere nobody can know: the set is unknown (`no_retrieval`,
`ids_missing`), perhaps incomplete (`truncated`, and `bad_time`, which hides it), or holds by construction what is cited
(`retrieved_is_cited`); the citations name something else (`granularity_mismatch`) or are none (`no_citation_format`); or
there is no answer (`no_generation`, `no_output`).
"""


class Group(NamedTuple):
    """The dimensions of a pane: a function of the trace and the settings alone. `unknown` where not recorded."""

    route: str
    top_k_bucket: str
    model: str
    retriever_version: str
    scorer: str


class TraceResult(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is known of one trace. Ratios are None where they cannot be measured, never 0."""

    trace_id: bytes
    state: int
    """A `State`; for an unmatched trace the verdict it would get if its pane closed now."""
    matched: bool
    """Both halves are there. An unmatched trace counts nothing until its pane closes."""
    event_ns: int
    """End of the last generation span, else of the last retrieval or rerank span."""
    group: Group
    top_k: int
    """0: not recorded and nothing retrieved."""
    retrieved: list[str]
    """De-duplicated, in rank order."""
    scores: list[float | None]
    """Aligned with `retrieved`; empty where the stage has no scores."""
    cited: list[str]
    """De-duplicated, in order of citation: retrieved and hallucinated ones."""
    cited_ranks: list[int]
    """1-based ranks in `retrieved` of the cited chunks, ascending."""
    hallucinated: list[str]
    """Cited, but not in the retrieved set. Empty in all states but `CITATIONS_JUDGED`, where nobody can know."""
    unresolved: int
    ids_dropped: int
    rank_weighted_recall: float | None
    top1_score: float | None
    nonconformant: bool
    synthetic_ids: bool
    retrieval_end_ns: int
    """0 without a retrieval."""
    dropped_cited: list[str] = []
    """Those of `hallucinated` that an earlier stage did return, before a reranker or the context dropped them."""
    low_confidence: bool | None = None
    """The top-1 score is below the route's threshold for its scorer; None without a score or a threshold."""

    @property
    def recall(self) -> float | None:
        """|cited ∩ retrieved| / |retrieved|, None unless the trace is measured."""
        if self.state != State.measured or not self.retrieved:
            return None
        return len(self.cited_ranks) / len(self.retrieved)
