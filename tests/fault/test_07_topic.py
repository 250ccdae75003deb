"""Fault 7: the source topic is made anew, loses what was not read yet, or grows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete

from support.fault_kafka import Published, administer, log_ends
from support.faults import Trial
from support.kafka import create_topic
from support.worker import wait_until
from support.worker_tables import commits, expected, group_offsets, read_topic, stored

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.worker import Pairs, WorkerProcess

pytestmark = pytest.mark.kafka


def publish_all(t: Trial, worker: WorkerProcess, batch: Pairs) -> dict[int, int]:
    """Send a batch and wait until the worker has published it; the ends of the log."""
    t.produce(batch)
    ends = log_ends(t.site.kafka, t.site.topic)
    worker.until(Published(t.site, ends), "everything is published", 120)
    return ends


def recreate(t: Trial, partitions: int = 3) -> None:
    """Delete the source topic and make it anew, empty."""
    before = t.site.topic
    administer(t.site.kafka, lambda admin: admin.delete_topics([before]))
    wait_until(lambda: before not in administer(t.site.kafka, lambda admin: admin.list_topics()), "the topic is gone")
    asyncio.run(create_topic(t.site.kafka, before, partitions=partitions))


def rebuilt(t: Trial, offset: str) -> WorkerProcess:
    """What the line tells the user to do: start again from there under a raised epoch."""
    t.site = t.site.with_options(KAFKA__EPOCH="1")
    return t.worker("--rebuild-from", offset)


@pytest.mark.parametrize("intake", ["keyed"], indirect=True)
@pytest.mark.parametrize("running", [pytest.param(True, marks=pytest.mark.full), False], ids=["running", "stopped"])
def test_the_source_topic_is_made_anew(trial: MakeTrial, *, running: bool) -> None:
    """Offsets begin again: the worker stops with one line that says what to do, and doing it counts the new log once."""
    with trial(f"7 topic made anew, worker {'running' if running else 'stopped'}") as t:
        old, new = t.batch(minutes=20), t.batch(minutes=5, per_minute=150)
        worker = t.worker()
        publish_all(t, worker, old)
        if not running:
            worker.kill()
        recreate(t)
        t.produce(new)
        if not running:
            worker.start()
        t.stopped(worker, "--rebuild-from", "kafka.epoch", timeout_s=120)
        worker = rebuilt(t, "0")
        t.healed()
        t.until_recovered(worker)
        log = read_topic(t.site.kafka, t.site.topic)
        truth = expected(t.site, log)

        def settled() -> bool:
            found = stored(t.database, t.site.database)
            # Rows of the old log stay where nothing replaces them; what the new one says wins everywhere.
            return all(found.panes.get(key) == row for key, row in truth.panes.items()) and all(
                found.traces.get(key) == row for key, row in truth.traces.items()
            )

        worker.until(settled, "the new log's rows are there", 60)
        t.measures.records = len(log)
        t.audit(t.site, "--empty-before")
        assert worker.end() == 0
        t.measures.verdict = "stopped with a line, rebuilt"


def reset_offsets(t: Trial) -> None:
    """Let the re-key group begin at the start of the source topic, as `kafka-consumer-groups --reset-offsets` does."""

    async def reset() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=t.site.kafka, group_id=t.site.rekey_group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            partitions = [TopicPartition(t.site.topic, number) for number in log_ends_of]
            consumer.assign(partitions)
            await consumer.commit(await consumer.beginning_offsets(partitions))
        finally:
            await consumer.stop()

    log_ends_of = log_ends(t.site.kafka, t.site.topic)
    asyncio.run(reset())


@pytest.mark.parametrize("intake", ["default"], indirect=True)
@pytest.mark.parametrize("running", [pytest.param(True, marks=pytest.mark.full), False], ids=["running", "stopped"])
def test_the_source_topic_of_the_re_key_stage_is_made_anew(trial: MakeTrial, *, running: bool) -> None:
    """Kafka forgets the group's commits with the topic, and the stage begins the new one.

    A running worker that did not hear of it before it fetched from the new log stops with a line; what it says is done then.
    """
    with trial(f"7 topic made anew, worker {'running' if running else 'stopped'}") as t:
        old, new = t.batch(minutes=20), t.batch(minutes=5, per_minute=150)
        worker = t.worker()
        publish_all(t, worker, old)
        if not running:
            worker.kill()
        recreate(t)
        t.produce(new)
        t.healed()
        if running:
            done = Published(t.site, log_ends(t.site.kafka, t.site.topic))
            wait_until(lambda: worker.process.poll() is not None or done(), "it stops, or reads on", 180)
        if worker.process.poll() is not None:
            if running:
                t.stopped(worker, t.site.rekey_group, "made anew")
                reset_offsets(t)
            worker.start()
        t.until_recovered(worker)
        t.source_is_whole = False
        t.verify(worker)


@pytest.mark.parametrize("intake", ["default"], indirect=True)
def test_retention_overtakes_the_re_key_stage(trial: MakeTrial) -> None:
    """What was never re-keyed is deleted: the worker stops with one line; with its group reset, what is left counts."""
    with trial("7 retention overtook the re-key stage") as t:
        batch = t.batch()
        half = len(batch) // 2
        worker = t.worker()
        publish_all(t, worker, batch[:half])
        worker.kill()
        t.produce(batch[half:])
        committed = group_offsets(t.site.kafka, t.site.rekey_group)
        deleted = {at: RecordsToDelete(before_offset=offset + 50) for at, (offset, _) in committed.items()}
        administer(t.site.kafka, lambda admin: admin.delete_records(deleted))
        worker.start()
        t.stopped(worker, t.site.rekey_group, "retention")
        assert group_offsets(t.site.kafka, t.site.rekey_group) == committed, "nothing is skipped in silence"
        reset_offsets(t)
        worker.start()
        t.healed()
        t.until_recovered(worker)
        t.source_is_whole = False
        t.verify(worker)
        t.measures.verdict = "stopped with a line, reset"


@pytest.mark.parametrize("intake", ["keyed"], indirect=True)
@pytest.mark.full
def test_the_log_no_longer_holds_the_committed_offset(trial: MakeTrial) -> None:
    """Retention overtook the worker: it stops with one line instead of skipping; rebuilt, what is left counts once."""
    with trial("7 commit older than the log start") as t:
        batch = t.batch()
        half = len(batch) // 2
        worker = t.worker()
        publish_all(t, worker, batch[:half])
        worker.kill()
        t.produce(batch[half:])
        starts = {partition: commit.position + 50 for partition, commit in commits(t.site).items()}
        deleted = {
            TopicPartition(t.site.topic, number): RecordsToDelete(before_offset=start)
            for number, start in starts.items()
        }
        administer(t.site.kafka, lambda admin: admin.delete_records(deleted))
        worker.start()
        t.stopped(worker, "outside the log", "--rebuild-from", "kafka.epoch")
        worker = rebuilt(t, "0")
        t.healed()
        t.until_recovered(worker)
        t.measures.records = len(batch)
        t.audit(t.site, "--empty-before")
        assert worker.end() == 0
        t.measures.verdict = "stopped with a line, rebuilt"


@pytest.mark.full
def test_partitions_are_added(trial: MakeTrial) -> None:
    """A running worker finds new partitions by itself and reads them from their beginning."""
    with trial("7 partitions added", partitions=2) as t:
        worker = t.worker()
        with t.feed(for_s=10):
            worker.until(lambda: worker.value("citegauge_records_total") > 100, "it reads")
        grown = {t.site.topic: NewPartitions(4)}
        administer(t.site.kafka, lambda admin: admin.create_partitions(grown))
        wait_until(lambda: len(log_ends(t.site.kafka, t.site.topic)) == 4, "the topic has grown")
        with t.feed(t.batch(minutes=10, ended_ago_ns=120 * 10**9), for_s=5):
            pass
        t.healed()
        t.until_recovered(worker)
        t.verify(worker)
