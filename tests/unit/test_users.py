"""Users: read only under a key, hashed as RFC 2104 says, beside the join, and once per trace and flush."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from citegauge.conventions import DecodePolicy, decoder
from citegauge.conventions.users import UserReader, user_hash
from citegauge.domain import rekeyed
from citegauge.domain.kept import pack, unpack
from citegauge.domain.policy import JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Span
from citegauge.domain.users import SeenUsers
from citegauge.errors import ConfigError
from citegauge.pipeline import Flush, PartitionPipeline, Record, Source
from citegauge.ports import UserRow
from citegauge.settings import load
from support.core_logs import T0_NS, generation, retrieval, trace_id

KEY = b"0123456789abcdef" * 2
POLICY = DecodePolicy(user_hmac_key=KEY)
SECOND_NS = 1_000_000_000


def by_hand(user: str) -> bytes:
    """HMAC-SHA256 written out (RFC 2104, section 2)."""
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in KEY.ljust(64, b"\0")) + user.encode()).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in KEY.ljust(64, b"\0")) + inner).digest()[:16]


@pytest.mark.parametrize("user", ["alice@example.org", "ü", "4711", "a" * 128])
def test_the_hash_is_the_standards(user: str) -> None:
    """So that any other tool with the key finds it."""
    assert user_hash(user, KEY) == by_hand(user)
    assert user_hash(user, KEY[:-1] + b"x") != by_hand(user)


@pytest.mark.parametrize(
    ("attributes", "resource", "user"),
    [
        ({"user.id": "alice"}, {}, "alice"),
        ({"user.id": " alice "}, {}, "alice"),
        ({"user.id": 4711}, {}, "4711"),
        ({"enduser.id": "b", "user.id": "a"}, {}, "a"),
        ({"user.id": "", "langfuse.user.id": "c"}, {}, "c"),
        ({"metadata": '{"user_id": "d"}'}, {}, "d"),
        ({}, {"user.id": "e"}, "e"),
        ({"user.id": None}, {}, None),
        ({"user.id": ["a"]}, {}, None),
        ({"session.id": "s"}, {}, None),
    ],
)
def test_where_the_user_stands(attributes: dict[str, Any], resource: dict[str, Any], user: str | None) -> None:
    """Most specific first, in any form that is legible; a session is no user."""
    assert UserReader(KEY).read(attributes, resource) == (by_hand(user) if user else b"")
    assert UserReader(b"").read(attributes, resource) == b""


def event(kind: str = "retrieval", **attributes: Any) -> bytes:
    """A native event."""
    return json.dumps(
        {
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id": "00f067aa0ba902b7",
            "kind": kind,
            "end_time_unix_nano": T0_NS,
            "attributes": {"chunk_ids": ["c1"], **attributes},
        }
    ).encode()


@pytest.mark.parametrize("record", [event(**{"user.id": "alice"}), b"[" + event(**{"user.id": "alice"}) + b"]"])
def test_both_ways_through_decode_read_it(record: bytes) -> None:
    """The short one for clean events and the general one; without a key neither looks."""
    (span,) = decoder("jsonl", POLICY)(record)
    assert isinstance(span, Span)
    assert span.user_hash == by_hand("alice")
    (blind,) = decoder("jsonl", DecodePolicy())(record)
    assert blind == msgspec.structs.replace(span, user_hash=b"")


def test_the_join_does_not_keep_it() -> None:
    """A million live spans must not pay for it, nor may a copy with a user be richer than one without."""
    span = retrieval(1, 0)
    named = msgspec.structs.replace(span, user_hash=by_hand("alice"))
    assert pack(named, 5, 7) == pack(span, 5, 7)
    assert unpack(pack(named, 5, 7), span.trace_id) == span


def test_a_rekeyed_span_takes_it_along() -> None:
    """The re-keyed topic holds the hash and nothing else of the user; spans of an older version have none."""
    span = msgspec.structs.replace(retrieval(1, 0), user_hash=by_hand("alice"))
    (found,) = rekeyed.decode(rekeyed.encode(Rekeyed("raw", 0, 5, 0, T0_NS, span)))
    assert found.span == span
    old = msgspec.msgpack.decode(rekeyed.encode(Rekeyed("raw", 0, 5, 0, T0_NS, span)))
    old[-1] = old[-1][:-1]
    (found,) = rekeyed.decode(msgspec.msgpack.encode(old))
    assert found.span == msgspec.structs.replace(span, user_hash=b"")


def test_one_entry_per_user_and_trace() -> None:
    """The newest record counts, in any order of records; what is taken is gone."""
    seen = SeenUsers()
    one = msgspec.structs.replace(retrieval(1, 0), user_hash=by_hand("alice"))
    other = msgspec.structs.replace(generation(1, 1), user_hash=by_hand("bob"))
    for span, record_ns in ((one, 5), (retrieval(2, 0), 6), (one, 9), (one, 7), (other, 3)):
        seen.note(span, record_ns)
    assert len(seen) == 2
    assert sorted(seen.take()) == sorted([(by_hand("alice"), trace_id(1), 9), (by_hand("bob"), trace_id(1), 3)])
    assert seen.take() == []


def flushed(spans: list[Span], *, position: int = 0) -> Flush:
    """A flush of a pipeline that read each span as a record; below `position` in silence."""
    pipeline = PartitionPipeline(
        Source("t", 0),
        lambda value: [spans[int(value)]],
        JoinPolicy(),
        ScorePolicy(),
        Commit(0, position, Clock()),
    )
    for offset in range(len(spans)):
        pipeline.feed(Record(offset, T0_NS + offset * SECOND_NS, b"%d" % offset))
    return pipeline.take_flush()


def test_users_are_published_with_the_flush() -> None:
    """As rows beside the others, which are the same with and without users; what was read in silence is not repeated."""
    plain = [retrieval(1, 0), generation(1, 1), retrieval(2, 2)]
    named = [msgspec.structs.replace(span, user_hash=by_hand("alice")) for span in plain]
    found, blind = flushed(named), flushed(plain)
    t0_s = T0_NS // SECOND_NS
    assert found.users == [
        UserRow(user_hash=by_hand("alice").hex(), trace_id=trace_id(1).hex(), seen=t0_s + 1),
        UserRow(user_hash=by_hand("alice").hex(), trace_id=trace_id(2).hex(), seen=t0_s + 2),
    ]
    assert found.rows == blind.rows + 2
    assert msgspec.structs.replace(found, users=[]) == blind
    for _ in range(20):
        assert flushed(plain) == blind, "what a flush publishes has one order"
    assert [row.trace_id for row in flushed(named, position=2).users] == [trace_id(2).hex()]


def test_the_key_is_a_secret_and_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches decode, shows nowhere, and a short one is refused in one line that does not repeat it."""
    monkeypatch.setenv("CITEGAUGE_PRIVACY__USER_HMAC_KEY", KEY.decode())
    policy = load().decode_policy()
    assert policy.user_hmac_key == KEY
    assert KEY.decode() not in repr(policy)
    monkeypatch.setenv("CITEGAUGE_PRIVACY__USER_HMAC_KEY", "sh0rt-key")
    with pytest.raises(ConfigError, match="user_hmac_key") as refused:
        load()
    assert "sh0rt-key" not in str(refused.value)
    monkeypatch.setenv("CITEGAUGE_PRIVACY__USER_HMAC_KEY", "")
    monkeypatch.setenv("CITEGAUGE_PRIVACY__USER_ATTRIBUTES", "[]")
    with pytest.raises(ConfigError, match="user_attributes"):
        load()
