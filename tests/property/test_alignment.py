"""How far the re-key stage may send: laws of the alignment, and the plain cases that once starved a topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.alignment import UNBOUNDED_NS, Alignment, Standing

AHEAD, HOLD, BEHIND = 10, 100, 5_000
STANDINGS = st.dictionaries(
    st.sampled_from("abcde"),
    st.builds(
        Standing,
        clock_ns=st.integers(0, 10_000),
        head_ns=st.none() | st.integers(1, 10_000),
        at_end=st.booleans(),
    ),
)


def alignment() -> Alignment[str]:
    """With the bounds above."""
    return Alignment(ahead_ns=AHEAD, hold_ns=HOLD, behind_ns=BEHIND)


def held(clock_ns: int, head_ns: int | None = None) -> Standing:
    """A partition with a backlog."""
    return Standing(clock_ns, head_ns, at_end=False)


def done(clock_ns: int, head_ns: int | None = None) -> Standing:
    """A partition that is read to its end."""
    return Standing(clock_ns, head_ns, at_end=True)


def test_it_waits_for_the_slowest_that_has_a_backlog() -> None:
    """Also for one that was never read: nobody knows how far behind it is. Who is at the end holds nobody."""
    assert alignment().bound_ns({"a": held(100, 90), "b": held(40)}, 0) == (40 + AHEAD, [])
    assert alignment().bound_ns({"a": held(100, 90), "b": held(0)}, 0) == (AHEAD, [])
    assert alignment().bound_ns({"a": held(100, 90), "b": done(40)}, 0) == (100 + AHEAD, [])
    assert alignment().bound_ns({"a": done(100, 90), "b": done(0)}, 0) == (UNBOUNDED_NS, [])
    assert alignment().bound_ns({}, 0) == (UNBOUNDED_NS, [])


def test_nobody_is_held_for_longer_than_the_bound() -> None:
    """A partition that never moves is overruled, told once, and waited for again when it has caught up."""
    aligned, stuck = alignment(), {"a": held(100, 90), "b": held(0)}
    assert aligned.bound_ns(stuck, 1_000) == (AHEAD, [])
    assert aligned.bound_ns(stuck, 1_000 + HOLD) == (AHEAD, [])
    assert aligned.bound_ns(stuck, 1_001 + HOLD) == (100 + AHEAD, ["b"])
    assert aligned.bound_ns(stuck, 1_002 + HOLD) == (100 + AHEAD, [])
    aligned.sent(90)
    assert aligned.overruled == {"b"}
    assert aligned.bound_ns({"a": held(100), "b": held(85)}, 1_003 + HOLD) == (85 + AHEAD, [])
    assert not aligned.overruled


def test_a_hold_that_ends_begins_anew() -> None:
    """Partitions that take turns in a long backlog are not overruled: the bound is on one go."""
    aligned = alignment()
    for step in range(20):
        slow, fast = ("a", "b") if step % 2 else ("b", "a")
        standings = {slow: held(100 * step), fast: held(100 * step + 100, 100 * step + 50)}
        bound_ns, overruled = aligned.bound_ns(standings, 90 * step)
        assert (bound_ns, overruled) == (100 * step + AHEAD, [])
        aligned.bound_ns({slow: held(100 * step + 100), fast: held(100 * step + 100)}, 90 * step + 1)


def test_who_is_hopelessly_behind_holds_nobody() -> None:
    """What is sent already makes it late all the same."""
    aligned = alignment()
    aligned.sent(20_000)
    standings = {"a": held(20_100, 20_050), "old": held(20_000 - BEHIND - 1, 14_000)}
    assert aligned.bound_ns(standings, 0) == (20_100 + AHEAD, ["old"])
    near = {"a": held(20_100, 20_050), "old": held(20_000 - BEHIND, 14_000)}
    assert alignment().bound_ns(near, 0) == (20_000 - BEHIND + AHEAD, [])


def test_when_no_more_may_be_held_nobody_is_waited_for() -> None:
    """Memory has the last word."""
    bound_ns, overruled = alignment().bound_ns({"a": held(100, 90), "b": held(0), "c": held(20)}, 0, full=True)
    assert (bound_ns, set(overruled)) == (100 + AHEAD, {"b", "c"})


@given(st.lists(st.tuples(STANDINGS, st.integers(0, 60), st.integers(0, 10_000)), max_size=30))
def test_something_can_always_be_sent_in_the_end(steps: list[tuple[dict[str, Standing], int, int]]) -> None:
    """Whatever came before: after the bound on holding has passed twice without change, every head may go."""
    aligned, now_ns = alignment(), 0
    for standings, pause, sent_ns in steps:
        now_ns += pause
        aligned.bound_ns(standings, now_ns)
        aligned.sent(sent_ns)
    if steps:
        standings = steps[-1][0]
        aligned.bound_ns(standings, now_ns)
        bound_ns, _ = aligned.bound_ns(standings, now_ns + HOLD + 1)
        heads = [one.head_ns for one in standings.values() if one.head_ns is not None]
        assert all(head <= bound_ns for head in heads)


@given(STANDINGS, st.integers(0, 60))
def test_the_bound_is_the_rule_word_for_word(standings: dict[str, Standing], now_ns: int) -> None:
    """Without a past, and without anything that was sent, nobody is overruled."""
    backlog = [one.clock_ns for one in standings.values() if not one.at_end]
    expected = min(backlog) + AHEAD if backlog else UNBOUNDED_NS
    assert alignment().bound_ns(standings, now_ns) == (expected, [])
