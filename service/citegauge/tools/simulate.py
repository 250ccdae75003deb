"""The traffic generator: whole RAG traces from a specification and its seed. Not their bytes, nor where these go.

Bytes are made in `simulate_encode`, files and topics are written in `simulate_output`.

Three kinds of random source, so that one choice does not disturb another: the shape of the traffic (times, ids,
routes), the quality of each route's answers, and the transport. A scenario on one route leaves the other routes' traces
as they were, and faults of the transport leave every span's content as it was.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from citegauge.tools.simulate_spec import HOUR_NS, MINUTE_NS, SECOND_NS, AnswerForm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from citegauge.tools.simulate_spec import RouteSpec, ScenarioSpec, TrafficSpec

MILLISECOND_NS = SECOND_NS // 1_000
DAY_NS = 24 * HOUR_NS
PEAK_NS = 14 * HOUR_NS
"""Time of day of the daily peak."""

RETRIEVAL_MS: Final = (20, 120)
GAP_MS: Final = (2, 20)
"""Between the end of the retrieval and the start of the generation."""
GENERATION_MS: Final = (400, 4_000)
TRACE_NS_MAX = (RETRIEVAL_MS[1] + GAP_MS[1] + GENERATION_MS[1]) * MILLISECOND_NS

CORPUS_CHUNKS = 5_000
"""Distinct chunks of a route."""
CORPUS_STEP = 10_000
"""First chunk number of the second route, and so on: routes share no chunk."""
UNKNOWN_CHUNK_FIRST = 9_000_000
"""Hallucinated chunk numbers start here, above every corpus."""

CITED_CONCENTRATION = 7 / 3
"""a + b of the beta law: a correlation of 0.3 between a trace's chunks, so recall has a spread of 0.25 to 0.35."""
SCORE_SPREAD = 0.07
SCORE_UNITS = 10_000
"""Scores have four decimals."""


