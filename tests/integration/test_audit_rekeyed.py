"""`citegauge audit` over sources that are re-keyed: what the stage did not read, or lost, is told; the harmless is not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from citegauge.domain.progress import Commit
from support.clickhouse import child_environment
from support.kafka import unique
from support.worker import Feed, Pairs, Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import group_offsets, read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
RUBBISH = b"neither a span nor anything else"


def audit(site: Site, *arguments: str) -> tuple[int, str]:
    """Status and standard output of the command."""
    environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "citegauge", "audit", *arguments],
        env=environment | site.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, done.stdout


def audited(site: Site, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Status and report."""
    status, out = audit(site, "--json", *arguments)
    return status, json.loads(out)


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """Its one source topic of 3 partitions is re-keyed into 2."""
    name = unique("rekeyed")
    return make_site(
        JOIN__TRACE_PANES_MAX="4",
        KAFKA__KEYED="false",
        REKEY__SPANS_TOPIC=name,
        REKEY__SPANS_PARTITIONS="2",
        REKEY__GROUP_ID=f"{name}-rekey",
    )


def spans_topic(site: Site) -> str:
    """Where its spans are re-keyed to."""
    return site.settings().rekey.spans_topic


def until_settled(site: Site, worker: WorkerProcess) -> None:
    """Wait until every record of the source is re-keyed, and every re-keyed one published."""

    def settled() -> bool:
        rekeyed = group_offsets(site.kafka, site.settings().rekey.group_id)
        published = [Commit.from_metadata(*at) for at in group_offsets(site.kafka, f"{site.name}-join").values()]
        return sum(at for at, _ in rekeyed.values()) >= len(read_topic(site.kafka, site.topic)) and sum(
            one.position for one in published
        ) >= len(read_topic(site.kafka, spans_topic(site)))

    worker.until(settled, "all is re-keyed and published", 90)


def unkeyed(seed: int) -> Pairs:
    """Twenty minutes of traffic without a key, which lands anywhere."""
    spec = traffic(seed, minutes=20, per_minute=90, end_ns=time.time_ns())
    return [(None, value) for _, value in pairs(spec)]


def run_over(site: Site, tmp_path: Path, batch: Pairs) -> None:
    """A worker re-keys and joins the batch, and ends."""
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        produce(site.kafka, site.topic, batch)
        until_settled(site, worker)
        assert worker.end() == 0


async def _commit(site: Site, offsets: dict[TopicPartition, int]) -> None:
    group_id = site.settings().rekey.group_id
    async with AIOKafkaConsumer(
        bootstrap_servers=site.kafka, group_id=group_id, enable_auto_commit=False
    ) as consumer:  # fmt: skip
        consumer.assign(list(offsets))
        await consumer.commit(offsets)


async def _again(site: Site, records: list[ConsumerRecord]) -> None:
    """Send records of the spans topic once more, each into its own partition."""
    async with AIOKafkaProducer(bootstrap_servers=site.kafka) as producer:
        for record in records:
            await producer.send_and_wait(spans_topic(site), record.value, record.key, partition=record.partition)


