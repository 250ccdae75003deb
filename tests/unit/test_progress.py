"""Commit points, checkpoints and recorded events by hand."""

from __future__ import annotations

import base64
from functools import partial

import pytest

from citegauge.domain.progress import (
    CHECKPOINT_EVERY,
    EVENTS_MAX,
    METADATA_BYTES_MAX,
    Clock,
    Commit,
    Event,
    ProgressState,
)
from citegauge.errors import FatalError


def test_a_commit_is_rounded_down_to_a_checkpoint() -> None:
    """The committed offset is the newest checkpoint at or before the first kept offset, with the clock from before it."""
    progress = ProgressState(100, Clock())
    for offset in range(100, 100 + 3 * CHECKPOINT_EVERY):
        progress.before_record(offset, partial(Clock, max_event_ns=offset))
        progress.after_record(offset)
    kept = 100 + 2 * CHECKPOINT_EVERY + 7
    commit = progress.commit_point(kept)
    at = 100 + 2 * CHECKPOINT_EVERY
    assert commit == Commit(at, 100 + 3 * CHECKPOINT_EVERY, Clock(max_event_ns=at))


def test_nothing_kept_commits_the_last_checkpoint() -> None:
    """With nothing open, what a restart reads again is less than one checkpoint's distance."""
    progress = ProgressState(0, Clock())
    for offset in range(CHECKPOINT_EVERY + 10):
        progress.before_record(offset, Clock)
        progress.after_record(offset)
    commit = progress.commit_point(None)
    assert (commit.offset, commit.position) == (CHECKPOINT_EVERY, CHECKPOINT_EVERY + 10)


def test_commit_points_never_move_backwards() -> None:
    """A first kept offset before an earlier commit point changes nothing: what lies before it is forgotten."""
    progress = ProgressState(0, Clock())
    for offset in range(2 * CHECKPOINT_EVERY):
        progress.before_record(offset, Clock)
        progress.after_record(offset)
    assert progress.commit_point(CHECKPOINT_EVERY).offset == CHECKPOINT_EVERY
    assert progress.commit_point(5).offset == CHECKPOINT_EVERY


def test_events_before_the_commit_are_forgotten() -> None:
    """A commit carries the events at or after its offset: the clock already knows the earlier ones."""
    progress = ProgressState(0, Clock())
    early, late = Event(3, "force_close", 29_400_000), Event(CHECKPOINT_EVERY, "freeze")
    progress.record(early)
    progress.record(late)
    for offset in range(CHECKPOINT_EVERY + 1):
        progress.before_record(offset, Clock)
        progress.after_record(offset)
    assert progress.commit_point(2).events == (early, late)
    assert progress.commit_point(CHECKPOINT_EVERY).events == (late,)
    assert progress.events_at(CHECKPOINT_EVERY) == [late]
    assert progress.events_at(4) == []


def test_too_many_events_stop_the_worker() -> None:
    """Past the bound of events the worker stops with one line that names the setting to raise."""
    progress = ProgressState(0, Clock())
    for offset in range(EVENTS_MAX):
        progress.record(Event(offset, "force_close", offset))
    with pytest.raises(FatalError, match=r"traces_max"):
        progress.record(Event(EVENTS_MAX, "force_close", 1))


def test_the_largest_commit_fits() -> None:
    """With as many events as are allowed, all numbers at their largest, the metadata is within Kafka's limit."""
    offset = 1 << 47
    events = tuple(Event(offset + number, "force_close", 1 << 31) for number in range(EVENTS_MAX))
    commit = Commit(offset, offset + EVENTS_MAX, Clock((1 << 62), 1 << 31, True), events)
    text = commit.to_metadata()
    assert len(text) <= METADATA_BYTES_MAX
    assert Commit.from_metadata(offset, text) == commit


def test_metadata_past_the_limit_is_fatal() -> None:
    """Metadata that Kafka would refuse is never sent."""
    events = tuple(Event(number, "force_close", 1 << 31) for number in range(1_000))
    with pytest.raises(FatalError, match="4096"):
        Commit(0, 1_000, Clock(), events).to_metadata()


GOOD = Commit(10, 50, Clock(7, 3, True), (Event(12, "thaw"), Event(49, "force_close", 5)))


def _altered(change: bytes) -> str:
    return base64.b64encode(change).decode("ascii")


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (10, ""),
        (10, "not base64!"),
        (10, "héllo"),
        (10, GOOD.to_metadata()[:-8]),
        (10, GOOD.to_metadata() + "AAAA"),
        (10, _altered(b"\x02" + base64.b64decode(GOOD.to_metadata())[1:])),
        (51, GOOD.to_metadata()),
        (-1, GOOD.to_metadata()),
        (13, GOOD.to_metadata()),
        (10, _altered(b"\x01\x93\x32\x93\x07\x03\xc3\x91\x93\x0c\x03\xff")),
        (10, _altered(b"\x01\x93\x32\x93\x07\x03\xc3\x91\x93\x0c\xff\xff")),
        (10, _altered(b"\x01\x93\x32\x94\x07\x03\xc3\x05\x90")),
        (10, _altered(b"\x01\x93\x32\x90\x90")),
        (10, "A" * 5_000),
    ],
    ids=[
        "empty",
        "no_base64",
        "no_ascii",
        "cut_off",
        "trailing",
        "other_version",
        "beyond_position",
        "negative",
        "event_before_offset",
        "unknown_event",
        "negative_event_kind",
        "longer_clock",
        "shorter_clock",
        "too_long",
    ],
)
def test_foreign_metadata_is_refused(offset: int, text: str) -> None:
    """Whatever we did not write is a ValueError, never another exception and never a commit."""
    assert Commit.from_metadata(10, GOOD.to_metadata()) == GOOD
    with pytest.raises(ValueError, match=r"."):
        Commit.from_metadata(offset, text)
