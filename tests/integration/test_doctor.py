"""The doctor on topics of both brokers: what it reads, what it says of the delivery, and that it leaves no trace."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from citegauge import bootstrap
from citegauge.errors import FatalError
from citegauge.settings import KafkaSettings, Settings
from citegauge.tools import simulate_output
from citegauge.tools.doctor import Bounds, Report, examine, practice_of
from citegauge.tools.simulate_spec import SECOND_NS, TrafficSpec
from support.kafka import KafkaServer, create_topic, unique

ROOT = Path(__file__).parents[2]
SPEC = TrafficSpec(seed=7, start_ns=1_767_225_600 * SECOND_NS, traces_max=400, traces_per_minute=40.0)
RUN_S_MAX = 120


@pytest.fixture(params=["embedded_broker", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> str:
    """Bootstrap address of each broker in turn."""
    address: str = request.getfixturevalue(request.param)
    return address


async def produce(broker: str, topic: str, spec: TrafficSpec, **options: Any) -> int:
    """Send simulated traffic with the emission times as record timestamps."""
    async with AIOKafkaProducer(bootstrap_servers=broker, acks="all", linger_ms=20) as producer:
        clock = simulate_output.WallClock(now_ns=time.time_ns)
        return await simulate_output.produce(spec, producer, topic, realtime=False, clock=clock, **options)


def settings_of(broker: str, topic: str, **kafka: Any) -> Settings:
    """Settings of one source topic."""
    return Settings(kafka=KafkaSettings(bootstrap_servers=broker, source_topic=topic, **kafka))


async def report_of(settings: Settings, bounds: Bounds | None = None) -> Report:
    """What the doctor finds on the settings' topic."""
    sample = await bootstrap.sample_topic(settings, settings.kafka.source_topic, bounds or Bounds())
    return examine([sample], practice_of(settings), now_ns=time.time_ns())


def codes(report: Report) -> set[str]:
    """The codes of all findings."""
    return {finding.code for finding in report.findings}


async def test_a_keyed_topic_is_read_whole_and_can_be_joined_directly(broker: str) -> None:
    """Every record is read once; each trace lies on one partition, and the setting that says so is named."""
    topic = await create_topic(broker, unique("keyed"), partitions=3, message_timestamp_type="CreateTime")
    spans = await produce(broker, topic, SPEC)
    report = await report_of(settings_of(broker, topic))
    source = report.sources[0]
    assert (source.spans, source.keyed_by_trace, report.traces.repeated_spans) == (spans, source.records, 0)
    assert "joinable" in codes(report)
    assert "spread" not in codes(report)
    assert any("kafka.keyed = true" in finding.change for finding in report.findings)
    assert report.can_measure


async def test_unkeyed_batches_need_the_rekey_stage(kafka: str) -> None:
    """The OpenTelemetry Collector's default: traces lie on several partitions, but recall can be measured all the same."""
    topic = await create_topic(kafka, unique("unkeyed"), partitions=3, message_timestamp_type="CreateTime")
    spans = await produce(kafka, topic, replace(SPEC, disorder_ns=10 * SECOND_NS), encoding="otlp_proto", keyed=False)
    report = await report_of(settings_of(kafka, topic))
    source = report.sources[0]
    assert (source.spans, source.keyed, len(source.partitions)) == (spans, 0, 3)
    found = {finding.code: finding for finding in report.findings}
    assert found["spread"].level == "note"
    assert "create_time" in found
    assert report.can_measure
    declared = await report_of(settings_of(kafka, topic, keyed=True))
    wrong = {finding.code: finding for finding in declared.findings}["spread"]
    assert wrong.level == "problem"
    assert wrong.change == "set kafka.keyed = false"


async def test_the_newest_records_are_taken_and_cut_traces_set_apart(kafka: str) -> None:
    """A sample from the middle of a log cuts traces at its start; they are not counted as unmatched."""
    topic = await create_topic(kafka, unique("newest"), partitions=2, message_timestamp_type="CreateTime")
    await produce(kafka, topic, SPEC)
    report = await report_of(settings_of(kafka, topic), Bounds(records_max=201))
    source = report.sources[0]
    assert source.records == 201
    assert all(reach.before and not reach.after for reach in report.reaches[0].values())
    unmatched = [trace for trace in report.traces.joined if not trace.result.matched]
    assert unmatched
    assert all(trace.cut for trace in unmatched)
    assert report.verdicts[0].answer == "can"


