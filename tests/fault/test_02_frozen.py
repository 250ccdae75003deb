"""Fault 2: the worker is frozen for longer than its session lasts, and then goes on as if nothing had happened."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from support.faults import until_reading

if TYPE_CHECKING:
    from fault.conftest import MakeTrial

pytestmark = pytest.mark.kafka


def test_a_zombie_that_still_wants_to_write(trial: MakeTrial) -> None:
    """A frozen worker's partitions go to another; what it still writes when it wakes up loses, and it joins again."""
    with trial("2 SIGSTOP > session, SIGCONT") as t:
        first = t.worker()
        until_reading(first)
        with t.feed(for_s=240) as feed:
            first.until(lambda: first.value("citegauge_records_total") > 300, "the first reads")
            first.send(signal.SIGSTOP)
            second = t.worker()
            until_reading(second)
            read = second.value("citegauge_records_total")
            second.until(lambda: second.value("citegauge_records_total") > read, "the second reads on")
            assert not feed.done, "the zombie was to wake up in mid-stream"
            first.send(signal.SIGCONT)
            feed.hurry()
            t.healed()
            t.until_recovered(first)
            first.until(lambda: first.value("citegauge_commit_lag_records") >= 0 and first.alive(), "the first lives")
        assert second.end() == 0, second.log
        t.verify(first)
        assert "Traceback" not in second.log
