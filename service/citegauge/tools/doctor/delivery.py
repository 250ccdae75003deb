"""How the records arrive: readable, keyed, in time, small enough. Sentences per source, worst first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from citegauge.domain.policy import SECOND_NS, JoinPolicy
from citegauge.tools.doctor.counts import Fault, SourceCounts
from citegauge.tools.doctor.forms import READABLE
from citegauge.tools.doctor.traces import JoinedTrace, Traces
from citegauge.tools.doctor.verdict import plural, share_text

Level = Literal["problem", "note", "good"]
COLLECTOR_BYTES_MAX = 1_000_000
"""Default largest record of the OpenTelemetry Collector's Kafka exporter, before compression: it drops what is larger."""
NEAR_LIMIT = 0.8
DELAY_QUANTILE = 0.99
LEVELS: tuple[Level, ...] = ("problem", "note", "good")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence about the delivery, with the change it asks for."""

    level: Level
    code: str
    source: str
    """Topic or file; empty: about all of them."""
    says: str
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings that a delivery is measured against."""

    join: JoinPolicy
    record_bytes_max: int


def findings(sources: list[SourceCounts], traces: Traces, limits: Limits) -> list[Finding]:
    """Everything worth saying."""
    found: list[Finding] = []
    for index, source in enumerate(sources):
        if not source.records:
            found.append(Finding(level="problem", code="empty", source=source.name, says="it holds no records"))
            continue
        found += _unreadable(source)
        found += _clock(source, limits.join)
        found += _sizes(source, limits.record_bytes_max)
        found += _ids(source)
        if source.is_topic:
            found += _keys(source, index, traces)
            found += _timestamps(source)
    found += _traces(sources, traces, limits.join)
    return found


# --------------------------------------------------------------------------------------------------------- unreadable

_REASONS = {
    "not_json": "it is no JSON",
    "not_protobuf": "it is no OTLP protobuf",
    "not_otlp_json": "it is JSON, but not OTLP traces",
    "not_an_object": "it is JSON, but no object",
    "not_a_span": "an item of the list is no span",
    "empty_record": "the record is empty (a tombstone)",
    "bad_trace_id": "the trace id is missing or in no known form",
    "bad_span_id": "the span id is missing or in no known form",
    "bad_parent_id": "the parent's span id is in no known form",
    "bad_time_field": "a time is no integer",
    "record_too_large": "the record is larger than join.record_bytes_max",
}


def _unreadable(source: SourceCounts) -> Iterable[Finding]:
    for reason, fault in sorted(source.faults.items(), key=lambda item: -item[1].records - item[1].spans):
        counts = [plural(n, word) for n, word in ((fault.records, "record"), (fault.spans, "span")) if n]
        where = f"partition/offset {fault.offset}" if source.is_topic else f"record {fault.offset.partition('/')[2]}"
        says = f"{' and '.join(counts)} cannot be read: {_REASONS.get(reason, reason)} ({reason}; the first at {where}"
        # What a parser says helps its maintainers.
        says += f": {fault.detail})" if fault.detail and not reason.startswith("not_") else ")"
        if fault.guess:
            says += f". It looks like {fault.guess}"
        elif source.unread_records < source.records:
            says += ". Each becomes a dead letter, and the rest is measured"
        rare = fault.records * 1_000 < source.records and fault.spans * 1_000 < source.spans
        yield Finding(
            level="note" if rare else "problem",
            code=f"unreadable:{reason}",
            source=source.name,
            says=says,
            change=_unreadable_change(reason, fault, all_of_it=source.unread_records >= source.records),
        )


def _unreadable_change(reason: str, fault: Fault, *, all_of_it: bool) -> str:
    if "not traces" in fault.guess:
        return "read the topic with the spans (the collector's default name is otlp_spans)"
    if "schema registry" in fault.guess:
        return "send OTLP or JSON without the registry's frame: citegauge does not read Avro or framed records"
    if "inside the record" in fault.guess:
        return "let Kafka compress (compression.type of the producer) instead of compressing the value"
    if reason == "empty_record":
        return ""
    if fault.guess.startswith(READABLE):
        return "use --encoding auto, and leave kafka.encoding (or sources.<topic>.encoding) at auto"
    if all_of_it:
        return "check --encoding (kafka.encoding), and that this is the topic with the spans"
    return ""


# -------------------------------------------------------------------------------------------------------------- clock


