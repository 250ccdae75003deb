"""What a reader of the page sees, in headless Chromium, with real ClickHouse (chDB) under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace as replace_row

from citegauge.adapters.web import Health
from citegauge.domain.distribution import quantiles
from citegauge.errors import RetryableError
from support.web_world import FALLEN, World, served, worst_traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from citegauge.ports import WindowRow
    from support.browser import Chromium

pytest_plugins = ["support.browser", "support.web_served"]

HOUR = "1h"
GROUP = "#/group?" + urlencode({"route": FALLEN[0], "top_k_bucket": FALLEN[1]})
LOOKS = [("light", 1360), ("dark", 1360), ("light", 390)]


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
async def test_a_reader_goes_from_the_drop_to_its_group(
    chromium: Chromium, world: World, scheme: Literal["light", "dark"], width: int
) -> None:
    """From the sentence over the row to lines and distributions: everything is drawn and nothing complains."""
    async with served(world) as address, chromium.tab(address, width=width, scheme=scheme) as tab:
        await tab.drawn("overview")
        assert await tab.page.inner_text("#status h1") == "1 drop"
        assert "fell from" in await tab.page.inner_text("#status .drops")
        assert await tab.page.locator(".overview .row").count() == 6
        assert await tab.page.locator(".overview .row.fell").count() == 1
        await tab.fits()
        await chromium.picture(tab, f"overview-{scheme}-{width}")
        await tab.page.locator(".overview .row.fell .bucket").click()
        await tab.drawn("group")
        assert "route=support" in tab.page.url
        assert await tab.page.inner_text(".group h2") == "support top_k 1-5"
        assert await tab.ink(".group") > 2_000
        assert await tab.page.locator(".bars .bar").count() > 10
        await tab.fits()
        await tab.page.locator(".traces summary").first.click()
        assert await tab.page.locator(".traces details[open] tbody tr").count() >= 5
        await chromium.picture(tab, f"group-{scheme}-{width}")
        assert tab.complaints == []


# ------------------------------------------------------------------------------------------------ one number everywhere


async def _ask(address: str, path: str, **parameters: str | int) -> Any:
    query = urlencode({"route": FALLEN[0], "top_k_bucket": FALLEN[1], **parameters})
    async with ClientSession() as session, session.get(f"{address}api/{path}?{query}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


@pytest.mark.parametrize("window", ["1h", "6h", "24h"])
async def test_clickhouse_and_the_live_window_tell_the_same(world: World, window: str) -> None:
    """The distribution that ClickHouse returns has exactly the quantiles, the mean and the n of the live window."""
    row = _live(world, window)
    async with served(world) as address:
        answer = await _ask(address, "distribution", window=window)
    values = {at: (value, n) for at, (value, n) in enumerate(answer["recall"]["values"])}
    counts = {at: n for at, (_, n) in values.items()}
    assert answer["recall"]["n"] == row.n
    p25, p50 = quantiles(counts, lambda at: values[at][0], (0.25, 0.5))
    assert p25 == pytest.approx(row.recall_p25, abs=1e-12)
    assert p50 == pytest.approx(row.recall_p50, abs=1e-12)
    assert sum(value * n for value, n in answer["recall"]["values"]) / row.n == pytest.approx(
        row.recall_mean, abs=1e-12
    )
    assert {score["scorer"] for score in answer["scores"]} == {"reranker:bge-v2", "retriever:e5"}
    for score in answer["scores"]:
        assert score["n"] == _live(world, window, score["scorer"]).score_n


async def test_the_line_ends_on_the_live_number(world: World) -> None:
    """A rolling window that ends at the live window's end is that window: recall, and each scorer's score by itself."""
    row = _live(world, HOUR)
    async with served(world) as address:
        answer = await _ask(address, "series", step_s=60, to=row.window_end, **{"from": row.window_end - 7200})
    assert answer["t"][-1] == row.window_end
    assert len(answer["t"]) == 120
    last = {name: line[-1] for name, line in answer["recall"].items()}
    assert last["n"] == row.n
    for name in ("p25", "p50", "mean"):
        assert last[name] == pytest.approx(getattr(row, f"recall_{name}"), abs=1e-12)
    for lines in answer["scores"]:
        live = _live(world, HOUR, lines["scorer"])
        assert lines["p50"][-1] == pytest.approx(live.score_p50, abs=1e-12)


async def test_the_worst_traces_are_the_lowest_of_the_window(world: World) -> None:
    """The traces behind a fall: lowest recall first, newest first among equals, with what was retrieved and cited."""
    async with served(world) as address:
        answer = await _ask(address, "traces", window="1h")
    worst = worst_traces(world)[:20]
    assert [trace["trace_id"] for trace in answer["traces"]] == [row.trace_id for row in worst]
    for trace, row in zip(answer["traces"], worst, strict=True):
        assert trace["event_ms"] == row.event_time_ns // 1_000_000
        assert (trace["chunk_ids"], trace["cited_ranks"]) == (row.chunk_ids, row.cited_ranks)
        assert trace["hallucinated_ids"] == row.hallucinated_ids


def _live(world: World, window: str, scorer: str = "*") -> WindowRow:
    key = (window, *FALLEN, "*", scorer)
    return next(row for row in world.windows if (row.window, row.route, row.top_k_bucket, row.model, row.scorer) == key)


# ------------------------------------------------------------------------------------------------ what else may happen


async def test_the_table_shows_the_numbers(chromium: Chromium, world: World) -> None:
    """The row of the fallen group says what the service computed, to two decimals."""
    row = _live(world, HOUR)
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        shown = await tab.page.locator(".overview .row.fell .w1h").all_inner_texts()
        assert shown == [str(row.n), *(f"{value:.2f}" for value in (row.recall_p25, row.recall_p50, row.recall_mean))]
        red = await tab.page.locator(".overview .red").all_inner_texts()
        assert red[0].startswith("−"), "the change comes first"
        assert red[1:] == shown[1:], "only what fell is red"
        assert "proxy" in await tab.page.inner_text("footer")
        assert "never retrieved" in " ".join((await tab.page.inner_text("footer")).split())


async def test_a_trace_shows_which_chunks_are_cited(chromium: Chromium, world: World) -> None:
    """Behind a trace stand its chunks in rank order, the cited ones marked at their ranks, invented citations last."""
    worst = worst_traces(world)[:20]
    row = next(row for row in worst if row.cited_ranks)
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        trace = tab.page.locator(f"details[data-trace='{row.trace_id}']")
        await trace.locator("summary").click()
        shown = [line.split("\t") for line in await trace.locator("tbody tr").all_inner_texts()]
        wanted = [[str(rank), name] for rank, name in enumerate(row.chunk_ids, start=1)]
        assert [line[:2] for line in shown[:5]] == wanted
        assert [rank for rank, line in enumerate(shown[:5], start=1) if line[3] == "cited"] == row.cited_ranks
        assert tab.complaints == []


async def test_it_refreshes_by_itself_and_keeps_the_focus(chromium: Chromium, world: World) -> None:
    """Every 5 s new numbers appear, and whoever is on a row by keyboard stays there."""
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        await tab.page.locator(".overview .row.fell a").focus()
        world.windows = [replace_row(row, n=row.n + 1_000_000) for row in world.windows]
        world.drops = []
        await tab.page.get_by_role("heading", name="No drop").wait_for()
        assert await tab.page.evaluate("document.activeElement.textContent") == FALLEN[0]
        assert await tab.page.locator(".overview .red, .overview .fell").count() == 0
        assert (await tab.page.locator(".overview .w1h.edge").first.inner_text()).startswith("1,000,")
        assert tab.complaints == []


async def test_by_keyboard_to_a_group_and_back(chromium: Chromium, world: World) -> None:
    """Skip link, rows, window choice and the way back are links that Tab and Enter reach."""
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        await tab.page.keyboard.press("Tab")
        assert await tab.page.evaluate("document.activeElement.className") == "skip"
        await tab.page.locator(".overview .row a").first.focus()
        await tab.page.keyboard.press("Enter")
        await tab.drawn("group")
        await tab.page.locator(".choice a", has_text="24 h").focus()
        await tab.page.keyboard.press("Enter")
        await tab.page.locator(".choice [aria-current]:focus", has_text="24 h").wait_for()
        assert tab.page.url.endswith("window=24h")
        await tab.page.get_by_role("link", name="All routes").focus()
        await tab.page.keyboard.press("Enter")
        await tab.drawn("overview")
        assert tab.complaints == []


async def test_an_address_can_be_shared(chromium: Chromium, world: World) -> None:
    """Opening the address of a group and window shows that group and window at once."""
    async with served(world) as address, chromium.tab(f"{address}{GROUP}&window=6h") as tab:
        await tab.drawn("group")
        assert await tab.page.inner_text(".group h2") == "support top_k 1-5"
        assert await tab.page.inner_text(".choice [aria-current]") == "6 h"
        assert "support" in await tab.page.title()
        assert tab.complaints == []


async def test_without_traces_it_says_what_to_do(chromium: Chromium, world: World) -> None:
    """An empty page names the setting to look at and what the worker waits for."""
    world.windows, world.drops = [], []
    world.ready = Health(ok=False, lines=("source partition rag.traces/0: no heartbeat yet",))
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        said = await tab.page.inner_text("#status")
        assert "No traces yet" in said
        assert "kafka.source_topic" in said
        assert "no heartbeat yet" in said
        assert not await tab.page.locator(".overview").is_visible()
        await chromium.picture(tab, "empty")


async def test_old_numbers_are_called_old(chromium: Chromium, world: World) -> None:
    """The page does not say "no drop" of numbers that are twenty minutes behind."""
    world.drops = []
    world.now_ns = world.as_of_ns + 20 * 60 * 1_000_000_000
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        assert await tab.page.inner_text("#status h1") == "No drop known, but the numbers are old"
        assert "20 min behind" in await tab.page.inner_text("#clock")
        await chromium.picture(tab, "stale")


async def test_without_clickhouse_the_live_numbers_stay(chromium: Chromium, world: World) -> None:
    """A group's page without history says why and still shows the live window."""

    def away(_sql: str, _parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        raise RetryableError("query: ClickHouse at http://127.0.0.1:8123 does not answer")

    world.query = away
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        trouble = await tab.page.inner_text(".trouble")
        assert "ClickHouse at http://127.0.0.1:8123 does not answer" in trouble
        assert str(_live(world, HOUR).n) in await tab.page.inner_text(".numbers tbody")
        assert not await tab.page.locator(".chart").first.is_visible(), "an empty frame looks like an empty group"
        await chromium.picture(tab, "no-clickhouse")


async def test_a_lost_service_is_said_and_found_again(chromium: Chromium, world: World) -> None:
    """While nothing answers the page keeps its numbers, says from when they are, and recovers alone."""
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        await tab.page.context.set_offline(True)
        await tab.look_again()
        await tab.page.locator("#banner").wait_for(state="visible")
        assert "citegauge does not answer" in await tab.page.inner_text("#banner")
        assert await tab.page.locator(".overview .row").count() == 6
        await tab.page.context.set_offline(False)
        await tab.look_again()
        await tab.page.locator("#banner").wait_for(state="hidden")


async def test_a_hostile_name_is_only_text(chromium: Chromium, world: World) -> None:
    """Route names come from Kafka: markup in one is shown, not obeyed, also in the address and the chart page."""
    name = "<img src=x onerror=alert(1)>&\"'"
    world.windows = [replace_row(row, route=name) if row.route == FALLEN[0] else row for row in world.windows]
    world.drops = [{**world.drops[0], "route": name, "sentence": f"{name} fell"}]
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        assert await tab.page.inner_text("#status .drops") == f"{name} fell"
        await tab.page.locator("#status .drops a").click()
        await tab.drawn("group")
        assert await tab.page.inner_text(".group h2") == f"{name} top_k 1-5"
        assert await tab.page.locator("img").count() == 0
        assert tab.complaints == []


async def test_the_theme_can_be_chosen_and_is_kept(chromium: Chromium, world: World) -> None:
    """Auto, light, dark: the choice repaints the charts too and survives a reload."""
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        paper = "getComputedStyle(document.querySelector('.panel')).backgroundColor"
        light = await tab.page.evaluate(paper)
        for _ in range(2):
            await tab.page.locator("#theme").click()
        assert await tab.page.evaluate(paper) != light
        assert await tab.ink(".group") > 2_000
        await tab.page.reload()
        await tab.drawn("group")
        assert await tab.page.evaluate(paper) != light
        assert tab.complaints == []


async def test_many_groups_stay_usable(chromium: Chromium, world: World) -> None:
    """With hundreds of groups the filter finds one, and the drawn part has a bound that is said."""
    template = [row for row in world.windows if (row.route, row.top_k_bucket) == FALLEN and row.model == "*"]
    world.windows = [replace_row(row, route=f"route-{at:03}") for at in range(450) for row in template]
    world.drops = [{**world.drops[0], "route": "route-449"}]
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        assert await tab.page.locator(".overview .row").count() == 400
        assert await tab.page.locator(".overview .row th").first.inner_text() == "route-449", (
            "what fell is never cut off"
        )
        assert await tab.page.get_by_text("Not all groups are shown").is_visible()
        await tab.page.get_by_role("searchbox").fill("ROUTE-123")
        assert await tab.page.locator(".overview .row th").all_inner_texts() == ["route-123"]
        assert tab.complaints == []
