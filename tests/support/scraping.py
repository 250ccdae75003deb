"""A real Prometheus that scrapes running workers and evaluates the shipped rules. Listens on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from support.clickhouse import free_port
from support.worker import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROMETHEUS = shutil.which("prometheus")
START_S_MAX = 60.0
STEP_S = 5
"""Between two looks at the past."""
_CONFIG = """\
global: {{scrape_interval: 15s, scrape_timeout: 10s, evaluation_interval: 15s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: citegauge
    static_configs: [{{targets: {targets}}}]
"""


class Scraping:
    """Use as a context manager. `targets`: `host:port` of the workers; `rules`: the text of the rule file."""

    def __init__(self, folder: Path, targets: Sequence[str], rules: str) -> None:
        assert PROMETHEUS is not None, "no prometheus: install Debian's package"
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._port = folder, free_port()
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(_CONFIG.format(targets=json.dumps(list(targets))))

    def __enter__(self) -> Self:
        command = [
            str(PROMETHEUS),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
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
        self._process.terminate()
        self._process.wait(30)

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def fired(self, from_s: float, to_s: float) -> dict[str, list[float]]:
        """Alerts that fired, by name: the unix seconds, in steps, at which they did."""
        query = {
            "query": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "start": f"{from_s:.0f}",
            "end": f"{max(from_s, to_s):.0f}",
            "step": str(STEP_S),
        }
        url = f"http://127.0.0.1:{self._port}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return {one["metric"]["alertname"]: [float(at) for at, _ in one["values"]] for one in result}