def _clock(source: SourceCounts, policy: JoinPolicy) -> Iterable[Finding]:
    clock = source.clock
    for unit, count in clock.wrong_unit.most_common():
        factor = {"seconds": "1,000,000,000", "milliseconds": "1,000,000", "microseconds": "1,000"}[unit]
        yield Finding(
            level="problem",
            code=f"clock:{unit}",
            source=source.name,
            says=f"{plural(count, 'span')} of {source.spans:,} with an end in {unit}, not in nanoseconds: read as it "
            "stands, it lies in 1970",
            change=f"multiply start and end by {factor} where the span is made",
        )
    for code, count, says, change in (
        ("missing", clock.missing, "have no end time", "send an end time with every span (end_time_unix_nano)"),
        ("too_old", clock.too_old, "end before the year 2000", "mend the clock or the unit of the end time"),
        (
            "future",
            clock.future,
            f"end more than {policy.skew_ns / SECOND_NS:g} s after their record was written"
            if source.is_topic
            else "end in the future",
            "synchronise the clock of the application (NTP); a known skew can be allowed by join.skew_s",
        ),
    ):
        if count:
            yield Finding(
                level="problem",
                code=f"clock:{code}",
                source=source.name,
                says=f"{plural(count, 'span')} of {source.spans:,} {says}: bad_time",
                change=change,
            )
    delays = sorted(clock.delays_ns)
    if delays:
        late_ns = delays[int(len(delays) * DELAY_QUANTILE)]
        allowed_ns = policy.join_window_ns + policy.out_of_orderness_ns
        if source.create_time < source.records and late_ns > allowed_ns:
            yield Finding(
                level="note",
                code="clock:delay",
                source=source.name,
                says=f"1% of the spans come more than {_duration(late_ns)} after they ended. Where faster ones have gone "
                f"before, whatever comes after {_duration(allowed_ns)} is late and counts nowhere",
                change="raise join.join_window_s above the delay, unless the sample is a back-fill",
            )


def _duration(length_ns: int) -> str:
    seconds = length_ns / SECOND_NS
    for limit, unit, size in ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


# ---------------------------------------------------------------------------------------------------- sizes, ids, keys


def _sizes(source: SourceCounts, record_bytes_max: int) -> Iterable[Finding]:
    if not source.is_topic:
        return
    largest, where = source.largest_bytes, source.largest_at
    if largest > record_bytes_max:
        yield Finding(
            level="problem",
            code="record_too_large",
            source=source.name,
            says=f"the largest record ({where}) has {largest:,} bytes, and records above {record_bytes_max:,} are set aside",
            change="raise join.record_bytes_max, or send smaller batches (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)",
        )
    elif largest > COLLECTOR_BYTES_MAX * NEAR_LIMIT:
        yield Finding(
            level="note",
            code="record_size",
            source=source.name,
            says=f"the largest record ({where}) has {largest:,} bytes. The OpenTelemetry Collector drops records above "
            f"{COLLECTOR_BYTES_MAX:,}, and the ones with many documents go first",
            change="send smaller batches (send_batch_max_size), or raise the exporter's max_message_bytes and the topic's "
            "max.message.bytes",
        )


def _ids(source: SourceCounts) -> Iterable[Finding]:
    forms = source.trace_id_forms
    if len(forms) > 1:
        listed = ", ".join(f"{form} ({count:,})" for form, count in forms.most_common())
        yield Finding(
            level="note",
            code="trace_id_forms",
            source=source.name,
            says=f"trace ids come in {len(forms)} forms: {listed}. They are made alike before the join",
        )
    if forms.get("free text"):
        yield Finding(
            level="note",
            code="trace_id_text",
            source=source.name,
            says=f"{forms['free text']:,} trace ids are free text: a digest stands in, and joins only with the same text",
        )


def _keys(source: SourceCounts, index: int, traces: Traces) -> Iterable[Finding]:
    places = [
        {partition for at, partition in one.note.partitions if at == index}
        for one in traces.joined
        if len(one.note.span_ids) > 1
    ]
    spread = sum(len(found) > 1 for found in places)
    several = sum(bool(found) for found in places)
    partitions = len(source.partitions)
    keyed = f"{share_text(source.keyed, source.records)} of the records have a key"
    if source.keyed in (0, source.records):
        keyed = "every record has a key" if source.keyed else "no record has a key"
    if source.keyed and source.keyed_by_trace < source.keyed:
        keyed += f" ({share_text(source.keyed_by_trace, source.keyed)} of them the trace id)"
    if spread:
        mixed = (
            f"; {share_text(source.many_traces, source.records)} of the records hold several traces"
            if source.many_traces
            else ""
        )
        declared = source.reading.keyed
        yield Finding(
            level="problem" if declared else "note",
            code="spread",
            source=source.name,
            says=f"{spread:,} traces of {several:,} lie on more than one partition ({keyed}{mixed}): they must be re-keyed "
            "before they can be joined"
            + (f", and {source.reading.keyed_setting} = true says that they need not" if declared else ""),
            change=f"set {source.reading.keyed_setting} = false"
            if declared
            else f"nothing has to change: citegauge re-keys the topic by itself. To save that stage, {_BY_TRACE}",
        )
    elif not several:
        return
    elif partitions > 1 and source.keyed_by_trace < source.records:
        yield Finding(
            level="note",
            code="not_keyed_by_trace",
            source=source.name,
            says=f"every trace of the sample lies on one partition, but {keyed}: that may be luck",
            change=f"nothing has to change: citegauge re-keys the topic by itself. To save that stage, {_BY_TRACE}",
        )
    else:
        how = "it has one partition" if partitions == 1 else "every record is keyed by its trace id"
        could = source.reading.keyed is False
        yield Finding(
            level="good",
            code="joinable",
            source=source.name,
            says=f"every trace lies on one partition ({how}): it can be joined directly",
            change=f"set {source.reading.keyed_setting} = true to save the re-key stage" if could else "",
        )


