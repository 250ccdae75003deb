"""Resident memory per live trace, and the peak of the demo's back-fill, each in a process of its own (Linux only).

python benchmarks/memory.py short 100000      the child: prints one JSON object
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import msgspec

import citegauge
import core
import traffic
from citegauge.domain.policy import MINUTE_NS
from citegauge.pipeline import PartitionPipeline, Record

FLUSH_EVERY_RECORDS = 20_000
DEMO_S_MAX = 300
POLL_S = 0.2
CLICKHOUSE = ("--clickhouse-port", "0")


class TraceMemory(msgspec.Struct, kw_only=True):
    """Growth of resident memory over live traces."""

    ids: str
    traces: int
    bytes_per_trace: float


class BackfillMemory(msgspec.Struct, kw_only=True):
    """The demo's worker process: both tiers and the embedded ClickHouse; not the broker, not the traffic."""

    hours: int
    peak_mb: float
    seconds: float
    """From the start of the command to its end."""


def per_trace(ids: traffic.Ids, traces: int) -> TraceMemory:
    """Measure in a fresh child process."""
    command = [sys.executable, __file__, ids, str(traces)]
    done = subprocess.run(command, capture_output=True, check=True, env=child_environment())
    return msgspec.json.decode(done.stdout, type=TraceMemory)


def backfill(hours: int) -> BackfillMemory:
    """Run `citegauge demo --smoke` and watch its resident memory. Raises RuntimeError when the demo fails."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "citegauge", "demo", "--smoke", "--hours", str(hours), "--port", "0", *CLICKHOUSE],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            cwd=folder,  # Faust leaves a data folder where it was started
        )
        peak_kb = 0
        try:
            while process.poll() is None and time.monotonic() < started + DEMO_S_MAX:
                peak_kb = max(peak_kb, _status_kb(process.pid, "VmHWM"))
                time.sleep(POLL_S)
        finally:
            process.terminate()
            output = process.communicate()[0].decode()
    if process.returncode or not peak_kb:
        raise RuntimeError(f"the demo ended with status {process.returncode}: {output[-500:]}")
    return BackfillMemory(hours=hours, peak_mb=peak_kb / 1024, seconds=time.monotonic() - started)


def child_environment() -> dict[str, str]:
    """Ours, with the sources of the package on the path."""
    return {**os.environ, "PYTHONPATH": str(Path(citegauge.__file__).parents[1])}


def _status_kb(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)


def _resident(pipeline: PartitionPipeline) -> int:
    """Bytes that this process has in memory, with everything published."""
    pipeline.take_flush()
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _grow(ids: traffic.Ids, traces: int) -> TraceMemory:
    """Feed traces that all stay live; what was published is let go of, as after an acknowledgement.

    The first ones are not counted: with them come caches and the room for what waits to be published.
    """
    settling = traces // 5
    # Four minutes of traffic: nothing closes before the join window (5 min) has passed.
    messages = traffic.native(traffic.spans(settling + traces, core.END_NS, minutes=4.0, ids=ids))
    pipeline = core.pipeline("jsonl")
    before = kept = 0
    for offset, message in enumerate(messages):
        pipeline.feed(Record(offset, core.END_NS + MINUTE_NS, message.value))
        if offset % FLUSH_EVERY_RECORDS == 0:
            pipeline.take_flush()
        if not before and len(pipeline.join.traces) >= settling:
            before, kept = _resident(pipeline), len(pipeline.join.traces)
    grown = _resident(pipeline) - before
    assert len(pipeline.join.traces) == settling + traces, "all of them are live"
    return TraceMemory(ids=ids, traces=traces, bytes_per_trace=grown / (settling + traces - kept))


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(_grow(cast("traffic.Ids", sys.argv[1]), int(sys.argv[2])))))
