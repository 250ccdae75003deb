"""Fault 13: what made the re-key stage stand still for good, seen by nobody. In the default intake alone."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from support.fault_kafka import log_ends, rekeyed
from support.faults import lasting, until_reading
from support.standing import Standing

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.faults import Trial
    from support.worker import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.parametrize("intake", ["default"], indirect=True)]
RECOVERY_S_MAX = 60.0
STILL_S_MAX = 15.0
"""Longest that a partition may wait through a clean rebalance: about 10 s, and this machine is not alone."""


def recovered(t: Trial, worker: WorkerProcess) -> None:
    """Lag 0 within a minute, all traces in the tables, and everything else that holds after any fault."""
    t.healed()
    t.until_recovered(worker, RECOVERY_S_MAX)
    t.verify(worker)
    assert not t.unaccounted()


def until_rekeying(worker: WorkerProcess) -> None:
    """Wait until a worker that has just joined passes spans on, and joins some."""
    until_reading(worker, 1)
    worker.until(lambda: worker.value("citegauge_rekeyed_spans_total") > 0, "it re-keys", RECOVERY_S_MAX)


def test_two_replicas_of_a_fresh_installation(trial: MakeTrial) -> None:
    """The second comes 8 s after the first, then traffic: both re-key what they own, and all of it is joined."""
    with trial("13 fresh, second replica after 8 s", partitions=6) as t:
        first = t.worker()
        lasting(first, 8)
        second = t.worker()
        second.until_ready()
        with t.feed(for_s=20):
            pass
        t.healed()
        t.until_recovered(first, RECOVERY_S_MAX)
        for worker in (first, second):
            assert worker.value("citegauge_rekeyed_spans_total") > 0, worker.log
        assert second.end() == 0, second.log
        recovered(t, first)


def test_frozen_past_its_session_with_a_quiet_partition(trial: MakeTrial) -> None:
    """One worker, one partition in which nothing ever was: it reads on when it wakes up."""
    with trial("13 SIGSTOP 12 s, a quiet partition") as t:
        worker = t.worker()
        with t.feed(for_s=44, partitions=(0, 1)) as feed:
            worker.until(lambda: worker.value("citegauge_records_total") > 100, "it reads")
            worker.send(signal.SIGSTOP)
            time.sleep(12)  # twice what a session lasts
            worker.send(signal.SIGCONT)
            assert not feed.done, "it was to wake up in mid-stream"
        recovered(t, worker)


@pytest.mark.full
def test_a_second_worker_comes_and_goes_with_quiet_partitions(trial: MakeTrial) -> None:
    """Partitions without a commit change hands twice, and no other one stands still because of them."""
    with trial("13 second comes and goes, two quiet", partitions=4) as t:
        first = t.worker()
        with t.feed(for_s=60, partitions=(0, 1)) as feed:  # dealt in turns: each of two workers has a quiet one
            first.until(lambda: first.value("citegauge_records_total") > 100, "it reads")
            second = t.worker()
            until_rekeying(second)
            assert second.end() == 0, second.log
            assert not feed.done, "it was to come and go in mid-stream"
            feed.hurry()
        recovered(t, first)


@pytest.mark.full
def test_nothing_stands_still_through_rebalances(trial: MakeTrial) -> None:
    """Partitions that a worker keeps are read on through every rebalance, by what Kafka itself says."""
    with trial("13 rebalances under load", partitions=6) as t:
        first = t.worker()
        first.until_ready()
        with Standing(t.site, [t.site.topic], STILL_S_MAX) as standing:
            with t.feed(t.batch(per_minute=600), for_s=100) as feed:
                first.until(lambda: first.value("citegauge_records_total") > 100, "it reads")
                for _ in range(3):
                    second = t.worker()
                    until_rekeying(second)
                    lasting(second, 3)
                    assert second.end() == 0, second.log
                    lasting(first, 3)
                assert not feed.done, "the rebalances were to happen in mid-stream"
                feed.hurry()
            t.healed()
            t.until_recovered(first, RECOVERY_S_MAX)
        assert not standing.stalls, standing.stalls
        recovered(t, first)


@pytest.mark.full
def test_a_frozen_rebalance_does_not_hold_the_stage(trial: MakeTrial) -> None:
    """Of two workers one freezes: the other takes over its partitions and reads on within a session and a rebalance."""
    with trial("13 one of two freezes", partitions=6) as t:
        first, second = t.worker(), t.worker()
        first.until_ready()
        second.until_ready()
        with t.feed(for_s=60):
            first.until(lambda: first.value("citegauge_records_total") > 100, "it reads")
            second.send(signal.SIGSTOP)
            ends = log_ends(t.site.kafka, t.site.topic)
            first.until(lambda: rekeyed(t.site, ends), "the first has everything", RECOVERY_S_MAX)
            second.send(signal.SIGCONT)
            second.until(lambda: second.get("/readyz")[0] == 200, "the second lives")
        assert second.end() == 0, second.log
        recovered(t, first)
