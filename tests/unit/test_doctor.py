"""What the doctor says of a sample, and the one change it asks for. Its texts: `tests/golden/doctor/`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from citegauge.settings import Settings
from citegauge.tools.doctor.as_json import report_json
from citegauge.tools.doctor.forms import id_form
from citegauge.tools.doctor.report import first_change
from citegauge.tools.doctor.sample import SampleRecord, SourceSample, bounds_of
from citegauge.tools.doctor.verdict import share_text
from support.doctor import (
    NOW_NS,
    START_NS,
    TEXTS,
    answer,
    examined,
    finding,
    golden_cases,
    healthy,
    judged,
    otlp,
    otlp_span,
    retrieval,
    simulated,
    text_of,
    topic,
    verdict,
)
from support.golden import Case, cases

RECALL = "cited_chunk_recall"
SECOND_NS = 1_000_000_000


# ---------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(("name", "samples"), [pytest.param(*case, id=case[0]) for case in golden_cases()])
def test_the_report_reads_as_before(name: str, samples: Callable[[], list[SourceSample]]) -> None:
    """What a newcomer reads is looked at by a person: it changes only together with its golden text."""
    assert text_of(judged(samples())) == (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def test_every_text_has_its_case() -> None:
    """No golden text outlives its case."""
    assert {path.stem for path in TEXTS.glob("*.txt")} == {name for name, _ in golden_cases()}


@pytest.mark.parametrize(("name", "samples"), [pytest.param(*case, id=case[0]) for case in golden_cases()])
def test_a_report_says_what_to_change(name: str, samples: Callable[[], list[SourceSample]]) -> None:
    """Whatever cannot be measured comes with an order, here or where it says "below"; JSON holds the same verdicts."""
    report = judged(samples())
    if not report.can_measure:
        assert first_change(report)
    found = json.loads(msgspec.json.encode(report_json(report)))
    assert [one["answer"] for one in found["verdicts"]] == [one.answer for one in report.verdicts]
    assert found["can_measure_recall"] == report.can_measure
    assert sum(found["traces"]["states"].values()) == found["traces"]["judged"]


# --------------------------------------------------------------------------------------------------- the change per fault

ONE = retrieval(1, ["c-1", "c-2"])


def _genai(trace: int, **captured: str) -> list[dict[str, Any]]:
    return [
        otlp_span(trace, 1, "retrieval", {"gen_ai.operation.name": "retrieval", **captured}),
        otlp_span(trace, 2, "chat gpt", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt"}),
    ]


def _hits(*distances: float) -> list[dict[str, Any]]:
    return [
        {
            "name": "db.query.result",
            "attributes": [
                {"key": "db.query.result.id", "value": {"stringValue": f"c-{n}"}},
                {"key": "db.query.result.distance", "value": {"doubleValue": distance}},
            ],
        }
        for n, distance in enumerate(distances, start=1)
    ]


DOCUMENTS = '[{"id":"c-1","score":0.5}]'
RECALL_CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "content capture is off": (_genai(1), "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"),
    "answer is not captured": (
        _genai(1, **{"gen_ai.retrieval.documents": DOCUMENTS}),
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY",
    ),
    "outputs are hidden": ([ONE, answer(1, None)], "unset OPENINFERENCE_HIDE_OUTPUTS"),
    "stream object": (
        [ONE, answer(1, None, more={"output.value": "<generator object f at 0x7>"})],
        "the stream has ended",
    ),
    "attributes dropped": (
        [retrieval(1, ["c-1"], droppedAttributesCount=76), answer(1, "[c-1]")],
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=10000",
    ),
    "documents cut off": (
        [
            otlp_span(1, 1, "r", {"openinference.span.kind": "RETRIEVER", "retrieval.documents": DOCUMENTS[:-9]}),
            answer(1, "[c-1]"),
        ],
        "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    ),
    "events dropped": (
        [
            otlp_span(1, 1, "chroma.query", {"db.system": "chroma"}, events=_hits(0.1), droppedEventsCount=3),
            answer(1, "[c-1]"),
        ],
        "OTEL_SPAN_EVENT_COUNT_LIMIT=10000",
    ),
    "no ids and no content": (
        [
            otlp_span(1, 1, "r", {"openinference.span.kind": "RETRIEVER", "retrieval.documents": '[{"score":0.5}]'}),
            answer(1, "[1]"),
        ],
        "set document.id",
    ),
    "no answer": ([ONE], "OpenAIInstrumentor"),
    "no retrieval": ([answer(1, "[c-1]")], "instrument the retriever too"),
    "never cites": ([ONE, answer(1, "So it is.")], "ask the model to cite"),
    "counts from 0": ([ONE, answer(1, "[0]")], "set routes.rag-api.position_base = 0"),
    "other ids": ([ONE, answer(1, "[doc-77]")], "record the same ids"),
    "nothing recorded of a database": (
        [otlp_span(1, 1, "qdrant.search", {"db.system": "qdrant", "db.vector.query.top_k": 3}), answer(1, "[1]")],
        "retrieval.retrieved_ids",
    ),
}


@pytest.mark.parametrize(("spans", "change"), RECALL_CASES.values(), ids=RECALL_CASES.keys())
def test_recall_that_cannot_be_measured_names_its_change(spans: list[dict[str, Any]], change: str) -> None:
    """Each fault of an instrumentation has one change that mends it, and the report begins with it."""
    report = examined([otlp(spans)])
    found = verdict(report, RECALL)
    assert found.answer == "cannot"
    assert change in found.change
    assert first_change(report) == found.change
    assert not report.can_measure


SCORE_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "distances": (
        otlp_span(1, 1, "chroma.query", {"db.system": "chroma"}, events=_hits(0.1, 0.4)),
        'set routes.rag-api.score_direction = "lower"',
    ),
    "no scores": (
        otlp_span(1, 1, "r", {"openinference.span.kind": "RETRIEVER", "retrieval.documents.0.document.id": "c-1"}),
        "set document.score",
    ),
    "not a number": (
        retrieval(1, ["c-1"], retriever={"retrieval.documents.0.document.score": "NaN"}),
        "record finite numbers",
    ),
    "first has none": (
        retrieval(1, ["c-1", "c-2"], retriever={"retrieval.documents.0.document.score": ""}),
        "score every document",
    ),
}


@pytest.mark.parametrize(("span", "change"), SCORE_CASES.values(), ids=SCORE_CASES.keys())
def test_a_missing_top1_score_names_its_change(span: dict[str, Any], change: str) -> None:
    """A missing score, a distance and a value that is no number are different faults; recall is measured all the same."""
    report = examined([otlp([span, answer(1, "[c-1]")])])
    found = verdict(report, "top1_score")
    assert (found.answer, verdict(report, RECALL).answer) == ("cannot", "can")
    assert change in found.change


def test_scores_that_are_all_zero_are_no_scores() -> None:
    """Some sources write 0.0 where they know nothing: a default is not a measurement."""
    zero = {"retrieval.documents.0.document.score": 0.0}
    report = examined(
        [otlp([s for n in range(5) for s in (retrieval(n, ["c-1"], retriever=zero), answer(n, "[c-1]"))])]
    )
    assert verdict(report, "top1_score").answer == "cannot"


def test_answers_without_end_are_named_as_such() -> None:
    """A model that repeats itself is not taken for an SDK that drops attributes."""
    report = examined([otlp([s for n in range(3) for s in (retrieval(n, ["c-1"]), answer(n, "[c-1]" * 10_001))])])
    found = verdict(report, RECALL)
    assert [one.cause.code for one in found.causes] == ["truncated:answer"]


def test_a_part_of_the_traces_is_named_as_a_share() -> None:
    """`partly` says for how many traces, and gives every cause with its number, the most frequent first."""
    spans = healthy(12) + [
        s for n in range(12, 18) for s in (retrieval(n, ["c-1"], droppedAttributesCount=5), answer(n, "x"))
    ]
    spans += [s for n in range(18, 20) for s in (retrieval(n, ["c-1"]), answer(n, None))]
    found = verdict(examined([otlp(spans)]), RECALL)
    assert (found.answer, found.share) == ("partly", 0.6)
    assert [(one.traces, one.cause.code.split(":")[0]) for one in found.causes] == [(6, "truncated"), (2, "no_output")]


def test_indices_that_do_not_start_at_0_are_dropped_attributes() -> None:
    """A proxy may hide the SDK's counter; the gap in the list tells the same, and no value is cut off."""
    attributes = {"openinference.span.kind": "RETRIEVER", "retrieval.documents.3.document.id": "c-4"}
    report = examined([otlp([otlp_span(1, 1, "r", attributes), answer(1, "[c-4]")])])
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in verdict(report, RECALL).change


