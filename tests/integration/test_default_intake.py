"""The default intake, unkeyed sources through the re-key stage, where nothing goes wrong: every trace is accounted for."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer

from citegauge.domain.progress import Commit
from citegauge.tools.simulate import generate
from citegauge.tools.simulate_output import records
from support.fault_kafka import log_ends
from support.faults import audited
from support.kafka import unique
from support.worker import Site, WorkerProcess, traffic
from support.worker_tables import group_offsets, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from citegauge.tools.simulate_spec import TrafficSpec
    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PARTITIONS, QUIET = 6, (1, 4)
APART_S = 8
PAST_NS = 180 * 1_000_000_000
HALVES = ("no_retrieval", "no_generation")


async def _send(site: Site, spec: TrafficSpec) -> None:
    """Every record to any partition but the quiet ones: the halves of a trace are apart."""
    chance = random.Random(site.topic)
    busy = [number for number in range(PARTITIONS) if number not in QUIET]
    async with AIOKafkaProducer(bootstrap_servers=site.kafka, linger_ms=5) as producer:
        for record in records(spec, "native"):
            await producer.send(site.topic, record.value, partition=chance.choice(busy))
        await producer.flush()


def read_to_the_end(site: Site) -> bool:
    """Whether all of the source is re-keyed, and all that is re-keyed is published."""
    settings = site.settings()
    rekeyed = group_offsets(site.kafka, settings.rekey.group_id)
    if sum(at for at, _ in rekeyed.values()) < sum(log_ends(site.kafka, site.topic).values()):
        return False
    published = [Commit.from_metadata(*at) for at in group_offsets(site.kafka, settings.kafka.group_id).values()]
    spans = sum(log_ends(site.kafka, settings.rekey.spans_topic).values())
    return spans > 0 and sum(one.position for one in published) >= spans


def test_two_replicas_and_quiet_partitions(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """Two replicas started one after the other, then traffic on four of six partitions: no trace is lost or halved."""
    name = unique("rekeyed")
    site = make_site(
        partitions=PARTITIONS, KAFKA__KEYED="false", REKEY__SPANS_TOPIC=name, REKEY__GROUP_ID=f"{name}-rekey"
    )
    spec = traffic(
        41, minutes=20, per_minute=90, end_ns=time.time_ns() - PAST_NS,
        late_ratio=0.0, missing_retrieval_ratio=0.0, missing_generation_ratio=0.0,
    )  # fmt: skip
    with ExitStack() as workers:
        first = workers.enter_context(WorkerProcess(site, tmp_path))
        first.until_ready()
        time.sleep(APART_S)  # time itself is the condition: the first has settled when the second comes
        second = workers.enter_context(WorkerProcess(site, tmp_path))
        second.until_ready()
        asyncio.run(_send(site, spec))
        first.until(lambda: second.alive() and read_to_the_end(site), "all is re-keyed and published", 120)

        produced = {span.trace_id.hex() for span in generate(spec)}
        known: set[str] = set()

        def accounted_for() -> bool:
            tables = stored(database, site.database)
            rows = [*tables.traces.values(), *tables.late.values()]
            known.clear()
            known.update(row["trace_id"] for row in rows)
            return known >= produced

        first.until(accounted_for, f"{len(produced)} traces are measured, have a state or are late")
        assert known == produced
        tables = stored(database, site.database)
        late = {row["trace_id"] for row in tables.late.values()}
        assert len(tables.traces) + len(late - {row["trace_id"] for row in tables.traces.values()}) == len(produced)
        rows = Counter(row["trace_id"] for row in tables.traces.values())
        halved = {
            row["trace_id"] for row in tables.traces.values() if row["state"] in HALVES and rows[row["trace_id"]] == 1
        }
        assert halved <= late, "both halves were sent: one that was not joined must have come late"
        for worker in (first, second):
            assert worker.get("/healthz")[0] == 200
            assert worker.end() == 0
    report = audited(site)
    assert report["equal"], report["listed"]
    assert report["judged_panes"] > 0
