"""The default intake under random faults for as long as one likes: `make soak`, `make soak ARGS="--minutes 30"`.

Three workers of split roles, six source partitions of which two are quiet, a logs topic beside them. Workers are killed,
frozen and replaced one by one, and once the dead-letter topic is gone for minutes. A Prometheus scrapes them and evaluates
the rules that `citegauge rules` writes. It prints a table and ends with a status that is not 0 when

* a produced trace is in no table, or a table holds one that was not produced;
* lag is not 0 within a minute of the last fault, by Kafka or by /metrics;
* nothing of a partition went on for more than a minute, while records waited, and no alert fired;
* a worker ended by itself, or the audit finds a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from citegauge.adapters.clickhouse import HttpTarget, connect
from citegauge.domain.span import Kind
from support.clickhouse import ClickHouseFront, child_environment, free_port
from support.fault_kafka import Published, administer, log_ends, produced_traces
from support.faults import audited
from support.kafka import KafkaServer, create_topic, unique
from support.scraping import Scraping
from support.soak_traffic import Live, Logs
from support.standing import Standing
from support.worker import Site, WorkerProcess, produce, wait_until
from support.worker_tables import read_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from citegauge.adapters.clickhouse import ClickHouse

ROLES = ("rekey", "join", "all")
"""Of each stage but the windows there are two, so that one of them may be gone."""
PARTITIONS = 6
STALL_S = 60.0
RECOVERY_S_MAX = 60.0
EVALUATED_S = 10.0
"""The rules about stalls are evaluated every 5 seconds: so much after the end of a stall may its alert be seen."""
REFUSAL_S = 150.0
LIVE_LAG_S = 5.0
"""So many seconds of traffic may be on their way."""
CLOSED_S_MAX = 300.0
"""The join window, the disorder, a minute and a bit, until what was sent last stands in the tables."""
HALVES = {"no_generation", "no_retrieval"}
SILENT_OF_STALLS = {"CitegaugeWatchdog", "CitegaugeLateSpans", "CitegaugeDeadLetters", "CitegaugeRekeyOverruled"}
"""Alerts that fire always, or that say nothing of standing still."""


@dataclass(kw_only=True)
class Fault:
    """One line of the table. Times are unix seconds."""

    what: str
    began: float
    healed: float = 0.0
    recovered: float = 0.0


@dataclass
class Soak:
    """The installation and what is done to it; use as a context manager."""

    folder: Path
    seed: int
    minutes: float
    per_s: float
    faults: list[Fault] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.chance = random.Random(self.seed)
        self._stack = stack = ExitStack()
        kafka = KafkaServer(self.folder / "kafka")
        kafka.start()
        stack.callback(kafka.kill)
        clickhouse = ClickHouseFront(self.folder / "clickhouse").start()
        stack.callback(clickhouse.kill)
        address = kafka.bootstrap_servers
        topic = asyncio.run(create_topic(address, unique("spans"), partitions=PARTITIONS))
        logs = asyncio.run(create_topic(address, unique("logs"), partitions=2))
        self.site = Site(
            kafka=address, clickhouse=clickhouse.url, topic=topic, keyed=False,
            options={"SOURCES": json.dumps({topic: {}, logs: {}}), "REKEY__SPANS_PARTITIONS": str(PARTITIONS)},
        )  # fmt: skip
        self.database: ClickHouse = connect(HttpTarget(url=clickhouse.url), "default")
        stack.callback(self.database.close)
        ports = {role: free_port() for role in ROLES}
        self.workers = {
            role: stack.enter_context(
                WorkerProcess(self.site.with_options(WEB__PORT=str(ports[role])), self.folder, "--role", role)
            )
            for role in ROLES
        }
        self.prometheus = stack.enter_context(
            Scraping(self.folder / "prometheus", [f"127.0.0.1:{port}" for port in ports.values()], shipped_rules())
        )
        for worker in self.workers.values():
            worker.until_ready(120)
        self.standing = stack.enter_context(Standing(self.site, [topic, logs], STALL_S))
        self.live = Live(self.site, self.seed, self.minutes + 30, self.per_s)
        self.live.start()
        stack.callback(self.live.stop)
        self.logs = Logs(address, logs)
        self.logs.start()
        stack.callback(self.logs.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- faults -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults until the time is over, then the verdict."""
        until = time.time() + self.minutes * 60
        kinds = [self._kill, self._freeze, self._rolling]
        if self.minutes >= 5:
            kinds.append(self._refusal)
        order: list[Callable[[], None]] = []
        time.sleep(10)  # some traffic first
        while time.time() < until:
            if not order:
                order = self.chance.sample(kinds, len(kinds))
                kinds = [kind for kind in kinds if kind != self._refusal]  # once is enough
            order.pop()()
            self._heal()
            if time.time() < until:  # the last one's lag is looked at without a pause
                time.sleep(self.chance.uniform(0, 10))
        self._lag_after(self.faults[-1].healed)
        self.accounts = self._account()
        self._audit()
        self._alerts()

    def _begin(self, what: str) -> Fault:
        fault = Fault(what=what, began=time.time())
        self.faults.append(fault)
        say(f"{what} …")
        return fault

    def _kill(self) -> None:
        role = self.chance.choice(ROLES)
        away_s = self.chance.uniform(0, 10)
        fault = self._begin(f"kill -9 {role}, {away_s:.0f} s away")
        self.workers[role].kill()
        time.sleep(away_s)
        self.workers[role].start()
        fault.healed = time.time()

    def _freeze(self) -> None:
        role = self.chance.choice(ROLES)
        for_s = self.chance.uniform(10, 90)
        fault = self._begin(f"SIGSTOP {role} for {for_s:.0f} s")
        self.workers[role].send(signal.SIGSTOP)
        time.sleep(for_s)
        self.workers[role].send(signal.SIGCONT)
        fault.healed = time.time()

    def _rolling(self) -> None:
        fault = self._begin("rolling restart")
        for role, worker in self.workers.items():
            if (status := worker.end(timeout_s=90)) != 0:
                self.violations.append(f"{role} ended with {status} when it was asked to stop: {worker.log_path}")
            worker.start()
            worker.until_ready(120)
        fault.healed = time.time()

    def _refusal(self) -> None:
        """An unreadable record has no place to go, so whoever reads it stands still."""
        fault = self._begin(f"dead-letter topic gone for {REFUSAL_S:.0f} s")
        dead = f"{self.site.name}-dead"
        # What the topic held goes back into the new one: its loss is not what is tried here, and the audit would name it.
        for worker in self.workers.values():
            worker.send(signal.SIGSTOP)
        kept = [(letter.key, letter.value) for letter in read_topic(self.site.kafka, dead)]
        administer(self.site.kafka, lambda admin: admin.delete_topics([dead]))
        for worker in self.workers.values():
            worker.send(signal.SIGCONT)
        produce(self.site.kafka, self.site.topic, [(None, b"no format at all")])
        time.sleep(REFUSAL_S)
        asyncio.run(create_topic(self.site.kafka, dead))
        produce(self.site.kafka, dead, kept)
        fault.healed = time.time()

    def _heal(self) -> None:
        """Wait until what was sent before the fault was over is joined; restart what ended by itself."""
        fault = self.faults[-1]
        done = Published(self.site, log_ends(self.site.kafka, self.site.topic))
        try:
            wait_until(done, "recovered", 2 * RECOVERY_S_MAX)
            fault.recovered = time.time()
            say(f"{fault.what}: recovered in {fault.recovered - fault.healed:.1f} s")
        except AssertionError:
            self.violations.append(f"{fault.what}: not recovered after {2 * RECOVERY_S_MAX:.0f} s")
        for role, worker in self.workers.items():
            if (status := worker.process.poll()) is not None:
                last = (worker.log.strip().splitlines() or [""])[-1]
                self.violations.append(f"{fault.what}: {role} ended by itself with {status}: {last[:300]}")
                worker.start()

    # -- verdict ----------------------------------------------------------------------------------------------------------

    def _metrics_lag(self) -> float:
        """Over all workers; without bound while one of them does not answer."""
        found = [worker.metrics() for worker in self.workers.values()]
        lag = sum(
            value for one in found for (name, _), value in one.items() if name == "citegauge_position_lag_records"
        )
        return lag if all(found) else math.inf

    def _lag_after(self, healed: float) -> None:
        """Lag 0 by Kafka and by /metrics within a minute of the last fault.

        Under traffic something always waits: first all that was sent before, and by /metrics no more than some seconds of
        traffic; then, with the traffic stopped, nothing at all.
        """
        flowing = 2 * self.per_s * LIVE_LAG_S
        sent_before = Published(self.site, log_ends(self.site.kafka, self.site.topic))
        self._lag_gone("Kafka, of what was sent before", healed, sent_before)
        self._lag_gone("/metrics, but for what flows", healed, lambda: self._metrics_lag() <= flowing)
        self.live.stop()
        if self.live.failure is not None:
            self.violations.append(f"sending failed: {self.live.failure!r}")
        self.logs.stop()
        stopped = time.time()
        self._lag_gone("Kafka", healed, lambda: self.standing.moved_after(stopped))
        self._lag_gone("/metrics", healed, lambda: self._metrics_lag() == 0)

    def _lag_gone(self, by: str, healed: float, none_left: Callable[[], bool]) -> None:
        try:
            wait_until(none_left, "lag 0", max(1.0, healed + RECOVERY_S_MAX - time.time()))
        except AssertionError:
            left = f"{self.standing.lag} by Kafka, {self._metrics_lag():.0f} by /metrics"
            self.violations.append(f"no lag by {by}: not within {RECOVERY_S_MAX:.0f} s of the last fault ({left})")
            return
        took_s = time.time() - healed
        say(f"no lag by {by}, {took_s:.0f} s after the last fault")
        if took_s > RECOVERY_S_MAX:
            self.violations.append(f"no lag by {by} only {took_s:.0f} s after the last fault")

    def _account(self) -> list[str]:
        """The sum: measured + states + late = produced. Who is a half although both were produced has a late span."""
        name = self.site.database
        produced = produced_traces(self.site)
        states: dict[str, set[str]] = {}
        late: set[str] = set()

        def all_there() -> bool:
            states.clear()
            for row in self.database.query(f"SELECT trace_id, state FROM `{name}`.traces FINAL"):
                states.setdefault(row["trace_id"], set()).add(row["state"])
            late.clear()
            late.update(row["trace_id"] for row in self.database.query(f"SELECT trace_id FROM `{name}`.late"))
            return not produced.keys() - states.keys() - late

        say("waiting until the last minutes are closed")
        with suppress(AssertionError):
            wait_until(all_there, "all traces are in the tables", CLOSED_S_MAX)
        if lost := produced.keys() - states.keys() - late:
            self.violations.append(f"{len(lost)} of {len(produced)} traces are nowhere, such as {min(lost)}")
        if strange := (states.keys() | late) - produced.keys():
            self.violations.append(f"{len(strange)} traces were not produced, such as {min(strange)}")
        whole = {trace for trace, kinds in produced.items() if kinds >= {Kind.RETRIEVAL, Kind.GENERATION}}
        halves = {trace for trace in whole & states.keys() if states[trace] <= HALVES}
        # Both verdicts: the second half came when the first one's minute had closed, and counts again in its own.
        counted_again = {trace for trace in halves if states[trace] == HALVES}
        if silent := halves - late - counted_again:
            self.violations.append(
                f"{len(silent)} traces are halves and no span of theirs is late, such as {min(silent)}"
            )
        one_state = Counter(min(found, key=lambda state: (state in HALVES, state)) for found in states.values())
        only_late, apart = len(late - states.keys()), len(counted_again - late)
        said = " + ".join([*(f"{n} {state}" for state, n in sorted(one_state.items())), f"{only_late} late alone"])
        return [
            f"{said} = {one_state.total() + only_late} of {len(produced)} produced",
            f"{len(halves)} of {len(whole)} whole traces are halves: {len(halves & late)} late, {apart} too far apart",
        ]

    def _audit(self) -> None:
        try:
            report = audited(self.site)
        except AssertionError as exc:
            self.violations.append(f"audit: {exc}"[:500])
            return
        say(f"audit: {report['differences']} differences in {report['judged_panes']} minutes")
        if not report["equal"]:
            self.violations.append(f"audit: {report['differences']} differences, such as {report['listed'][:1]}")

    def _alerts(self) -> None:
        time.sleep(EVALUATED_S if self._recent_stall() else 0)
        for stall in self.standing.stalls:
            if not self.spoke(stall.began, stall.ended + EVALUATED_S):
                at = f"{stall.partition.topic}/{stall.partition.partition}"
                self.violations.append(f"{at} stood still for {stall.lasted_s:.0f} s and no alert fired")

    def _recent_stall(self) -> bool:
        return any(stall.ended + EVALUATED_S > time.time() for stall in self.standing.stalls)

    def spoke(self, from_s: float, to_s: float) -> list[str]:
        """Alerts about standing still that fired then."""
        return sorted(self.prometheus.fired(from_s, min(to_s, time.time())).keys() - SILENT_OF_STALLS)

    def lines(self) -> list[str]:
        """The table."""
        began = self.faults[0].began if self.faults else time.time()
        rows = [("at s", "fault", "recovery s", "stalls > 60 s", "alerts")]
        for number, fault in enumerate(self.faults):
            ended = self.faults[number + 1].began if number + 1 < len(self.faults) else time.time()
            stalls = [one for one in self.standing.stalls if fault.began <= one.began + 1 and one.began < ended]
            longest = max((one.lasted_s for one in stalls), default=0.0)
            alerts = self.spoke(fault.began, ended)
            recovery = f"{fault.recovered - fault.healed:.1f}" if fault.recovered else "never"
            stood = f"{len(stalls)}, to {longest:.0f} s" if stalls else "-"
            rows.append((f"{fault.began - began:.0f}", fault.what, recovery, stood, ", ".join(alerts) or "-"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def shipped_rules() -> str:
    """What `citegauge rules` writes."""
    environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
    command = [sys.executable, "-m", "citegauge", "rules"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def say(text: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"soak: {time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults go on (default: 30)")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 24), help="of traffic and faults"
    )
    parser.add_argument("--per-s", type=float, default=20.0, help="traces per second (default: 20)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="citegauge-soak-"))
    say(f"seed {given.seed}, {given.minutes:g} minutes, {given.per_s:g} traces a second, in {folder}")
    with Soak(folder, given.seed, given.minutes, given.per_s) as soak:
        soak.run()
        for line in ["", *soak.lines(), "", *soak.accounts]:
            sys.stdout.write(line + "\n")
        violations = soak.violations
    for line in violations:
        sys.stdout.write(f"VIOLATION: {line}\n")
    sys.stdout.write(f"soak: {len(violations)} violations; logs stay in {folder}\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
