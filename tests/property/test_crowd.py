"""What is kept of an oversize trace, whatever came before it, and that each further span costs little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citegauge.domain import judge, kept
from citegauge.domain.crowd import Crowd, route_class
from citegauge.domain.join import JoinState
from citegauge.domain.kept import pack, unpack
from citegauge.domain.policy import MINUTE_NS, SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.score import place
from citegauge.domain.span import Kind, Span
from support.core_logs import T0_NS, generation, other, retrieval, span_id, trace_id

POLICY = JoinPolicy(trace_spans_max=50)
TRACE = trace_id(1)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Span]:
    """Spans of one trace, some of them copies that say more, end later or are of another kind."""
    return [
        Span(
            trace_id=TRACE,
            span_id=span_id(draw(st.integers(1, 6))),
            parent_id=draw(st.sampled_from([b"", span_id(9)])),
            kind=draw(st.sampled_from(Kind)),
            end_ns=T0_NS + draw(st.integers(0, 5)) * SECOND_NS,
            route=draw(st.sampled_from(["", "support", "search"])),
            route_rank=draw(st.integers(0, 1)),
        )
        for _ in range(draw(st.integers(1, 20)))
    ]


def newest(spans: list[Span], kept_spans: dict[bytes, bytes]) -> Span | None:
    """The one of which the newest copy ended last."""
    return max(spans, key=lambda span: kept_spans[span.span_id][:16], default=None)


@given(arrivals(), st.integers(1, 5))
def test_representatives_are_the_newest_of_what_is_kept(log: list[Span], size: int) -> None:
    """After any copies and drops they are what somebody finds who looks at all that is kept."""
    first, *rest = log
    crowd = Crowd((pack(first, 0, -1),), [route_class(first)])
    for offset, span in enumerate(rest, start=1):
        crowd.put(pack(span, offset, -1), route_class(span))
        if len(crowd) > size:
            crowd.drop_oldest()
        by_id = {one[8:16]: one for one in crowd.spans}
        spans = [unpack(one, TRACE) for one in crowd.spans]
        named = [one for one in spans if one.route]
        best = min((route_class(one) for one in named), default=None)
        expected = [newest([one for one in spans if one.kind == kind], by_id) for kind in list(Kind)[1:]]
        expected.append(newest([one for one in named if route_class(one) == best], by_id))
        found = [unpack(one, TRACE) for one in crowd.representatives()]
        assert {one.span_id for one in found} == {one.span_id for one in expected if one is not None}
        assert len(found) <= 4
        assert crowd.first_offset == min(int.from_bytes(one[16:24], "big") for one in crowd.spans)


def test_the_past_is_forgotten_span_by_span() -> None:
    """What ended before a moment leaves, and with it what it stood for."""
    spans = [retrieval(1, 0, number=1), generation(1, 60, number=2), other(1, 120, number=3)]
    crowd = Crowd([pack(one, at, -1) for at, one in enumerate(spans)], [route_class(one) for one in spans])
    crowd.drop_before(T0_NS + 60 * SECOND_NS)
    assert [unpack(one, TRACE).span_id for one in crowd.spans] == [span_id(2), span_id(3)]
    assert [unpack(one, TRACE).span_id for one in crowd.representatives()] == [span_id(2)]
    crowd.drop_before(T0_NS + 130 * SECOND_NS)
    assert (len(crowd), crowd.representatives()) == (0, ())


# -- work, counted ---------------------------------------------------------------------------------------------------


class Work:
    """How many spans were unpacked and scored since the last look."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.unpacked = self.scored = 0
        decode = kept._decode

        def counted_decode(body: bytes) -> Span:
            self.unpacked += 1
            return decode(body)

        def counted_place(spans: list[Span], *args: Any, **kwargs: Any) -> Any:
            self.scored += len(spans)
            return place(spans, *args, **kwargs)

        patch.setattr(kept, "_decode", counted_decode)
        patch.setattr(judge, "place", counted_place)

    def take(self) -> tuple[int, int]:
        """Spans unpacked, spans scored."""
        taken = self.unpacked, self.scored
        self.unpacked = self.scored = 0
        return taken


def hot_key(spans: int, gap_s: float) -> list[Span]:
    """A client that uses one trace id for ever: retrieval, answer, and a span that is neither."""
    makers = (retrieval, generation, other)
    return [makers[at % 3](1, at * gap_s, number=at + 1) for at in range(spans)]


@pytest.mark.parametrize("gap_s", [0.01, 5.0], ids=["within_a_second", "over_panes_that_close"])
def test_a_span_of_an_oversize_trace_costs_no_more_than_any_other(
    gap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many spans are kept of it, at most its representatives are looked at, before and after."""
    work = Work(monkeypatch)
    join = JoinState(POLICY, ScorePolicy())
    worst = (0, 0)
    for offset, span in enumerate(hot_key(400, gap_s)):
        join.apply(span, offset, 0, T0_NS + 60 * MINUTE_NS)
        done = work.take()
        if offset > POLICY.trace_spans_max:
            worst = max(worst[0], done[0]), max(worst[1], done[1])
    assert join.counters.oversize_traces == 1
    assert worst[0] <= 12, "unpacked for one span"
    assert worst[1] <= 8, "scored for one span"


def test_a_repeated_span_of_an_oversize_trace_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivered again, or a span of no meaning: nothing is scored."""
    log = hot_key(100, 0.01)
    join = JoinState(POLICY, ScorePolicy())
    for offset, span in enumerate(log):
        join.apply(span, offset, 0, T0_NS + MINUTE_NS)
    join.take_changes()
    work = Work(monkeypatch)
    for offset, span in enumerate([*log[-20:], other(1, 2, number=500)], start=100):
        join.apply(span, offset, 0, T0_NS + MINUTE_NS)
    assert work.take() == (0, 0)
    assert len(join.take_changes()) == 0


def test_a_long_trace_is_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way to the bound each span is scored once for each that follows, and not unpacked again."""
    work = Work(monkeypatch)
    join = JoinState(replace(POLICY, trace_spans_max=200), ScorePolicy())
    n = 150
    for offset, span in enumerate(hot_key(n, 0.01)):
        join.apply(span, offset, 0, T0_NS + MINUTE_NS)
    unpacked, scored = work.take()
    assert unpacked <= 2 * n
    assert scored <= n * (n + 1) / 2 + 2 * n


def test_long_traces_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of them is bounded in spans, and what was forgotten gives the same result."""
    monkeypatch.setattr(judge, "SPANS_REMEMBERED_MAX", 40)
    join, plain = JoinState(POLICY, ScorePolicy()), JoinState(POLICY, ScorePolicy())
    log = [
        makers(trace, at, number=at + 1)
        for at in range(24)
        for trace, makers in ((1, retrieval), (1, other), (2, generation), (2, retrieval), (3, generation))
    ]
    for offset, span in enumerate(log):
        join.apply(span, offset, 0, T0_NS + MINUTE_NS)
        assert join._judge._remembered <= 40
        assert sum(len(one.unpacked) for one in join._judge._long.values()) == join._judge._remembered
    monkeypatch.setattr(judge, "LONG_FROM", 1_000)
    for offset, span in enumerate(log):
        plain.apply(span, offset, 0, T0_NS + MINUTE_NS)
    assert [join.result(trace_id(n)) for n in (1, 2, 3)] == [plain.result(trace_id(n)) for n in (1, 2, 3)]
