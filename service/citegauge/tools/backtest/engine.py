"""A Prometheus of our own for one backtest: it reads the rule file and evaluates; it scrapes nothing and alerts nobody.

It listens on loopback, keeps its data in a temporary folder, and takes samples of the past through its remote-write
endpoint: nothing else writes, so time begins with the first sample.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import cramjam
import msgspec

from citegauge.errors import ConfigError, FatalError

START_TIMEOUT_S = 30.0
STARTS_MAX = 3
"""Another process may take the port that was free a moment ago."""
ANSWER_TIMEOUT_S = 300.0
BLOCK = "36500d"
"""No block is ever cut: everything stays in the head, which takes new series at any time of the replay."""
MISSING = "backtest evaluates the rules with Prometheus itself: install it (Debian's package is `prometheus`), so that "
MISSING += "`prometheus` is on the PATH"


class Rule(NamedTuple):
    """One rule, as Prometheus read it."""

    name: str
    recording: bool
    expr: str
    labels: Mapping[str, str]
    hold_s: float
    """`for`; 0 for recordings."""
    keep_s: float
    """`keep_firing_for`."""


class Series(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    points: list[tuple[int, float]]
    """(unix seconds, value), by time."""


def read_rules(text: str) -> list[Rule]:
    """The rules of a rule file, in order, read by Prometheus. Raises `ConfigError` with what it does not like."""
    with tempfile.TemporaryDirectory(prefix="citegauge-backtest-") as folder:
        path = Path(folder) / "rules.yml"
        path.write_text(text, encoding="utf-8")
        with _running(Path(folder), rules=path) as engine:
            found = engine.ask("GET", "/api/v1/rules")["groups"]
    return [_rule(rule) for group in found for rule in group["rules"]]


def _rule(rule: Mapping[str, Any]) -> Rule:
    return Rule(
        name=rule["name"],
        recording=rule["type"] == "recording",
        expr=rule["query"],
        labels=rule.get("labels") or {},
        hold_s=float(rule.get("duration", 0)),
        keep_s=float(rule.get("keepFiringFor", 0)),
    )


@contextmanager
def engine() -> Iterator[Engine]:
    """A running Prometheus without rules or data. Raises `ConfigError` when it is not installed."""
    with tempfile.TemporaryDirectory(prefix="citegauge-backtest-") as folder, _running(Path(folder)) as running:
        yield running


class Engine:
    """What is asked of Prometheus. Blocking."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)

    def write(self, request: bytes) -> None:
        """Send samples (`series.WriteBuffer` makes requests)."""
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        status, body = self._exchange("POST", "/api/v1/write", bytes(cramjam.snappy.compress_raw(request)), headers)
        if status >= 300:
            raise FatalError(f"Prometheus refuses samples: {_one_line(body)}")

    def query_range(self, expr: str, first_s: int, last_s: int, step_s: int) -> list[Series]:
        """The expression at first, first + step, … up to last (unix seconds, inclusive). Raises `FatalError`."""
        given = {"query": expr, "start": first_s, "end": last_s, "step": step_s}
        data = self.ask("POST", "/api/v1/query_range", given)
        return [
            Series(one["metric"], [(int(at), float(value)) for at, value in one["values"]]) for one in data["result"]
        ]

    def ask(self, method: str, path: str, form: Mapping[str, object] | None = None) -> Any:
        """The `data` of an answer of the API. Raises `FatalError` with its error."""
        body = urlencode(form).encode() if form else None
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
        status, answer = self._exchange(method, path, body, headers)
        try:
            found = msgspec.json.decode(answer)
        except msgspec.DecodeError as exc:
            raise FatalError(f"Prometheus answers {status}: {_one_line(answer)}") from exc
        if found.get("status") != "success":
            raise FatalError(f"Prometheus: {found.get('error')}")
        return found["data"]

    def ready(self) -> bool:
        """Whether it answers yet."""
        try:
            return self._exchange("GET", "/-/ready", None, {})[0] == 200
        except FatalError:
            return False

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as exc:
            self._connection.close()
            raise FatalError(f"Prometheus does not answer: {exc}") from exc


@contextmanager
def _running(folder: Path, rules: Path | None = None) -> Iterator[Engine]:
    binary = shutil.which("prometheus")
    if binary is None:
        raise ConfigError(MISSING)
    settings = f"rule_files: [{json.dumps(str(rules))}]\n" if rules else "global: {}\n"
    (folder / "prometheus.yml").write_text(settings, encoding="utf-8")
    for left in reversed(range(STARTS_MAX)):
        port = _free_port()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(_command(binary, folder, port), stdout=log, stderr=log)  # noqa: S603 - the binary on the PATH, our own arguments
        running = Engine(port)
        try:
            if _up(process, running):
                yield running
                return
        finally:
            running.close()
            process.terminate()
            try:
                process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        said = (folder / "log").read_text(encoding="utf-8", errors="replace").strip()
        if "address already in use" not in said or not left:
            _complain(said, rules is not None)


def _command(binary: str, folder: Path, port: int) -> Sequence[str]:
    return (
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.min-block-duration={BLOCK}",
        f"--storage.tsdb.max-block-duration={BLOCK}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--log.level=warn",
    )


def _up(process: subprocess.Popen[bytes], running: Engine) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None:
        if running.ready():
            return True
        if time.monotonic() > deadline:
            raise FatalError(f"Prometheus did not start within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    return False


def _complain(said: str, about_rules: bool) -> None:
    lines = said.splitlines() or ["it ended without a word"]
    if about_rules:
        told = next((line for line in lines if "rules.yml" in line), lines[-1])
        raise ConfigError(f"Prometheus does not take the rules: {_one_line(told.encode())}")
    raise FatalError(f"Prometheus did not start: {_one_line(lines[-1].encode())}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _one_line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").split())[:500]
