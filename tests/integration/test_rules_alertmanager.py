"""Alertmanager itself, with the shipped configuration: who is heard while what else fires."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.adapters.embedded import free_port
from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules import alerts

if TYPE_CHECKING:
    from collections.abc import Iterator

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
CONFIG = Path(__file__).parents[2] / "deploy" / "alertmanager" / "alertmanager.yml"
BY_NAME = {alert.name: alert for alert in alerts(AlertSettings())}
pytestmark = pytest.mark.skipif(ALERTMANAGER is None, reason="it comes with Debian's package prometheus-alertmanager")


def alert(name: str, job: str = "citegauge", **labels: str) -> dict[str, str]:
    """Labels of an alert as the rules give them."""
    rule = BY_NAME[name]
    stalls = {"stalls": "true"} if rule.stalls else {}
    return {"alertname": name, "severity": rule.severity, "signal": rule.signal, "job": job} | stalls | labels


SUPPORT = alert("CitegaugeRouteRecallDrop", route="support")
SLICE = alert("CitegaugeRecallDrop", route="support", top_k_bucket="1-5")
ELSEWHERE = alert("CitegaugeRecallDrop", route="sales", top_k_bucket="1-5")
CUSUM = alert("CitegaugeRecallCusum", route="support", top_k_bucket="1-5")
CUSUM_BESIDE = alert("CitegaugeRecallCusum", route="support", top_k_bucket="6-10")
SCORE = alert("CitegaugeTop1ScoreDrop", route="sales", top_k_bucket="1-5", scorer="bge")
SHIFT = alert("CitegaugeScoreShift", route="sales", top_k_bucket="1-5", scorer="bge")
SHIFT_ELSE = alert("CitegaugeScoreShift", route="sales", top_k_bucket="1-5", scorer="bm25")
SILENT = alert("CitegaugeRouteNoTraces", route="sales")
NO_TRACES = alert("CitegaugeNoTraces")
LAG = alert("CitegaugeLagSeconds", topic="spans", partition="0")
NOT_READ, STALLED = (alert(name, topic="spans", partition="0") for name in ("CitegaugeNotReading", "CitegaugeStalled"))
STALLED_ELSE = alert("CitegaugeStalled", topic="traces", partition="0")
HANGS, AWAY = (alert(name, instance="a:9464") for name in ("CitegaugeWorkerHangs", "CitegaugeWorkerDown"))
AWAY_ELSE, ALL_DOWN = alert("CitegaugeWorkerDown", instance="b:9464"), alert("CitegaugeDown")
LETTERS = alert("CitegaugeDeadLetters", reason="not_json", stage="join")
SHARES = [alert(f"Citegauge{name}", route="support") for name in ("ZeroResults", "UnjoinedTraces", "Unmeasurable")]
ZERO_ELSEWHERE = alert("CitegaugeZeroResults", route="sales")
OTHER_JOB = alert("CitegaugeRecallDrop", job="staging", route="support", top_k_bucket="1-5")


class Running:
    """One Alertmanager."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None) -> Any:
        """JSON in, JSON out."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            text = answer.read()
        return json.loads(text) if text and path.startswith("/api") else None

    def until(self, condition: Any, what: str) -> None:
        """Wait for something to become true, a minute at most."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            self.call("/-/ready")
        except OSError:  # refused, reset, or too slow
            return False
        return True


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """An Alertmanager of its own on loopback, stopped at the end."""
    assert ALERTMANAGER is not None
    port = free_port()
    command = [
        ALERTMANAGER,
        f"--config.file={CONFIG}",
        f"--storage.path={tmp_path}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = Running(f"http://127.0.0.1:{port}")
        found.until(found.ready, "Alertmanager does not answer")
        yield found
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.mark.parametrize(
    ("firing", "heard"),
    [
        pytest.param([SUPPORT, SLICE, ELSEWHERE], [SUPPORT, ELSEWHERE], id="a page stands for its own slices only"),
        pytest.param([SUPPORT, *SHARES, ZERO_ELSEWHERE], [SUPPORT, ZERO_ELSEWHERE], id="and for its own shares"),
        pytest.param([SUPPORT, CUSUM, CUSUM_BESIDE, SHIFT], [SUPPORT, SHIFT], id="and for its detectors"),
        pytest.param(
            [SLICE, CUSUM, CUSUM_BESIDE], [SLICE, CUSUM_BESIDE], id="an hour's fall stands for the hours' fall"
        ),
        pytest.param([SCORE, SHIFT, SHIFT_ELSE], [SCORE, SHIFT_ELSE], id="a fallen score stands for its shift"),
        pytest.param([SLICE, ELSEWHERE], [SLICE, ELSEWHERE], id="slices alone are heard"),
        pytest.param([LAG, SUPPORT, SLICE, SILENT, LETTERS], [LAG, LETTERS], id="a stall holds quality back"),
        pytest.param([LAG, OTHER_JOB], [LAG, OTHER_JOB], id="of its own deployment only"),
        pytest.param([NO_TRACES, SILENT], [NO_TRACES], id="no traffic at all is said once"),
        pytest.param(
            [NOT_READ, STALLED, LAG, STALLED_ELSE, SUPPORT], [NOT_READ, STALLED_ELSE], id="a partition is told once"
        ),
        pytest.param([HANGS, AWAY, AWAY_ELSE], [HANGS, AWAY_ELSE], id="a worker that hangs is told once"),
        pytest.param([ALL_DOWN, HANGS, AWAY, AWAY_ELSE], [ALL_DOWN], id="no worker at all is told once"),
    ],
)
def test_who_is_heard(running: Running, firing: list[dict[str, str]], heard: list[dict[str, str]]) -> None:
    """Inhibition as the runbooks say it: what explains another alert is heard instead of it."""
    ends = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    running.call("/api/v2/alerts", [{"labels": labels, "endsAt": ends} for labels in firing])

    def shown() -> list[dict[str, str]]:
        return [each["labels"] for each in running.call("/api/v2/alerts?inhibited=false&unprocessed=false")]

    def total() -> int:
        return len(running.call("/api/v2/alerts?unprocessed=false"))

    running.until(lambda: total() == len(firing), "not all alerts arrived")
    running.until(
        lambda: (
            sorted(map(str, map(sorted, (each.items() for each in shown()))))
            == sorted(map(str, map(sorted, (each.items() for each in heard))))
        ),
        f"heard {shown()}",
    )