def test_ids_made_from_the_content_match_no_citation() -> None:
    """Documents without an id get a digest for one; that answers cite ids which are not recorded is said."""
    content = {"openinference.span.kind": "RETRIEVER", "retrieval.documents.0.document.content": "a text"}
    found = verdict(examined([otlp([otlp_span(1, 1, "r", content), answer(1, "[doc-9]")])]), RECALL)
    assert (found.answer, "chunk_id" in found.change) == ("cannot", True)
    assert "records no chunk ids" in found.because


def test_the_convention_that_found_something_is_the_one_to_change() -> None:
    """An empty retriever span of another library beside it changes nothing."""
    empty = otlp_span(1, 3, "retrieve", {"langfuse.observation.type": "retriever"})
    found = {"openinference.span.kind": "RETRIEVER", "retrieval.documents.0.document.id": "c-1"}
    report = examined([otlp([otlp_span(1, 1, "r", found), empty, answer(1, "[c-1]")])])
    assert "document.score" in verdict(report, "top1_score").change


def test_a_score_at_a_wrong_time_is_a_matter_of_the_clock() -> None:
    """The score is there; what stops it is the span's end."""
    future = {**ONE, "endTimeUnixNano": str(NOW_NS + 3_600 * SECOND_NS)}
    assert "nanoseconds" in verdict(examined([otlp([future])]), "top1_score").change


