"""The cold tier without Kafka and ClickHouse: as-of, acknowledgement, restoring and what happens when partitions go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from citegauge.adapters.rolling import RollTier
from citegauge.domain.distribution import fraction_key
from citegauge.domain.policy import SECOND_NS
from citegauge.domain.window import AsOf
from citegauge.errors import FatalError, RetryableError
from citegauge.ports import ClosedMarker, HeartbeatMessage, PaneMessage, PaneRow, PaneUpdate, panes_partition

if TYPE_CHECKING:
    from collections.abc import Mapping

NOON_S = 1_796_040_000
"""A whole hour."""
SOURCE = "spans/0"
DAY_S = 86_400


class FakeReader:
    """A ClickHouse without rows; or one that fails, or one that answers when told."""

    def __init__(self, failure: Exception | None = None, of: str = "") -> None:
        """`of`: only queries with these words fail."""
        self.failure = failure
        self.of = of
        self.asked: list[str] = []

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """No rows."""
        self.asked.append(sql)
        if self.failure is not None and self.of in sql:
            raise self.failure
        return []


class Bench:
    """A `RollTier` of one partition with a clock that is set by hand, and the messages that it acknowledged."""

    def __init__(self, reader: FakeReader | None = None) -> None:
        self.now_s = float(NOON_S)
        self.acked: list[int] = []
        self.stored: list[Any] = []
        self.tier = RollTier(
            reader or FakeReader(),
            self.stored.append,
            database="x",
            partitions=1,
            as_of=AsOf(15 * SECOND_NS, ("spans",)),
            wall_ns=lambda: int(self.now_s * SECOND_NS),
        )
        self._offset = 0

    async def own(self) -> Bench:
        """Own the partition, restored."""
        self.tier.assign({0})
        await asyncio.wait_for(self.tier._owned[0].restored.wait(), 5)
        return self

    async def take(self, message: PaneMessage, *, sent_s: float | None = None) -> None:
        """The next message of the panes topic, sent now or at `sent_s`."""
        await self.tier.take(self.event(msgspec.json.encode(message), self._offset, sent_s))
        self._offset += 1

    def event(self, value: bytes, offset: int, sent_s: float | None = None) -> Any:
        """As Faust hands it over."""
        place = SimpleNamespace(topic="panes", partition=0)
        message = SimpleNamespace(
            partition=0, offset=offset, tp=place, timestamp=self.now_s if sent_s is None else sent_s
        )
        consumer = SimpleNamespace(ack=lambda ack: self.acked.append(ack.offset))
        return SimpleNamespace(message=message, value=value, app=SimpleNamespace(consumer=consumer))


def pane(
    pane_s: int, *, version: int = 1, source: str = SOURCE, n: int = 4, model: str = "m", cited: int = 1
) -> PaneUpdate:
    """`n` measured traces that cite one of two chunks."""
    return PaneUpdate(
        PaneRow(
            pane=pane_s,
            route="support",
            top_k_bucket="1-5",
            model=model,
            retriever_version="r",
            scorer="s",
            source=source,
            version=version,
            final=False,
            forced=False,
            states={"measured": n},
            citations=n,
            hallucinated=0,
            unresolved=0,
            ids_dropped=0,
            nonconformant=0,
            recounted=0,
            recall_counts={fraction_key(cited, 2): n},
            rank_weighted_counts={},
            score_counts={},
        )
    )


def beat(watermark_s: float, *, caught_up: bool = True, source: str = SOURCE) -> HeartbeatMessage:
    """A heartbeat."""
    return HeartbeatMessage(source, -1, int(watermark_s * SECOND_NS), caught_up)


def signed(watermark_s: float, installation: str, source: str = SOURCE) -> HeartbeatMessage:
    """A heartbeat of an installation."""
    return msgspec.structs.replace(beat(watermark_s, source=source), installation=installation)


def counts(bench: Bench) -> dict[str, int]:
    """Measured traces by window, of the one roll-up."""
    return {row.window: row.n for row in bench.tier.view.rows if row.model == "*" and row.scorer == "*"}


async def test_windows_follow_the_wall_clock_while_everything_is_read() -> None:
    """As-of is the wall clock when all sources say caught up: so windows empty one after the other, and never show 0."""
    bench = await Bench().own()
    await bench.take(pane(NOON_S - 60))
    await bench.take(beat(NOON_S - 40))
    view = await bench.tier.publish()
    assert (view.as_of_ns, view.caught_up) == (NOON_S * SECOND_NS, True)
    assert counts(bench) == {"1h": 4, "6h": 4, "24h": 4}

    bench.now_s += 2 * 3_600
    await bench.take(beat(NOON_S - 40))
    await bench.tier.publish()
    assert counts(bench) == {"6h": 4, "24h": 4}, "an empty window is no row, and never a ratio of 0"

    bench.now_s += 30 * 3_600
    await bench.take(beat(NOON_S - 40))
    await bench.tier.publish()
    assert counts(bench) == {}


async def test_windows_stand_at_the_newest_watermark_while_a_reader_lags() -> None:
    """One source that is not caught up, or silent for three intervals, holds as-of at the newest watermark."""
    bench = await Bench().own()
    await bench.take(pane(NOON_S - 3_600 * 5))
    await bench.take(beat(NOON_S - 3_600 * 5, source="spans/1"))
    await bench.take(beat(NOON_S - 3_600 * 4, caught_up=False))
    view = await bench.tier.publish()
    assert view.as_of_ns == (NOON_S - 3_600 * 4) * SECOND_NS
    assert not view.caught_up

    await bench.take(beat(NOON_S - 3_600 * 3, source="spans/0"))
    bench.now_s += 14
    await bench.take(beat(NOON_S - 3_600 * 3, source="spans/1"))
    assert (await bench.tier.publish()).caught_up
    bench.now_s += 2  # spans/0 is now silent for 16 s, more than 3 intervals
    await bench.take(beat(NOON_S - 3_600 * 3, source="spans/1"))
    view = await bench.tier.publish()
    assert not view.caught_up
    assert view.as_of_ns == (NOON_S + 14) * SECOND_NS, "as-of never moves back"


async def test_old_heartbeats_that_are_read_again_say_nothing_of_the_present() -> None:
    """After an hour's absence the topic's old `caught up` must not move as-of to now: the source has an hour to read."""
    bench = await Bench().own()
    await bench.take(pane(NOON_S - 3_660), sent_s=NOON_S - 3_600)
    await bench.take(beat(NOON_S - 3_640), sent_s=NOON_S - 3_600)
    view = await bench.tier.publish()
    assert view.as_of_ns == (NOON_S - 3_640) * SECOND_NS
    assert counts(bench) == {"1h": 4, "6h": 4, "24h": 4}


async def test_what_was_restored_has_its_own_as_of_until_a_heartbeat_comes() -> None:
    """After a restart the windows are shown at once, as of where ClickHouse ends, and never as of 1970."""
    bench = await Bench().own()
    bench.tier._owned[0].store.advance(NOON_S)
    await bench.take(pane(NOON_S - 60))
    view = await bench.tier.publish()
    assert view.as_of_ns == NOON_S * SECOND_NS - 1
    assert {row.window_end for row in view.rows} == {NOON_S}
    assert (await (await Bench().own()).tier.publish()).as_of_ns == 0


async def test_a_minute_is_stored_when_it_begins_and_again_when_it_is_over() -> None:
    """The last row of a window has everything that came within its last minute; and few rows are written."""
    bench = await Bench().own()
    await bench.take(beat(NOON_S))
    await bench.take(pane(NOON_S, n=1))
    await bench.tier.publish()
    bench.now_s += 50
    await bench.take(pane(NOON_S, version=2, n=4))
    await bench.take(beat(NOON_S))
    for _ in range(3):
        await bench.tier.publish()
    bench.now_s += 15
    await bench.take(beat(NOON_S))
    await bench.tier.publish()
    assert len(bench.stored) == 2
    newest = {}
    for row in sorted((row for rows in bench.stored for row in rows), key=lambda row: row.version):
        if (row.window, row.model, row.scorer) == ("1h", "*", "*"):
            newest[row.window_end] = row.n
    assert newest == {NOON_S + 60: 4, NOON_S + 120: 4}


async def test_detectors_run_once_a_minute_and_go_with_their_partition() -> None:
    """The hour is compared with the day before it, as of the minute; a new model is no part of it."""
    bench = await Bench().own()
    for minutes in range(1, 300):
        await bench.take(pane(NOON_S - 60 * minutes, cited=2 if minutes > 59 else 1))
    await bench.take(pane(NOON_S - 60, model="new", n=500, cited=0))
    await bench.take(beat(NOON_S))
    await bench.tier.publish()
    (signal,) = (await bench.tier.settle()).signals
    assert signal.compared is not None
    assert (signal.compared.before, signal.compared.after) == (1.0, 0.5)
    assert (signal.compared.n_before, signal.compared.n_after) == (4 * 240, 4 * 59)

    await bench.take(pane(NOON_S, n=100))
    await bench.tier.publish()
    assert (await bench.tier.settle()).signals == (signal,), "the minute is the same"
    bench.now_s += 60
    await bench.take(beat(NOON_S))
    await bench.tier.publish()
    (later,) = (await bench.tier.settle()).signals
    assert later.compared is not None
    assert later.compared.n_after == 4 * 58 + 100, "a minute came and one went"

    bench.tier.assign(set())
    assert (await bench.tier.publish()).signals == ()


async def test_detectors_run_again_when_everything_is_read() -> None:
    """What was judged on a part of the minute does not stand until the next one: who starts the worker waits for it."""
    bench = await Bench().own()
    bench.now_s += 30
    for minutes in range(1, 300):
        await bench.take(pane(NOON_S - 60 * minutes))
    await bench.take(beat(NOON_S + 10, caught_up=False))
    assert not (await bench.tier.publish()).caught_up
    (part,) = (await bench.tier.settle()).signals
    await bench.take(pane(NOON_S, n=100))
    for _ in range(2):
        await bench.take(beat(NOON_S + 10))
        await bench.tier.publish()
        (whole,) = (await bench.tier.settle()).signals
        assert part.compared is not None
        assert whole.compared is not None
        assert whole.compared.n_after == part.compared.n_after + 100
        await bench.take(pane(NOON_S, n=1_000, source="spans/1"))  # once: then a minute is a minute again


async def test_no_week_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """ClickHouse that does not answer for the 7 days is one warning; the day alone goes on, hour after hour."""
    reader = FakeReader(RetryableError("no answer"), of="toStartOfHour")
    bench = await Bench(reader).own()
    for _ in range(3):
        await bench.take(pane(int(bench.now_s) - 7_200, n=40))
        await bench.take(pane(int(bench.now_s) - 60, n=40))
        await bench.take(beat(bench.now_s))
        await bench.tier.publish()
        (signal,) = (await bench.tier.settle()).signals
        assert signal.compared is not None
        bench.now_s += 3_600
    asked = [sql for sql in reader.asked if "toStartOfHour" in sql]
    assert len(asked) == 3
    assert len([record for record in caplog.records if "7 d baseline" in record.message]) == 1


async def test_a_week_that_was_not_read_is_asked_for_again_within_the_minute() -> None:
    """One answer that did not come must not cost the hour its baseline; once it came, the hour has it."""
    reader = FakeReader(RetryableError("no answer"), of="toStartOfHour")
    bench = await Bench(reader).own()
    asked = []
    for minute in range(5):
        if minute == 2:
            reader.failure = None
        await bench.take(pane(int(bench.now_s) - 60))
        await bench.take(beat(bench.now_s))
        await bench.tier.publish()
        await bench.tier.settle()
        asked.append(len([sql for sql in reader.asked if "toStartOfHour" in sql]))
        bench.now_s += 60
    assert asked == [1, 2, 3, 3, 3]


async def test_a_defect_of_the_detectors_is_raised() -> None:
    """What runs in the background does not fail in silence."""
    reader = FakeReader(ZeroDivisionError("defect"), of="toStartOfHour")
    bench = await Bench(reader).own()
    await bench.take(pane(NOON_S - 60))
    await bench.take(beat(NOON_S))
    await bench.tier.publish()
    with pytest.raises(ZeroDivisionError):
        await bench.tier.settle()
    with pytest.raises(ZeroDivisionError):
        await bench.tier.publish()


async def test_acknowledged_is_the_prefix_whose_panes_are_closed() -> None:
    """In order, up to the first message whose pane is open: that is what a restart finds again, and no more."""
    bench = await Bench().own()
    await bench.take(beat(NOON_S))  # 0
    await bench.take(pane(NOON_S - 120))  # 1
    await bench.take(beat(NOON_S))  # 2
    await bench.take(pane(NOON_S - 60))  # 3
    await bench.take(pane(NOON_S - 120, version=2))  # 4
    assert bench.acked == [0]
    await bench.take(ClosedMarker(SOURCE, NOON_S - 120))  # 5
    assert bench.acked == [0, 1, 2]
    assert bench.tier.unacked == 3
    await bench.take(ClosedMarker(SOURCE, NOON_S - 60))  # 6
    assert bench.acked == [0, 1, 2, 3, 4, 5, 6]


async def test_a_quiet_night_costs_no_memory() -> None:
    """Heartbeats behind an open pane wait as one run, however many they are, and are acknowledged one by one."""
    bench = await Bench().own()
    await bench.take(pane(NOON_S - 60))
    for _ in range(5_000):
        await bench.take(beat(NOON_S))
    assert len(bench.tier._owned[0].held) == 1
    assert bench.tier.unacked == 5_001
    await bench.take(ClosedMarker(SOURCE, NOON_S - 60))
    assert bench.acked == list(range(5_002))


async def test_a_source_that_is_gone_holds_nothing_back_for_ever() -> None:
    """A pane that nobody will close any more is given up once it lies before the longest window."""
    bench = await Bench().own()
    await bench.take(pane(NOON_S - 60, source="spans/7"))
    await bench.take(beat(NOON_S))
    await bench.tier.publish()
    assert bench.acked == []
    bench.now_s += DAY_S + 3_600
    await bench.take(beat(NOON_S + DAY_S))
    await bench.tier.publish()
    await bench.take(beat(NOON_S + DAY_S))
    assert bench.acked == [0, 1, 2, 3]


async def test_a_topic_that_is_no_longer_read_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Its panes count; but as-of, acknowledgements and a restart do not wait for what nobody will close, and it is said."""
    bench = await Bench().own()
    await bench.take(pane(NOON_S - 60, source="old/0"))  # 0: as found in the topic by the first start after the change
    await bench.take(beat(NOON_S - 40, source="old/0"))  # 1
    assert bench.acked == [], "nothing of the new topic was heard, so this may be all there is"
    await bench.take(pane(NOON_S - 60))  # 2
    await bench.take(beat(NOON_S - 40))  # 3
    assert bench.acked == [0, 1]
    await bench.take(ClosedMarker(SOURCE, NOON_S - 60))  # 4
    await bench.take(pane(NOON_S - 120, source="old/0"))  # 5: of a neighbour that is not restarted yet
    assert bench.acked == [0, 1, 2, 3, 4, 5]

    bench.now_s += 1_800
    await bench.take(beat(NOON_S - 40))
    await bench.tier.publish()
    view = await bench.tier.publish()
    assert (view.as_of_ns, view.caught_up) == (int(bench.now_s) * SECOND_NS, True)
    assert counts(bench)["1h"] == 3 * 4, "what was read of it is true"
    assert set(view.sources) == {SOURCE}
    assert [one.message for one in caplog.records if "old/0" in one.message] == [
        "the windows do not wait for old/0: its topic is not among those of the settings"
    ]


