"""Samples for the doctor's tests, and its report as text. Run as a script it rewrites `tests/golden/doctor/`.

After rewriting, read the difference: these texts are what a newcomer reads.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from citegauge.settings import Settings
from citegauge.tools.doctor import Report, examine, file_sample, practice_of
from citegauge.tools.doctor.report import print_report
from citegauge.tools.doctor.sample import Reach, SampleRecord, SourceSample
from citegauge.tools.simulate_output import records
from citegauge.tools.simulate_spec import SECOND_NS, ScenarioSpec, TrafficSpec

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = GOLDEN / "traces"
TEXTS = GOLDEN / "doctor"
WIDTH = 100
START_NS = 1_767_225_600 * SECOND_NS
"""2026-01-01."""
NOW_NS = START_NS + 365 * 86_400 * SECOND_NS


# --------------------------------------------------------------------------------------------------------------- spans


def otlp_span(trace: int, span: int, name: str, attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """One span of OTLP JSON; `trace` also is the second in which it ends."""
    end_ns = START_NS + trace * SECOND_NS + span * 1_000_000
    return {
        "traceId": f"{trace + 1:032x}",
        "spanId": f"{(trace + 1) * 256 + span:016x}",
        "name": name,
        "startTimeUnixNano": str(end_ns - 1_000_000),
        "endTimeUnixNano": str(end_ns),
        "attributes": [{"key": key, "value": _value(value)} for key, value in attributes.items()],
        **fields,
    }


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": value}


def otlp(spans: Iterable[dict[str, Any]], service: str = "rag-api") -> bytes:
    """One OTLP JSON record."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}).encode()