def test_what_would_stop_a_trace_next_is_said_too() -> None:
    """A retrieval without an answer whose list is cut off needs both changes; hiding the second costs a week."""
    found = verdict(examined([otlp([retrieval(1, ["c-1"], droppedAttributesCount=5)])]), RECALL)
    assert "LLM" in found.change
    assert ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in one.cause.change for one in found.causes] == [True]
    nothing = verdict(examined([otlp(_genai(1)[:1])]), RECALL)
    assert ["CAPTURE_MESSAGE_CONTENT" in one.cause.change for one in nothing.causes] == [True]


# ------------------------------------------------------------------------------------------------- suggestions that work


def test_a_suggested_mapping_can_be_pasted_and_makes_recall_measurable() -> None:
    """A span that no convention knows is recognised by name and attributes; the setting that is printed reads it."""
    hits = json.dumps([{"id": "c-1", "score": 0.8}, {"id": "c-2", "score": 0.7}])
    records = [
        otlp([otlp_span(n, 1, "vector search (v2)", {"rag.hits": hits}), answer(n, "So it is [c-1].")])
        for n in range(5)
    ]
    before = verdict(examined(records), RECALL)
    assert before.answer == "cannot"
    setting = before.change.removeprefix("add to the settings: ")
    after = examined(records, Settings(**tomllib.loads(setting)))
    assert (verdict(after, RECALL).answer, verdict(after, "top1_score").answer) == ("can", "can")


def test_an_answer_of_ones_own_is_suggested_as_a_mapping() -> None:
    """The same for the LLM half."""
    records = [
        otlp([retrieval(n, ["c-1"]), otlp_span(n, 2, "generate_answer", {"llm.reply": "It is [c-1]."})])
        for n in range(5)
    ]
    setting = verdict(examined(records), RECALL).change.removeprefix("add to the settings: ")
    assert verdict(examined(records, Settings(**tomllib.loads(setting))), RECALL).answer == "can"


def test_a_chain_is_not_taken_for_an_unknown_span() -> None:
    """A span whose convention says that it is a chain needs no mapping, whatever its name."""
    chain = otlp_span(1, 3, "CompactAndRefine.synthesize", {"openinference.span.kind": "CHAIN", "output.value": "x"})
    assert "mappings" not in verdict(examined([otlp([ONE, chain])]), RECALL).change