_BY_TRACE = "key the topic by trace id (OpenTelemetry Collector, Kafka exporter: partition_traces_by_id: true)"


def _timestamps(source: SourceCounts) -> Iterable[Finding]:
    if source.create_time:
        yield Finding(
            level="note",
            code="create_time",
            source=source.name,
            says="the timestamps come from the producers (CreateTime): one with a wrong clock can close minutes early",
            change="set the topic's message.timestamp.type=LogAppendTime (kafka-configs.sh --alter --entity-type topics "
            f"--entity-name {source.name} --add-config message.timestamp.type=LogAppendTime)",
        )
    else:
        yield Finding(
            level="good",
            code="log_append_time",
            source=source.name,
            says="the broker sets the timestamps (LogAppendTime)",
        )


# ------------------------------------------------------------------------------------------------------- across traces


def _traces(sources: list[SourceCounts], traces: Traces, policy: JoinPolicy) -> Iterable[Finding]:
    topics = [source for source in sources if source.is_topic]
    across = sum(len({at for at, _ in one.note.partitions}) > 1 for one in traces.joined)
    if len(topics) > 1 and across:
        yield Finding(
            level="note",
            code="several_topics",
            source="",
            says=f"{across:,} traces lie in more than one topic: they must be re-keyed before they can be joined",
        )
    spans = sum(source.spans for source in sources)
    if traces.repeated_spans:
        yield Finding(
            level="note",
            code="repeated",
            source="",
            says=f"{traces.repeated_spans:,} spans of {spans:,} came more than once (a retry, or two exporters): "
            "each counts once",
        )
    if traces.half_ids:
        yield Finding(
            level="problem",
            code="half_ids",
            source="",
            says=f"{traces.half_ids:,} traces have ids of 64 bits that are the second half of another trace's id: the two "
            "are one trace, and do not join",
            change="send 128-bit trace ids from every service (Zipkin B3 tracers: traceId128Bit=true)",
        )
    yield from _doubled(traces.joined)
    yield from _gaps(traces.joined, policy)
    apart = _halves_apart(traces.judged)
    if apart is not None:
        yield apart


def _doubled(joined: list[JoinedTrace]) -> Iterable[Finding]:
    doubled = [one for one in joined if len(one.note.answers) > 1]
    if len(doubled) * 20 > len(joined):
        names = " and ".join(sorted(doubled[0].note.answers))
        yield Finding(
            level="note",
            code="two_instrumentations",
            source="",
            says=f"{len(doubled):,} traces of {len(joined):,} have LLM spans of {names}: two instrumentations record one "
            "call. The last answer counts",
            change="switch one of the two off",
        )


def _gaps(joined: list[JoinedTrace], policy: JoinPolicy) -> Iterable[Finding]:
    gaps = [one.result.event_ns - one.result.retrieval_end_ns for one in joined if one.result.matched]
    long = sum(gap > policy.join_window_ns for gap in gaps)
    if long:
        yield Finding(
            level="problem",
            code="long_gaps",
            source="",
            says=f"in {long:,} traces of {len(gaps):,} the answer ends more than {_duration(policy.join_window_ns)} after "
            f"the retrieval (the longest: {_duration(max(gaps))}): they can close without their answer",
            change="raise join.join_window_s above the longest gap",
        )


def _halves_apart(judged: list[JoinedTrace]) -> Finding | None:
    unmatched = [one for one in judged if not one.result.matched]
    stages = sum(bool(one.note.stage) for one in unmatched)
    answers = len(unmatched) - stages
    if min(stages, answers) * 5 < len(judged) or min(stages, answers) < 2:
        return None
    return Finding(
        level="problem",
        code="halves_apart",
        source="",
        says=f"{stages:,} traces have only a retrieval and {answers:,} only an LLM span: the two probably belong "
        "together, and the trace context is lost between them",
        change="pass the trace context on from the retriever to the LLM call (threads, async tasks, streaming, other "
        "services)",
    )
