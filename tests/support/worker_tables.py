"""What a worker left behind, and what it should have: topics, commits and tables, and the same log read once, offline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from citegauge import bootstrap
from citegauge.adapters.clickhouse import ClickHouse
from citegauge.domain.progress import Clock, Commit
from citegauge.pipeline import Flush, Limits, PartitionPipeline, Record, Source
from citegauge.ports import PaneMessage, PaneUpdate, TraceRow
from support.worker import Site, WorkerProcess

FAR_NS = 1 << 62
"""A wall clock that has left every pane behind."""
Table = dict[tuple[Any, ...], dict[str, Any]]
GROUP = ("route", "top_k_bucket", "model", "retriever_version", "scorer")
KEYS: Mapping[str, tuple[str, ...]] = {
    "panes": ("pane", *GROUP, "source"),
    "traces": ("pane", *GROUP, "trace_id"),
    "late": ("topic", "partition", "offset", "index"),
}


async def _read_topic(kafka: str, topic: str) -> list[ConsumerRecord]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_bytes=1 << 25
    )
    await consumer.start()
    try:
        partitions = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                for batch in (await consumer.getmany(timeout_ms=500)).values():
                    found += batch
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        await consumer.stop()


def read_topic(kafka: str, topic: str) -> list[ConsumerRecord]:
    """Every record of a topic, by partition and offset."""
    return asyncio.run(_read_topic(kafka, topic))


async def _offsets(kafka: str, group: str) -> dict[TopicPartition, tuple[int, str]]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(group)
        return {partition: (at.offset, at.metadata or "") for partition, at in found.items()}
    finally:
        await admin.close()


def group_offsets(kafka: str, group: str) -> dict[TopicPartition, tuple[int, str]]:
    """Committed offset and metadata of a group."""
    return asyncio.run(_offsets(kafka, group))


def commits(site: Site, topic: str = "") -> dict[int, Commit]:
    """The hot tier's commits by partition of the topic that it joins, or of another."""
    found = group_offsets(site.kafka, f"{site.name}-join")
    return {
        partition.partition: Commit.from_metadata(offset, metadata)
        for partition, (offset, metadata) in found.items()
        if partition.topic == (topic or site.joined_topic)
    }


# --------------------------------------------------------------------------------------------------- comparing


class Tables(msgspec.Struct):
    """`panes`, `traces` and `late` by key, as `FINAL` reads them or as the offline pass makes them."""

    panes: Table = {}
    traces: Table = {}
    late: Table = {}

    def differences(self, other: Tables) -> list[str]:
        """One line for each row that is not the same in both; empty when all is equal."""
        found = []
        for table in KEYS:
            mine, theirs = getattr(self, table), getattr(other, table)
            unlike = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
            found += [f"{table} {key}:\n    {mine.get(key)}\n    {theirs.get(key)}" for key in sorted(unlike, key=repr)]
        return found


def stored(database: ClickHouse, name: str) -> Tables:
    """What a site's database holds; nothing before its worker has made it."""
    tables = Tables()
    there = database.query("SELECT name FROM system.tables WHERE database = {name:String}", {"name": name})
    if not KEYS.keys() <= {row["name"] for row in there}:
        return tables
    for table, key in KEYS.items():
        rows = database.query(f"SELECT * FROM `{name}`.{table} FINAL")
        for row in rows:
            row.pop("is_deleted", None)
            row["pane"] = int(row["pane"].timestamp())
        setattr(tables, table, {tuple(row[column] for column in key): row for row in rows})
        assert len(getattr(tables, table)) == len(rows), f"FINAL shows a key of {table} twice"
    return tables


def panes_messages(site: Site) -> dict[int, list[PaneMessage]]:
    """The site's panes topic by partition; a message's index is its offset."""
    decode = msgspec.json.Decoder(PaneMessage).decode
    found: dict[int, list[PaneMessage]] = {}
    for record in read_topic(site.kafka, site.settings().kafka.panes_topic):
        log = found.setdefault(record.partition, [])
        assert record.offset == len(log), "the topic is whole"
        log.append(decode(record.value))
    return found


def newest_panes(site: Site) -> Table:
    """The newest version of every pane in the site's panes topic."""
    panes: Table = {}
    for log in panes_messages(site).values():
        for message in log:
            if isinstance(message, PaneUpdate):
                row = msgspec.structs.asdict(message.row)
                key = tuple(row[column] for column in KEYS["panes"])
                if key not in panes or panes[key]["version"] <= row["version"]:
                    panes[key] = row
    return panes


def expected(site: Site, log: Iterable[ConsumerRecord], *, idle_wall_ns: int | None = FAR_NS) -> Tables:
    """The tables after one uninterrupted pass over the log, with an idle flush at its end unless `idle_wall_ns` is None."""
    return Offline(site, log, idle_wall_ns).tables


def assert_equal(database: ClickHouse, site: Site, truth: Tables, worker: WorkerProcess, timeout_s: float = 60) -> None:
    """The site's tables come to equal the truth, and the newest rows of its panes topic do too."""
    found: list[str] = []

    def settled() -> bool:
        found[:] = stored(database, site.database).differences(truth)
        return not found

    try:
        worker.until(settled, "the tables equal the offline pass", timeout_s)
    except AssertionError as exc:
        raise AssertionError(f"{len(found)} differences (stored, expected):\n" + "\n".join(found[:5])) from exc
    assert newest_panes(site) == truth.panes


class Offline:
    """The pipeline over a log in this process, one flush at the end."""

    def __init__(self, site: Site, log: Iterable[ConsumerRecord], idle_wall_ns: int | None = FAR_NS) -> None:
        settings = site.settings()
        decoders = bootstrap.build_joined_decoders(settings)
        self.pipelines: dict[int, PartitionPipeline] = {}
        self.flushes: list[Flush] = []
        for record in log:
            pipeline = self.pipelines.get(record.partition)
            if pipeline is None:
                pipeline = self.pipelines[record.partition] = PartitionPipeline(
                    Source(record.topic, record.partition, settings.epoch_of(record.topic)),
                    decoders[record.topic],
                    settings.join_policy(),
                    settings.score_policy(),
                    Commit(record.offset, record.offset, Clock()),
                    Limits(record_bytes_max=settings.join.record_bytes_max),
                )
            pipeline.feed(Record(record.offset, record.timestamp * 1_000_000, record.value))
        self.flushes = [pipeline.take_flush(idle_wall_ns=idle_wall_ns) for pipeline in self.pipelines.values()]
        self.tables = Tables()
        for flush in self.flushes:
            self._store(flush)

    def _store(self, flush: Flush) -> None:
        for table, rows in (("panes", flush.panes), ("traces", flush.traces), ("late", flush.late)):
            into: Table = getattr(self.tables, table)
            for row in rows:
                assert not isinstance(row, TraceRow) or row.version % 2
                fields = msgspec.structs.asdict(row)
                key = tuple(fields[column] for column in KEYS[table])
                if key not in into or into[key].get("version", 0) <= fields.get("version", 0):
                    into[key] = fields
