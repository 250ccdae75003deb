"""A child of `endtoend.py`: citegauge's own worker, both tiers, from Kafka to ClickHouse, timed.

python benchmarks/job_worker.py '{"bootstrap": …}'
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path

import mode
import msgspec

from citegauge.bootstrap import Worker, _event_loop
from citegauge.settings import load
from job import Job, JobResult, State, check

POLL_S = 0.02


class Watch(mode.Service):
    """Looks at the worker's own positions, and ends it when everything is stored and committed."""

    def __init__(self, worker: Worker, job: Job) -> None:
        super().__init__()
        self._worker = worker
        self._job = job
        self.result: JobResult | None = None
        self.failure: Exception | None = None

    async def on_start(self) -> None:
        """Watch in the background."""
        self.add_future(self._watch())

    async def _watch(self) -> None:
        try:
            self.result = await self._measure()
        except Exception as exc:  # noqa: BLE001 - mode would only log it
            self.failure = exc
        finally:
            signal.raise_signal(signal.SIGTERM)

    async def _measure(self) -> JobResult:
        first = State(0, time.monotonic(), time.process_time())
        while True:
            await asyncio.sleep(POLL_S)
            hot = self._worker.hot
            standing = hot.positions().values() if hot is not None else ()
            if not any(one.position for one in standing):
                first = State(0, time.monotonic(), time.process_time())  # the last look before the first record
            # `published` follows a confirmed commit, which follows ClickHouse's acknowledgement.
            if sum(one.published for one in standing) >= self._job.records:
                break
        last = State(self._job.records, time.monotonic(), time.process_time())
        rows = await asyncio.to_thread(check, self._worker.database)
        return JobResult.between(first, last, rows)


def main(job: Job) -> None:
    """Run the worker until the topic has been read."""
    settings = load(
        None,
        kafka={
            "keyed": True,
            "bootstrap_servers": job.bootstrap,
            "source_topic": job.topic,
            "encoding": "jsonl",
            "group_id": job.name,
            "panes_topic": f"{job.name}.panes",
            "dead_letter_topic": f"{job.name}.dead-letters",
        },
        clickhouse={"url": job.clickhouse, "database": job.database},
        publish={"interval_s": job.interval_s},
        web={"port": 0},
    )
    worker = Worker(settings)
    watch = Watch(worker, job)
    with _event_loop(worker) as loop:
        loop.run_until_complete(worker.preparation.run())
        with contextlib.suppress(SystemExit):
            worker.supervisor(watch, loop=loop).execute_from_commandline()
    if watch.result is None:
        raise RuntimeError("the worker ended before the topic") from watch.failure
    Path(job.result).write_bytes(msgspec.json.encode(watch.result))


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    main(msgspec.json.decode(sys.argv[1], type=Job))
