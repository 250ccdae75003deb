"""What stands behind a group's numbers: heat map, rank curve, new versions and single traces, against real ClickHouse."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace as replace_row

from citegauge.adapters.web.evidence import CHUNKS_MAX, FIRST_HOUR_S, RANKS_MAX
from citegauge.domain.distribution import histogram_key, histogram_value
from citegauge.domain.intervals import wilson
from citegauge.errors import RetryableError
from support.web_world import FALLEN, NEW_VERSION_HOURS, World, served, worst_traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from citegauge.ports import TraceRow, WindowRow
    from support.browser import Chromium, Tab

pytest_plugins = ["support.browser", "support.web_served"]

GROUP = "#/group?" + urlencode({"route": FALLEN[0], "top_k_bucket": FALLEN[1]})
SCORERS = ["reranker:bge-v2", "retriever:e5"]


async def _ask(address: str, path: str, **parameters: str | int) -> Any:
    async with ClientSession() as session, session.get(f"{address}api/{path}?{urlencode(parameters)}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def _of_group(address: str, path: str, **more: str) -> Any:
    return await _ask(address, path, route=FALLEN[0], top_k_bucket=FALLEN[1], **more)


def _live(world: World, window: str, scorer: str = "*") -> WindowRow:
    key = (window, *FALLEN, "*", scorer)
    return next(row for row in world.windows if (row.window, row.route, row.top_k_bucket, row.model, row.scorer) == key)


def _odd(world: World, state: str) -> TraceRow:
    return next(row for row in world.traces if row.state == state)


# ---------------------------------------------------------------------------------------------------- one number everywhere


@pytest.mark.parametrize("window", ["1h", "6h", "24h"])
async def test_the_heat_map_counts_every_score_of_the_live_window(world: World, window: str) -> None:
    """Per scorer, all cells of all columns add up to the live window's n, also those at the edges of the range."""
    async with served(world) as address:
        answer = await _of_group(address, "heat", window=window)
    live = _live(world, window)
    assert (answer["start_s"], answer["end_s"]) == (live.window_start, live.window_end)
    assert [one["scorer"] for one in answer["scores"]] == SCORERS, "scores of two scorers are never in one map"
    for one in answer["scores"]:
        assert [sum(n for _, n in column) for column in one["cells"]] == one["n"]
        assert sum(one["n"]) == _live(world, window, one["scorer"]).score_n
        assert all(-1 <= bin_ <= one["bins"] for column in one["cells"] for bin_, _ in column)
        assert all(t % answer["step_s"] == 0 for t in one["t"])


