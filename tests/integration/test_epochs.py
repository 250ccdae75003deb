"""A topic that was made anew: the refusal names its own epoch, and doing what it says gives the right rows."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING

import pytest

from support.fault_kafka import administer
from support.kafka import create_topic, unique
from support.worker import Site, WorkerProcess, pairs, produce, traffic, wait_until
from support.worker_tables import commits, expected, read_topic, stored

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite, Pairs

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000
TO_SET = re.compile(r"set (\S+) = (\d+)")


def batch(seed: int, minutes: int) -> Pairs:
    """Traces that end three minutes ago."""
    end_ns = time.time_ns() - PAST_NS
    return pairs(traffic(seed, minutes=minutes, per_minute=60, end_ns=end_ns, late_ratio=0.0))


def refusal(site: Site, folder: Path, *arguments: str) -> str:
    """The one line of a worker that must not start."""
    with WorkerProcess(site, folder, *arguments) as worker:
        assert worker.wait(60) == 1, worker.log
        said = [line for line in worker.log.splitlines() if line.startswith("citegauge: ")]
        assert len(said) == 1, worker.log
        assert "Traceback" not in worker.log, worker.log
    return said[0]


def made_anew(site: Site, topic: str, partitions: int) -> None:
    """Delete a topic and make it again, empty."""
    administer(site.kafka, lambda admin: admin.delete_topics([topic]))
    wait_until(lambda: topic not in administer(site.kafka, lambda admin: admin.list_topics()), "the topic is gone")
    asyncio.run(create_topic(site.kafka, topic, partitions=partitions))


def settled(site: Site, topic: str, records: int, database: ClickHouse) -> bool:
    """All records are in the topic that is joined, and every row that they give stands."""
    log = read_topic(site.kafka, topic)
    if len(log) < records:
        return False
    truth, found = expected(site, log), stored(database, site.database)
    return all(found.panes.get(key) == row for key, row in truth.panes.items()) and all(
        found.traces.get(key) == row for key, row in truth.traces.items()
    )


def follow(site: Site, line: str, wanted: str) -> Site:
    """The site with what the line says to set, and nothing else."""
    assert "--rebuild-from" in line, line
    ((setting, value),) = TO_SET.findall(line)
    assert setting == wanted, line
    return site.with_options(**{setting.replace(".", "__").upper(): value})


def test_the_spans_topic_is_made_anew(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """In the default intake it is `rekey.epoch`: the printed words start the worker, and every row of the new log stands."""
    topic = unique("respans")
    site = make_site(
        KAFKA__KEYED="false", REKEY__SPANS_TOPIC=topic, REKEY__SPANS_PARTITIONS="2", REKEY__GROUP_ID=f"{topic}-rekey"
    )
    old, new = batch(41, 20), batch(42, 5)
    produce(site.kafka, site.topic, old)
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: settled(site, topic, len(old), database), "the old rows stand", 120)
        worker.until(lambda: commits(site, topic), "it has committed")
        assert worker.end() == 0
    made_anew(site, topic, 2)
    produce(site.kafka, site.topic, new)
    line = refusal(site, tmp_path)
    raised = follow(site, line, "rekey.epoch")
    assert follow(site, refusal(site, tmp_path, "--rebuild-from", "0"), "rekey.epoch") == raised, (
        "half of it is refused"
    )
    with WorkerProcess(raised, tmp_path, "--rebuild-from", "0") as worker:
        worker.until_ready()
        worker.until(lambda: settled(raised, topic, len(new), database), "the new rows stand", 120)
        worker.until(lambda: commits(raised, topic), "it has committed")
        assert worker.end() == 0
    with WorkerProcess(raised, tmp_path) as worker:
        worker.until_ready()
        worker.until(lambda: settled(raised, topic, len(new), database), "it goes on from its commit")
        assert worker.end() == 0
    assert "start without --rebuild-from" in refusal(raised, tmp_path, "--rebuild-from", "0")


def test_a_topic_under_sources_is_made_anew(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """A keyed topic with a section of its own has its epoch there; a commit outside the log names it as well."""
    plain = make_site(partitions=1)
    site = plain.with_options(SOURCES=json.dumps({plain.topic: {"keyed": True}}))
    old, new = batch(43, 20), batch(44, 5)
    produce(site.kafka, site.topic, old)
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: settled(site, site.topic, len(old), database), "the old rows stand", 120)
        worker.until(lambda: commits(site), "it has committed")
        assert worker.end() == 0
    made_anew(site, site.topic, 1)
    produce(site.kafka, site.topic, new)
    raised = follow(site, refusal(site, tmp_path), f"sources.{site.topic}.epoch")
    with WorkerProcess(raised, tmp_path, "--rebuild-from", "0") as worker:
        worker.until_ready()
        worker.until(lambda: settled(raised, site.topic, len(new), database), "the new rows stand", 120)
        assert worker.end() == 0
