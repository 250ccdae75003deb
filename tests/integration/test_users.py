"""A user's traces are linked to a keyed hash and to nothing else, survive a kill, and can be forgotten."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from citegauge.tools.forget import GROWS_S, ForgottenUser, forget_user, hash_of
from support.kafka import unique
from support.worker import WorkerProcess, produce
from support.worker_tables import read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite, Site

pytestmark = pytest.mark.kafka
KEY = "0123456789abcdef" * 2
USERS = ("alice@example.org", "bob-the-user", "Зоя", None)
TRACES = 40
PAST_NS, SECOND_NS = 180 * 1_000_000_000, 1_000_000_000


def trace_id(number: int) -> str:
    """32 hex digits."""
    return f"{number + 1:032x}"


def events(number: int, now_ns: int) -> list[tuple[bytes | None, bytes]]:
    """A trace's retrieval, which names the user, and its generation."""
    user = USERS[number % len(USERS)]
    end_ns = now_ns - PAST_NS + number * SECOND_NS
    bodies: tuple[dict[str, Any], ...] = (
        {
            "kind": "retrieval",
            "span_id": "00f067aa0ba902b7",
            "attributes": {"chunk_ids": ["c1", "c2"], "user.id": user},
        },
        {"kind": "generation", "span_id": "00f067aa0ba902b8", "attributes": {"cited_ids": ["c1"]}},
    )
    return [
        (
            bytes.fromhex(trace_id(number)),
            json.dumps(body | {"trace_id": trace_id(number), "end_time_unix_nano": end_ns + at}).encode(),
        )
        for at, body in enumerate(bodies)
    ]


def links(database: ClickHouse, site: Site) -> set[tuple[str, str]]:
    """(user's hash, trace id) as stored."""
    rows = database.query(f"SELECT user_hash, trace_id FROM `{site.database}`.trace_users FINAL")
    return {(row["user_hash"], row["trace_id"]) for row in rows}


def everything(database: ClickHouse, site: Site, topics: list[str]) -> str:
    """All that was stored and sent on, as text."""
    stored = "SELECT name FROM system.tables WHERE database = {name:String} AND engine LIKE '%MergeTree'"
    tables = database.query(stored, {"name": site.database})
    assert len(tables) >= 5
    texts: list[str] = []
    for row in tables:
        texts += map(str, database.query(f"SELECT * FROM `{site.database}`.{row['name']}"))
    texts += [f"{record.key!r} {record.value!r}" for topic in topics for record in read_topic(site.kafka, topic)]
    return "\n".join(texts)


@pytest.mark.parametrize("rekeyed", [False, True], ids=["keyed", "re-keyed"])
def test_users_are_linked_by_their_hash_alone(
    make_site: MakeSite, database: ClickHouse, tmp_path: Path, rekeyed: bool
) -> None:
    """Each trace once with its user, after a kill too; no topic, table or log knows the user; forgetting takes all of it."""
    site = make_site(PRIVACY__USER_HMAC_KEY=KEY)
    topics = [site.environment[f"CITEGAUGE_KAFKA__{name}_TOPIC"] for name in ("PANES", "DEAD_LETTER")]
    if rekeyed:
        spans = unique("spans")
        site = site.with_options(
            SOURCES=json.dumps({site.topic: {}}), REKEY__SPANS_TOPIC=spans, REKEY__GROUP_ID=f"{spans}-rekey"
        )
        topics.append(spans)
    now_ns = time.time_ns()
    batch = [pair for number in range(TRACES) for pair in events(number, now_ns)]
    expected = {
        (hash_of(user, KEY), trace_id(number)) for number in range(TRACES) if (user := USERS[number % len(USERS)])
    }
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        produce(site.kafka, site.topic, batch[: len(batch) // 2])
        worker.until(lambda: len(links(database, site)) > 5, "users are linked")
        worker.kill()
        produce(site.kafka, site.topic, batch[len(batch) // 2 :])
        worker.start()
        worker.until(lambda: links(database, site) == expected, "every trace has its user")
        count = f"SELECT count() AS n FROM `{site.database}`.traces FINAL WHERE state = 'measured'"
        worker.until(lambda: database.query(count)[0]["n"] == TRACES, "every trace is stored")
        assert worker.end() == 0
    known = everything(database, site, topics) + worker.log
    assert [user for user in USERS if user and (user in known or repr(user.encode())[2:-1] in known)] == []
    assert KEY not in known

    alice, later_s = hash_of("alice@example.org", KEY), now_ns // SECOND_NS + 2 * GROWS_S
    assert forget_user(database, f"`{site.database}`", alice, later_s) == ForgottenUser(alice, 10, 10, 0)
    assert links(database, site) == {link for link in expected if link[0] != alice}
    assert database.query(count)[0]["n"] == TRACES - 10
