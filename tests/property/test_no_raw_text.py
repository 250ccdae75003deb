"""What users ask and what models answer stays out of every row and dead letter, in every convention, whole or broken.

Each golden record gets a marker into all of its prose. What the pipeline publishes of it must not hold the marker, nor may
what it sets aside when the record is cut off or damaged.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec
import pytest

from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.policy import JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.pipeline import Limits, PartitionPipeline, Record, Source
from support.golden import Case, cases

MARKER = "ZQXSECRET"
FAR_NS = 1 << 62
NAMES = {"name", "service.name", "model", "key", "scope"}
"""Strings under these keys are names, not prose: a route or a model may have spaces."""
DAMAGES = 25


def marked(value: Any, key: str = "") -> Any:
    """The same with the marker after every space of its prose, also inside JSON that is sent as text."""
    if isinstance(value, dict):
        sent_as = {"value", "stringValue"}  # OTLP: the name stands beside them
        keys = {name: str(value.get("key", key)) if name in sent_as else name for name in value}
        return {name: marked(one, keys[name]) for name, one in value.items()}
    if isinstance(value, list):
        return [marked(one, key) for one in value]
    if not isinstance(value, str) or key.rpartition(".")[2] in NAMES or key in NAMES:
        return value
    if value[:1] in "{[":
        try:
            return json.dumps(marked(json.loads(value), key))
        except ValueError:
            pass
    # A citation marker is not prose: what stands in brackets is kept as a chunk id.
    parts = re.split(r"(\[[^\]]*\])", value)
    return "".join(part if part[:1] == "[" else part.replace(" ", f" {MARKER} ") for part in parts)


def published(encoding: str, record: bytes, *, payload: bool = False) -> bytes:
    """Everything that the pipeline would send on of one record."""
    pipeline = PartitionPipeline(
        Source("traces", 0),
        decoder(encoding, DecodePolicy()),
        JoinPolicy(),
        ScorePolicy(),
        Commit(0, 0, Clock()),
        Limits(dead_letter_payload=payload),
    )
    pipeline.feed(Record(0, FAR_NS // 2, record))
    pipeline.feed(Record(1, FAR_NS // 2, record))
    return msgspec.json.encode(pipeline.take_flush(idle_wall_ns=FAR_NS))


def ident(case: Case) -> str:
    """A case's name."""
    return f"{case.convention}/{case.name}"


@pytest.mark.parametrize("case", cases(), ids=ident)
def test_prose_goes_nowhere(case: Case) -> None:
    """Rows hold ids, names and numbers; dead letters say why and where, and not what."""
    text = json.dumps(marked(json.loads(case.record.read_bytes())))
    assert MARKER not in published(case.encoding, text.encode()).decode()
    chance = random.Random(case.name)
    raw = text.encode()
    for _ in range(DAMAGES):
        at = chance.randrange(len(raw))
        for damaged in (raw[:at], raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :], raw[:at] + raw[at + 9 :]):
            assert MARKER not in published(case.encoding, damaged).decode(), damaged


def test_many_cases_have_prose() -> None:
    """The rule above is about something."""
    with_prose = [case for case in cases() if MARKER in json.dumps(marked(json.loads(case.record.read_bytes())))]
    assert len(with_prose) > 50


def test_the_payload_is_kept_only_when_it_is_asked_for() -> None:
    """`join.dead_letter_payload` copies the unreadable record; without it not a byte of it leaves."""
    broken = b'{"trace_id": "x", "attributes": {"input": "ZQXSECRET'
    assert MARKER not in published("jsonl", broken).decode()
    kept = msgspec.json.decode(published("jsonl", broken, payload=True))["dead"][0]["payload"]
    assert kept is not None


@pytest.mark.parametrize(
    "field", ["trace_id", "span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano"]
)
def test_prose_in_place_of_an_id_or_a_time_is_not_repeated(field: str) -> None:
    """A dead letter says what it found there: a word, but of a sentence only that it is text, and how long."""
    span = {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "kind": "retrieval",
        "start_time_unix_nano": 1,
        "end_time_unix_nano": 2,
    }

    def detail(value: str) -> str:
        rows = msgspec.json.decode(published("jsonl", json.dumps(span | {field: value}).encode()))
        return str(rows["dead"][0]["detail"])

    assert detail(f"why was {MARKER} dismissed?") == f"str of length {len(MARKER) + 19}"
    assert detail("oops") == "'oops'"