async def test_a_strangers_heartbeats_do_not_count() -> None:
    """Whose heartbeat it is, is asked once; without an id it is of an older release and counts."""
    bench = await Bench().own()
    asked: list[tuple[str, bool]] = []

    async def meet(stranger: str, *, just_now: bool) -> bool:
        asked.append((stranger, just_now))
        return stranger == "mine"

    bench.tier.meet = meet
    for _ in range(3):
        await bench.take(signed(NOON_S - 20, "mine"))
        await bench.take(signed(NOON_S - 10, "theirs", source="spans/1"))
    await bench.take(signed(NOON_S - 10, "theirs", source="spans/2"), sent_s=NOON_S - 3_600)
    assert asked == [("mine", True), ("theirs", True), ("theirs", False)]
    assert set((await bench.tier.publish()).sources) == {SOURCE}
    await bench.take(beat(NOON_S - 20, source="spans/3"))
    assert set((await bench.tier.publish()).sources) == {SOURCE, "spans/3"}
    assert bench.tier.unacked == 0


async def test_a_topic_of_somebody_else_stops_the_cold_tier() -> None:
    """What is said of a stranger is raised, and no window is made of what it sends."""
    bench = await Bench().own()

    async def meet(stranger: str, *, just_now: bool) -> bool:
        raise FatalError(f"not {stranger}'s topic")

    bench.tier.meet = meet
    with pytest.raises(FatalError, match="not theirs's topic"):
        await bench.take(signed(NOON_S - 10, "theirs"))


