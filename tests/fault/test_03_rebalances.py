"""Fault 3: workers come and go, and are replaced one by one, under load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.faults import until_reading

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.worker import WorkerProcess

pytestmark = pytest.mark.kafka
PARTITIONS = set("0123")


def owned(*workers: WorkerProcess) -> list[set[str]]:
    """Partitions that each worker joins."""
    return [
        {
            dict(labels)["partition"]
            for name, labels in worker.metrics()
            if name == "citegauge_commit_lag_records" and ("topic", worker.site.joined_topic) in labels
        }
        for worker in workers
    ]


def shared(*workers: WorkerProcess) -> bool:
    """Whether every worker has partitions and every partition one worker."""
    found = owned(*workers)
    return all(found) and sum(map(len, found)) == len(PARTITIONS) and set().union(*found) == PARTITIONS


def test_one_worker_then_three_then_one(trial: MakeTrial) -> None:
    """Two join and leave again, one cleanly and one killed: every partition always finds an owner."""
    with trial("3 workers 1, 3, 1", partitions=4) as t:
        first = t.worker()
        with t.feed(for_s=40):
            first.until(lambda: first.value("citegauge_records_total") > 300, "the first reads")
            second, third = t.worker(), t.worker()
            first.until(lambda: shared(first, second, third), "all three read")
            assert second.end() == 0, second.log
            third.kill()
            t.healed()
            first.until(lambda: shared(first), "the first has everything again")
            t.until_recovered(first)
        t.verify(first)


@pytest.mark.full
def test_a_rolling_restart(trial: MakeTrial) -> None:
    """Of two workers each is replaced in turn, with a clean end: nothing is re-read in error, nothing is lost."""
    with trial("3 rolling restart", partitions=4) as t:
        workers = [t.worker(), t.worker()]
        with t.feed(for_s=40):
            workers[0].until(lambda: shared(*workers), "both read")
            for number, old in enumerate(workers):
                assert old.end() == 0, old.log
                workers[number] = t.worker()
                until_reading(workers[number], 1)
            t.healed()
            workers[0].until(lambda: shared(*workers), "both new ones read")
            t.until_recovered(workers[0])
        assert workers[1].end() == 0, workers[1].log
        t.verify(workers[0])