def test_a_suggested_route_key_splits_the_traces() -> None:
    """An attribute with a few values, the same all over a trace, is offered as the route, and what worked before stays."""
    records = [
        otlp(
            [
                retrieval(n, ["c-1"], retriever={"tenant": f"t-{n % 3}", "user.id": f"u-{n}"}),
                answer(n, "[c-1]", more={"tenant": f"t-{n % 3}"}),
            ]
        )
        for n in range(30)
    ]
    found = verdict(examined(records), "route_split")
    assert found.change == 'set score.route_keys = ["tenant", "resource:service.name"]'
    settings = Settings(**tomllib.loads(found.change.removeprefix("set ")))
    assert "3 routes by the key tenant" in verdict(examined(records, settings), "route_split").because


def test_what_is_no_route_is_not_offered_as_one() -> None:
    """One value splits nothing, a value that changes within a trace places none, and a rare one leaves the rest out."""
    records = [
        otlp(
            [
                retrieval(
                    n,
                    ["c-1"],
                    retriever={"zone": "one", "app.step": f"s-{n % 2}", **({"team": f"t-{n % 2}"} if n < 9 else {})},
                ),
                answer(n, "[c-1]", more={"app.step": f"s-{(n + 1) % 2}"}),
            ]
        )
        for n in range(30)
    ]
    assert examined(records).hints.route_keys() == []


def test_a_mapped_flat_record_is_read_as_the_worker_reads_it() -> None:
    """A mapping may open records whose ids stand elsewhere; the doctor counts them under its name."""
    mapping = {
        "kind": "retrieval",
        "has": "hits",
        "documents": "hits",
        "trace_id": "tid",
        "span_id": "sid",
        "end": "at",
    }
    settings = Settings(mappings={"mine": mapping})
    record = {"tid": "a", "sid": "b", "at": 1_767_225_601, "hits": [{"id": "c-1", "score": 0.5}]}
    report = examined([json.dumps(record).encode()], settings)
    assert report.sources[0].conventions["mapping:mine"].retrievals.with_ids == 1


def test_a_route_with_a_value_per_trace_is_no_route() -> None:
    """A path with an id in it makes as many groups as traces, and no group has a distribution."""
    records = [
        otlp([retrieval(n, ["c-1"], retriever={"http.route": f"/ask/{n}"}), answer(n, "[c-1]")]) for n in range(400)
    ]
    found = verdict(examined(records), "route_split")
    assert found.answer == "partly"
    assert "400 values" in found.because


RETRIEVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("r", {"citegauge.kind": "retrieval"}),
    "langfuse": ("r", {"langfuse.observation.type": "retriever"}),
    "openinference": ("r", {"openinference.span.kind": "RETRIEVER"}),
    "mlflow": ("r", {"mlflow.spanType": '"RETRIEVER"'}),
    "langsmith": ("r", {"langsmith.span.kind": "retriever"}),
    "trulens": ("r", {"ai.observability.span_type": "retrieval"}),
    "langwatch": ("r", {"langwatch.span.type": "rag"}),
    "haystack": ("r", {"haystack.component.type": "BM25Retriever"}),
    "gen_ai_span_kind": ("r", {"gen_ai.span.kind": "RETRIEVER"}),
    "openllmetry": ("x", {"gen_ai.operation.name": "vector_db_retrieve"}),
    "otel_genai": ("r", {"gen_ai.operation.name": "retrieval"}),
    "vector_db": ("qdrant.search", {"db.system": "qdrant"}),
}
"""A bare retrieval span of each convention: name and attributes."""


def _advised(convention: str, metric: str, **more: Any) -> Any:
    name, attributes = RETRIEVALS[convention]
    report = examined([otlp([otlp_span(1, 1, name, {**attributes, **more}), answer(1, "[c-1]")])])
    if not more:
        assert set(report.sources[0].conventions) == {convention, "openinference"}
    return verdict(report, metric)