async def test_a_cell_of_the_heat_map_is_what_clickhouse_counts(world: World) -> None:
    """One column, counted by hand from the panes, cell by cell."""
    async with served(world) as address:
        answer = await _of_group(address, "heat", window="24h")
    one = answer["scores"][0]
    at = len(one["t"]) // 2
    cells = dict(one["cells"][at])
    panes = [
        row
        for row in world.panes
        if (row.route, row.top_k_bucket, row.scorer) == (*FALLEN, one["scorer"])
        and one["t"][at] <= row.pane < one["t"][at] + answer["step_s"]
    ]
    counted: dict[int, int] = {}
    for row in panes:
        for key, n in row.score_counts.items():
            bin_ = min(one["bins"], max(-1, int((histogram_value(key) - one["low"]) // one["step"])))
            counted[bin_] = counted.get(bin_, 0) + n
    assert panes
    assert cells == counted


async def test_the_rank_curve_is_what_the_traces_say(world: World) -> None:
    """Of the traces that retrieved at least r chunks, those that cite rank r, with Wilson's interval."""
    measured = worst_traces(world)
    async with served(world) as address:
        answer = await _of_group(address, "ranks", window="1h")
    assert [one["rank"] for one in answer["ranks"]] == [1, 2, 3, 4, 5]
    for one in answer["ranks"]:
        assert one["n"] == sum(row.retrieved >= one["rank"] for row in measured)
        assert one["cited"] == sum(one["rank"] in row.cited_ranks for row in measured)
        interval = wilson(one["cited"], one["n"])
        assert interval is not None
        assert (one["lower"], one["upper"]) == pytest.approx(tuple(interval), abs=1e-12)


async def test_a_shallow_trace_says_nothing_of_deep_ranks(world: World) -> None:
    """The denominator of a rank are the traces that went so deep, not all of them; and ranks have a bound."""
    rows = [{"retrieved": {2: 30, 60: 10}, "cited": {1: 20, 2: 8, 60: 3}}]
    world.query = lambda _sql, _parameters: rows
    async with served(world) as address:
        answer = await _of_group(address, "ranks")
    assert answer["cut"] is True
    assert [one["rank"] for one in answer["ranks"]] == list(range(1, RANKS_MAX + 1))
    assert [(one["cited"], one["n"]) for one in answer["ranks"][:3]] == [(20, 40), (8, 40), (0, 10)]


async def test_a_new_version_is_marked_at_its_first_minute(world: World) -> None:
    """r8 is new in the middle of the day; what was there from the start is not, and no scorer or model changed."""
    first_s = min(row.pane for row in world.panes if row.retriever_version == "r8" and row.route == FALLEN[0])
    async with served(world) as address:
        answer = await _of_group(address, "versions", window="24h")
        hour = await _of_group(address, "versions", window="1h")
    assert answer["versions"] == [{"kind": "retriever", "name": "r8", "first_s": first_s}]
    assert abs(first_s - (answer["end_s"] - NEW_VERSION_HOURS * 3600)) <= 300
    assert hour["versions"] == [], "it was there before this hour"


async def test_a_new_group_marks_nothing(world: World) -> None:
    """In a group's first hour everything is new, which says nothing; later it does."""
    start = 1_795_000_000
    names = [("group", "", start), ("model", "m1", start + 60), ("model", "m2", start + FIRST_HOUR_S)]
    rows = [{"kind": kind, "name": name, "first_s": first} for kind, name, first in names]
    world.query = lambda _sql, _parameters: rows
    async with served(world) as address:
        answer = await _of_group(address, "versions")
    assert [row["name"] for row in answer["versions"]] == ["m2"]


@pytest.mark.parametrize("state", ["no_generation", "nonconformant", "empty_retrieval"])
async def test_traces_of_any_state_can_be_listed(world: World, state: str) -> None:
    """What was not measured has traces behind it, too; its recall is null and never 0."""
    async with served(world) as address:
        answer = await _of_group(address, "traces", state=state)
    assert [(trace["trace_id"], trace["recall"]) for trace in answer["traces"]] == [(_odd(world, state).trace_id, None)]


async def test_a_trace_is_found_with_and_without_its_time(world: World) -> None:
    """`at` only makes it quicker to find; an unknown id is an empty answer, and so is one far from the named time."""
    row = worst_traces(world)[0]
    async with served(world) as address:
        found = [
            await _ask(address, "trace", trace_id=row.trace_id),
            await _ask(address, "trace", trace_id=row.trace_id, at=row.pane),
        ]
        far = await _ask(address, "trace", trace_id=row.trace_id, at=row.pane - 10 * 86_400)
        unknown = await _ask(address, "trace", trace_id="f" * 32)
    assert found[0] == found[1]
    (trace,) = found[0]["counted"]
    assert (trace["chunk_ids"], trace["cited_ranks"], trace["source"]) == (row.chunk_ids, row.cited_ranks, row.source)
    assert (trace["pane_s"], trace["event_ms"], trace["recall"]) == (row.pane, row.event_time_ns // 10**6, row.recall)
    assert (far["counted"], unknown["counted"]) == ([], [])


async def test_every_question_is_bounded(world: World) -> None:
    """No list grows with what is stored: each question carries the limits of its answer, in time and in rows."""
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def query(sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        asked.append((sql, parameters))
        return []

    world.query = query
    async with served(world) as address:
        for path in ("heat", "ranks", "versions", "traces"):
            await _of_group(address, path)
        await _ask(address, "trace", trace_id="a" * 32)
    assert len(asked) == 5
    for sql, parameters in asked:
        assert parameters["start_s"] < parameters["end_s"]
        assert "rows_max" in parameters or "GROUP BY" not in sql, "one row, or a limit"
        assert parameters.get("chunks_max", CHUNKS_MAX) == CHUNKS_MAX


# ------------------------------------------------------------------------------------------------ what a reader sees


async def _heat_says(tab: Tab) -> str:
    return await tab.page.locator(".heat").first.get_attribute("aria-valuetext") or ""


async def test_by_keyboard_from_the_drop_to_a_trace(chromium: Chromium, world: World) -> None:
    """Tab and Enter alone lead from the sentence over the traces behind it to one trace, and Back leads back."""
    row = worst_traces(world)[0]
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        await tab.reach("#status .drops a")
        await tab.page.keyboard.press("Enter")
        await tab.drawn("group")
        await tab.reach(".jump")
        await tab.page.keyboard.press("Enter")
        await tab.page.locator(".panel h3:focus", has_text="lowest recall").wait_for()
        assert "show=traces" in tab.page.url
        await tab.reach(".traces summary")
        await tab.page.keyboard.press("Enter")
        await tab.reach(".traces details[open] a")
        await tab.page.keyboard.press("Enter")
        await tab.drawn("trace")
        assert f"#/trace/{row.trace_id}" in tab.page.url
        assert row.trace_id in await tab.page.inner_text(".trace h2")
        await tab.page.go_back()
        await tab.drawn("group")
        await tab.page.go_forward()
        await tab.drawn("trace")
        assert tab.complaints == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1360), ("dark", 390)])
async def test_a_trace_page_says_all_that_is_known(chromium: Chromium, world: World, scheme: Any, width: int) -> None:
    """State and why, chunks in rank order with scores, the cited ones, the strays by kind, and where it came from."""
    row = next(row for row in world.traces if row.dropped_cited_ids)
    path = f"#/trace/{row.trace_id}?at={row.pane}"
    async with served(world) as address, chromium.tab(address + path, width=width, scheme=scheme) as tab:
        await tab.drawn("trace")
        said = await tab.page.inner_text(".verdict")
        assert "measured" in said
        assert f"cites {row.cited_retrieved} of the 5 retrieved chunks, so its recall is {row.recall:.2f}" in said
        lines = [line.split("\t") for line in await tab.page.locator(".chunks tbody tr").all_inner_texts()]
        wanted = [
            [str(rank), name, f"{score:.3f}", "cited" if rank in row.cited_ranks else ""]
            for rank, (name, score) in enumerate(zip(row.chunk_ids, row.chunk_scores, strict=True), start=1)
        ]
        assert [[part.strip() for part in line] for line in lines[:5]] == wanted
        strays = ["cited, but dropped before the context", "cited, but not retrieved"]
        assert [line[3].strip() for line in lines[5:]] == strays
        facts = await tab.page.inner_text(".facts")
        for fact in (row.source, row.model, row.retriever_version, row.scorer, "0.04 s"):
            assert fact in facts
        await tab.fits()
        await chromium.picture(tab, f"trace-{scheme}-{width}")
        assert tab.complaints == []


async def test_an_unmeasured_trace_has_no_recall_and_says_why(chromium: Chromium, world: World) -> None:
    """From the state in the group's list to its trace: a sentence says why, and recall is a dash, not 0."""
    row = _odd(world, "no_generation")
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        await tab.page.locator(".states a", has_text="no_generation").click()
        await tab.page.locator(".traces summary", has_text=row.trace_id).click()
        await tab.page.get_by_role("link", name="Everything about this trace").click()
        await tab.drawn("trace")
        assert "No answer to this retrieval had come" in await tab.page.inner_text(".verdict")
        facts = (await tab.page.inner_text(".facts")).splitlines()
        assert facts[facts.index("recall") + 1] == "–"
        assert tab.complaints == []


async def test_citations_that_cannot_be_judged_are_not_called_hallucinated(chromium: Chromium, world: World) -> None:
    """Of a list that was cut off: what is cited is shown, and said not to count."""
    row = _odd(world, "truncated")
    async with served(world) as address, chromium.tab(f"{address}#/trace/{row.trace_id}?at={row.pane}") as tab:
        await tab.drawn("trace")
        lines = [line.split("\t") for line in await tab.page.locator(".chunks tbody tr").all_inner_texts()]
        assert [part.strip() for part in lines[1]] == ["2", row.chunk_ids[1], f"{row.chunk_scores[1]:.3f}", "cited"]
        assert [[part.strip() for part in line] for line in lines[5:]] == [
            ["", "kb-cut-off", "", "cited, cannot be judged"]
        ]
        assert "What it cites is not counted" in (said := await tab.page.inner_text(".trace"))
        assert "hallucinated" not in said
        assert tab.complaints == []


async def test_heat_map_and_rank_curve_show_the_numbers(chromium: Chromium, world: World) -> None:
    """The arrow keys read the heat map column by column, and the rank curve has its numbers beside it."""
    async with served(world) as address:
        heat = (await _of_group(address, "heat", window="24h"))["scores"][0]
        ranks = (await _of_group(address, "ranks", window="1h"))["ranks"]
        async with chromium.tab(address + GROUP) as tab:
            await tab.drawn("group")
            assert await tab.page.locator(".heat").count() == len(SCORERS)
            assert await tab.page.locator(".heat .level").count() > 5
            assert f"n = {heat['n'][-1]}," in await _heat_says(tab)
            await tab.page.locator(".heat").first.focus()
            await tab.page.keyboard.press("Home")
            assert f"n = {heat['n'][0]}," in await _heat_says(tab)
            await tab.page.keyboard.press("ArrowRight")
            assert f"n = {heat['n'][1]}," in await _heat_says(tab)
            assert await tab.page.locator(".readout").first.inner_text() == await _heat_says(tab)
            await tab.page.locator(".asnumbers summary").click()
            shown = [line.split("\t") for line in await tab.page.locator(".asnumbers tbody tr").all_inner_texts()]
            assert [line[:3] for line in shown] == [
                [str(one[name]) for name in ("rank", "cited", "n")] for one in ranks
            ]
            assert tab.complaints == []


@pytest.mark.parametrize("width", [1360, 390])
async def test_the_heat_map_names_what_lies_beyond_its_range(chromium: Chromium, world: World, width: int) -> None:
    """A drop of the newest column stands at its own score with its own share; wild scores have a row that says so."""
    usual = {histogram_key(0.7 + at / 100): 10 for at in range(20)}
    fallen = {histogram_key(0.41 + at / 100): 3 for at in range(1, 31)}
    wild = {histogram_key(-50.0): 6, histogram_key(70.0): 4}

    def query(sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        if "notEmpty(score_counts)" not in sql:
            return world_query(sql, parameters)
        start_s = parameters["start_s"]
        last = {"scorer": SCORERS[0], "t": start_s + 95 * 900, "score": fallen | wild}
        return [{"scorer": SCORERS[0], "t": start_s + at * 900, "score": usual} for at in range(95)] + [last]

    world_query, world.query = world.query, query
    async with served(world) as address, chromium.tab(address + GROUP, width=width) as tab:
        await tab.drawn("group")
        said = await _heat_says(tab)
        assert await tab.page.locator(".heat .beyond").all_text_contents() == ["below", "above"]
        (below,), (above,) = (
            re.findall(r"; below ([0-9.]+): 6.0 %", said),
            re.findall(r"; ([0-9.]+) or more: 4.0 %", said),
        )
        labels = await tab.page.locator(".heat").first.locator(".axis").all_text_contents()
        assert {below, above} <= set(labels), "both ends of the range are named on the axis"
        low, high, share = re.findall(r"most often ([0-9.]+) to ([0-9.]+) \((\d+)", said)[0]
        inside = sum(n for key, n in fallen.items() if float(low) <= histogram_value(key) < float(high))
        assert int(share) == inside, "100 in all"
        await chromium.picture(tab, f"heat-{width}")
        assert tab.complaints == []


async def test_a_version_change_is_marked(chromium: Chromium, world: World) -> None:
    """A new retriever version stands in words under the lines, and as a line in every heat map."""
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        assert (await tab.page.inner_text(".marks")).endswith("retriever r8 first seen")
        assert await tab.page.locator(".heat .mark").count() == len(SCORERS)


async def test_an_unknown_trace_is_said(chromium: Chromium, world: World) -> None:
    """A mistyped or expired id is an answer in words, not an empty page."""
    async with served(world) as address, chromium.tab(f"{address}#/trace/{'e' * 32}") as tab:
        await tab.drawn("trace")
        assert "No trace with this id is stored" in await tab.page.inner_text(".trace")
        assert tab.complaints == []


async def test_a_trace_without_clickhouse_says_so(chromium: Chromium, world: World) -> None:
    """Traces live in ClickHouse alone: while it is away the page says that, in one line."""

    def away(_sql: str, _parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        raise RetryableError("query: ClickHouse at http://127.0.0.1:8123 does not answer")

    world.query = away
    async with served(world) as address, chromium.tab(f"{address}#/trace/{'e' * 32}") as tab:
        await tab.drawn("trace")
        assert "ClickHouse at http://127.0.0.1:8123 does not answer" in await tab.page.inner_text(".trouble")


async def test_hostile_ids_are_only_text(chromium: Chromium, world: World) -> None:
    """Chunk ids, models and sources come from Kafka: markup in them is shown, not obeyed, on list and trace page."""
    evil = "<img src=x onerror=alert(1)>\"'&"
    row = worst_traces(world)[0]
    hostile = replace_row(row, chunk_ids=[evil] * 5, hallucinated_ids=[evil], model=evil, source=evil)
    found = {
        **{name: getattr(hostile, name) for name in hostile.__struct_fields__},
        "pane_s": hostile.pane,
        "dropped_cited_ids": [],
        "unjudged_cited_ids": [evil],
    }

    def query(sql: str, _parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        if "chunk_ids" in sql:
            return [dict(found)]
        if "kind" in sql:
            return [{"kind": "group", "name": "", "first_s": 0}, {"kind": "model", "name": evil, "first_s": row.pane}]
        return world_query(sql, _parameters)

    world_query, world.query = world.query, query
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        assert evil in await tab.page.inner_text(".marks")
        await tab.page.locator(".traces summary").click()
        assert (await tab.page.locator(".traces .chunks code").first.inner_text()) == evil
        await tab.page.get_by_role("link", name="Everything about this trace").click()
        await tab.drawn("trace")
        assert evil in await tab.page.inner_text(".facts")
        assert await tab.page.locator("img").count() == 0
        assert tab.complaints == []
