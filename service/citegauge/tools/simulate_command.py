"""What `citegauge simulate` means by its arguments: a traffic specification, and a place to write it to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from citegauge.errors import FatalError
from citegauge.tools.simulate_output import Encoding, write_native, write_otlp
from citegauge.tools.simulate_spec import SECOND_NS, TrafficSpec, parse_duration, parse_route, parse_scenario

FILE_START = "2026-01-01T00:00:00Z"
"""Where a file's traffic starts unless told otherwise: fixed, so that the same seed gives the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficArguments:
    """The command's arguments that say what the traffic is like, as written."""

    seed: int
    start: str | None
    duration: str | None
    traces: int | None
    rate: float
    routes: Sequence[str]
    scenarios: Sequence[str]
    disorder: str
    duplicates: float
    late: float
    missing: float


def traffic_spec(arguments: TrafficArguments, *, now_ns: int, to_topic: bool) -> TrafficSpec:
    """The specification. Raises `ConfigError`.

    Without `start`: now for a topic, `FILE_START` for a file. Without `duration` and `traces`: an hour for a file, no end
    for a topic. Scenario times count from the end; without one, from now (topic) or from the start (file).
    """
    start, duration, traces = arguments.start, arguments.duration, arguments.traces
    start_ns = moment(start, now_ns) if start else now_ns if to_topic else moment(FILE_START, now_ns)
    length_ns = parse_duration(duration) if duration else None
    if length_ns is None and traces is None and not to_topic:
        length_ns = 3_600 * SECOND_NS
    end_ns = None if length_ns is None else start_ns + length_ns
    spec = TrafficSpec(
        seed=arguments.seed,
        start_ns=start_ns,
        end_ns=end_ns,
        traces_max=traces,
        traces_per_minute=arguments.rate,
        disorder_ns=parse_duration(arguments.disorder),
        duplicate_ratio=arguments.duplicates,
        late_ratio=arguments.late,
        missing_retrieval_ratio=arguments.missing / 2,
        missing_generation_ratio=arguments.missing / 2,
    )
    if arguments.routes:
        spec = replace(spec, routes=tuple(parse_route(text) for text in arguments.routes))
    # Without an end: from now on a topic, from the start in a file, whose bytes must not depend on the clock.
    reference_ns = end_ns if end_ns is not None else now_ns if to_topic else start_ns
    return replace(spec, scenarios=tuple(parse_scenario(text, reference_ns) for text in arguments.scenarios))


def write(spec: TrafficSpec, encoding: Encoding, to: str) -> int:
    """Write to a file, or to standard output (`-`); returns the number of spans. Raises `FatalError`."""
    writer = write_native if encoding == "native" else write_otlp
    if to == "-":
        return writer(spec, sys.stdout.buffer)
    try:
        with Path(to).open("wb") as file:
            return writer(spec, file)
    except OSError as exc:
        raise FatalError(f"cannot write {to}: {exc.strerror}") from exc


def moment(text: str, now_ns: int) -> int:
    """An RFC 3339 time, or a duration from now such as `-24h`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return now_ns + parse_duration(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * SECOND_NS
