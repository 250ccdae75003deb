"""JUDGE: kept spans → a trace's result, and what is remembered of long traces so that each further span stays cheap.

A trace's result is asked for with every span that comes. A short trace is unpacked and scored afresh, which is cheaper than
remembering it: millions live. Of long ones the last result and the unpacked spans are remembered, for a bounded number of
spans in all. That changes no result, only what it costs.
"""

from __future__ import annotations

import msgspec

from citegauge.domain.kept import unpack
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State, TraceResult
from citegauge.domain.score import Placed, measure, place
from citegauge.domain.span import Span

LONG_FROM = 8
"""Spans from which on a trace is remembered."""
SPANS_REMEMBERED_MAX = 20_000
"""Unpacked spans of all long traces together, about 1 KB each; past it the trace that was asked for longest ago goes."""


class _Long(msgspec.Struct, gc=False):
    spans: tuple[bytes, ...]
    unpacked: dict[bytes, Span]
    frozen: bool
    result: TraceResult | None = None
    """Of `spans` under `frozen`."""


class Judge:
    """The scores of one partition's traces."""

    def __init__(self, scoring: ScorePolicy) -> None:
        self._scoring = scoring
        self._long: dict[bytes, _Long] = {}
        """In the order of use, the longest ago first."""
        self._remembered = 0
        self._measured: tuple[Placed, TraceResult] | None = None
        """The last one, which is asked for twice."""

    def place(
        self,
        trace_id: bytes,
        spans: tuple[bytes, ...],
        frozen: bool,
        newest: bytes | None = None,
        newest_span: Span | None = None,
    ) -> Placed | None:
        """`newest_span`: what `newest`, one of `spans`, was packed from a moment ago, so that it need not be unpacked."""
        unpacked: list[Span]
        if len(spans) < LONG_FROM:
            unpacked = [
                unpack(kept, trace_id) if kept is not newest or newest_span is None else newest_span for kept in spans
            ]
        else:
            known = self._forget(trace_id)
            by_kept = {} if known is None else known.unpacked
            unpacked = [by_kept.get(kept) or unpack(kept, trace_id) for kept in spans]
            self._remember(trace_id, _Long(spans, dict(zip(spans, unpacked, strict=True)), frozen))
        return place(unpacked, self._scoring, routes_frozen=frozen)

    def measure(self, placed: Placed, spans: tuple[bytes, ...], *, oversize: bool) -> TraceResult:
        """The result of what was just placed from `spans`. An oversize trace is `truncated` whatever it holds."""
        if self._measured is not None and self._measured[0] is placed:
            return self._measured[1]
        result = measure(placed, self._scoring)
        if oversize:
            result = msgspec.structs.replace(
                result, state=State.truncated, rank_weighted_recall=None, top1_score=None, low_confidence=None,
                hallucinated=[], dropped_cited=[],
            )  # fmt: skip
        self._measured = placed, result
        known = self._long.get(placed.trace_id)
        if known is not None and known.spans is spans:
            known.result = result
        return result

    def score(self, trace_id: bytes, spans: tuple[bytes, ...], frozen: bool, *, oversize: bool) -> TraceResult:
        """Both at once, for a trace that has a retrieval or a generation."""
        known = self._long.get(trace_id)
        if known is not None and known.result is not None and known.spans is spans and known.frozen == frozen:
            return known.result
        placed = self.place(trace_id, spans, frozen)
        assert placed is not None, "a placed trace has a retrieval or a generation"
        return self.measure(placed, spans, oversize=oversize)

    def _remember(self, trace_id: bytes, known: _Long) -> None:
        self._long[trace_id] = known
        self._remembered += len(known.unpacked)
        while self._remembered > SPANS_REMEMBERED_MAX:
            self._forget(next(iter(self._long)))

    def _forget(self, trace_id: bytes) -> _Long | None:
        known = self._long.pop(trace_id, None)
        if known is not None:
            self._remembered -= len(known.unpacked)
        return known
