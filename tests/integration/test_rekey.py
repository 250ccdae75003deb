"""Spans of a trace that are spread over topics, partitions and batches meet again, and the numbers are the same."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer

from citegauge.tools.simulate import generate
from citegauge.tools.simulate_encode import encode_otlp, record_key
from citegauge.tools.simulate_output import otlp_batches
from support.kafka import create_topic, unique
from support.worker import Site, WorkerProcess, produce, traffic
from support.worker_tables import group_offsets, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from citegauge.tools.simulate_spec import TrafficSpec
    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000
SPREAD = {"a": 3, "b": 5}
"""Two source topics with other numbers of partitions."""
GROUP = ("route", "top_k_bucket", "model", "retriever_version", "scorer")
COUNTS = ("states", "recall_counts", "rank_weighted_counts", "score_counts")
NUMBERS = ("citations", "hallucinated", "unresolved", "ids_dropped", "nonconformant", "recounted")


async def _spread(kafka: str, topics: dict[str, str], spec: TrafficSpec, seed: int) -> int:
    """Every span of every batch goes to a random partition of a random topic, unkeyed, in batches of many traces."""
    chance = random.Random(seed)
    places = [(topics[name], partition) for name, n in SPREAD.items() for partition in range(n)]
    sent = 0
    async with AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=5) as producer:
        for batch in otlp_batches(spec):
            shares: dict[tuple[str, int], list[Any]] = {}
            for span in batch:
                shares.setdefault(chance.choice(places), []).append(span)
            for (topic, partition), spans in shares.items():
                await producer.send(topic, encode_otlp(spans), partition=partition)
                sent += len(spans)
        await producer.flush()
    return sent


def panes_over_sources(database: ClickHouse, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Panes by minute and group, summed over the source partitions, emptied ones left out."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in stored(database, name).panes.values():
        into = found.setdefault((row["pane"], *(row[field] for field in GROUP)), {})
        for field in NUMBERS:
            into[field] = into.get(field, 0) + row[field]
        for field in COUNTS:
            counts = into.setdefault(field, {})
            for key, n in row[field].items():
                counts[key] = counts.get(key, 0) + n
    return {key: row for key, row in found.items() if row["states"]}


def traces_without_source(database: ClickHouse, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Trace rows without what tells where they were read."""
    return {
        key: {field: value for field, value in row.items() if field not in ("version", "source")}
        for key, row in stored(database, name).traces.items()
    }


def finished(worker: WorkerProcess, spans: int, topic: str) -> None:
    """Wait until everything is read, and every waiting trace has its row."""
    kinds = ("retrieval", "generation", "other", "rerank")
    worker.until(
        lambda: (
            sum(worker.value("citegauge_spans_total", kind=kind) for kind in kinds) >= spans
            and worker.value("citegauge_position_lag_records", topic=topic) == 0
        ),
        f"{spans} spans are joined",
        90,
    )


def test_spread_over_topics_and_partitions_gives_the_same_panes(
    kafka: str, make_site: MakeSite, database: ClickHouse, tmp_path: Path
) -> None:
    """Unkeyed OTLP batches in topics of 3 and 5 partitions give the panes and traces of the keyed single topic."""
    end_ns = time.time_ns() - PAST_NS
    spec = traffic(11, minutes=20, per_minute=150, end_ns=end_ns, late_ratio=0.0)
    keyed = make_site(KAFKA__ENCODING="otlp_proto")
    spans = len(produce(kafka, keyed.topic, ((record_key(span), encode_otlp([span])) for span in generate(spec))))
    topics = {
        name: asyncio.run(create_topic(kafka, unique(f"otlp-{name}"), partitions=n)) for name, n in SPREAD.items()
    }
    assert asyncio.run(_spread(kafka, topics, spec, seed=3)) == spans
    name = unique("spans")
    spread = make_site(
        topic=topics["a"],
        SOURCES=json.dumps({topic: {"encoding": "otlp_proto"} for topic in topics.values()}),
        REKEY__SPANS_TOPIC=name,
        REKEY__SPANS_PARTITIONS="4",
        REKEY__GROUP_ID=f"{name}-rekey",
    )
    for site, topic in ((keyed, keyed.topic), (spread, name)):
        with WorkerProcess(site, tmp_path) as worker:
            finished(worker, spans, topic)
            assert worker.value("citegauge_spans_late_total") == 0, worker.log
            settle(database, site, worker)
            assert worker.end() == 0
    assert panes_over_sources(database, spread.database) == panes_over_sources(database, keyed.database)
    assert traces_without_source(database, spread.database) == traces_without_source(database, keyed.database)
    committed = group_offsets(kafka, f"{name}-rekey")
    assert sum(offset for offset, _ in committed.values()) == sum(
        len(read_topic(kafka, one)) for one in topics.values()
    )


def settle(database: ClickHouse, site: Site, worker: WorkerProcess) -> None:
    """Wait until the tables stand still: three times the same, publish intervals apart, and nothing on its way."""
    seen: list[Any] = []

    def still() -> bool:
        time.sleep(1.5)  # three publish intervals: the condition is that nothing changes in them
        if worker.value("citegauge_clickhouse_backlog_rows"):
            seen.clear()
        seen.append(panes_over_sources(database, site.database))
        return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3] and bool(seen[-1])

    worker.until(still, "the tables stand still")


def test_re_keyed_twice_counts_once(kafka: str, make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """A stage that is killed before its commit sends spans again; the join knows them, and a restart re-reads them."""
    end_ns = time.time_ns() - PAST_NS
    spec = traffic(12, minutes=8, per_minute=120, end_ns=end_ns, late_ratio=0.0, duplicate_ratio=0.0)
    name = unique("spans")
    site = make_site(
        KAFKA__ENCODING="otlp_proto",
        KAFKA__KEYED="false",
        REKEY__SPANS_TOPIC=name,
        REKEY__SPANS_PARTITIONS="2",
        REKEY__GROUP_ID=f"{name}-rekey",
    )
    spans = len(produce(kafka, site.topic, ((None, encode_otlp([span])) for span in generate(spec))))
    with WorkerProcess(site, tmp_path) as worker:
        finished(worker, spans, name)
        worker.until_ready()
        settle(database, site, worker)
        once = panes_over_sources(database, site.database)
        assert worker.end() == 0
    again = site.with_options(REKEY__GROUP_ID=f"{name}-rekey-again")
    with WorkerProcess(again, tmp_path) as worker:
        worker.until(lambda: worker.value("citegauge_rekeyed_spans_total") >= spans, "every span was sent again")
        finished(worker, spans, name)
        repeated = worker.value("citegauge_spans_duplicate_total") + worker.value("citegauge_spans_late_total")
        assert repeated >= spans, "known, or too late to matter"
        settle(database, site, worker)
        assert worker.end() == 0
    assert panes_over_sources(database, site.database) == once
