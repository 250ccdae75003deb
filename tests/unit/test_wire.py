"""What an older release wrote to Kafka is read as it was meant: `tests/golden/wire/`, which `support.wire` only adds to."""

from __future__ import annotations

import json

import msgspec
import pytest

from support.core_logs import T0_NS
from support.wire import Wire, golden, is_golden, read, samples


@pytest.mark.parametrize("wire", golden(), ids=lambda wire: f"{wire.version}-{wire.form}-{wire.name}")
def test_golden_bytes_are_read_as_they_were_meant(wire: Wire) -> None:
    """Re-keyed spans, messages of the panes topic and commits of every release so far mean what they meant."""
    expected = json.loads(wire.expected_path.read_text(encoding="utf-8"))
    assert read(wire.form, wire.bytes_path.read_bytes(), expected.get("offset", 0)) == expected


def test_every_form_has_golden_bytes() -> None:
    """What today's code writes has golden bytes: a form that changes adds a version, `python -m support.wire` writes it."""
    assert [name for name, (wire, _) in samples().items() if not is_golden(name, wire)] == []


class _HeartbeatOfV1(msgspec.Struct, frozen=True, tag="heartbeat"):
    """As the release of the first golden bytes knew it."""

    source: str
    closed_through: int
    watermark_ns: int
    caught_up: bool


def test_an_older_release_reads_a_heartbeat_with_an_id() -> None:
    """During an upgrade a worker of the release before reads what the new one writes: it passes over the id."""
    wire, _ = samples()["panes.heartbeat_signed"]
    found = msgspec.json.decode(wire, type=_HeartbeatOfV1)
    assert found == _HeartbeatOfV1("otlp_spans/11", 1_764_460_740, T0_NS, True)
