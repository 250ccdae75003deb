"""From Apache Kafka to ClickHouse: citegauge's worker and a plain Faust agent, one process each, one after the other.

Both read the same topic, which is filled before; each is timed from its first record to its last one stored. The Faust
agent may read a shorter stretch of it: its speed does not depend on how much there is.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args

import msgspec
from aiokafka import AIOKafkaProducer

import traffic
from job import FaustForm, Job, JobResult
from memory import child_environment

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.clickhouse import ClickHouseFront
from support.kafka import KafkaServer, create_topic

HERE = Path(__file__).parent
PARTITIONS = 3
IN_FLIGHT_MAX = 5_000
RUN_S_MAX = 300


class EndToEnd(msgspec.Struct, kw_only=True):
    """All jobs over one kind of ClickHouse, each with the fastest of its runs."""

    clickhouse: str
    """`chdb`: the engine in the job's process; `http`: the same engine as a server, a process of its own."""
    worker: JobResult
    faust: dict[str, JobResult]

    def ratio(self, form: str) -> float:
        """How many times faster than this form of the Faust agent the worker is, by wall time."""
        return self.worker.per_s / self.faust[form].per_s

    def cpu_ratio(self, form: str) -> float:
        """The same by CPU time of the two processes."""
        return self.worker.per_cpu_s / self.faust[form].per_cpu_s


def measure(traces: int, faust_records: int, rounds: int, bootstrap: str = "") -> list[EndToEnd]:
    """Run everything. `bootstrap`: a broker that is there already, else one is started. Raises RuntimeError."""
    with ExitStack() as stack:
        bootstrap = bootstrap or stack.enter_context(_kafka())
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        records = asyncio.run(_fill(bootstrap, topic, traces))
        order = Job(name="", bootstrap=bootstrap, topic=topic, partitions=PARTITIONS, records=records)
        found = []
        for clickhouse in ("chdb", "http"):
            worker: list[JobResult] = []
            faust: dict[str, list[JobResult]] = {}
            for _ in range(rounds):
                worker.append(_run("job_worker.py", clickhouse, order))
                for form in get_args(FaustForm):
                    part = msgspec.structs.replace(order, records=min(records, faust_records), form=form)
                    faust.setdefault(form, []).append(_run("job_faust.py", clickhouse, part))
            stored = {one.traces for one in worker}
            assert stored == {traces}, f"{stored} traces are stored, not {traces}"
            fastest = {form: max(runs, key=_speed) for form, runs in faust.items()}
            found.append(EndToEnd(clickhouse=clickhouse, worker=max(worker, key=_speed), faust=fastest))
        return found


def _speed(result: JobResult) -> float:
    return result.per_s


def _run(script: str, clickhouse: str, order: Job) -> JobResult:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        result = Path(folder, "result.json")
        url = "chdb:" if clickhouse == "chdb" else stack.enter_context(_front())
        name = f"bench-{uuid.uuid4().hex[:8]}"
        job = msgspec.structs.replace(order, name=name, clickhouse=url, result=str(result))
        done = subprocess.run(
            [sys.executable, str(HERE / script), msgspec.json.encode(job).decode()],
            capture_output=True,
            env=child_environment(),
            cwd=folder,  # Faust leaves a data folder where it was started
            timeout=RUN_S_MAX,
            check=False,
        )
        if not result.exists():
            said = (done.stdout + done.stderr).decode()[-2000:]
            raise RuntimeError(f"{script} over {clickhouse} ended with status {done.returncode}: {said}")
        return msgspec.json.decode(result.read_bytes(), type=JobResult)


@contextmanager
def _kafka() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = KafkaServer(Path(folder))
        server.start()
        try:
            yield server.bootstrap_servers
        finally:
            server.stop()


@contextmanager
def _front() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        front = ClickHouseFront(Path(folder)).start()
        try:
            yield front.url
        finally:
            front.stop()


async def _fill(bootstrap: str, topic: str, traces: int) -> int:
    """Fill a new topic; the number of records."""
    await create_topic(bootstrap, topic, partitions=PARTITIONS)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=256 * 1024)
    await producer.start()
    records = 0
    try:
        waiting = []
        for message in traffic.native(traffic.spans(traces, time.time_ns())):
            waiting.append(await producer.send(topic, message.value, message.key))
            records += 1
            if len(waiting) == IN_FLIGHT_MAX:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()
    return records
