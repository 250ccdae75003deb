"""Input that cannot be read, or only in part, on a real topic: set aside with its origin, and the rest goes on."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from citegauge.domain.policy import SECOND_NS
from citegauge.tools.simulate_output import records
from support.kafka import create_topic, unique
from support.worker import Site, WorkerProcess, produce, traffic
from support.worker_tables import commits, expected, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.clickhouse import ClickHouseFront
    from support.worker import MakeSite

SECRET = "the customer's own words"
RECORD_BYTES_MAX = 20_000


def span(trace: int, kind: str, end_ns: Any, **changes: Any) -> bytes:
    """A native event of trace number `trace`, that holds text which must not travel further."""
    attributes: dict[str, Any] = {"route": "support", "input.value": SECRET}
    if kind == "retrieval":
        attributes |= {
            "retrieval.retrieved_ids": ["c9", "c1", "c3"],
            "retrieval.scores": [0.88, 0.71, 0.64],
            "retrieval.top_k": 3,
            "retrieval.scorer": "reranker:bge-v2",
        }
    else:
        attributes |= {"generation.model": "m1", "generation.cited_ids": ["c9"], "generation.num_citations": 1}
    attributes |= changes.pop("attributes", {})
    event = {
        "trace_id": f"{trace + 1:032x}",
        "span_id": f"{trace * 2 + 2 + (kind == 'generation'):016x}",
        "kind": kind,
        "start_time_unix_nano": end_ns,
        "end_time_unix_nano": end_ns,
        "attributes": attributes,
    }
    return json.dumps(event | changes).encode()


def unreadable(now_ns: int) -> dict[str, tuple[bytes | None, str, list[int]]]:
    """Name to bytes, reason, and the indexes of the spans that are set aside (-1: the record)."""
    batch = next(iter(records(traffic(1, minutes=1, per_minute=60, end_ns=now_ns), "otlp_proto", keyed=False))).value
    good = [span(number, "retrieval", now_ns) for number in (901, 902)]
    return {
        "no format at all": (SECRET.encode(), "not_protobuf", [-1]),
        "JSON cut off": (span(903, "retrieval", now_ns)[:-40], "not_json", [-1]),
        "protobuf cut off": (batch[: len(batch) // 2], "not_protobuf", [-1]),
        "empty": (b"", "empty_record", [-1]),
        "a tombstone": (None, "empty_record", [-1]),
        "too long": (span(904, "retrieval", now_ns, name="x" * RECORD_BYTES_MAX), "record_too_large", [-1]),
        "a trace id of wrong form": (span(905, "retrieval", now_ns, trace_id="4bf9-zz"), "bad_trace_id", [-1]),
        "one bad line among good ones": (b"\n".join([good[0], b'"no object"', good[1]]), "not_an_object", [1]),
    }


@pytest.mark.kafka
def test_what_cannot_be_read_is_set_aside_with_its_origin(
    make_site: MakeSite, database: ClickHouse, tmp_path: Path
) -> None:
    """A dead letter says where and why, and holds no payload; its neighbours are processed, and offsets advance."""
    site = make_site(partitions=2, JOIN__RECORD_BYTES_MAX=str(RECORD_BYTES_MAX))
    now_ns = time.time_ns()
    cases = unreadable(now_ns)
    good = [(b"k", span(n, kind, now_ns)) for n in range(len(cases)) for kind in ("retrieval", "generation")]
    batch: list[tuple[bytes | None, bytes | None]] = []
    for number, (value, _, _) in enumerate(cases.values()):
        batch += [good[2 * number], (b"k", value), good[2 * number + 1]]
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        sent = produce(site.kafka, site.topic, batch)
        worker.until(
            lambda: sum(commit.position for commit in commits(site).values()) == len(batch), "all is committed"
        )
        found = sorted(
            (msgspec.json.decode(record.value) for record in read_topic(site.kafka, f"{site.name}-dead")),
            key=lambda letter: letter["offset"],
        )
        wanted = [
            (*sent[3 * number + 1], index, reason)
            for number, (_, reason, indexes) in enumerate(cases.values())
            for index in indexes
        ]
        assert [(at["partition"], at["offset"], at["index"], at["reason"]) for at in found] == wanted
        assert {letter["topic"] for letter in found} == {site.topic}
        assert all(letter["payload"] is None for letter in found)
        assert SECRET not in json.dumps(found)
        reasons = {reason for _, reason, _ in cases.values()}
        counted = {reason: worker.value("citegauge_dead_letters_total", reason=reason) for reason in reasons}
        assert counted == {reason: sum(at["reason"] == reason for at in found) for reason in reasons}
        assert worker.value("citegauge_records_total") == len(batch)
    rows = stored(database, site.database)
    assert [row["state"] for row in rows.traces.values()] == ["measured"] * len(cases), "every neighbour counts"


@pytest.mark.kafka
def test_what_is_odd_is_a_state_of_that_trace_only(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """Null ids, scores that are none, top_k 0 and impossible times never stop anything and never become a 0."""
    now_ns = time.time_ns()
    odd: list[dict[str, Any]] = [
        {"attributes": {"retrieval.retrieved_ids": ["c9", None, "", "c3"]}},
        {"attributes": {"retrieval.scores": ["n/a", 0.71, 0.64]}},
        {"attributes": {"retrieval.scores": [float("nan"), 0.71, 0.64]}},
        {"attributes": {"retrieval.scores": [True, 0.71, 0.64]}},
        {"attributes": {"retrieval.top_k": 0}},
        {"end_time_unix_nano": now_ns + 3_600 * SECOND_NS},
        {"start_time_unix_nano": now_ns // SECOND_NS, "end_time_unix_nano": now_ns // SECOND_NS},
    ]
    site = make_site(partitions=1)
    batch = []
    for number, changes in enumerate(odd):
        batch += [(b"k", span(number, "retrieval", now_ns, **changes)), (b"k", span(number, "generation", now_ns))]
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        produce(site.kafka, site.topic, batch)
        worker.until(lambda: len(stored(database, site.database).traces) == len(odd), "every trace has its row")
        assert worker.value("citegauge_spans_bad_time_total") == 2
        watermark_s = worker.value("citegauge_watermark_timestamp_seconds")
    rows = sorted(stored(database, site.database).traces.values(), key=lambda row: row["trace_id"])
    measured: dict[str, Any] = {
        "state": "measured",
        "retrieved": 3,
        "cited_retrieved": 1,
        "top1_score": 0.88,
        "ids_dropped": 0,
    }
    wanted: list[dict[str, Any]] = [
        {"retrieved": 2, "ids_dropped": 2, "top1_score": None},  # scores can no longer be matched with ids
        {"top1_score": None},
        {"top1_score": None},
        {"top1_score": None},
        {"top_k_bucket": "1-5"},  # by the number retrieved
        {"state": "bad_time", "top1_score": None},
        {"state": "bad_time", "top1_score": None},
    ]
    for number, (row, changes) in enumerate(zip(rows, wanted, strict=True)):
        expected_row = measured | changes
        assert {name: row[name] for name in expected_row} == expected_row, f"case {number}"
    assert watermark_s <= now_ns / 1e9, "an impossible time does not move the watermark"


def test_the_embedded_broker_runs_the_worker_too(
    embedded_broker: str, front: ClickHouseFront, database: ClickHouse, tmp_path: Path
) -> None:
    """The same worker on the embedded broker: topics made, spans joined, windows shown, rows stored, a clean end."""
    topic = asyncio.run(create_topic(embedded_broker, unique("spans"), partitions=2))
    site = Site(kafka=embedded_broker, clickhouse=front.url, topic=topic)
    end_ns = time.time_ns() - 180 * SECOND_NS
    batch = [(r.key, r.value) for r in records(traffic(2, minutes=10, per_minute=60, end_ns=end_ns), "otlp_proto")]
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        produce(site.kafka, site.topic, batch)
        truth = expected(site, read_topic(site.kafka, site.topic))
        worker.until(lambda: not stored(database, site.database).differences(truth), "tables equal the offline pass")
        worker.until(lambda: worker.value("citegauge_window_traces", window="1h") > 0, "windows are shown")
        assert worker.end() == 0, worker.log