async def test_reading_stops_at_its_bounds(kafka: str) -> None:
    """Bytes and a start time bound the sample too, and what was left out is known."""
    topic = await create_topic(kafka, unique("bounds"), message_timestamp_type="CreateTime")
    await produce(kafka, topic, SPEC)
    few = await report_of(settings_of(kafka, topic), Bounds(bytes_max=1))
    assert 0 < few.sources[0].records < 900
    assert few.reaches[0][0].after
    since_ms = (SPEC.start_ns + 300 * SECOND_NS) // 1_000_000
    late = await report_of(settings_of(kafka, topic), Bounds(since_ms=since_ms))
    assert late.sources[0].first_ns >= since_ms * 1_000_000
    assert late.reaches[0][0].before
    assert not late.reaches[0][0].after


async def test_looking_leaves_nothing_behind(kafka: str) -> None:
    """No group, no commit, and a topic that does not exist is not made: the message names those that do."""
    topic = await create_topic(kafka, unique("look"))
    await produce(kafka, topic, replace(SPEC, traces_max=5))
    await report_of(settings_of(kafka, topic))
    missing = unique("missing")
    with pytest.raises(FatalError, match=f"there is no topic {missing}.*there are: ") as failed:
        await report_of(settings_of(kafka, missing))
    assert "\n" not in str(failed.value)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        assert missing not in await admin.list_topics()
        assert not [group for group in await admin.list_consumer_groups() if "doctor" in group[0]]
    finally:
        await admin.close()


@pytest.fixture
def eager_kafka(kafka_server: KafkaServer, tmp_path: Path) -> Iterator[str]:
    """A broker as Kafka ships it: whoever asks about a topic by name makes it."""
    assert kafka_server.bootstrap_servers, "there is a Kafka to start"
    server = KafkaServer(tmp_path / "eager", properties="auto.create.topics.enable=true")
    server.start()
    yield server.bootstrap_servers
    server.kill()


async def test_looking_makes_no_topic_where_asking_would(eager_kafka: str) -> None:
    """A mistyped name is told, and told again the next time."""
    for _ in range(2):
        with pytest.raises(FatalError, match="there is no topic otlp_spnas"):
            await report_of(settings_of(eager_kafka, "otlp_spnas"))
    admin = AIOKafkaAdminClient(bootstrap_servers=eager_kafka)
    await admin.start()
    try:
        assert "otlp_spnas" not in await admin.list_topics()
    finally:
        await admin.close()


async def test_the_command_judges_two_topics_together(kafka: str) -> None:
    """Retrievals in one topic and answers in another: recall can be measured, and the status says so."""
    retrievals, answers = [await create_topic(kafka, unique(name)) for name in ("retrievals", "answers")]
    async with AIOKafkaProducer(bootstrap_servers=kafka, acks="all") as producer:
        for record in simulate_output.records(SPEC):
            topic = retrievals if b'"kind":"retrieval"' in record.value.replace(b" ", b"") else answers
            await producer.send(topic, record.value)
        await producer.flush()
    done = await asyncio.to_thread(command, kafka, "--topic", retrievals, "--topic", answers, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [source["name"] for source in found["sources"]] == [retrievals, answers]
    assert found["verdicts"][0]["answer"] == "can"
    assert "several_topics" in {finding["code"] for finding in found["findings"]}
    alone = await asyncio.to_thread(command, kafka, "--topic", retrievals)
    assert alone.returncode == 1
    assert "cannot" in alone.stdout


def command(broker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`citegauge doctor` as a user runs it."""
    environment = {**os.environ, "CITEGAUGE_KAFKA__BOOTSTRAP_SERVERS": broker, "PYTHONPATH": str(ROOT / "service")}
    return subprocess.run(
        [sys.executable, "-m", "citegauge", "doctor", *arguments],
        capture_output=True, text=True, env=environment, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
