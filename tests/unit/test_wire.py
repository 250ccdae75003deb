"""What an older release wrote to Kafka is read as it was meant: `tests/golden/wire/`, which `support.wire` only adds to."""

from __future__ import annotations

import json

import pytest

from support.wire import NEWEST, Wire, golden, read, samples


@pytest.mark.parametrize("wire", golden(), ids=lambda wire: f"{wire.version}-{wire.form}-{wire.name}")
def test_golden_bytes_are_read_as_they_were_meant(wire: Wire) -> None:
    """Re-keyed spans, messages of the panes topic and commits of every release so far mean what they meant."""
    expected = json.loads(wire.expected_path.read_text(encoding="utf-8"))
    assert read(wire.form, wire.bytes_path.read_bytes(), expected.get("offset", 0)) == expected


def test_every_form_has_golden_bytes() -> None:
    """What today's code writes has its golden bytes: a new form is added, never put in the place of an old one."""
    assert {f"{wire.form}.{wire.name}" for wire in golden() if wire.version == NEWEST} == samples().keys()
