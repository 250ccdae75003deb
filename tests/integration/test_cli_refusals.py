"""What the worker refuses to start with: one line that names what to change, and an exit status that is not 0."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import OffsetAndMetadata

from citegauge.domain.progress import Clock, Commit
from support.kafka import create_topic
from support.worker import Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import assert_equal, commits, expected, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000


def refused(site: Site, folder: Path, *words: str, status: int = 1, role: str = "all") -> str:
    """Start a worker that must not start; the one line that it says, which has these words."""
    with WorkerProcess(site, folder, "--role", role) as worker:
        assert worker.wait(40) == status, worker.log
        log = worker.log
    said = [line for line in log.splitlines() if line.startswith("citegauge: ")]
    assert len(said) == 1, log
    assert "Traceback" not in log, log
    missing = [word for word in words if word not in said[0]]
    assert not missing, said[0]
    return said[0]


async def _commit(site: Site, offset: int, metadata: str) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=site.kafka, group_id=f"{site.name}-join", enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(site.topic, 0)
        consumer.assign([partition])
        await consumer.commit({partition: OffsetAndMetadata(offset, metadata)})
    finally:
        await consumer.stop()


async def _delete_records(kafka: str, topic: str, before: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()


def test_a_commit_of_somebody_else(make_site: MakeSite, tmp_path: Path) -> None:
    """A group that another program has used: its offsets say nothing of our state, so they are not believed."""
    site = make_site(partitions=1)
    produce(site.kafka, site.topic, [(b"k", b"{}")] * 5)
    asyncio.run(_commit(site, 3, ""))
    refused(site, tmp_path, f"{site.name}-join", "offset 3", "--rebuild-from", "kafka.epoch", "kafka.group_id")


def test_a_commit_outside_the_log(make_site: MakeSite, tmp_path: Path) -> None:
    """A commit past the end of the log: the topic is not the one that was read."""
    site = make_site(partitions=1)
    produce(site.kafka, site.topic, [(b"k", b"{}")] * 5)
    asyncio.run(_commit(site, 90, Commit(90, 100, Clock(10**18)).to_metadata()))
    refused(site, tmp_path, "outside the log (0 to 5)", "--rebuild-from", "kafka.epoch")


def test_a_panes_topic_with_other_partitions(make_site: MakeSite, tmp_path: Path) -> None:
    """Both tiers compute with the number of partitions, so another number is refused, with the setting to change."""
    site = make_site(partitions=1)
    asyncio.run(create_topic(site.kafka, f"{site.name}-panes", partitions=3))
    refused(site, tmp_path, f"{site.name}-panes", "3 partitions", "kafka.panes_partitions")


def test_a_port_that_is_taken(make_site: MakeSite, tmp_path: Path) -> None:
    """The page's port is in use."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        refused(make_site(partitions=1, WEB__PORT=str(port)), tmp_path, str(port), "web.port")


def test_a_topic_of_something_else(make_site: MakeSite, tmp_path: Path) -> None:
    """When everything is a dead letter the encoding is wrong: the worker stops before it copies the whole topic."""
    site = make_site(partitions=1, JOIN__DEAD_LETTERS_MAX="20")
    produce(site.kafka, site.topic, [(b"k", b"something else")] * 50)
    refused(site, tmp_path, "20 unreadable records", "'not_protobuf'", "kafka.encoding")


class _Forbidding(BaseHTTPRequestHandler):
    """A ClickHouse that knows no such user."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_response(403)
        self.send_header("X-ClickHouse-Exception-Code", "516")
        self.end_headers()
        self.wfile.write(b"Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)")

    do_POST = do_GET  # noqa: N815 - the base class calls it so

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_wrong_password(make_site: MakeSite, tmp_path: Path) -> None:
    """ClickHouse refuses the user: that does not pass by itself, so it is no matter of waiting."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        said = refused(
            make_site(partitions=1, CLICKHOUSE__URL=url, CLICKHOUSE__PASSWORD="hunter2"), tmp_path, "password"
        )
        server.shutdown()
    assert "hunter2" not in said


def test_the_windows_cannot_be_restored(make_site: MakeSite, tmp_path: Path) -> None:
    """No table to restore from: the worker stops instead of staying unready for ever."""
    site = make_site(partitions=1, CLICKHOUSE__MIGRATE_ON_START="false")
    refused(site, tmp_path, "ClickHouse", "citegauge migrate", role="roll")


def test_settings_that_contradict_themselves(make_site: MakeSite, tmp_path: Path) -> None:
    """Bad configuration has exit status 2 and names the setting."""
    refused(make_site(partitions=1, KAFKA__EPOCH="-1"), tmp_path, "kafka.epoch", status=2)
    bad = make_site(partitions=1, KAFKA__REBUILD_FROM="yesterday")
    produce(bad.kafka, bad.topic, [(b"k", b"{}")])
    refused(bad, tmp_path, "--rebuild-from 'yesterday'", "RFC 3339")


def test_a_log_that_has_lost_its_past_is_rebuilt_under_a_raised_epoch(
    make_site: MakeSite, database: ClickHouse, tmp_path: Path
) -> None:
    """After the refusal, `--rebuild-from` with a raised epoch starts empty, and its rows win over the old ones."""
    site = make_site(partitions=1)
    old = pairs(traffic(21, minutes=20, per_minute=60, end_ns=time.time_ns() - PAST_NS))
    with WorkerProcess(site, tmp_path) as worker:
        produce(site.kafka, site.topic, old)
        assert_equal(database, site, expected(site, read_topic(site.kafka, site.topic)), worker)
        worker.until_ready()
        worker.until(lambda: commits(site)[0].position == len(old), "all is committed")
        assert worker.end() == 0
    asyncio.run(_delete_records(site.kafka, site.topic, len(old)))
    refused(site, tmp_path, "outside the log", f"({len(old)} to {len(old)})", "--rebuild-from", "kafka.epoch")

    new = old[: len(old) // 2]  # the same minutes and traces once more
    produce(site.kafka, site.topic, new)
    raised = site.with_options(KAFKA__EPOCH="1")
    truth = expected(raised, read_topic(site.kafka, site.topic))
    with WorkerProcess(raised, tmp_path, "--rebuild-from", "0") as worker:
        worker.until_ready()
        worker.until(lambda: commits(site)[0].position == len(old) + len(new), "all is committed")

        def stands() -> bool:
            found = stored(database, site.database)
            panes, traces = found.panes, found.traces
            return all(panes.get(key) == row for key, row in truth.panes.items()) and all(
                traces.get(key) == row for key, row in truth.traces.items()
            )

        worker.until(stands, "every new row stands")
        assert worker.end() == 0
    with WorkerProcess(raised, tmp_path) as worker:
        worker.until_ready()
        assert "(0 records again in silence)" not in worker.log, "from now on it resumes at its commit"
        assert worker.end() == 0