@pytest.mark.parametrize("convention", RETRIEVALS)
def test_a_suggested_attribute_is_read_by_its_convention(convention: str) -> None:
    """An attribute that is advised and then not read would send a person in a circle."""
    change = _advised(convention, "top_k_buckets").change
    for key in re.findall(r"put (\S+) on the retrieval span", change):
        assert _advised(convention, "top_k_buckets", **{key: 7}).answer == "can"
    version = _advised(convention, "version_split").change.split()[1]
    assert _advised(convention, "version_split", **{version: "2026-01"}).answer == "can"


@pytest.mark.parametrize("convention", RETRIEVALS)
def test_our_own_attributes_help_everywhere(convention: str) -> None:
    """Where an instrumentation records nothing, ids and scores under our own names are read on its spans too."""
    own = {"retrieval.retrieved_ids": ["c-1", "c-2"], "retrieval.scores": [0.9, 0.8]}
    assert _advised(convention, RECALL).answer == "cannot"
    assert _advised(convention, RECALL, **own).answer == "can"
    assert _advised(convention, "top1_score", **own).answer == "can"


# ----------------------------------------------------------------------------------------------------- what was noticed


@pytest.mark.parametrize(("unit", "divisor"), [("seconds", 10**9), ("milliseconds", 10**6), ("microseconds", 10**3)])
def test_a_time_in_another_unit_is_recognised(unit: str, divisor: int) -> None:
    """Times in s, ms or µs lie in 1970 when read as ns; the report names the unit and the factor, first of all."""
    spans = [
        {**span, "endTimeUnixNano": str(int(span["endTimeUnixNano"]) // divisor), "startTimeUnixNano": "0"}
        for span in healthy(3)
    ]
    report = examined([otlp(spans)])
    assert finding(report, f"clock:{unit}").level == "problem"
    assert f"multiply start and end by {divisor:,}" in first_change(report)


def test_clocks_that_run_ahead_and_missing_ends_are_told_apart() -> None:
    """Each kind of wrong time has its own sentence."""
    future = {**ONE, "endTimeUnixNano": str(NOW_NS + 3_600 * SECOND_NS)}
    missing = {**answer(1, "x"), "endTimeUnixNano": "0"}
    old = {**otlp_span(1, 3, "other", {}), "endTimeUnixNano": "5"}
    report = examined([otlp([future, missing, old])])
    assert finding(report, "clock:too_old").level == "problem"
    assert "in the future" in finding(report, "clock:future").says
    assert finding(report, "clock:missing").says.startswith("1 span of 3")


@pytest.mark.parametrize(
    ("record", "code", "says"),
    [
        (b"\x1f\x8b\x08\x00rest", "unreadable:not_protobuf", "gzip"),
        (b"\x00\x00\x00\x00\x07abc", "unreadable:not_protobuf", "schema registry"),
        (b'{"resourceLogs":[]}', "unreadable:bad_trace_id", "OTLP logs"),
        (b"hello", "unreadable:not_protobuf", "no OTLP protobuf"),
        (b'{"a":', "unreadable:not_json", "no JSON"),
        (b"", "unreadable:empty_record", "tombstone"),
    ],
)
def test_unreadable_records_are_explained(record: bytes, code: str, says: str) -> None:
    """A topic that holds something else is recognised, and where nothing can be read that comes first."""
    report = examined([record])
    assert says in finding(report, code).says
    assert verdict(report, RECALL).because.startswith("no record can be read")


def test_the_wrong_encoding_is_named() -> None:
    """What another encoding reads is no foreign format: the setting is to be changed, not the topic."""
    report = examined([otlp(healthy(2))], encoding="jaeger_json")
    assert "OTLP JSON" in finding(report, "unreadable:not_jaeger_json").says
    assert first_change(report).startswith("use --encoding auto")


def test_a_few_unreadable_records_are_no_order() -> None:
    """They become dead letters and the rest is measured: said, but nothing to change first."""
    report = examined([otlp(healthy(2)), b"garbage"])
    assert "Each becomes a dead letter" in finding(report, "unreadable:not_protobuf").says
    assert "dead letter" not in first_change(report)


def test_protobuf_logs_are_recognised() -> None:
    """The most frequent mistake, the logs' topic, decodes as spans without ids."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest  # noqa: PLC0415

    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add(severity_text="INFO").body.string_value = "hello"
    report = examined([logs.SerializeToString()])
    assert any("OTLP logs" in one.says and "otlp_spans" in one.change for one in report.findings)


def test_forms_of_trace_ids_are_named() -> None:
    """Ids of several forms are made alike; 64-bit ids that are half of another trace's id are not, and that is said."""
    long_id, upper = "4bf92f3577b34da6a3ce929d0e0e4736", "4BF92F3577B34DA6A3CE929D0E0E4737"
    spans = [{**ONE, "traceId": long_id}, {**answer(1, "[c-1]"), "traceId": long_id[16:]}, {**ONE, "traceId": upper}]
    report = examined([otlp(spans)])
    assert finding(report, "trace_id_forms").says.startswith("trace ids come in 3 forms")
    assert finding(report, "half_ids").level == "problem"


def test_answers_that_count_from_0_are_found_though_they_resolve() -> None:
    """Counted from 0, most numbers name a chunk, but the wrong one: recall looks measured and is not."""
    spans = [s for n in range(10) for s in (retrieval(n, ["c-1", "c-2"]), answer(n, "[0] and [1]"))]
    report = examined([otlp(spans)])
    assert verdict(report, RECALL).answer == "can"
    assert finding(report, "position_base").change == "set routes.rag-api.position_base = 0"
    assert first_change(report) == finding(report, "position_base").change


def test_two_instrumentations_of_one_call_are_noticed() -> None:
    """Both record the same LLM call; one answer counts, and the other is paid for."""
    spans = healthy(10)
    spans += [
        otlp_span(n, 3, "chat", {"gen_ai.operation.name": "chat", "gen_ai.completion.0.content": "[c-1]"})
        for n in range(10)
    ]
    assert "openinference and otel_genai" in finding(examined([otlp(spans)]), "two_instrumentations").says


def test_lost_trace_context_is_noticed() -> None:
    """As many retrievals without an answer as answers without a retrieval: the halves are there, apart."""
    spans = [retrieval(n, ["c-1"]) for n in range(10)] + [answer(n, "[c-1]") for n in range(10, 20)]
    report = examined([otlp(spans)])
    assert "trace context" in finding(report, "halves_apart").change
    assert "different traces" in verdict(report, RECALL).because


def test_an_answer_long_after_its_retrieval_needs_a_longer_window() -> None:
    """A gap beyond the join window splits the trace on a live topic, though a sample joins it."""
    slow = {**answer(1, "[c-1]"), "endTimeUnixNano": str(START_NS + 1_000 * SECOND_NS)}
    assert "join.join_window_s" in finding(examined([otlp([ONE, slow])]), "long_gaps").change


# ------------------------------------------------------------------------------------------------------------- on topics


def _at(second: int, value: bytes, partition: int = 0, key: bytes | None = None) -> SampleRecord:
    return SampleRecord(partition, second, START_NS + second * SECOND_NS, True, key, value)


def test_traces_cut_by_the_sample_are_not_called_unmatched() -> None:
    """Near an end that the log goes beyond, the other half may lie outside; in the middle it is really missing."""
    found = [_at(n, otlp([span])) for n in range(100) for span in (retrieval(n, ["c-1"]), answer(n, "[c-1]"))]
    middle = [_at(50, otlp([retrieval(500, ["c-1"])]))]
    ends = [_at(0, otlp([answer(501, "[c-1]")])), _at(99, otlp([retrieval(502, ["c-1"])]))]
    report = judged([topic("t", [*ends[:1], *found, *middle, *ends[1:]], before=True, after=True)])
    unmatched = {
        int.from_bytes(one.result.trace_id, "big") - 1: one.cut
        for one in report.traces.joined
        if not one.result.matched
    }
    assert unmatched == {500: False, 501: True, 502: True}
    assert verdict(report, RECALL).traces == 101


def test_a_sample_that_cuts_every_trace_says_so() -> None:
    """Then nothing is known, and the remedy is a longer sample."""
    report = judged([topic("t", [_at(0, otlp([ONE]))], before=True, after=True)])
    assert "--records" in verdict(report, RECALL).change


def test_a_topic_that_is_declared_keyed_and_is_not_is_a_problem() -> None:
    """The join would never see both halves together; the setting to change is named."""
    sample = simulated("citegauge.traces", encoding="otlp_proto", keyed=False)
    report = judged([sample], Settings(kafka={"keyed": True}))
    assert finding(report, "spread").level == "problem"
    assert finding(report, "spread").change == "set kafka.keyed = false"


def test_the_broker_must_set_the_timestamps() -> None:
    """CreateTime is reported with the command that changes it."""
    record = _at(1, otlp([ONE, answer(1, "[c-1]")]))._replace(log_append=False)
    report = judged([topic("t", [record])])
    assert "message.timestamp.type=LogAppendTime" in finding(report, "create_time").change


def test_large_records_are_noticed() -> None:
    """Above our bound a record is set aside, as the worker would; near the collector's it is a warning."""
    small = Settings(join={"record_bytes_max": 300})
    report = judged([topic("t", [_at(1, otlp([ONE]))])], small)
    assert "join.record_bytes_max" in finding(report, "record_too_large").change
    padded = otlp([ONE, answer(1, "x" * 900_000)])
    assert "max_message_bytes" in finding(judged([topic("t", [_at(1, padded)])]), "record_size").change


def test_an_empty_topic_is_named() -> None:
    """No records: neither a verdict from nothing nor a crash."""
    report = judged([topic("t", [])])
    assert finding(report, "empty").source == "t"
    assert "--since" in first_change(report)


def test_halves_in_two_topics_are_joined() -> None:
    """All sources are judged together, as the worker joins them."""
    retrievals = topic("retrievals", [_at(n, otlp([retrieval(n, ["c-1"])])) for n in range(5)])
    answers = topic("answers", [_at(n, otlp([answer(n, "[c-1]")])) for n in range(5)])
    report = judged([retrievals, answers])
    assert verdict(report, RECALL).answer == "can"
    assert finding(report, "several_topics").says.startswith("5 traces")


def test_the_sample_is_whole_only_where_all_partitions_are() -> None:
    """A short partition bounds what the long one shows: before its first and after its last record, traces may be cut."""
    long = [_at(n, otlp([one])) for n in range(0, 300, 3) for one in (retrieval(n, ["c-1"]), answer(n, "[c-1]"))]
    short = [_at(n, otlp([retrieval(n, ["c-1"]), answer(n, "[c-1]")]), partition=1) for n in range(100, 201, 10)]
    alone = {n: _at(n, otlp([retrieval(n + 1_000, ["c-1"])])) for n in (50, 150, 250)}
    report = judged([topic("t", [*long, *short, *alone.values()], before=True, after=True)])
    cut = {
        one.note.first_ns // SECOND_NS - START_NS // SECOND_NS: one.cut
        for one in report.traces.joined
        if not one.result.matched
    }
    assert cut == {50: True, 150: False, 250: True}


def test_a_batch_is_not_keyed_by_one_of_its_traces() -> None:
    """The key of a batch of many traces places only one of them."""
    keys = [f"{trace:032x}".encode() for trace in (1, 2)]
    both = otlp([retrieval(0, ["c-1"]), retrieval(1, ["c-1"])])
    alone = _at(1, otlp([retrieval(0, ["c-1"])]), key=keys[0])
    batches = [_at(2 + n, both, key=key) for n, key in enumerate(keys)]
    assert judged([topic("t", [alone, *batches])]).sources[0].keyed_by_trace == 1


def test_spans_that_come_long_after_their_end_are_noticed() -> None:
    """What is slower than window and disorder allow is late wherever faster spans have gone before."""
    slow = _at(3_600, otlp([ONE, answer(1, "[c-1]")]))
    assert "join.join_window_s" in finding(judged([topic("t", [slow])]), "clock:delay").change


def test_the_given_encoding_wins_for_topics_too() -> None:
    """`--encoding` tries another reading without touching the settings."""
    record = _at(1, otlp([ONE, answer(1, "[c-1]")]))
    assert judged([topic("citegauge.traces", [record])]).sources[0].spans == 2
    assert judged([topic("citegauge.traces", [record])], encoding="otlp_proto").sources[0].spans == 0


def test_the_bound_on_records_is_for_topics() -> None:
    """A file may hold one large document, which `replay` reads as well."""
    small = Settings(join={"record_bytes_max": 300})
    assert examined([otlp(healthy(5))], small).sources[0].spans == 10


# ------------------------------------------------------------------------------------------------------------ small parts


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("4bf92f3577b34da6a3ce929d0e0e4736", "hex"),
        ("4BF92F3577B34DA6A3CE929D0E0E4736", "upper-case hex"),
        ("0x4bf92f3577b34da6a3ce929d0e0e4736", "0x and hex"),
        ("a3ce929d0e0e4736", "hex of 64 bits"),
        ("4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "UUID"),
        ("tr-4bf92f3577b34da6a3ce929d0e0e4736", "tr- and hex"),
        ("S/kvNXezTaajzpKdDg5HNg==", "base64"),
        ("11803532876627986230", "decimal"),
        ("request 7", "free text"),
    ],
)
def test_id_forms_have_names(text: str, form: str) -> None:
    """The name tells a person what to look for in the application."""
    assert id_form(text, 16) == form


def test_a_share_is_never_rounded_to_all_or_nothing() -> None:
    """999 of 1,000 are not 100%, and 1 of 1,000 is not 0%."""
    assert [share_text(*one) for one in ((999, 1_000), (1, 1_000), (5, 5), (0, 5), (0, 0))] == [
        "99%",
        "1%",
        "100%",
        "0%",
        "–",
    ]


def test_since_is_a_time_or_counted_back_from_now() -> None:
    """`-1h` and `1h` both mean an hour ago; a time without an offset is UTC."""
    assert bounds_of(10, "1h", now_ns=NOW_NS) == bounds_of(10, "-1h", now_ns=NOW_NS)
    assert bounds_of(10, "2026-01-01T00:00:00", now_ns=NOW_NS).since_ms == START_NS // 1_000_000
    assert bounds_of(10, None, now_ns=NOW_NS).since_ms is None


# ----------------------------------------------------------------------------------------------------------- robustness


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.convention}/{case.name}")
def test_every_published_shape_is_examined(case: Case) -> None:
    """Each golden record of decode is counted under the convention that claims it, alone and cut anywhere."""
    value = case.record.read_bytes()
    report = examined([value], encoding=case.encoding)
    claimed = {
        entry.get("claimed_by") or "(none)" for entry in json.loads(case.expected.read_text()) if "kind" in entry
    }
    assert set(report.sources[0].conventions) == claimed
    assert text_of(report)
    for end in range(0, len(value), max(1, len(value) // 7)):
        text_of(examined([value[:end]], encoding="auto"))


def test_names_from_the_data_cannot_steer_the_terminal() -> None:
    """Span names, keys and ids are someone else's text: no escape sequence, no markup reaches the screen."""
    escape = "\x1b[2J[red]"
    spans = [
        otlp_span(1, 1, f"vector search {escape}", {escape: "x"}),
        answer(1, "[c-1]", more={escape: "y"}),
        retrieval(2, [f"chunk-7{escape}"], retriever={"route": f"a {escape}"}),
        answer(2, None, more={"generation.cited_ids": [f"chunk-8{escape}"], "citegauge.kind": "generation"}),
    ]
    text = text_of(examined([otlp(spans)]))
    assert "\x1b" not in text
    assert "[red]" in text


def test_a_route_of_any_name_is_quoted_for_the_settings() -> None:
    """A suggested setting is TOML whatever the route is called."""
    route = 'say "hi"/[x]'
    spans = [s for n in range(3) for s in (retrieval(n, ["c-1"], retriever={"route": route}), answer(n, "[0]"))]
    change = verdict(examined([otlp(spans)]), RECALL).change.removeprefix("set ")
    assert tomllib.loads(change) == {"routes": {route: {"position_base": 0}}}
