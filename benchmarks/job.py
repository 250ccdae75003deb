"""What the two end-to-end jobs share: their orders, their result, and the check that both found the same."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

import traffic
from citegauge.adapters.clickhouse import ClickHouse

FaustForm = Literal["dict", "take", "table"]


class Job(msgspec.Struct, kw_only=True):
    """One run."""

    name: str
    """Consumer group, and prefix of further topics."""
    bootstrap: str
    topic: str
    records: int
    """How many are to be read; for the worker all that the topic holds."""
    result: str = ""
    """File that the job writes its `JobResult` to: libraries print on standard output, too."""
    clickhouse: str = "chdb:"
    """`chdb:` or `http://host:port`."""
    database: str = "citegauge"
    interval_s: float = 1.0
    """Between two publishes."""
    partitions: int = 1
    form: FaustForm = "dict"


class State(NamedTuple):
    """A moment of a run."""

    records: int
    wall_s: float
    cpu_s: float


class JobResult(msgspec.Struct, kw_only=True):
    """From the first record read to the last one stored and committed."""

    records: int
    seconds: float
    cpu_seconds: float
    """Of the job's process: with `chdb:` the database's work is in it."""
    traces: int
    """In ClickHouse at the end, without replaced rows."""

    @classmethod
    def between(cls, first: State, last: State, traces: int) -> JobResult:
        """From two moments."""
        return cls(
            records=last.records - first.records,
            seconds=last.wall_s - first.wall_s,
            cpu_seconds=last.cpu_s - first.cpu_s,
            traces=traces,
        )

    @property
    def per_s(self) -> float:
        """Records per second of wall time."""
        return self.records / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Records per second of the process's CPU time: comparable on a busy machine."""
        return self.records / self.cpu_seconds


def check(database: ClickHouse) -> int:
    """Traces in ClickHouse. Raises AssertionError unless each has the recall that the traffic was made with."""
    found = database.query(
        f"SELECT count() AS traces, countIf(recall = {traffic.RECALL}) AS right "
        f"FROM {database.database}.traces FINAL WHERE state = 'measured'"
    )[0]
    assert found["traces"] == found["right"] > 0, f"ClickHouse holds {found}"
    return int(found["traces"])
