"""Two installations on one Kafka: the second to come with the same names is refused, and loses the first nothing."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest

from citegauge.adapters.clickhouse import HttpTarget, connect
from citegauge.adapters.kafka.installation import Installation
from citegauge.errors import FatalError
from citegauge.sections import KafkaSettings
from citegauge.settings import Settings
from support.kafka import KafkaServer, create_topic, unique
from support.worker import Feed, Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import expected, group_offsets, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.clickhouse import ClickHouseFront
    from support.worker import MakeSite, Pairs

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000
REFUSED_S_MAX = 15.0
TAKEN = re.compile(r"(\w+\.\w+) = ([\w.-]+)")


def default_intake(make_site: MakeSite) -> Site:
    """An installation whose source is not keyed, under names that another one can have as well."""
    site = make_site(KAFKA__KEYED="false", REKEY__SPANS_PARTITIONS="2")
    return site.with_options(REKEY__SPANS_TOPIC=f"{site.name}-spans", REKEY__GROUP_ID=f"{site.name}-rekey")


def of_the_same_names(site: Site, front: ClickHouseFront) -> Site:
    """Another installation: its own source and ClickHouse, and every name of the first."""
    topic = asyncio.run(create_topic(site.kafka, unique("spans"), partitions=3))
    return replace(site, topic=topic, clickhouse=front.url)


def batch(seed: int) -> Pairs:
    """Traces of a quarter of an hour that is over."""
    return pairs(traffic(seed, minutes=15, per_minute=60, end_ns=time.time_ns() - PAST_NS, late_ratio=0.0))


def refusal(site: Site, folder: Path) -> str:
    """The one line of a worker that must not start, soon."""
    with WorkerProcess(site, folder) as worker:
        assert worker.wait(REFUSED_S_MAX) == 1, worker.log
        said = [line for line in worker.log.splitlines() if line.startswith("citegauge: ")]
        assert len(said) == 1, worker.log
        assert "Traceback" not in worker.log, worker.log
    return said[0]


def until_all_is_stored(worker: WorkerProcess, site: Site, database: ClickHouse, sent: int) -> None:
    """Every span that was sent is re-keyed, and the tables hold what one pass over the spans topic gives."""
    spans_topic = site.settings().rekey.spans_topic
    worker.until(lambda: worker.value("citegauge_rekeyed_records_total") >= sent, f"{sent} records are re-keyed", 90)
    worker.until(lambda: len(read_topic(site.kafka, spans_topic)) >= sent, "and in the spans topic")
    truth = expected(site, read_topic(site.kafka, spans_topic))
    assert sum(sum(row["states"].values()) for row in truth.panes.values()) > 500
    worker.until(lambda: not stored(database, site.database).differences(truth), "the tables hold them all", 90)


def test_a_second_installation_of_the_same_names_is_refused(
    make_site: MakeSite, database: ClickHouse, own_front: ClickHouseFront, tmp_path: Path
) -> None:
    """Within seconds, with a line that says what to rename; the first loses nothing, and the words can be followed."""
    first = default_intake(make_site)
    second = of_the_same_names(first, own_front)
    mine, theirs = batch(31), batch(32)
    with WorkerProcess(first, tmp_path) as worker:
        worker.until_ready()
        with Feed(first.kafka, first.topic, mine, per_s=200) as feed:
            worker.until(lambda: worker.value("citegauge_spans_total") > 100, "the first one joins")
            produce(second.kafka, second.topic, theirs)
            line = refusal(second, tmp_path)
            feed.hurry()
        until_all_is_stored(worker, first, database, len(mine))

        own = {
            str(connect(HttpTarget(url=site.clickhouse), site.database).query("SELECT id FROM installation")[0]["id"])
            for site in (first, second)
        }
        assert len(own) == 2
        assert all(one in line for one in own), line
        taken = dict(TAKEN.findall(line.partition("; ")[0]))
        assert taken == {
            "kafka.group_id": f"{first.name}-join",
            "kafka.panes_topic": f"{first.name}-panes",
            "kafka.dead_letter_topic": f"{first.name}-dead",
            "rekey.group_id": f"{first.name}-rekey",
            "rekey.spans_topic": f"{first.name}-spans",
        }

        renamed = second.with_options(
            **{setting.replace(".", "__").upper(): f"{name}-2" for setting, name in taken.items()}
        )
        with WorkerProcess(renamed, tmp_path) as other:
            other.until_ready()
            theirs_database = connect(HttpTarget(url=own_front.url), "default")
            until_all_is_stored(other, renamed, theirs_database, len(theirs))
            theirs_database.close()
            assert other.end() == 0
        until_all_is_stored(worker, first, database, len(mine))
        assert worker.end() == 0


def test_only_what_is_taken_is_named(make_site: MakeSite, own_front: ClickHouseFront, tmp_path: Path) -> None:
    """One name in common is enough, be it a group, the panes topic or the spans topic, also while the first is stopped."""
    first = default_intake(make_site)
    with WorkerProcess(first, tmp_path) as worker:
        worker.until_ready()
        assert worker.end() == 0
    second = of_the_same_names(first, own_front)
    names = {
        "KAFKA__GROUP_ID": unique("g"),
        "KAFKA__PANES_TOPIC": unique("p"),
        "REKEY__GROUP_ID": unique("r"),
        "REKEY__SPANS_TOPIC": unique("s"),
        "KAFKA__DEAD_LETTER_TOPIC": unique("d"),
    }
    for left in ("KAFKA__GROUP_ID", "KAFKA__PANES_TOPIC", "REKEY__GROUP_ID", "REKEY__SPANS_TOPIC"):
        clash = second.with_options(**{name: value for name, value in names.items() if name != left})
        if left.startswith("REKEY"):
            clash = clash.with_options(**{left: first.options[left]})
        taken = TAKEN.findall(refusal(clash, tmp_path).partition("; ")[0])
        assert [setting for setting, _ in taken] == [left.lower().replace("__", ".")]
    shared = second.with_options(**{k: v for k, v in names.items() if k != "KAFKA__DEAD_LETTER_TOPIC"})
    with WorkerProcess(shared, tmp_path) as worker:
        worker.until_ready()
        assert worker.end() == 0


def test_the_same_installation_over_a_new_database_takes_its_names_back(
    make_site: MakeSite, own_front: ClickHouseFront, tmp_path: Path
) -> None:
    """Who lost ClickHouse follows the other half of the line: the id of before is its name from then on."""
    first = default_intake(make_site)
    with WorkerProcess(first, tmp_path) as worker:
        worker.until_ready()
        assert worker.end() == 0
    emptied = replace(first, clickhouse=own_front.url)
    ((setting, name),) = TAKEN.findall(refusal(emptied, tmp_path).rpartition(" set ")[2])
    assert setting == "kafka.installation"
    with WorkerProcess(emptied.with_options(KAFKA__INSTALLATION=name), tmp_path) as worker:
        worker.until_ready()
        assert worker.end() == 0


def test_workers_of_one_installation_may_start_at_once(make_site: MakeSite, tmp_path: Path) -> None:
    """On an empty database each may make an id: both are the installation's own, and neither is refused."""
    site = default_intake(make_site)
    with WorkerProcess(site, tmp_path) as one, WorkerProcess(site, tmp_path) as two:
        one.until_ready()
        two.until_ready()
        assert set(group_offsets(site.kafka, "citegauge.installations")), "it is written down"
        assert two.end() == 0
        with WorkerProcess(site.with_options(KAFKA__INSTALLATION="named-later"), tmp_path) as named:
            named.until_ready()
            assert named.end() == 0
        assert one.end() == 0


