"""Fault 6: the tiers in processes of their own; the cold one is killed while it restores the windows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.faults import SETTLE_S_MAX
from support.worker_tables import expected, read_topic

if TYPE_CHECKING:
    import random

    from fault.conftest import MakeTrial

pytestmark = pytest.mark.kafka


def test_the_cold_tier_is_killed_during_restore(trial: MakeTrial, chance: random.Random) -> None:
    """The hot tier does not notice, and the windows are those of all panes, as if nothing had been killed."""
    with trial("6 roles apart, cold killed in restore") as t:
        stage = None if t.site.keyed else t.worker("--role", "rekey")
        hot, cold = t.worker("--role", "join"), t.worker("--role", "roll")
        with t.feed(for_s=30):
            cold.until(lambda: cold.value("citegauge_window_traces", window="24h") > 100, "windows show something")
            for _ in range(2 if t.short else 6):
                cold.kill()
                cold.start()
                cold.until(lambda: cold.url, "it has begun")
                time.sleep(chance.uniform(0.0, 0.6))  # the moment is the point: restoring takes about half a second
            cold.kill()
            cold.start()
            t.healed()
            cold.until_ready(SETTLE_S_MAX)
            t.until_recovered(hot)
        truth = expected(t.site, read_topic(t.site.kafka, t.site.joined_topic))
        traces = sum(sum(row["states"].values()) for row in truth.panes.values())
        cold.until(
            lambda: cold.value("citegauge_window_traces", window="24h") == traces, "the windows are right", SETTLE_S_MAX
        )
        assert cold.end() == 0, cold.log
        t.verify(hot)
        if stage is not None:
            assert stage.end() == 0, stage.log
