"""Doctor: what a topic or file holds, what citegauge can measure from it, and what one change would help.

The way through this package:

    sample     records of a topic or of files                     practice: the settings under which they are read
    look       a record → its spans, with who claimed them        forms: what bytes look like from outside
    counts     what was seen, per source and convention           hints: what could help and is not used
    traces     the sample joined and scored as the core does      causes: why a trace is not measured, in words
    verdicts   per metric: can, partly, cannot, and the change    (recall, splits; verdict: what one is)
    delivery   keys, clocks, sizes, unreadable records            citing: citations that miss their chunk
    report     all of it as text; as_json: as one JSON object
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from citegauge.errors import DeadLetterError
from citegauge.tools.doctor.citing import citing_findings
from citegauge.tools.doctor.counts import SourceCounts
from citegauge.tools.doctor.delivery import LEVELS, Finding, Limits, findings
from citegauge.tools.doctor.hints import Hints
from citegauge.tools.doctor.look import looker
from citegauge.tools.doctor.practice import Practice, practice_of
from citegauge.tools.doctor.sample import (
    Bounds,
    Reach,
    SampleRecord,
    SourceSample,
    bounds_of,
    file_sample,
    topic_sample,
)
from citegauge.tools.doctor.traces import TraceBook, Traces, edges_of
from citegauge.tools.doctor.verdict import Context, Verdict
from citegauge.tools.doctor.verdicts import verdicts

__all__ = [
    "Bounds",
    "Practice",
    "Report",
    "SourceSample",
    "bounds_of",
    "examine",
    "file_sample",
    "practice_of",
    "topic_sample",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the doctor found."""

    sources: list[SourceCounts]
    reaches: list[dict[int, Reach]]
    """Aligned with `sources`."""
    traces: Traces
    verdicts: list[Verdict]
    findings: list[Finding]
    """Worst first."""
    hints: Hints

    @property
    def can_measure(self) -> bool:
        """Whether recall can be measured for some traces at least."""
        return self.verdicts[0].answer != "cannot"


def examine(
    samples: Iterable[SourceSample],
    practice: Practice,
    *,
    now_ns: int,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Read the samples to their ends and judge them together: halves of a trace may lie in several. Raises `FatalError`."""
    book, hints = TraceBook(), Hints()
    sources: list[SourceCounts] = []
    reaches: list[dict[int, Reach]] = []
    times: list[dict[int, tuple[int, int]]] = []
    for index, sample in enumerate(samples):
        reading = practice.reading(sample.name, is_topic=sample.is_topic)
        look = looker(reading.encoding, reading.decode)
        source = SourceCounts(sample.name, sample.is_topic, reading)
        spans_of: dict[int, tuple[int, int]] = {}
        for record in sample.records:
            source.add_record(record)
            if record.timestamp_ns:
                first_ns, last_ns = spans_of.get(record.partition, (record.timestamp_ns, 0))
                spans_of[record.partition] = min(first_ns, record.timestamp_ns), max(last_ns, record.timestamp_ns)
            try:
                seen, faults = look(_value(record, practice.record_bytes_max if sample.is_topic else None))
            except DeadLetterError as exc:
                source.add_fault(record, exc.reason, exc.detail, whole=True)
                continue
            source.add_spans(record, seen, faults)
            for one in seen:
                source.clock.add(one.span, record.timestamp_ns, now_ns, practice.join.skew_ns)
                book.add(one, (index, record.partition), record.timestamp_ns, reading.decode.route_keys)
                hints.add(one)
            if on_progress is not None:
                on_progress(len(record.value or b""))
        sources.append(source)
        reaches.append(dict(sample.reaches))
        times.append(spans_of)
    traces = book.close(
        practice.join, practice.score, now_ns=now_ns, edges=edges_of(zip(sources, reaches, times, strict=True))
    )
    found = findings(sources, traces, Limits(join=practice.join, record_bytes_max=practice.record_bytes_max))
    found += citing_findings(traces.judged, practice.score)
    return Report(
        sources=sources,
        reaches=reaches,
        traces=traces,
        verdicts=verdicts(Context(traces, practice.score, hints, sources)),
        findings=sorted(found, key=lambda one: LEVELS.index(one.level)),
        hints=hints,
    )


def _value(record: SampleRecord, bytes_max: int | None) -> bytes:
    """The bytes that the worker would decode. Raises `DeadLetterError` where it would not try."""
    if not record.value:
        raise DeadLetterError("empty_record")
    if bytes_max is not None and len(record.value) > bytes_max:
        raise DeadLetterError("record_too_large", f"{len(record.value)} bytes")
    return record.value