class TrafficSpan(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One span to be produced: what the encoders need, and when. A duplicate differs only in `emit_ns`."""

    emit_ns: int
    """When its record is produced."""
    trace_id: bytes
    """16 bytes."""
    span_id: bytes
    """8 bytes."""
    kind: Literal["retrieval", "generation"]
    start_ns: int
    end_ns: int
    route: str
    top_k: int
    retriever_version: str
    scorer: str
    retrieved: list[str]
    """What the trace retrieved, in rank order; on both spans, since an answer may cite by position."""
    scores: list[float]
    """Aligned with `retrieved`."""
    model: str
    cited: list[str]
    """What the answer cites, in order; on both spans."""
    answer_form: AnswerForm


class _Effect(NamedTuple):
    """What a scenario does to a route's levels."""

    cited_factor: float = 1.0
    score_factor: float = 1.0
    hallucinated_share: float | None = None
    retrieves: bool = True


_HEALTHY = _Effect()
_EFFECTS: dict[str, _Effect] = {
    "healthy": _HEALTHY,
    "off-topic": _Effect(cited_factor=0.3, score_factor=0.6),
    "ignores-context": _Effect(cited_factor=0.3),
    "hallucinated-citations": _Effect(hallucinated_share=0.5),
    "empty-retrieval": _Effect(retrieves=False),
}


class _Answer(NamedTuple):
    retrieved: list[str]
    scores: list[float]
    cited: list[str]


class _QualityState:
    """Draws what the traces of one route retrieve and cite; owns that route's random source."""

    def __init__(self, spec: TrafficSpec, index: int) -> None:
        route = spec.routes[index]
        self._route: RouteSpec = route
        self._random = _source(spec, f"quality:{route.name}")
        # Newest first: the last scenario that matches wins.
        self._scenarios: list[ScenarioSpec] = [s for s in reversed(spec.scenarios) if s.applies(route.name, s.from_ns)]
        first = index * CORPUS_STEP
        # Twice over, so that a stride that runs past the end starts again from the first chunk.
        self._chunks = [f"c{first + number}" for number in range(CORPUS_CHUNKS)] * 2
        self._tilts = {top_k: _rank_tilt(top_k) for top_k, _ in route.top_ks}

    def answer(self, top_k: int, start_ns: int) -> _Answer:
        effect = _HEALTHY
        for scenario in self._scenarios:
            if scenario.applies(self._route.name, start_ns):
                effect = _EFFECTS[scenario.kind]
                break
        if not effect.retrieves:
            return _Answer([], [], [])
        retrieved = self._retrieve(top_k)
        return _Answer(retrieved, self._score(top_k, effect), self._cite(retrieved, effect))

    def _retrieve(self, top_k: int) -> list[str]:
        # A slice with a random stride is distinct chunks at the price of one slice; sampling was the slowest step.
        stride = 1 + int(self._random.random() * (CORPUS_CHUNKS // top_k))
        first = int(self._random.random() * CORPUS_CHUNKS)
        return self._chunks[first : first + top_k * stride : stride]

    def _score(self, top_k: int, effect: _Effect) -> list[float]:
        top_1 = self._random.gauss(self._route.score_level * effect.score_factor, SCORE_SPREAD)
        units = int(min(max(top_1, 0.01), 0.9999) * SCORE_UNITS)
        fall = 1 + int(self._random.random() * units / (2 * top_k))
        return [max(units - rank * fall, 0) / SCORE_UNITS for rank in range(top_k)]

    def _cite(self, retrieved: list[str], effect: _Effect) -> list[str]:
        draw = self._random.random
        mean = self._route.cited_share * effect.cited_factor
        share = self._random.betavariate(mean * CITED_CONCENTRATION, (1 - mean) * CITED_CONCENTRATION)
        # The tilt sums to 0 over the ranks, so better ranks are cited more often and the mean stays the share.
        tilt = share * (1 - share)
        cited = [
            chunk
            for chunk, weight in zip(retrieved, self._tilts[len(retrieved)], strict=True)
            if draw() < share + tilt * weight
        ]
        swapped = self._route.hallucinated_share if effect.hallucinated_share is None else effect.hallucinated_share
        if swapped:
            unknown = UNKNOWN_CHUNK_FIRST + int(draw() * UNKNOWN_CHUNK_FIRST)
            cited = [f"c{unknown + at}" if draw() < swapped else chunk for at, chunk in enumerate(cited)]
        return cited


def generate(spec: TrafficSpec) -> Iterator[TrafficSpan]:
    """Every span of the traffic in the order of production (`emit_ns`, then as drawn). Lazy.

    It holds only the spans of traces that started within `held_ns_max` of the newest one, however long the traffic is.
    """
    transport = _source(spec, "transport")
    held: list[tuple[int, int, TrafficSpan]] = []
    numbers = itertools.count()
    for retrieval, generation in _traces(spec):
        # No later span is produced before the start of this trace, so what is due by then may go.
        while held and held[0][0] <= retrieval.start_ns:
            yield heapq.heappop(held)[2]
        for span in _transport(spec, transport, retrieval, generation):
            heapq.heappush(held, (span.emit_ns, next(numbers), span))
    while held:
        yield heapq.heappop(held)[2]


def held_ns_max(spec: TrafficSpec) -> int:
    """The longest time, in ns, from the start of a trace to the production of its last span."""
    return TRACE_NS_MAX + 2 * spec.disorder_ns + (spec.late_by_ns if spec.late_ratio else 0)


def _source(spec: TrafficSpec, name: str) -> random.Random:
    return random.Random(f"{spec.seed}:{spec.start_ns}:{name}")  # noqa: S311 - a seeded simulation, no secret


def _rank_tilt(top_k: int) -> list[float]:
    """From 1 at the first rank to -1 at the last, evenly; 0 where there is one rank."""
    return [1 - 2 * rank / (top_k - 1) for rank in range(top_k)] if top_k > 1 else [0.0]


def _cumulated(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    # Without the last bound (1), so that bisect over it always answers a valid index.
    return [bound / total for bound in itertools.accumulate(weights)][:-1]


def _traces(spec: TrafficSpec) -> Iterator[tuple[TrafficSpan, TrafficSpan]]:
    """Retrieval and generation of every trace, by start; not yet transported (`emit_ns` is the span's end)."""
    shape = _source(spec, "shape")
    route_bounds = _cumulated([route.weight for route in spec.routes])
    top_k_bounds = [_cumulated([weight for _, weight in route.top_ks]) for route in spec.routes]
    qualities = [_QualityState(spec, index) for index in range(len(spec.routes))]
    for start_ns in _starts(spec, shape):
        at = bisect.bisect(route_bounds, shape.random())
        route = spec.routes[at]
        top_k = route.top_ks[bisect.bisect(top_k_bounds[at], shape.random())][0]
        yield _trace(route, top_k, start_ns, shape, qualities[at].answer(top_k, start_ns))


def _starts(spec: TrafficSpec, shape: random.Random) -> Iterator[int]:
    """Start times of a Poisson process whose rate follows the time of day."""
    per_ns = spec.traces_per_minute / MINUTE_NS
    start_ns = spec.start_ns
    for _ in itertools.count() if spec.traces_max is None else range(spec.traces_max):
        angle = 2 * math.pi * ((start_ns - PEAK_NS) % DAY_NS) / DAY_NS
        rate = per_ns * (1 + spec.daily_swing * math.cos(angle))
        # Whole microseconds, at least one: the last bits of a logarithm shall not decide any byte.
        start_ns += (1 + int(-math.log(1 - shape.random()) / rate / 1_000)) * 1_000
        if spec.end_ns is not None and start_ns >= spec.end_ns:
            return
        yield start_ns


def _trace(
    route: RouteSpec, top_k: int, start_ns: int, shape: random.Random, answer: _Answer
) -> tuple[TrafficSpan, TrafficSpan]:
    draw = shape.random
    retrieval_end_ns = start_ns + _milliseconds(RETRIEVAL_MS, draw())
    generation_start_ns = retrieval_end_ns + _milliseconds(GAP_MS, draw())
    generation_end_ns = generation_start_ns + _milliseconds(GENERATION_MS, draw())
    trace_id = shape.getrandbits(128).to_bytes(16, "big")
    retriever_version = route.retriever_versions[int(draw() * len(route.retriever_versions))]
    model = route.models[int(draw() * len(route.models))]
    answer_form = route.answer_forms[int(draw() * len(route.answer_forms))]
    retrieval = TrafficSpan(
        emit_ns=retrieval_end_ns,
        trace_id=trace_id,
        span_id=shape.getrandbits(64).to_bytes(8, "big"),
        kind="retrieval",
        start_ns=start_ns,
        end_ns=retrieval_end_ns,
        route=route.name,
        top_k=top_k,
        retriever_version=retriever_version,
        scorer=route.scorer,
        retrieved=answer.retrieved,
        scores=answer.scores,
        model=model,
        cited=answer.cited,
        answer_form=answer_form,
    )
    generation = msgspec.structs.replace(
        retrieval,
        emit_ns=generation_end_ns,
        span_id=shape.getrandbits(64).to_bytes(8, "big"),
        kind="generation",
        start_ns=generation_start_ns,
        end_ns=generation_end_ns,
    )
    return retrieval, generation


def _milliseconds(bounds: tuple[int, int], share: float) -> int:
    """A time between the bounds, in ns, in whole microseconds."""
    low, high = bounds
    return int((low + (high - low) * share) * 1_000) * 1_000


def _transport(
    spec: TrafficSpec, transport: random.Random, retrieval: TrafficSpan, generation: TrafficSpan
) -> Iterator[TrafficSpan]:
    """The records that a trace's spans become: lost, delayed, repeated. Draws equally often whatever the ratios are."""
    draw = transport.random
    fate = draw()
    lost: TrafficSpan | None = None
    if fate < spec.missing_retrieval_ratio:
        lost = retrieval
    elif fate < spec.missing_retrieval_ratio + spec.missing_generation_ratio:
        lost = generation
    for span in (retrieval, generation):
        delay_ns = int(draw() * spec.disorder_ns)
        late = draw() < spec.late_ratio
        repeated = draw() < spec.duplicate_ratio
        repeat_delay_ns = int(draw() * spec.disorder_ns)
        if span is lost:
            continue
        emit_ns = span.end_ns + delay_ns + (spec.late_by_ns if late else 0)
        yield span if emit_ns == span.emit_ns else msgspec.structs.replace(span, emit_ns=emit_ns)
        if repeated:
            yield msgspec.structs.replace(span, emit_ns=emit_ns + repeat_delay_ns)
