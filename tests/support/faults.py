"""One fault as an experiment: an installation under load, what is measured meanwhile, and the verdict of the audit.

A `Trial` is set up, broken, healed and verified by a test of `tests/fault`; its measures become a line of the table that
`make fault` prints. Traffic has disorder, 5 % duplicates, 2 % late spans, 5 % missing halves and skewed groups.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from citegauge.adapters.clickhouse import HttpTarget, connect
from citegauge.ports import PaneUpdate
from citegauge.tools.simulate_spec import RouteSpec
from support.clickhouse import child_environment
from support.fault_kafka import Published, log_ends, origins, unaccounted
from support.worker import Feed, Pairs, Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import (
    KEYS,
    commits,
    expected,
    newest_panes,
    panes_messages,
    read_topic,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokafka import ConsumerRecord

PAST_NS = 180 * 1_000_000_000
"""Traffic ends so long ago that the join window is over: in the end every minute is closed or idle."""
SETTLE_S_MAX = 240.0
"""Generous: other work may share the machine."""
RSS_MB_MAX = 450
"""What the worker may take under this traffic: 150 MB of libraries, 2 kB a trace in flight, the bounded buffers."""
AGAIN = re.compile(r"\((\d+) records again in silence\)")
SKEWED = tuple(
    RouteSpec(name=f"route-{number}", weight=1.0 / (number + 1) ** 2, top_ks=((5, 3.0), (10, 2.0), (50, 1.0)))
    for number in range(8)
)
"""Groups of which the first has most of the traffic and the last next to none."""


@dataclass(kw_only=True)
class Measures:
    """One line of the table."""

    fault: str
    intake: str = "keyed"
    recovery_s: float | None = None
    """From healing until all that was in the log then is published and committed."""
    position_lag: int = 0
    """Most records that had been sent and not read."""
    commit_lag: int = 0
    """Most records that had been read and would be read again."""
    read_again: int = 0
    """Records that restarts and hand-overs read in silence."""
    repeats: int = 0
    """Pane upserts that came again or too late, and changed nothing."""
    rss_mb: int = 0
    """Most resident memory of a worker."""
    records: int = 0
    differing: int | None = None
    verdict: str = "FAILED"


TABLE: list[Measures] = []
"""Every fault of this run."""
HEADINGS = (
    "fault", "intake", "records", "recovery s", "position lag", "commit lag", "read again", "repeats", "MB", "differing",
    "verdict",
)  # fmt: skip


def table_lines() -> list[str]:
    """The table."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for one in TABLE:
        recovery = "-" if one.recovery_s is None else f"{one.recovery_s:.1f}"
        differing = "-" if one.differing is None else str(one.differing)
        numbers = (one.position_lag, one.commit_lag, one.read_again, one.repeats, one.rss_mb)
        rows.append((one.fault, one.intake, str(one.records), recovery, *map(str, numbers), differing, one.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    last = len(HEADINGS) - 1
    return [
        "  ".join(
            cell.ljust(width) if column in (0, 1, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


# --------------------------------------------------------------------------------------------------- watching


class _Watch(threading.Thread):
    """Samples lag and memory of all workers, until stopped."""

    def __init__(self, workers: list[WorkerProcess], measures: Measures) -> None:
        super().__init__(daemon=True)
        self._workers = workers
        self._measures = measures
        self._stopping = threading.Event()

    def run(self) -> None:
        took_s = 0.0
        while not self._stopping.wait(max(0.25, 5 * took_s)):  # watching must not be a load of its own
            begun = time.monotonic()
            # Partitions are shared between workers, so lags add up.
            samples = [self._sample(worker) for worker in list(self._workers)]
            measures = self._measures
            measures.position_lag = max(measures.position_lag, sum(position for position, _ in samples))
            measures.commit_lag = max(measures.commit_lag, sum(commit for _, commit in samples))
            took_s = time.monotonic() - begun

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _sample(self, worker: WorkerProcess) -> tuple[int, int]:
        status = _proc_status(worker.process.pid)
        if status.get("State", "Z")[0] in "TZX":
            return 0, 0
        self._measures.rss_mb = max(self._measures.rss_mb, int(status.get("VmHWM", "0").split()[0]) // 1024)
        metrics = worker.metrics()
        return (
            int(sum(value for (name, _), value in metrics.items() if name == "citegauge_position_lag_records")),
            int(sum(value for (name, _), value in metrics.items() if name == "citegauge_commit_lag_records")),
        )


def _proc_status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# ------------------------------------------------------------------------------------------------------ trials


@dataclass
class Trial:
    """One fault on one site; use as a context manager."""

    fault: str
    site: Site
    folder: Path
    seed: int
    short: bool
    workers: list[WorkerProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.measures = Measures(fault=self.fault, intake="keyed" if self.site.keyed else "default")
        self.database = connect(HttpTarget(url=self.site.clickhouse), "default")
        self.forced = 0.0
        self.unsendable: set[str] = set()
        """`topic/partition/offset` of records whose spans are dead letters although they can be read."""
        self.judged_min = 1
        """Minutes that the audit must be able to judge."""
        self.source_is_whole = True
        """Whether the source topic still holds all that was ever sent to it."""
        self._stack = ExitStack()
        self._watch = _Watch(self.workers, self.measures)
        self._healed: tuple[float, Published] | None = None

    def __enter__(self) -> Self:
        TABLE.append(self.measures)
        self._watch.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._watch.stop()
        self._stack.close()
        self.database.close()
        self.measures.read_again = sum(int(n) for worker in self.workers for n in AGAIN.findall(worker.log))
        if kind is not None:
            self.measures.verdict = "FAILED"

    # -- parts ----------------------------------------------------------------------------------------------------------

    def worker(self, *arguments: str, site: Site | None = None) -> WorkerProcess:
        """Start a worker; it is killed at the end."""
        made = self._stack.enter_context(WorkerProcess(site or self.site, self.folder, *arguments))
        self.workers.append(made)
        return made

    def batch(
        self, *, minutes: int = 25, per_minute: float = 200, ended_ago_ns: int = PAST_NS, **changes: Any
    ) -> Pairs:
        """Traffic as (key, value); a third of it in a short run."""
        if self.short:
            per_minute /= 3
        end_ns = time.time_ns() - ended_ago_ns
        spec = traffic(self.seed, minutes=minutes, per_minute=per_minute, end_ns=end_ns, routes=SKEWED, **changes)
        return pairs(spec)

    def feed(
        self,
        batch: Pairs | None = None,
        *,
        for_s: float = 18,
        partitions: Sequence[int] = (),
        topic: str = "",
        behind_s: float = 0.0,
    ) -> Feed:
        """Sends a batch at a steady rate; in half the time in a short run. For the rest see `Feed`."""
        batch = self.batch() if batch is None else batch
        per_s = int(len(batch) / for_s * (2 if self.short else 1)) + 1
        topic = topic or self.site.topic
        return Feed(self.site.kafka, topic, self.as_sent(batch), per_s, partitions=partitions, behind_s=behind_s)

    def as_sent(self, batch: Pairs) -> Pairs:
        """Without keys in the default intake, so that the halves of a trace lie in any partitions."""
        return batch if self.site.keyed else [(None, value) for _, value in batch]

    def produce(self, batch: Pairs) -> None:
        """Send a batch at once, all acknowledged."""
        produce(self.site.kafka, self.site.topic, self.as_sent(batch))

    def dead_letters(self, worker: WorkerProcess, **labels: str) -> float:
        """Dead letters that a worker has counted, in any stage."""
        names = ("citegauge_dead_letters_total", "citegauge_rekey_dead_letters_total")
        return sum(worker.value(name, **labels) for name in names)

    def unaccounted(self) -> set[str]:
        """Trace ids of the source that no table knows: neither as a trace of any state nor by a late span."""
        return unaccounted(self.database, self.site)

    # -- healing and verdict ----------------------------------------------------------------------------------------------

    def healed(self) -> None:
        """The fault is over from now on."""
        self._healed = time.monotonic(), Published(self.site, log_ends(self.site.kafka, self.site.topic))

    def until_recovered(self, worker: WorkerProcess, timeout_s: float = SETTLE_S_MAX) -> None:
        """Wait until all that was in the log when the fault was over is published and committed."""
        assert self._healed is not None, "not healed"
        since, done = self._healed
        worker.until(done, "the worker recovers", timeout_s)
        self.measures.recovery_s = time.monotonic() - since

    def verify(self, worker: WorkerProcess, *, idle_now: bool = False, rss_mb_max: int = RSS_MB_MAX) -> None:
        """Everything that must hold after a fault, while the worker that is left is still running.

        Offsets at the end of the log; tables and panes topic as one offline pass makes them; the audit content; as many
        forced closings as `self.forced` and the counters say; memory in its bound. Ends the worker, which must be clean.
        `idle_now`: some minutes are not over yet on the wall clock; else all of them are.
        """
        site = self.site
        worker.until(Published(site, log_ends(site.kafka, site.topic)), "everything is published", SETTLE_S_MAX)
        ends = log_ends(site.kafka, site.joined_topic)
        log = read_topic(site.kafka, site.joined_topic)
        if not site.keyed:
            self._assert_rekeyed()
        self.measures.records = len(log)
        self._assert_tables(worker, log, idle_now=idle_now)
        for partition, commit in commits(site).items():
            assert commit.offset <= commit.position == ends[partition], "a commit stands where the log ends"
        self.audit(site)
        self._count_repeats(site)
        forced = worker.value("citegauge_panes_forced_total")
        assert forced == self.forced or len(self.workers) > 1, "the counter is what the audit found"
        worker.until_ready()
        assert worker.get("/healthz")[0] == 200
        assert worker.end() == 0, worker.log
        assert not forgotten(worker.log), worker.log
        assert self.measures.rss_mb < rss_mb_max, "memory stays in its bound"
        self.measures.verdict = "recovered"

    def _assert_rekeyed(self) -> None:
        """The topic of spans holds each span of the source, at least once, and nothing else."""
        wanted, found = origins(self.site, self.unsendable)
        assert wanted <= found, f"{len(wanted - found)} spans are lost, such as {min(wanted - found)}"
        if self.source_is_whole:
            assert found == wanted, f"{len(found - wanted)} spans of nowhere, such as {min(found - wanted)}"

    def _assert_tables(self, worker: WorkerProcess, log: list[ConsumerRecord], *, idle_now: bool) -> None:
        """Tables and the newest rows of the panes topic come to equal one offline pass over the log."""
        found: list[str] = []
        truth = expected(self.site, log)

        def settled() -> bool:
            nonlocal truth
            if idle_now:
                truth = expected(self.site, log, idle_wall_ns=time.time_ns())
            found[:] = stored(self.database, self.site.database).differences(truth)
            found.extend([] if newest_panes(self.site) == truth.panes else ["the panes topic"])
            return not found

        try:
            worker.until(settled, "the tables equal the offline pass", SETTLE_S_MAX)
        except AssertionError as exc:
            self.measures.differing = len(found)
            raise AssertionError(f"{len(found)} differences (stored, expected):\n" + "\n".join(found[:5])) from exc

    def audit(self, site: Site | None = None, *arguments: str) -> dict[str, Any]:
        """The report of `citegauge audit --json`, which must find nothing that differs, and as many forced closings as
        `self.forced`.
        """
        report = audited(site or self.site, *arguments)
        self.measures.differing = report["differences"]
        assert report["equal"], report["listed"]
        assert report["judged_panes"] >= self.judged_min, report
        assert report["forced"] == self.forced, report
        return report

    def stopped(self, worker: WorkerProcess, *words: str, timeout_s: float = 90) -> None:
        """The worker ends by itself with a status that is not 0 and one line for the user that has these words."""
        assert worker.wait(timeout_s) == 1, worker.log
        assert "Traceback" not in worker.fresh_log, worker.log
        said = [line for line in worker.fresh_log.splitlines() if line.startswith("citegauge: ")]
        assert len(said) == 1, worker.fresh_log
        assert all(word in said[0] for word in words), said

    def _count_repeats(self, site: Site) -> None:
        newest: dict[tuple[Any, ...], int] = {}
        for log in panes_messages(site).values():
            for message in log:
                if isinstance(message, PaneUpdate):
                    key = tuple(getattr(message.row, name) for name in KEYS["panes"])
                    self.measures.repeats += message.row.version <= newest.get(key, -1)
                    newest[key] = max(newest.get(key, -1), message.row.version)


def forgotten(log: str) -> list[str]:
    """Tasks whose exception nobody looked at. The client's own are not ours: it leaves a commit behind that we gave up."""
    lines = log.splitlines()
    told = [lines[at + 1] for at, line in enumerate(lines[:-1]) if "exception was never retrieved" in line]
    return [line for line in told if "/aiokafka/" not in line]


def audited(site: Site, *arguments: str) -> dict[str, Any]:
    """The report of `citegauge audit --json`."""
    environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "citegauge", "audit", "--json", *arguments],
        env=environment | site.environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (report["equal"] and report["judged_panes"] > 0)
    return report


def until_reading(worker: WorkerProcess, partitions: int = 3) -> None:
    """Wait until a worker that was just started has taken over so many partitions."""
    line = f"reading {worker.site.joined_topic}/"
    worker.until(lambda: worker.fresh_log.count(line) >= partitions, "it reads", SETTLE_S_MAX)


def seed_of_run(short: bool) -> int:
    """`CITEGAUGE_SEED`, else the same for every short run and another for every full one."""
    given = int(os.environ.get("CITEGAUGE_SEED", "0"))
    return given or (1 if short else int.from_bytes(os.urandom(3), "big") + 1)


def lasting(worker: WorkerProcess, for_s: float) -> None:
    """The fault lasts, and the worker must outlive it: time itself is the condition here."""
    begun = time.monotonic()
    worker.until(lambda: time.monotonic() - begun > for_s, "the fault lasts", for_s + 5)
