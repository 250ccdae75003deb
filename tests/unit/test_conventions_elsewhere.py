"""Facts that do not stand where they are looked for: answers in log records, retrievals inside generations, file ids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

from citegauge.conventions import DecodePolicy, SpanFault, decoder
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State
from citegauge.domain.score import score
from citegauge.domain.span import Kind, Span
from citegauge.errors import DeadLetterError
from support.golden import DECODE
from support.protobuf_forms import logs_proto

LOGS = (DECODE / "otel_genai" / "answers_in_log_records.otlp_json.json").read_bytes()
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def decoded(record: bytes, encoding: str = "auto") -> list[Span]:
    """The readable spans of a record."""
    return [span for span in decoder(encoding, DecodePolicy())(record) if isinstance(span, Span)]


def otlp(*spans: tuple[int, int, Mapping[str, object]]) -> list[Span]:
    """Spans of one trace: id, parent, attributes (texts, or numbers as they are)."""
    sent = [
        {
            "traceId": TRACE, "spanId": f"{span_id:016x}", "parentSpanId": f"{parent:016x}", "name": "s",
            "startTimeUnixNano": str(1764460800 * 10**9 + span_id), "endTimeUnixNano": str(1764460809 * 10**9 + span_id),
            "attributes": [
                {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
                for key, value in attributes.items()
            ],
        }
        for span_id, parent, attributes in spans
    ]  # fmt: skip
    return decoded(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": sent}]}]}).encode())


RETRIEVAL: Mapping[str, object] = {
    "gen_ai.operation.name": "retrieval",
    "gen_ai.retrieval.documents": [{"id": "a"}, {"id": "b"}],
}


def test_logs_in_protobuf_and_json_give_equal_spans() -> None:
    """The logs topic has the same two encodings, and both are recognised."""
    expected = decoder("otlp_json", DecodePolicy())(LOGS)
    assert [type(span) for span in expected] == [Span, Span, Span, SpanFault]
    for encoding in ("otlp_proto", "auto"):
        assert decoder(encoding, DecodePolicy())(logs_proto(LOGS)) == expected
    assert decoder("auto", DecodePolicy())(LOGS) == expected


def test_ordinary_logs_are_nothing() -> None:
    """A topic of logs is mostly other logs: they are neither spans nor faults nor dead letters."""
    found = json.loads(LOGS)
    logs = found["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    found["resourceLogs"][0]["scopeLogs"][0]["logRecords"] = [log for log in logs if log.get("severityText") == "INFO"]
    record = json.dumps(found).encode()
    for sent in (record, logs_proto(record)):
        try:
            assert decoder("auto", DecodePolicy())(sent) == []
        except DeadLetterError as error:  # pragma: no cover
            raise AssertionError(error.reason) from error


def test_an_answer_in_the_logs_belongs_to_its_span_in_any_order() -> None:
    """The span without text keeps its model and final ids, the log adds the citations; neither replaces the other."""
    silent = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt", "final_context_ids": ["b", "a"]}
    spans = [*otlp((1, 0, RETRIEVAL), (2, 0, silent)), *decoded(LOGS)[:1]]
    assert len({span.span_id for span in spans}) == 3
    for order in itertools.permutations(spans):
        result = score(order, ScorePolicy())
        assert result is not None
        assert (result.state, result.cited, result.group.model) == (State.measured, ["b"], "gpt")


def test_an_answer_in_both_signals_counts_once() -> None:
    """A span that has the text itself stays the answer: the log's copy is nested in it."""
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": [{"parts": [{"type": "text", "content": "A [1]."}]}],
    }
    result = score([*otlp((1, 0, RETRIEVAL), (2, 0, said)), *decoded(LOGS)[:1]], ScorePolicy())
    assert result is not None
    assert (result.state, result.cited, result.unresolved) == (State.measured, ["a"], 0)


def test_a_repeated_log_record_repeats_the_span() -> None:
    """At-least-once delivery adds nothing."""
    assert decoded(LOGS) == decoded(LOGS)
    assert decoded(logs_proto(LOGS), "otlp_proto") == decoded(LOGS)


def test_a_hosted_file_search_is_measured_at_file_level_under_its_own_name() -> None:
    """Files retrieved, files cited: a recall, but not one of chunks, so its series says `files`."""
    spans = decoded((DECODE / "openinference" / "openai_file_search_retrieves_inside.otlp_json.json").read_bytes())
    result = score(spans, ScorePolicy())
    assert result is not None
    assert (result.state, result.retrieved, result.cited) == (State.measured, ["file-a", "file-b"], ["file-a"])
    assert (result.top1_score, result.group.retriever_version) == (0.91, "file_search_call/files")


def test_files_cited_of_retrieved_chunks_are_no_recall() -> None:
    """A citation of a file over chunk ids is not compared."""
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.completion": {"annotations": [{"type": "file_citation", "file_id": "file-a"}], "text": "Five."},
    }
    result = score(otlp((1, 0, RETRIEVAL), (2, 0, said)), ScorePolicy())
    assert result is not None
    assert result.state == State.granularity_mismatch


def test_a_hosted_search_that_hides_its_results_has_retrieved_all_the_same() -> None:
    """Without `include` the ids are missing, which is not the same as no retrieval."""
    spans = decoded((DECODE / "openinference" / "openai_file_search_without_results.otlp_json.json").read_bytes())
    assert [span.kind for span in spans] == [Kind.GENERATION, Kind.RETRIEVAL]
    result = score(spans, ScorePolicy())
    assert result is not None
    assert result.state == State.ids_missing


def test_spans_found_inside_others_follow_the_record_s_own() -> None:
    """The number of a span in its record does not depend on what the others hold."""
    response = {"output": [{"type": "file_search_call", "results": [{"file_id": "f"}]}]}
    inside = {"openinference.span.kind": "LLM", "output.value": response}
    found = otlp((1, 0, inside), (2, 0, RETRIEVAL))
    assert [span.span_id[-1] for span in found[:2]] == [1, 2]
    assert (found[2].parent_id[-1], found[2].ids) == (1, ["f"])
