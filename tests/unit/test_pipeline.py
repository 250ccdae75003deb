"""The pipeline by hand: dead letters, silent replay, versions, bounds and idle flushes, as one partition sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError, FatalError
from citegauge.pipeline import EPOCH_MAX, Limits, PartitionPipeline, Record, Source
from support.core_logs import T0_NS, generation, other, retrieval, trace_id

FAR_NS = T0_NS * 2
POLICY = JoinPolicy()
PANE_0 = T0_NS // SECOND_NS


class Log:
    """Records of spans by hand; a value is the record's number in digits."""

    def __init__(self, *records: list[Span] | str) -> None:
        self.records = records

    def decode(self, value: bytes) -> list[Span]:
        """A string in place of spans is the reason of a dead letter."""
        found = self.records[int(value)]
        if isinstance(found, str):
            raise DeadLetterError(found, "detail")
        return found

    def pipeline(self, start: Commit | None = None, policy: JoinPolicy = POLICY, **kwargs: int) -> PartitionPipeline:
        """A pipeline that reads this log."""
        start = start or Commit(0, 0, Clock())
        return PartitionPipeline(Source("t", 3, **kwargs), self.decode, policy, ScorePolicy(), start)

    def feed(self, pipeline: PartitionPipeline, first: int, last: int) -> None:
        """Records `first` to `last`, both included."""
        for offset in range(first, last + 1):
            pipeline.feed(Record(offset, FAR_NS, b"%d" % offset))


CLOSING = other(99, 400)
FAR = other(98, 5_000)


def test_unreadable_records_become_dead_letters() -> None:
    """A record that is empty, too large or undecodable is set aside with its origin, and the rest goes on."""
    log = Log("not_json", [retrieval(1, 0), generation(1, 1)])
    pipeline = PartitionPipeline(
        Source("t", 3), log.decode, POLICY, ScorePolicy(), Commit(0, 0, Clock()), Limits(record_bytes_max=8)
    )
    for record in (
        Record(0, FAR_NS, b"0"),
        Record(1, 6, None),
        Record(2, 7, b""),
        Record(3, 8, b"123456789"),
        Record(4, FAR_NS, b"1"),
    ):
        pipeline.feed(record)
    flush = pipeline.take_flush()
    found = [(letter.offset, letter.index, letter.reason, letter.size_bytes) for letter in flush.dead]
    assert found == [
        (0, -1, "not_json", 1),
        (1, -1, "empty_record", 0),
        (2, -1, "empty_record", 0),
        (3, -1, "record_too_large", 9),
    ]
    assert {(letter.topic, letter.partition, letter.payload) for letter in flush.dead} == {("t", 3, None)}
    assert len(flush.traces) == 1
    assert flush.commit.position == 5
    assert not pipeline.take_flush().dead