def retrieval(trace: int, ids: list[str], *, retriever: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An OpenInference retriever span with scores."""
    attributes: dict[str, Any] = {"openinference.span.kind": "RETRIEVER"}
    for index, chunk in enumerate(ids):
        attributes[f"retrieval.documents.{index}.document.id"] = chunk
        attributes[f"retrieval.documents.{index}.document.score"] = 0.9 - index / 10
    return otlp_span(trace, 1, "retrieve", {**attributes, **(retriever or {})}, **fields)


def answer(trace: int, text: str | None, *, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """An OpenInference LLM span; None: the text was not captured."""
    attributes: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.model_name": "gpt"}
    if text is not None:
        attributes["llm.output_messages.0.message.content"] = text
    return otlp_span(trace, 2, "ChatCompletion", {**attributes, **(more or {})})


def healthy(traces: int = 20) -> list[dict[str, Any]]:
    """Traces that can be measured in every respect but the version."""
    return [span for n in range(traces) for span in (retrieval(n, ["c-1", "c-2"]), answer(n, "So it is [c-1]."))]


# -------------------------------------------------------------------------------------------------------------- reports


def examined(values: Iterable[bytes], settings: Settings | None = None, *, encoding: str | None = None) -> Report:
    """The report on one file with these records."""
    found = [SampleRecord(0, n, 0, False, None, value) for n, value in enumerate(values)]
    return judged([SourceSample("sample", False, found)], settings, encoding=encoding)


def topic(name: str, found: list[SampleRecord], *, before: bool = False, after: bool = False) -> SourceSample:
    """A topic's sample; `before` and `after`: the log holds more on that side of every partition."""
    partitions = Counter(record.partition for record in found)
    return SourceSample(name, True, found, {at: Reach(before, after, n) for at, n in sorted(partitions.items())})


def judged(samples: list[SourceSample], settings: Settings | None = None, *, encoding: str | None = None) -> Report:
    """The report on samples."""
    return examine(samples, practice_of(settings or Settings(), encoding), now_ns=NOW_NS)


def text_of(report: Report, width: int = WIDTH) -> str:
    """The printed report, without colours and trailing spaces."""
    buffer = io.StringIO()
    print_report(report, Console(file=buffer, width=width, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def finding(report: Report, code: str) -> Any:
    """The finding of this code; KeyError where there is none."""
    return {found.code: found for found in report.findings}[code]


def verdict(report: Report, metric: str) -> Any:
    """The verdict on a metric."""
    return {found.metric: found for found in report.verdicts}[metric]


# ---------------------------------------------------------------------------------------------------------- golden texts


def simulated(name: str, *, encoding: str, keyed: bool, partitions: int = 3, **spec: Any) -> SourceSample:
    """A simulated topic as a sample, spread over partitions by key, or in turn where there is none."""
    traffic = TrafficSpec(seed=3, start_ns=START_NS, traces_max=300, traces_per_minute=40.0, **spec)
    found: list[SampleRecord] = []
    offsets = [0] * partitions
    for number, record in enumerate(records(traffic, encoding, keyed=keyed)):  # type: ignore[arg-type]  # of two literals
        at = (int(record.key[-4:], 16) if record.key else number) % partitions
        found.append(SampleRecord(at, offsets[at], record.emit_ns, keyed, record.key, record.value))
        offsets[at] += 1
    return topic(name, found)


def _home_grown() -> list[bytes]:
    hits = json.dumps([{"id": "c-1", "score": 0.8, "text": "…"}, {"id": "c-2", "score": 0.7, "text": "…"}])
    return [
        otlp(
            [
                otlp_span(n, 1, "vector search", {"rag.query": "q", "rag.hits": hits, "tenant": f"t-{n % 3}"}),
                answer(n, "So it is [c-1].", more={"tenant": f"t-{n % 3}"}),
            ]
        )
        for n in range(30)
    ]


def _many_faults() -> list[bytes]:
    spans = healthy(10)
    spans += [retrieval(n, ["c-1"]) for n in range(10, 14)]
    spans += [
        span for n in range(14, 20) for span in (retrieval(n, ["c-1"], droppedAttributesCount=9), answer(n, "[1]"))
    ]
    spans += [span for n in range(20, 24) for span in (retrieval(n, ["c-1"]), answer(n, None))]
    seconds = [{**span, "endTimeUnixNano": "1767225600"} for span in healthy(2)]
    return [otlp(spans), otlp([{**span, "traceId": "f" * 31 + span["traceId"][-1]} for span in seconds]), b"not a span"]


def _files(name: str) -> list[SourceSample]:
    return [file_sample(str(TRACES / name), lines=False)]


def _as_file(values: Callable[[], list[bytes]]) -> Callable[[], list[SourceSample]]:
    return lambda: [
        SourceSample("app.jsonl", False, [SampleRecord(0, n, 0, False, None, v) for n, v in enumerate(values())])
    ]


def golden_cases() -> Iterator[tuple[str, Callable[[], list[SourceSample]]]]:
    """Name of the text and how to make its samples."""
    for path in sorted(TRACES.glob("*.binpb")):
        yield path.name.removesuffix(".otlp.binpb"), lambda path=path: _files(path.name)  # type: ignore[misc]
    yield "keyed_topic", lambda: [simulated("rag.traces", encoding="native", keyed=True, missing_retrieval_ratio=0.02)]
    yield (
        "unkeyed_batches",
        lambda: [simulated("otlp_spans", encoding="otlp_proto", keyed=False, duplicate_ratio=0.05)],
    )
    yield (
        "hallucinated_citations",
        lambda: [
            simulated(
                "rag.traces",
                encoding="native",
                keyed=True,
                scenarios=(ScenarioSpec(kind="hallucinated-citations", route="*"),),
            )
        ],
    )
    yield "home_grown_spans", _as_file(_home_grown)
    yield "many_faults", _as_file(_many_faults)
    yield "healthy", _as_file(lambda: [otlp(healthy())])
    yield "nothing_readable", _as_file(lambda: [b"\x00\x00\x00\x00\x07abcdef"] * 3)


def main() -> None:
    """Rewrite every text."""
    TEXTS.mkdir(exist_ok=True)
    for name, samples in golden_cases():
        (TEXTS / f"{name}.txt").write_text(text_of(judged(samples())), encoding="utf-8")


if __name__ == "__main__":
    main()
