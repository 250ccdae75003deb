"""What makes a worker unhealthy: a part that makes no progress. Waiting for ClickHouse or for traffic is none."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import TopicPartition

from citegauge.adapters.kafka.hot import Positions
from citegauge.adapters.kafka.source import SourcePosition
from citegauge.tools.samples import stalled

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 60.0
SECOND_NS = 1_000_000_000
AT = TopicPartition("spans", 3)


def standing(**changes: Any) -> Positions:
    """A partition that was committed just now."""
    fields: dict[str, Any] = dict.fromkeys(Positions._fields, 0) | {"position": 10, "published": 10, "end": 10}
    return Positions(**fields | changes)


def hot(*, quiet_s: float = 0.0, excused: bool = False, **changes: Any) -> Any:
    """A hot tier with one partition, whose loop turned `quiet_s` ago."""
    return SimpleNamespace(
        turned_ns=time.monotonic_ns() - int(quiet_s * SECOND_NS),
        excused=excused,
        positions=lambda: {AT: standing(**changes)},
    )


def loop(quiet_s: float) -> Any:
    """Another part that turns."""
    return SimpleNamespace(turned_ns=time.monotonic_ns() - int(quiet_s * SECOND_NS))


def rekey(quiet_s: float = 0.0, *, still_s: float = 0.0, searched_s: float = 0.0) -> Any:
    """A re-key stage with one partition that has its place, or none yet."""
    position = SourcePosition(position=7, end=10, watermark_ns=0, commit_age_ns=0, still_ns=int(still_s * SECOND_NS))
    return SimpleNamespace(
        turned_ns=time.monotonic_ns() - int(quiet_s * SECOND_NS),
        positions=lambda: {} if searched_s else {AT: position},
        unplaced=lambda: {AT: int(searched_s * SECOND_NS)} if searched_s else {},
    )


UNWELL: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "the reading loop has not turned": lambda: (hot(quiet_s=61), None, None),
    "spans/3 has not committed": lambda: (hot(position=11, commit_age_ns=61 * SECOND_NS), None, None),
    "spans/3 has read nothing": lambda: (hot(still_ns=61 * SECOND_NS), None, None),
    "the re-key stage has not turned": lambda: (None, None, rekey(61)),
    "spans/3 has not been re-keyed for 61 s, and 3 records wait": lambda: (None, None, rekey(still_s=61)),
    "where to re-key spans/3 from has not been found": lambda: (None, None, rekey(searched_s=61)),
    "the windows have not been computed": lambda: (None, loop(61), None),
}
WELL: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "everything turns": lambda: (hot(quiet_s=1), loop(1), rekey(1, still_s=59)),
    "nothing new to commit": lambda: (hot(commit_age_ns=3_600 * SECOND_NS), None, None),
    "commits wait for ClickHouse": lambda: (hot(excused=True, position=11, commit_age_ns=61 * SECOND_NS), None, None),
    "no part is there": lambda: (None, None, None),
}


@pytest.mark.parametrize("line", UNWELL)
def test_a_part_without_progress_is_named(line: str) -> None:
    """One line says which part stands still."""
    lines = stalled(*UNWELL[line](), LIMIT_S)
    assert len(lines) == 1
    assert lines[0].startswith(line)


@pytest.mark.parametrize("case", WELL)
def test_no_line_without_a_fault(case: str) -> None:
    """An orchestrator must not restart a worker for what a restart cannot mend."""
    assert stalled(*WELL[case](), LIMIT_S) == []