async def test_of_two_that_come_at_once_one_stays(kafka: str) -> None:
    """Both may find the names free; then they find each other when they look again, and never are both refused."""
    topics = [await create_topic(kafka, unique("panes")) for _ in range(2)]
    for _ in range(5):
        group_id = unique("join")
        both = [
            Installation(
                Settings(kafka=KafkaSettings(bootstrap_servers=kafka, group_id=group_id, panes_topic=topic)),
                "join",
                lambda topic=topic: [topic],  # type: ignore[misc]
            )
            for topic in topics
        ]
        for _ in range(3):
            said = await asyncio.gather(*[one.claim() for one in both], return_exceptions=True)
            assert all(error is None or isinstance(error, FatalError) for error in said), said
            both = [one for one, error in zip(both, said, strict=True) if error is None]
        assert len(both) == 1


async def _deny(bootstrap_servers: str, group: str) -> None:
    """Nobody but another user may read this group. aiokafka has no call for it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        answer = await admin._send_to_controller(CreateAclsRequest(3, group, 3, "User:other", "*", 3, 3))
        assert [code for code, _ in answer.creation_responses] == [0], answer
    finally:
        await admin.close()


def test_a_user_who_may_not_read_the_group_of_names_is_told_and_goes_on(
    front: ClickHouseFront, database: ClickHouse, tmp_path: Path
) -> None:
    """An upgrade where groups are allowed one by one stops nobody: a warning says what to allow, and traces are measured."""
    authorizer = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "allow.everyone.if.no.acl.found=true\n"
    )
    server = KafkaServer(tmp_path / "kafka", properties=authorizer)
    server.start()
    try:
        asyncio.run(_deny(server.bootstrap_servers, "citegauge.installations"))
        topic = asyncio.run(create_topic(server.bootstrap_servers, unique("spans"), partitions=1))
        site = Site(kafka=server.bootstrap_servers, clickhouse=front.url, topic=topic)
        mine = batch(33)
        produce(site.kafka, site.topic, mine)
        with WorkerProcess(site, tmp_path) as worker:
            truth = expected(site, read_topic(site.kafka, site.topic))
            worker.until(lambda: not stored(database, site.database).differences(truth), "the tables hold them all", 90)
            assert "allow this user to read group citegauge.installations" in worker.log
            assert worker.end() == 0
    finally:
        server.stop()
