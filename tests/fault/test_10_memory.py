"""Fault 10: traffic that wants more memory than there is: every buffer has its bound, and says when it is reached."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from citegauge.domain.policy import SECOND_NS
from support.fault_inputs import event
from support.faults import PAST_NS, RSS_MB_MAX, SETTLE_S_MAX, until_reading
from support.kafka import create_topic, unique
from support.worker_tables import stored

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.worker import Pairs

pytestmark = pytest.mark.kafka


def test_traces_that_never_complete_at_full_rate(trial: MakeTrial) -> None:
    """Past `join.traces_max` the oldest minute is closed early: counted, stored as such, and the same for the audit."""
    with trial("10 traces never complete", JOIN__TRACES_MAX="2000") as t:
        # Per partition about three times as many in flight as there is room for.
        batch = t.batch(
            minutes=8,
            per_minute=18_000 if t.short else 9_000,
            missing_retrieval_ratio=1.0,
            missing_generation_ratio=0.0,
        )
        worker = t.worker()
        until_reading(worker)
        in_flight = 0.0
        with t.feed(batch, for_s=30) as feed:
            while not feed.done:
                worker.alive()
                in_flight = max(in_flight, worker.value("citegauge_traces_in_flight"))
        t.healed()
        t.until_recovered(worker)
        t.forced = worker.value("citegauge_panes_forced_total")
        assert t.forced > 0
        assert 2_000 < in_flight <= 3 * 2_001, "three partitions at their bound"
        t.verify(worker)
        t.measures.verdict = f"{t.forced:.0f} minutes closed early"


@pytest.mark.full
def test_a_hundred_thousand_routes(trial: MakeTrial) -> None:
    """Past `join.groups_max` unlisted routes become `other`, from one offset on, the same for the audit."""
    with trial("10 distinct routes", PUBLISH__INTERVAL_S="5") as t:
        routes = 10_000 if t.short else 100_000
        end_ns = time.time_ns() - PAST_NS
        batch: Pairs = [
            (
                b"%d" % number,
                event(number, kind, end_ns - (routes - number) * 600 * SECOND_NS // routes, route=f"r{number}"),
            )
            for number in range(routes)
            for kind in ("retrieval", "generation")
        ]
        worker = t.worker()
        with t.feed(batch, for_s=40):
            pass
        t.healed()
        t.until_recovered(worker)
        # Of so many series a scrape may take longer than it is given.
        worker.until(lambda: worker.value("citegauge_routes_frozen") == 3, "routes are frozen", SETTLE_S_MAX)
        assert worker.value("citegauge_open_groups") <= 3 * 2_001
        t.verify(worker, rss_mb_max=RSS_MB_MAX + 6_000 * 100 // 1_000)  # what `join.groups_max` says of a group
        routes_stored = {key[1] for key in stored(t.database, t.site.database).panes}
        assert "other" in routes_stored
        # The cap is on open groups: as minutes close, others take their place.
        assert len(routes_stored) < routes / 4
        t.measures.verdict = f"{len(routes_stored)} of {routes} routes, the rest `other`"


@pytest.mark.full
def test_a_record_of_5_mb_and_a_trace_of_10_000_spans(trial: MakeTrial) -> None:
    """The record is set aside, the trace is `truncated`, and their neighbours count as always."""
    topic = unique("spans")
    with trial("10 5 MB record, 10,000 spans", topic=topic) as t:
        asyncio.run(create_topic(t.site.kafka, topic, partitions=1, max_message_bytes=16 << 20))
        end_ns = time.time_ns() - PAST_NS - 300 * SECOND_NS
        batch = t.batch()
        huge = event(1, "retrieval", end_ns, text="x" * (5 << 20))
        long = [event(2, "retrieval", end_ns, span_id=number + 10) for number in range(9_999)]
        long.append(event(2, "generation", end_ns + 1))
        middle = len(batch) // 2
        worker = t.worker()
        with t.feed(batch[:middle], for_s=5):
            pass
        t.produce([(b"k", huge)])
        with t.feed([(b"k", value) for value in long], for_s=10):
            pass
        t.produce([(b"k", huge)])
        with t.feed(batch[middle:], for_s=5):
            pass
        t.healed()
        t.until_recovered(worker)
        assert t.dead_letters(worker, reason="record_too_large") == 2
        t.verify(worker)
