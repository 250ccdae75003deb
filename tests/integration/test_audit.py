"""`citegauge audit` as a command, on a worker's real topic and ClickHouse: silent when all is right, loud when not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.domain.progress import Commit
from support.clickhouse import child_environment
from support.kafka import unique
from support.worker import WorkerProcess, pairs, produce, traffic
from support.worker_tables import commits, group_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite, Site

pytestmark = pytest.mark.kafka


def run_audit(site: Site, *arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of the command."""
    environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "citegauge", "audit", *arguments],
        env=environment | site.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def audited(site: Site, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Status and report."""
    status, out, err = run_audit(site, "--json", *arguments)
    assert out, err
    return status, json.loads(out)


def test_audit_of_a_real_worker(make_site: MakeSite, database: ClickHouse, tmp_path: Path) -> None:
    """Nothing differs after a run with a kill in it; a row that is changed, deleted or made up afterwards is named."""
    site = make_site(JOIN__TRACE_PANES_MAX="4")
    assert run_audit(site)[0] == 1, "an audit that judged nothing must not pass"
    batch = pairs(traffic(5, minutes=20, per_minute=120, end_ns=time.time_ns()))
    half = len(batch) // 2
    produce(site.kafka, site.topic, batch[:half])
    with WorkerProcess(site, tmp_path) as worker:
        worker.until(lambda: sum(one.position for one in commits(site).values()) > 0, "it has committed")
        worker.kill()
        worker.start()
        sent = half + len(produce(site.kafka, site.topic, batch[half:]))
        worker.until(lambda: sum(one.position for one in commits(site).values()) >= sent, "all is published")
        # Beside the running worker, which goes on publishing open minutes.
        status, report = audited(site)
        assert (status, report["equal"], report["listed"]) == (0, True, [])
        assert worker.end() == 0

    assert report["judged_panes"] > 40, "three partitions of 20 minutes, of which the last few are open"
    compared = [one["compared"] for one in report["partitions"]]
    assert sum(one["traces"] for one in compared) > 1_000
    assert sum(one["late"] for one in compared) > 10
    assert sum(one["behind"] for one in report["partitions"]) == 0
    assert sum(one["records"] for one in report["partitions"]) == sent

    offset = report["partitions"][0]["end"] // 3
    status, part = audited(site, "--from", f"{site.topic}/0={offset}")
    assert (status, part["equal"]) == (0, True)
    assert part["partitions"][0]["start"] == offset
    # The log was written in one go, so what lies before that offset could belong to any minute: none is judged.
    assert [one["panes"] > 0 for one in part["partitions"]] == [False, True, True]

    _damage(database, site)
    status, out, err = run_audit(site)
    assert (status, err) == (1, "")
    assert "3 rows differ: 1 in panes, 2 in traces, 0 in late" in out
    assert f"trace_id={'f' * 32}" in out
    assert "stored:   no such row" in out


def _damage(database: ClickHouse, site: Site) -> None:
    """One pane counts one citation more, one trace is gone, one never was."""
    name = f"`{site.database}`"
    order = "ORDER BY pane, route, top_k_bucket, model, retriever_version, scorer, trace_id LIMIT 1"
    pane = f"SELECT * REPLACE (citations + 1 AS citations) FROM {name}.panes FINAL WHERE final AND notEmpty(states) LIMIT 1"
    gone = f"SELECT trace_id FROM {name}.traces FINAL {order}"
    ghost = f"SELECT * REPLACE ('{'f' * 32}' AS trace_id) FROM {name}.traces FINAL {order.replace('1', '1 OFFSET 1')}"
    database.command(f"INSERT INTO {name}.traces {ghost}")
    database.command(f"DELETE FROM {name}.traces WHERE trace_id = ({gone})")
    database.command(f"INSERT INTO {name}.panes {pane}")


def test_audit_says_what_is_wrong_with_its_arguments(make_site: MakeSite) -> None:
    """A start that is neither an offset nor a time is one line and status 2."""
    status, out, err = run_audit(make_site(partitions=1), "--from", "yesterday")
    assert (status, out) == (2, "")
    assert err == "citegauge: --from 'yesterday' is neither an offset nor an RFC 3339 time\n"


def test_audit_of_a_rekeyed_topic(make_site: MakeSite, kafka: str, database: ClickHouse, tmp_path: Path) -> None:
    """Unkeyed spans are audited where they are joined: over the re-keyed topic, with a clock per source."""
    name = unique("rekeyed")
    site = make_site(
        JOIN__TRACE_PANES_MAX="4",
        KAFKA__KEYED="false",
        REKEY__SPANS_TOPIC=name,
        REKEY__SPANS_PARTITIONS="2",
        REKEY__GROUP_ID=f"{name}-rekey",
    )
    batch = pairs(traffic(6, minutes=20, per_minute=90, end_ns=time.time_ns()))
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        # The first come last: the stage puts in order what it reads at once, and only what is missing then is late.
        for part, total in ((batch[30:], len(batch) - 30), (batch[:30], len(batch))):
            produce(kafka, site.topic, [(None, value) for _, value in part])

            def published(total: int = total) -> bool:
                found = [Commit.from_metadata(*at) for at in group_offsets(kafka, f"{site.name}-join").values()]
                return sum(one.position for one in found) >= total

            worker.until(published, "all is re-keyed and published")
        assert worker.end() == 0
    status, report = audited(site)
    assert (status, report["equal"], report["listed"]) == (0, True, [])
    assert {one["source"] for one in report["partitions"]} == {f"{name}/0", f"{name}/1"}
    assert report["judged_panes"] > 20
    assert sum(one["compared"]["late"] for one in report["partitions"]) > 20
    database.command(
        f"DELETE FROM `{site.database}`.late WHERE trace_id IN (SELECT max(trace_id) FROM `{site.database}`.late)"
    )
    assert audited(site)[1]["differences"] > 0
