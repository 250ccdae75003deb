"""What a route's line says: its buckets, and beside the first or largest of them what has no bucket."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from citegauge.adapters.web import shape
from citegauge.domain.distribution import fraction_key
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.window import WINDOWS, RollUp, roll_up
from citegauge.tools.tables import window_table
from support.clickhouse_rows import window_row

END_S = 1_796_040_000
HALVES = {"no_retrieval": 7, "empty_retrieval": 2}


def bare(window: str = "1h", **changes: Any) -> Any:
    """Traces of a route that have no bucket."""
    usual = {"top_k_bucket": "unknown", "n": 0, "states": HALVES, "recall_mean": None, "window": window}
    return window_row(END_S, **(usual | changes))


def overview(*rows: Any) -> list[dict[str, Any]]:
    """The groups that the page is given."""
    found: list[dict[str, Any]] = shape.overview(rows, [], 0, 100)["groups"]
    return found


def test_halves_stand_with_the_largest_bucket_of_their_route() -> None:
    """They have no row of their own, and nothing of them is lost; other routes are as they were."""
    groups = overview(
        window_row(END_S, n=3),
        window_row(END_S, n=30, top_k_bucket="6-10"),
        bare(),
        bare("24h", states={"no_retrieval": 90}),
        window_row(END_S, route="sales"),
    )
    assert {(group["route"], group["top_k_bucket"]): group["apart"] for group in groups} == {
        ("sales", "1-5"): {},
        ("support", "1-5"): {},
        ("support", "6-10"): {"1h": HALVES, "24h": {"no_retrieval": 90}},
    }


def test_a_route_of_halves_alone_has_its_line() -> None:
    """Else a route whose retrievals all went missing would vanish."""
    (group,) = overview(bare())
    assert (group["route"], group["top_k_bucket"], group["apart"]) == ("support", "unknown", {})
    assert group["windows"]["1h"]["states"] == HALVES


@pytest.mark.parametrize("row", [bare("24h", n=4), bare(scorer="bge", score_n=3)], ids=["measured", "scored"])
def test_a_bucket_that_has_numbers_is_no_noise(row: Any) -> None:
    """Measured in any window, or with scores: then `unknown` is a bucket as any other."""
    assert {group["top_k_bucket"] for group in overview(window_row(END_S), bare(), row)} == {"1-5", "unknown"}


def table(*groups: tuple[str, str, dict[State, int]]) -> list[str]:
    """The table of the terminal, line by line, of (route, bucket, states)."""
    items = []
    for route, bucket, states in groups:
        made = Tally()
        made.states = {int(state): n for state, n in states.items()}
        if measured := states.get(State.measured):
            made.recall_counts = {fraction_key(1, 2): measured}
        group = Group(route, bucket, "m1", "r1", "unknown")
        items += [RollUp(window, END_S - window.length_s, END_S, group, made, 0) for window in WINDOWS]
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as caught:
        console.print(window_table(roll_up(items)))
    return [line.strip() for line in caught.get().splitlines()]


def test_the_terminal_tells_halves_with_their_route() -> None:
    """In `replay` and `demo`: a row for each bucket that has one, the rest under the route's name, within 80 columns."""
    lines = table(
        ("support", "1-5", {State.measured: 20}),
        ("support", "6-10", {State.measured: 20}),
        ("support", "unknown", {State.no_retrieval: 7, State.empty_retrieval: 2, State.bad_time: 1}),
        ("sales", "1-5", {State.measured: 5}),
    )
    text = "\n".join(lines)
    assert "unknown" not in text
    first = next(i for i, line in enumerate(lines) if line.startswith("support"))
    assert [line.split("  ")[0] for line in lines[first : first + 4]] == [
        "support",
        "+7 halves",
        "+2 empty",
        "+1 other",
    ]
    assert text.count("+7 halves") == 1
    assert max(map(len, lines)) <= 80


def test_the_terminal_shows_a_route_of_halves_alone() -> None:
    """Else it would vanish. Without any of them nothing is said of them."""
    lines = table(("support", "unknown", {State.no_retrieval: 7}))
    assert [line.split()[:2] for line in lines if "unknown" in line or "halves" in line][:2] == [
        ["support", "unknown"],
        ["+7", "halves"],
    ]
    assert "halves" not in "\n".join(table(("support", "1-5", {State.measured: 5})))
