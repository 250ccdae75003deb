"""The clock of a partition that several sources feed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain.sources import SourceClocks

IDLE_NS = 50
STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1_000), st.integers(0, 20)), max_size=60)


def naive(steps: list[tuple[int, int, int]]) -> list[int]:
    """The rule, word for word, recomputed from scratch at every step."""
    answers: list[int] = []
    event_ns: dict[int, int] = {}
    last_ns: dict[int, int] = {}
    log_ns = 0
    for source, moment, pause in steps:
        log_ns += pause
        event_ns[source] = max(event_ns.get(source, 0), moment)
        last_ns[source] = log_ns
        answers.append(min(event_ns[one] for one, at in last_ns.items() if log_ns - at <= IDLE_NS))
    return answers


@given(STEPS)
def test_it_is_the_minimum_over_active_sources(steps: list[tuple[int, int, int]]) -> None:
    """The shortcut (looking again only when it can have changed) never differs from the rule."""
    clocks, log_ns, answers = SourceClocks(IDLE_NS), 0, []
    for source, moment, pause in steps:
        log_ns += pause
        answers.append(clocks.seen(source, moment, log_ns))
    assert answers == naive(steps)


@given(STEPS, st.integers(0, 60))
def test_a_restart_from_its_state_goes_on_alike(steps: list[tuple[int, int, int]], cut: int) -> None:
    """What a commit carries is enough: a clock made from it answers as the first one does."""
    first, log_ns = SourceClocks(IDLE_NS), 0
    second: SourceClocks | None = None
    for number, (source, moment, pause) in enumerate(steps):
        if number == cut:
            second = SourceClocks(IDLE_NS, first.clocks())
        log_ns += pause
        answer = first.seen(source, moment, log_ns)
        if second is not None:
            assert second.seen(source, moment, log_ns) == answer