@pytest.mark.parametrize(
    "timestamp_ns", [-1_000_000, 0, T0_NS // 1_000, 4_102_444_801 * SECOND_NS, T0_NS * 1_000, (1 << 63) * 1_000_000]
)
def test_a_record_without_usable_time_is_a_dead_letter(timestamp_ns: int) -> None:
    """No timestamp, or one in the wrong unit, bounds nothing: the record is set aside, and nothing breaks on its size."""
    log = Log([retrieval(1, 0, end_ns=5)], [retrieval(2, 0), generation(2, 1)])
    pipeline = log.pipeline()
    pipeline.feed(Record(0, timestamp_ns, b"0"))
    pipeline.feed(Record(1, FAR_NS, b"1"))
    flush = pipeline.take_flush()
    assert [(letter.offset, letter.reason) for letter in flush.dead] == [(0, "bad_record_time")]
    assert [row.trace_id for row in flush.traces] == [trace_id(2).hex()]


def test_a_rekeyed_span_without_usable_time_is_a_dead_letter() -> None:
    """The same for the time of the record in which a re-keyed span was read first."""
    bad = Rekeyed("raw", 0, 5, 0, -1_000_000, retrieval(1, 0, end_ns=5))
    pipeline = PartitionPipeline(Source("t", 3), lambda _: [bad, bad], POLICY, ScorePolicy(), Commit(0, 0, Clock()))
    pipeline.feed(Record(0, FAR_NS, b"0"))
    found = [(letter.index, letter.reason) for letter in pipeline.take_flush().dead]
    assert found == [(0, "bad_record_time"), (1, "bad_record_time")]


def test_a_dead_letter_can_carry_the_payload() -> None:
    """Only where a setting asks for it."""
    log = Log("not_json")
    pipeline = PartitionPipeline(
        Source("t", 0), log.decode, POLICY, ScorePolicy(), Commit(0, 0, Clock()), Limits(dead_letter_payload=True)
    )
    log.feed(pipeline, 0, 0)
    assert pipeline.take_flush().dead[0].payload == b"0"


def test_versions_say_what_they_should() -> None:
    """Open panes: 2 × offset; idle, closing and trace rows: + 1; tombstones: even; the epoch stands above all."""
    log = Log([retrieval(1, 0, route="")], [generation(1, 1, route="", model="")], [other(1, 2, route="a", route_rank=0)],
              [retrieval(2, 3, route="a")], [CLOSING])  # fmt: skip
    pipeline = log.pipeline(epoch=2)
    high = 2 << 48
    log.feed(pipeline, 0, 1)
    first = pipeline.take_flush()
    assert {row.version for row in first.panes} == {high + 2}
    assert [row.version for row in first.traces] == [high + 3]
    log.feed(pipeline, 2, 3)
    second = pipeline.take_flush(idle_wall_ns=T0_NS + 3_600 * SECOND_NS)
    assert [(row.route, row.version) for row in second.tombstones] == [("unknown", high + 4)]
    panes = sorted((row.route, row.version, row.final, row.states) for row in second.panes)
    assert panes == [
        ("a", high + 6, False, {"measured": 1}),
        ("a", high + 7, False, {"measured": 1, "no_generation": 1}),
        ("unknown", high + 4, False, {}),
    ]
    assert sorted(row.version for row in second.traces) == [high + 5, high + 7]
    log.feed(pipeline, 4, 4)
    last = pipeline.take_flush()
    assert {(row.version, row.final, row.forced) for row in last.panes} == {(high + 9, True, False)}
    assert [(row.version, row.state) for row in last.traces] == [(high + 7, "no_generation")]
    assert last.closed_through == PANE_0


def test_a_tombstone_beats_the_row_that_it_deletes() -> None:
    """It stands above every earlier row of its key and below a row written when the trace comes back."""
    source = Source("t", 0)
    assert source.version(10, True) < source.version(11, False) < source.version(11, True)


@pytest.mark.parametrize("epoch", [-1, EPOCH_MAX + 1])
def test_an_impossible_epoch_is_refused(epoch: int) -> None:
    """An epoch that does not fit above the offsets stops the worker."""
    with pytest.raises(FatalError, match="epoch"):
        Log().pipeline(epoch=epoch)


def test_a_replay_is_silent() -> None:
    """What was committed as read is read again without publishing; then everything new goes out, on the full state."""
    log = Log([retrieval(1, 0)], "bad", [retrieval(2, 0)], [generation(1, 1)], [CLOSING])
    first = log.pipeline()
    log.feed(first, 0, 2)
    commit = first.take_flush().commit
    assert (commit.offset, commit.position) == (0, 3)
    second = log.pipeline(Commit.from_metadata(commit.offset, commit.to_metadata()))
    assert second.replaying
    log.feed(second, 0, 2)
    assert not second.replaying
    silent = second.take_flush()
    assert (silent.rows, silent.dead) == (0, [])
    assert silent.commit == commit
    log.feed(second, 3, 4)
    flush = second.take_flush()
    assert {row.trace_id: row.state for row in flush.traces} == {
        trace_id(1).hex(): "measured",
        trace_id(2).hex(): "no_generation",
    }


def test_publishing_during_a_replay_is_a_programming_error() -> None:
    """A flush before the position is refused."""
    pipeline = Log([retrieval(1, 0)]).pipeline(Commit(0, 1, Clock()))
    with pytest.raises(AssertionError):
        pipeline.take_flush()


@pytest.mark.parametrize("gap", ["skip_to", "feed"])
def test_a_replay_ends_across_a_gap(gap: str) -> None:
    """Where the records before the position no longer exist, the replay ends by the end of the log or the next record."""
    log = Log([retrieval(1, 0)], [], [], [retrieval(2, 0), generation(2, 1)])
    pipeline = log.pipeline(Commit(0, 3, Clock()))
    log.feed(pipeline, 0, 0)
    assert pipeline.replaying
    if gap == "skip_to":
        pipeline.skip_to(3)
        assert pipeline.take_flush().rows == 0
    log.feed(pipeline, 3, 3)
    flush = pipeline.take_flush()
    assert [row.trace_id for row in flush.traces] == [trace_id(2).hex()]


def test_skipping_never_goes_back() -> None:
    """A position that was passed already changes nothing."""
    log = Log([retrieval(1, 0)])
    pipeline = log.pipeline()
    log.feed(pipeline, 0, 0)
    pipeline.skip_to(0)
    assert pipeline.progress.position == 1


def test_too_many_traces_close_the_oldest_pane() -> None:
    """Past the bound the oldest open pane is closed early, marked, recorded, and repeated by a replay."""
    policy = replace(POLICY, traces_max=2)
    log = Log(
        [retrieval(1, 0)], [retrieval(2, 70)], [retrieval(3, 130)], [generation(2, 75)], [generation(2, 80, number=7)]
    )
    pipeline = log.pipeline(policy=policy)
    log.feed(pipeline, 0, 3)
    flush = pipeline.take_flush()
    assert [(row.pane, row.version) for row in flush.panes if row.forced] == [(PANE_0, 5)]
    assert flush.closed_through == PANE_0
    assert [(event.offset, event.kind, event.pane * 60) for event in flush.commit.events] == [
        (2, "force_close", PANE_0)
    ]
    again = log.pipeline(flush.commit, policy)
    log.feed(again, 0, 3)
    assert again.join.closed_through * 60 == PANE_0
    assert set(again.join.traces) == set(pipeline.join.traces)
    log.feed(again, 4, 4)
    assert [row.version for row in again.take_flush().panes] == [8]


def test_routes_freeze_and_thaw() -> None:
    """At the bound of open groups unlisted routes become `other`; below half of it they are themselves again."""
    policy = replace(POLICY, groups_max=4)
    log = Log(
        [retrieval(number, 0, route=f"r{number}") for number in range(4)],
        [retrieval(4, 0, route="d")],
        [CLOSING, retrieval(5, 401, route="e")],
        [retrieval(6, 402, route="f")],
    )
    pipeline = log.pipeline(policy=policy)
    log.feed(pipeline, 0, 3)
    flush = pipeline.take_flush()
    routes = {(row.pane - PANE_0, row.route) for row in flush.panes}
    assert routes == {(0, "r0"), (0, "r1"), (0, "r2"), (0, "r3"), (0, "other"), (360, "other"), (360, "f")}
    assert [(event.offset, event.kind) for event in flush.commit.events] == [(0, "freeze"), (2, "thaw")]


def test_the_bound_of_groups_holds_for_versions_too() -> None:
    """A retriever version of its own for each request does not open groups without end."""
    pipeline_of = replace(POLICY, groups_max=4)
    log = Log(*([retrieval(n, 0, retriever_version=f"build-{n}", scorer=f"s{n}")] for n in range(40)))
    pipeline = log.pipeline(policy=pipeline_of)
    log.feed(pipeline, 0, 39)
    assert pipeline.join.clock.routes_frozen
    assert len(pipeline.join.open_groups) == 5
    assert sum(len(slot.unmatched) for slot in pipeline.join.slots.values()) == 40


def test_an_idle_flush_changes_no_state() -> None:
    """It publishes panes as if they were closed: not final, the commit held back, and the next span counts as usual."""
    log = Log([retrieval(1, 0)], [generation(1, 1)], [FAR])
    pipeline = log.pipeline()
    log.feed(pipeline, 0, 0)
    idle = pipeline.take_flush(idle_wall_ns=T0_NS + 3_600 * SECOND_NS)
    assert [(row.version, row.final, row.states) for row in idle.panes] == [
        (0, False, {}),
        (1, False, {"no_generation": 1}),
    ]
    assert [(row.version, row.state) for row in idle.traces] == [(1, "no_generation")]
    assert idle.closed_through < PANE_0
    assert idle.commit.offset == 0
    assert pipeline.take_flush(idle_wall_ns=T0_NS + 3_600 * SECOND_NS).rows == 0
    log.feed(pipeline, 1, 2)
    flush = pipeline.take_flush()
    finals = {row.model: row.states for row in flush.panes if row.final}
    assert finals == {"unknown": {}, "m1": {"measured": 1}}
    assert [(row.model, row.version) for row in flush.tombstones] == [("unknown", 2)]


def test_one_row_per_key_beside_an_idle_flush() -> None:
    """A trace that left a key and waits there again gets its verdict, and no deletion of the same key."""
    log = Log(
        [retrieval(1, 0)], [other(1, 1, route="b", route_rank=0)], [other(1, 1, number=4, route="support", start_ns=1)]
    )
    pipeline = log.pipeline()
    log.feed(pipeline, 0, 1)
    # A better key brings the trace back to its first group.
    pipeline.join.apply(other(1, 1, number=4, route="support", route_rank=0, start_ns=T0_NS - 1), 2, 0, FAR_NS)
    flush = pipeline.take_flush(idle_wall_ns=T0_NS + 3_600 * SECOND_NS)
    assert [row.route for row in flush.traces] == ["support"]
    assert [row.route for row in flush.tombstones] == ["b"]


def test_late_rows_name_their_source() -> None:
    """A late span's row carries topic, partition, offset and position in the record, and the watermark at that moment."""
    log = Log([CLOSING], [other(5, 401), generation(1, 1)])
    pipeline = log.pipeline()
    log.feed(pipeline, 0, 1)
    (row,) = pipeline.take_flush().late
    assert (row.topic, row.partition, row.offset, row.index, row.kind) == ("t", 3, 1, 1, "generation")
    assert (row.pane, row.watermark_ns) == (PANE_0, T0_NS + 371 * SECOND_NS)
