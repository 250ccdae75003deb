"""Fault 1: the worker is killed without a warning."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.faults import until_reading

if TYPE_CHECKING:
    import random

    from fault.conftest import MakeTrial

pytestmark = pytest.mark.kafka


def test_kill_9_at_random_moments(trial: MakeTrial, chance: random.Random) -> None:
    """Six kills in mid-stream (two in a short run): nothing is lost and nothing counted twice."""
    with trial("1 kill -9, six times") as t:
        worker = t.worker()
        with t.feed(for_s=30):
            for _ in range(2 if t.short else 6):
                until_reading(worker)
                time.sleep(chance.uniform(0.0, 2.5))  # the moment is the point
                worker.kill()
                t.healed()
                worker.start()
            t.until_recovered(worker)
        t.verify(worker)
