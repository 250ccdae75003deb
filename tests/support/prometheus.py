"""A real Prometheus for tests, with a past made from one exposition text: gauges stand, counters have grown to their values.

The binary is Debian's; it listens on loopback and is ended by its own process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from prometheus_client.parser import text_string_to_metric_families

from support.clickhouse import free_port
from support.worker import wait_until

if TYPE_CHECKING:
    from pathlib import Path

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
STEP_S = 60
START_S_MAX = 60.0


def history(text: str, labels: dict[str, str], *, end_s: int, minutes: int) -> str:
    """OpenMetrics: the samples of `text` once a minute over the past, with the labels that a scrape adds."""
    lines = []
    times = range(end_s - minutes * STEP_S, end_s + 1, STEP_S)
    for family in text_string_to_metric_families(text + "up 1\n"):
        for sample in family.samples:
            own = ",".join(
                f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in (labels | sample.labels).items()
            )
            growing = sample.name.endswith("_total")
            for place, at in enumerate(times):
                value = sample.value * place / (len(times) - 1) if growing else sample.value
                lines.append(f"{sample.name}{{{own}}} {value!r} {at}")
    return "\n".join([*lines, "# EOF\n"])


class Prometheus:
    """A server on what `promtool` made of a history; use as a context manager."""

    def __init__(self, folder: Path, openmetrics: str) -> None:
        assert PROMETHEUS is not None
        assert PROMTOOL is not None
        self._folder, self._port = folder, free_port()
        source, data = folder / "history.txt", folder / "data"
        source.write_text(openmetrics, "utf-8")
        command = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.yml"
        config.write_text("global: {}\n")
        command = [
            str(PROMETHEUS),
            f"--config.file={config}",
            f"--storage.tsdb.path={self._data}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--storage.tsdb.retention.time=30d",
            "--log.level=warn",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(self._ready, f"Prometheus is ready ({self._folder}/prometheus.log)", START_S_MAX)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def now(self, expr: str, at_s: int) -> list[dict[str, Any]]:
        """An instant query's series. AssertionError with what Prometheus says of it."""
        return list(self._get("query", query=expr, time=str(at_s))["result"])

    def lines(self, expr: str, from_s: int, to_s: int) -> list[dict[str, Any]]:
        """A range query's series."""
        return list(self._get("query_range", query=expr, start=str(from_s), end=str(to_s), step=str(STEP_S))["result"])

    def label_values(self, series: str, label: str, from_s: int, to_s: int) -> list[str]:
        """The values of a label, as a dashboard's variable asks for them."""
        return list(self._get(f"label/{label}/values", **{"match[]": series, "start": str(from_s), "end": str(to_s)}))

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None
