"""/metrics, /healthz and /readyz of a running worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from citegauge.metrics import BY_NAME
from support.clickhouse import ClickHouseFront
from support.worker import Site, WorkerProcess, pairs, produce, traffic

if TYPE_CHECKING:
    from pathlib import Path

    from support.worker import MakeSite

pytestmark = pytest.mark.kafka
PAST_NS = 180 * 1_000_000_000


@pytest.fixture
def promtool() -> str:
    """The checker's path; where everything is required, its absence fails the run."""
    path = shutil.which("promtool")
    if path is None:
        if os.environ.get("CITEGAUGE_REQUIRE_KAFKA") == "1":
            pytest.fail("no promtool: install Debian's package prometheus", pytrace=False)
        pytest.skip("no promtool: install Debian's package prometheus")
    return path


def test_prometheus_accepts_every_metric(make_site: MakeSite, tmp_path: Path, promtool: str) -> None:
    """A worker with traffic, dead letters and late spans passes promtool, and shows only what the table names."""
    site = make_site()
    batch = pairs(traffic(41, minutes=40, per_minute=60, end_ns=time.time_ns() - PAST_NS))
    with WorkerProcess(site, tmp_path) as worker:
        produce(site.kafka, site.topic, [*batch, (b"k", b"not a span")])
        worker.until_ready()
        worker.until(lambda: worker.value("citegauge_window_traces", window="1h") > 0, "windows are shown")
        worker.until(lambda: worker.value("citegauge_dead_letters_total") == 1, "the dead letter is counted")
        _, text = worker.get("/metrics")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert {name for name in names if not name.startswith("process_")} <= BY_NAME.keys()
    assert "process_resident_memory_bytes" in names
    assert {"citegauge_cited_chunk_recall_ratio", "citegauge_spans_late_total", "citegauge_commit_lag_records"} <= names


def test_not_ready_until_the_windows_are_restored(
    make_site: MakeSite, own_front: ClickHouseFront, tmp_path: Path
) -> None:
    """While ClickHouse does not answer, /readyz is 503 and says why, /healthz is 200, and /metrics answers."""
    made = make_site()
    site = Site(kafka=made.kafka, clickhouse=own_front.url, topic=made.topic)
    with WorkerProcess(site, tmp_path) as first:
        first.until_ready()
        assert first.end() == 0
    own_front.pause()
    waiting = site.with_options(CLICKHOUSE__MIGRATE_ON_START="false")
    with WorkerProcess(waiting, tmp_path) as worker:
        worker.until(lambda: worker.get("/readyz")[0] == 503, "it listens, and is not ready")
        assert worker.get("/readyz")[1] == f"waiting for ClickHouse at {own_front.url}\n"
        assert worker.get("/healthz")[0] == 200
        assert ("citegauge_windows_ready", ()) in worker.metrics()
        own_front.resume()
        worker.until_ready()
        assert worker.get("/readyz") == (200, "windows are live\n")