async def _delete(site: Site, before: dict[TopicPartition, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=site.kafka)
    await admin.start()
    try:
        await admin.delete_records({at: RecordsToDelete(before_offset=offset) for at, offset in before.items()})
    finally:
        await admin.close()


def test_an_unread_half_is_told_by_partition(site: Site, tmp_path: Path) -> None:
    """What no commit passes although it stood there fails the audit, and the partition is named; dead letters do not."""
    batch = unkeyed(31)
    half = len(batch) // 2
    run_over(site, tmp_path, [*batch[:half], (None, RUBBISH), (None, b"")])
    status, report = audited(site)
    assert (status, report["equal"], report["listed"], report["unread"]) == (0, True, [], 0)
    sources = report["sources"]
    assert [one["source"] for one in sources] == [f"{site.topic}/{number}" for number in range(3)]
    assert sum(one["records"] for one in sources) == half + 2
    assert sum(one["spans"] for one in sources) == half
    assert sum(one["dead_letters"] for one in sources) == 2
    assert {one["unread"] for one in sources} == {None}

    left: dict[int, int] = {}
    for partition, _ in produce(site.kafka, site.topic, batch[half : half + 40]):
        left[partition] = left.get(partition, 0) + 1
    status, report = audited(site)
    assert status == 1, "it must not pass"
    assert (report["equal"], report["differences"]) == (False, 0)
    assert report["unread"] == 40
    assert {one["partition"]: one["unread"]["records"] for one in report["sources"] if one["unread"]} == left
    out = audit(site)[1]
    assert "40 records should have been read, and were not" in out
    for partition, n in left.items():
        lines = out.split(f"{site.topic}/{partition}: ")[1].splitlines()
        assert f"  UNREAD: {n} records are not re-keyed, the oldest " in "\n".join(lines)


def test_live_traffic_is_not_called_unread(site: Site, tmp_path: Path) -> None:
    """Beside a running worker some records are always on their way: what stood there at the start is read at the end."""
    batch = unkeyed(35)
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        produce(site.kafka, site.topic, batch[:-2_000])
        until_settled(site, worker)
        with Feed(site.kafka, site.topic, batch[-2_000:], per_s=20) as feed:
            for _ in range(2):
                status, report = audited(site)
                assert (status, report["equal"], report["unread"]) == (0, True, 0), report["listed"]
                assert not feed.done
            feed.hurry()


def test_unread_records_of_the_join_are_told_alike(site: Site, tmp_path: Path) -> None:
    """Spans that are re-keyed and that no join has read fail the audit too."""
    batch = unkeyed(32)
    run_over(site, tmp_path, batch)
    asyncio.run(_again(site, read_topic(site.kafka, spans_topic(site))[-7:]))
    status, report = audited(site)
    assert status == 1, "it must not pass"
    assert (report["equal"], report["differences"], report["unread"]) == (False, 0, 7), report["listed"]
    assert sum(one["unread"]["records"] for one in report["partitions"] if one["unread"]) == 7


def test_spans_that_were_passed_over_are_missed(site: Site, tmp_path: Path) -> None:
    """A commit that says more than was re-keyed is what a loss looks like: each span is named with its origin."""
    batch = unkeyed(33)
    run_over(site, tmp_path, batch[:-20])
    lost = produce(site.kafka, site.topic, batch[-20:-1]) + produce(site.kafka, site.topic, [(None, RUBBISH)])
    ends: dict[TopicPartition, int] = {}
    for number, offset in lost:
        partition = TopicPartition(site.topic, number)
        ends[partition] = max(offset + 1, ends.get(partition, 0))
    asyncio.run(_commit(site, ends))
    status, report = audited(site)
    assert status == 1, "it must not pass"
    assert (report["equal"], report["differences"], report["unread"]) == (False, 20, 0)
    assert {(one["key"]["partition"], one["key"]["offset"]) for one in report["listed"]} == set(lost)
    assert {one["key"]["topic"] for one in report["listed"]} == {site.topic}
    assert sorted(one["table"] for one in report["listed"]) == ["dead_letters"] + 19 * ["spans"]
    out = audit(site)[1]
    assert "20 rows differ: 0 in panes, 0 in traces, 0 in late, 20 in re-keyed spans" in out


def test_what_is_sent_twice_or_gone_by_retention_is_no_loss(site: Site, tmp_path: Path) -> None:
    """Re-keyed again from the start, every span stands there twice; what retention takes cannot be judged, and is no loss.

    Records that retention took before they were re-keyed are lost, and told.
    """
    batch = unkeyed(34)
    run_over(site, tmp_path, batch)
    asyncio.run(_commit(site, {TopicPartition(site.topic, number): 0 for number in range(3)}))
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: worker.value("citegauge_rekeyed_spans_total") >= len(batch), "all is sent again", 90)
        until_settled(site, worker)
        assert worker.end() == 0
    status, report = audited(site)
    assert (status, report["equal"], report["listed"]) == (0, True, [])
    assert sum(one["again"] for one in report["sources"]) == len(batch)

    firsts = {TopicPartition(spans_topic(site), number): 10 for number in range(2)}
    asyncio.run(_delete(site, firsts))
    status, report = audited(site, "--from", f"{site.topic}/1=5")
    assert report["differences"] == 0, report["listed"]
    assert sum(one["unjudged"] + one["skipped"] for one in report["sources"]) > 10

    (first, *_), removed = produce(site.kafka, site.topic, [(None, batch[0][1])] * 30), 0
    ends = dict.fromkeys((TopicPartition(site.topic, number) for number in range(3)), -1)  # all there is
    asyncio.run(_delete(site, ends))
    status, report = audited(site)
    removed = sum(one["removed"] for one in report["sources"])
    assert (status, report["unread"], removed) == (1, 30, 30), first
    assert "were removed by retention before they were re-keyed" in audit(site)[1]
