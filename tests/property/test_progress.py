"""Commit metadata under any input."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.progress import EVENTS_MAX, METADATA_BYTES_MAX, Clock, Commit, Event
from citegauge.errors import FatalError

offsets = st.integers(0, (1 << 47) - 1)
clocks = st.builds(Clock, st.integers(0, 1 << 62), st.integers(-1, 1 << 32), st.booleans())


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    """A commit as the worker can make it."""
    offset = draw(offsets)
    length = draw(st.integers(0, 10_000_000))
    at = st.integers(offset, offset + length - 1) if length else st.nothing()
    force = st.builds(Event, at, st.just("force_close"), st.integers(0, 1 << 32))
    other = st.builds(Event, at, st.sampled_from(["freeze", "thaw"]))
    events = draw(st.lists(force | other, max_size=EVENTS_MAX)) if length else []
    return Commit(offset, offset + length, draw(clocks), tuple(sorted(events, key=lambda event: event.offset)))


@given(commits())
def test_metadata_round_trip(commit: Commit) -> None:
    """What was committed is read back, and always fits."""
    text = commit.to_metadata()
    assert len(text) <= METADATA_BYTES_MAX
    assert text.isascii()
    assert Commit.from_metadata(commit.offset, text) == commit


@given(commits(), st.data())
def test_damaged_metadata_is_refused_or_canonical(commit: Commit, data: st.DataObject) -> None:
    """A damaged byte gives a ValueError, or a commit that would be written exactly so."""
    raw = bytearray(base64.b64decode(commit.to_metadata()))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    text = base64.b64encode(raw).decode("ascii")
    try:
        found = Commit.from_metadata(commit.offset, text)
    except ValueError:
        return
    assert found.to_metadata() == text
    assert found.offset <= found.position


@given(offsets, st.one_of(st.text(), st.binary().map(lambda raw: base64.b64encode(b"\x01" + raw).decode("ascii"))))
def test_garbage_is_refused_or_canonical(offset: int, text: str) -> None:
    """Any text gives a ValueError, or is what that commit is written as."""
    try:
        found = Commit.from_metadata(offset, text)
    except ValueError:
        return
    except FatalError as exc:
        raise AssertionError("only ValueError may escape") from exc
    assert found.to_metadata() == text
