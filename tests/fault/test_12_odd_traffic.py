"""Fault 12: traffic that nobody means to send: names that never repeat, and a trace that goes on for an hour."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.domain.policy import SECOND_NS
from support.fault_inputs import event
from support.faults import PAST_NS, RSS_MB_MAX, SETTLE_S_MAX, until_reading
from support.worker_tables import commits, stored

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.worker import Pairs

pytestmark = [pytest.mark.kafka, pytest.mark.full]
NAMES = 50_000
METRICS_BYTES_MAX = 2_000_000
LONG_TRACE, LONG_SPANS = 0xC000, 10_000


def named(number: int, kind: str, end_ns: int) -> bytes:
    """A native event whose model, retriever version and scorer nobody has had before."""
    found: dict[str, Any] = json.loads(event(number, kind, end_ns))
    if kind == "retrieval":
        found["attributes"] |= {"retriever.version": f"v{number}", "retrieval.scorer": f"s{number}"}
    else:
        found["attributes"]["generation.model"] = f"m{number}"
    return json.dumps(found).encode()


def test_models_versions_and_scorers_that_never_repeat(trial: MakeTrial) -> None:
    """Past `join.groups_max` they are `other`; memory, open groups and `/metrics` stay in their bounds."""
    with trial("12 distinct models, versions", PUBLISH__INTERVAL_S="5") as t:
        names = NAMES // 5 if t.short else NAMES
        end_ns = time.time_ns() - PAST_NS
        batch: Pairs = [
            (b"%d" % number, named(number, kind, end_ns - (names - number) * 600 * SECOND_NS // names))
            for number in range(names)
            for kind in ("retrieval", "generation")
        ]
        worker = t.worker()
        until_reading(worker)
        frozen = open_groups = 0.0
        with t.feed(batch, for_s=40) as feed:
            while not feed.done:
                worker.alive()
                frozen = max(frozen, worker.value("citegauge_routes_frozen"))
                open_groups = max(open_groups, worker.value("citegauge_open_groups"))
        t.healed()
        t.until_recovered(worker)
        worker.until(lambda: worker.value("citegauge_window_traces", window="24h") > 0, "windows show", SETTLE_S_MAX)
        assert frozen > 0
        assert open_groups <= 3 * 2_001
        status, body = worker.get("/metrics")
        assert status == 200
        assert len(body) < METRICS_BYTES_MAX, "what never repeats is no label"
        t.verify(worker, rss_mb_max=RSS_MB_MAX + 6_000 * 100 // 1_000)  # what `join.groups_max` says of a group
        groups = {(row["model"], row["retriever_version"], row["scorer"]) for row in _panes(t)}
        assert ("other", "other", "other") in groups
        t.measures.verdict = f"{len(groups)} groups stored, the rest `other`; /metrics {len(body) // 1_000} kB"


def _panes(t: Any) -> list[dict[str, Any]]:
    return list(stored(t.database, t.site.database).panes.values())


def with_long_trace(batch: Pairs) -> Pairs:
    """The batch, and among it the spans of one trace, evenly over its event time and none before its time."""
    ends = [json.loads(value or b"")["end_time_unix_nano"] for _, value in batch]
    first_ns, last_ns = min(ends), max(ends)
    found: Pairs = []
    sent = newest_ns = 0
    for (key, value), end_ns in zip(batch, ends, strict=True):
        newest_ns = max(newest_ns, end_ns)
        while sent < LONG_SPANS and (at_ns := first_ns + sent * (last_ns - first_ns) // LONG_SPANS) <= newest_ns:
            kind = ("retrieval", "generation")[sent % 2]
            found.append((b"long", event(LONG_TRACE, kind, at_ns, span_id=sent + 1)))
            sent += 1
        found.append((key, value))
    return found


def test_a_trace_of_10_000_spans_over_an_hour(trial: MakeTrial) -> None:
    """It is `truncated`, one row, in the minute of its last answer; offsets go on being committed all the while."""
    with trial("12 10,000 spans in an hour") as t:
        batch = with_long_trace(t.batch(minutes=60, per_minute=150))
        half = len(batch) // 2
        worker = t.worker()
        until_reading(worker)
        with t.feed(batch[:half], for_s=15):
            pass
        t.healed()
        t.until_recovered(worker)
        standing = commits(t.site)
        assert standing
        for partition, commit in standing.items():
            # Half an hour of it is read; what must be read again is the newest minutes.
            assert commit.offset > 0.6 * commit.position, f"partition {partition} holds back {commit}"
        with t.feed(batch[half:], for_s=15):
            pass
        t.healed()
        t.until_recovered(worker)
        t.verify(worker)
        rows = [
            row
            for row in stored(t.database, t.site.database).traces.values()
            if row["trace_id"] == f"{LONG_TRACE + 1:032x}"
        ]
        assert [row["state"] for row in rows] == ["truncated"]
