"""Single events of one's own making, and a wall clock that can be set, for the tests of `tests/fault`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.clickhouse import child_environment
from support.worker import Site

LOG_RECORD = json.dumps(
    {
        "resourceLogs": [
            {"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": [{"body": {"stringValue": "GET / 200"}}]}]}
        ]
    }
).encode()
"""Somebody's log line in OTLP, with no span of ours in it."""


def event(
    trace: int, kind: str, end_ns: int, *, route: str = "support", span_id: int | None = None, text: str = "question"
) -> bytes:
    """A native event of trace number `trace`."""
    attributes: dict[str, Any] = {"route": route, "input.value": text}
    if kind == "retrieval":
        attributes |= {
            "retrieval.retrieved_ids": ["c9", "c1", "c3"],
            "retrieval.scores": [0.88, 0.71, 0.64],
            "retrieval.top_k": 3,
            "retrieval.scorer": "reranker:bge-v2",
        }
    else:
        attributes |= {"generation.model": "m1", "generation.cited_ids": ["c9"], "generation.num_citations": 1}
    span_id = trace * 2 + 2 + (kind == "generation") if span_id is None else span_id
    return json.dumps(
        {
            "trace_id": f"{trace + 1:032x}",
            "span_id": f"{span_id:016x}",
            "kind": kind,
            "start_time_unix_nano": end_ns,
            "end_time_unix_nano": end_ns,
            "attributes": attributes,
        }
    ).encode()


_CLOCK = """\
import os, time
_now_ns = time.time_ns
def time_ns():
    try:
        with open(os.environ["FAULT_CLOCK"]) as file:
            return _now_ns() + int(file.read() or 0)
    except OSError:
        return _now_ns()
time.time_ns = time_ns
time.time = lambda: time_ns() / 1e9
"""


@dataclass(frozen=True, kw_only=True)
class ClockSite(Site):
    """A site whose workers' wall clock can be set, by a `sitecustomize` that stands on their path."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Its settings, and where the clock is."""
        paths = f"{self.folder / 'clock'}{os.pathsep}{child_environment()['PYTHONPATH']}"
        return super().environment | {"PYTHONPATH": paths, "FAULT_CLOCK": str(self.folder / "clock" / "step_ns")}

    def step_ns(self, step_ns: int) -> None:
        """From now on the workers' clock differs from the machine's by so much."""
        folder = self.folder / "clock"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(_CLOCK)
        fresh = folder / "fresh"
        fresh.write_text(str(step_ns))
        fresh.rename(folder / "step_ns")
