"""The traffic of every benchmark: k = 10, 3 cited, three routes, two models, two retriever versions. Made from a seed.

The simulator gives times, ids and order (the answers come 0.4 to 4 s after their retrievals, mixed with other traces);
here every trace gets exactly ten chunks and three citations, and chunk ids of a known length.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

import msgspec

from citegauge.tools.simulate import TrafficSpan, generate
from citegauge.tools.simulate_encode import encode_native, encode_otlp, record_key
from citegauge.tools.simulate_spec import MINUTE_NS, RouteSpec, TrafficSpec

Ids = Literal["short", "uuid"]
"""Chunk ids of 8 characters, or UUIDs of 36."""

ROUTES = tuple(RouteSpec(name=name, top_ks=((10, 1.0),)) for name in ("support", "search", "docs"))
RECALL = 0.3
"""Three of ten, in every trace: what each job has to find."""
OTLP_TRACES = 25
"""Traces of one OTLP record, a batch."""


class Message(NamedTuple):
    """One record to be sent."""

    key: bytes
    value: bytes


def spans(
    traces: int, end_ns: int, *, minutes: float = 20.0, ids: Ids = "short", seed: int = 1
) -> Iterator[TrafficSpan]:
    """`2 * traces` spans in order of arrival, spread over about `minutes`, the last of them before `end_ns`."""
    name = _short if ids == "short" else _uuid
    spec = TrafficSpec(
        seed=seed,
        start_ns=end_ns - int(1.5 * minutes * MINUTE_NS),  # random gaps: the end is not exact
        traces_max=traces,
        traces_per_minute=traces / minutes,
        routes=ROUTES,
    )
    for span in generate(spec):
        retrieved = [name(chunk) for chunk in span.retrieved]
        # Ranks 1, 4 and 7.
        yield msgspec.structs.replace(span, retrieved=retrieved, cited=retrieved[0:7:3])


def native(found: Iterator[TrafficSpan]) -> Iterator[Message]:
    """One native event a record, keyed by its trace id."""
    for span in found:
        yield Message(record_key(span), encode_native(span))


def otlp(found: Iterator[TrafficSpan]) -> Iterator[Message]:
    """OTLP protobuf, OpenInference spans with ten documents each, many spans a record."""
    batch: list[TrafficSpan] = []
    for span in found:
        batch.append(span)
        if len(batch) == 2 * OTLP_TRACES:
            yield Message(record_key(batch[0]), encode_otlp(batch))
            batch = []
    if batch:
        yield Message(record_key(batch[0]), encode_otlp(batch))


@cache
def _short(chunk: str) -> str:
    return f"{chunk[0]}{int(chunk[1:]):07d}"


@cache
def _uuid(chunk: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, chunk))