async def test_what_is_not_ours_is_counted_and_passed() -> None:
    """A message that cannot be read neither stops the reader nor holds anything back."""
    bench = await Bench().own()
    await bench.tier.take(bench.event(b"\xff", 0))
    await bench.tier.take(bench.event(b'{"type":"pane","row":{}}', 1))
    assert (bench.tier.unreadable, bench.acked) == (2, [0, 1])


async def test_restoring_that_fails_for_good_is_raised() -> None:
    """A wrong password while restoring must stop the process, not leave it unready for ever."""
    bench = Bench(FakeReader(FatalError("ClickHouse: check the user and password")))
    bench.tier.assign({0})
    await asyncio.gather(*[owned.restoring for owned in bench.tier._owned.values()], return_exceptions=True)  # type: ignore[arg-type]
    with pytest.raises(FatalError, match="password"):
        await bench.tier.publish()


async def test_a_partition_that_goes_while_it_is_restored_blocks_nobody() -> None:
    """The agent that waits for a partition's restoring goes on when the partition is taken away, and applies nothing."""
    bench = Bench()
    bench.tier.assign({0})
    owned = bench.tier._owned[0]
    waiting = asyncio.create_task(bench.take(pane(NOON_S - 60)))
    await asyncio.sleep(0)
    bench.tier.assign(set())
    async with asyncio.timeout(5):
        await waiting
    assert owned.store.open_panes == 0
    assert bench.acked == []


def test_the_partition_of_a_roll_up_does_not_depend_on_a_library() -> None:
    """Both tiers compute it: pinned, because a change would part a roll-up between two owners."""
    assert [panes_partition("support", bucket, 4) for bucket in ("1-5", "6-10", "11-20")] == [1, 1, 3]
