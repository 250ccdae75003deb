"""Addresses that lead nowhere, whose drop it is, and whether anything overlaps for readers who enlarge the page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import pytest
from msgspec.structs import replace as replace_row

from support.web_world import FALLEN, World, served, worst_traces

if TYPE_CHECKING:
    from support.browser import Chromium

pytest_plugins = ["support.browser", "support.web_served"]

EXAMPLE = "4bf92f3577b34da6a3ce929d0e0e4736"


def _group(route: str, bucket: str | None = None) -> str:
    return "#/group?" + urlencode({"route": route} | ({"top_k_bucket": bucket} if bucket else {}))


GROUP = _group(*FALLEN)


async def test_an_unknown_route_is_no_page_of_its_own(chromium: Chromium, world: World) -> None:
    """It is named, nothing is drawn of it, and what there is can be reached; once it has traces it is drawn."""
    windows, world.windows = world.windows, [row for row in world.windows if row.route != "docs-search"]
    world_query = world.query
    world.query = lambda sql, given: [] if given.get("route") == "docs-search" else world_query(sql, given)
    async with served(world) as address, chromium.tab(address + _group("docs-search", "6-10")) as tab:
        await tab.drawn("lost")
        said = await tab.page.inner_text("#view")
        assert "No such route" in said
        assert "no trace of the route docs-search with top_k 6-10 was counted" in said
        assert await tab.page.locator(".group, .chart, .numbers").count() == 0
        assert "No drop" not in await tab.page.inner_text("#status")
        assert await tab.page.inner_text("#status") == "1 drop: see all routes"
        assert "not found" in await tab.page.title()
        await chromium.picture(tab, "unknown-route")
        world.windows, world.query = windows, world_query
        await tab.look_again()
        await tab.drawn("group")
        assert await tab.page.inner_text(".group h2") == "docs-search top_k 6-10"
        world.query = lambda sql, given: [] if given.get("route") == "suport" else world_query(sql, given)
        await tab.page.evaluate(f"location.hash = '{_group('suport', '1-5')}'")
        await tab.drawn("lost")
        await tab.page.locator(".known a", has_text="support").first.click()
        await tab.drawn("group")
        assert tab.complaints == []


async def test_another_bucket_of_a_known_route_comes_first(chromium: Chromium, world: World) -> None:
    """Who mistypes the bucket, or leaves it out, is led to those that the route has."""
    async with served(world) as address:
        for bucket, title in (("50+", "No such route"), (None, "Which route, and which top_k?")):
            async with chromium.tab(address + _group("support", bucket)) as tab:
                await tab.drawn("lost")
                assert await tab.page.inner_text(".lostpage h2") == title
                await tab.page.locator(".known").wait_for()
                shown = await tab.page.locator(".known a").all_inner_texts()
                assert shown[:2] == ["support top_k 1-5", "support top_k 6-10"]
                assert len(shown) == 6
                assert tab.complaints == []


async def test_a_group_with_a_past_alone_is_drawn(chromium: Chromium, world: World) -> None:
    """What ClickHouse has of the last 24 h is known, although this worker holds no live window of it."""
    world.windows = [row for row in world.windows if row.route != FALLEN[0]]
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        assert await tab.ink(".group") > 2_000


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("abc", None),
        (EXAMPLE.upper(), EXAMPLE),
        ("4bf92f35-77b3-4da6-a3ce-929d0e0e4736", EXAMPLE),
        ("<img src=x onerror=alert(1)>", None),
        ("", None),
    ],
)
async def test_a_malformed_trace_id_is_told_what_one_looks_like(
    chromium: Chromium, world: World, text: str, meant: str | None
) -> None:
    """Not the overview without a word: what was asked for, what an id is, and the one that was likely meant."""
    async with served(world) as address, chromium.tab(f"{address}#/trace/{quote(text)}") as tab:
        await tab.drawn("lost")
        said = await tab.page.inner_text(".lostpage")
        assert f"{text or '(nothing)'} is no trace id" in said
        assert "32 lower-case hexadecimal digits" in said
        links = await tab.page.locator(".lostpage .panel a").all_inner_texts()
        assert links == ([meant] if meant else [])
        assert await tab.page.locator("img").count() == 0
        await chromium.picture(tab, "no-trace-id")
        assert tab.complaints == []


async def test_an_address_that_is_none_says_so(chromium: Chromium, world: World) -> None:
    """A mistyped page is no overview."""
    async with served(world) as address, chromium.tab(f"{address}#/rubbish") as tab:
        await tab.drawn("lost")
        assert "#/rubbish leads nowhere" in await tab.page.inner_text(".lostpage")
        await tab.page.locator(".title a").click()
        await tab.drawn("overview")
        assert tab.complaints == []


async def test_the_skip_link_stays_on_its_page(chromium: Chromium, world: World) -> None:
    """Skipping to the numbers of a group leads to the numbers of that group."""
    async with served(world) as address, chromium.tab(address + GROUP) as tab:
        await tab.drawn("group")
        await tab.page.locator(".skip").focus()
        await tab.page.keyboard.press("Enter")
        await tab.page.locator("#main:focus").wait_for()
        assert await tab.page.locator(".group").count() == 1
        assert tab.page.url.endswith(GROUP)


async def test_a_drop_of_the_group_of_a_trace_is_not_elsewhere(chromium: Chromium, world: World) -> None:
    """On a trace of the group that fell the drop stands in its words; only what is of other groups is elsewhere."""
    world.drops = [
        *world.drops,
        {**world.drops[0], "route": "docs-search", "top_k_bucket": "6-10", "sentence": "another"},
    ]
    trace = worst_traces(world)[0]
    async with served(world) as address, chromium.tab(f"{address}#/trace/{trace.trace_id}?at={trace.pane}") as tab:
        await tab.drawn("trace")
        said = await tab.page.inner_text("#status")
        assert "1 drop in the group of this trace" in said
        assert str(world.drops[0]["sentence"]) in said
        assert "1 drop elsewhere: see all routes" in said
        await chromium.picture(tab, "trace-of-a-drop")
        async with chromium.tab(f"{address}#/trace/{'e' * 32}") as other:
            await other.drawn("trace")
            assert await other.page.inner_text("#status") == "2 drops: see all routes", (
                "of no group: nothing is elsewhere"
            )


# ------------------------------------------------------------------------------------------------ enlarged

OVERLAPS = """() => {
    const shown = (box, node) => {
        let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
        for (let one = node.parentElement; one; one = one.parentElement) {
            if (getComputedStyle(one).overflowX === "visible") continue;
            const clip = one.getBoundingClientRect();
            [left, top] = [Math.max(left, clip.left), Math.max(top, clip.top)];
            [right, bottom] = [Math.min(right, clip.right), Math.min(bottom, clip.bottom)];
        }
        return { left, top, right, bottom };
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        const parent = node.parentElement;
        if (!node.data.trim() || !parent.checkVisibility() || parent.closest(".unseen, .skip, noscript, thead")) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const box of range.getClientRects()) found.push([node, shown(box, node)]);
    }
    const said = new Set();
    found.forEach(([one, a], at) => {
        for (const [other, b] of found.slice(at + 1)) {
            if (one === other) continue;
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            // Numbers of two columns that touch read as one.
            const least = one.parentElement.closest("td.num") && other.parentElement.closest("td.num") ? -3 : 1;
            if (wide > least && high > 3) said.add(`${one.data.trim().slice(0, 30)} | ${other.data.trim().slice(0, 30)}`);
        }
    });
    return [...said];
}"""


@pytest.mark.parametrize("width", [1360, 1000, 680, 640, 400, 320])
async def test_no_number_stands_on_another(chromium: Chromium, world: World, width: int) -> None:
    """Not in a window of 1360 or 1280 px enlarged to 200 % (680, 640 px) and not to 400 % (WCAG 2.2, 1.4.10)."""
    trace = next(row for row in world.traces if row.dropped_cited_ids)
    busy = {"1h": 123_456, "6h": 765_432, "24h": 1_234_567 if width < 1240 else 987_654}
    many = {"measured": 1_345_678, "nonconformant": 123_456, "no_output": 1_234_567, "no_generation": 98_765}
    world.windows = [
        replace_row(row, n=busy[row.window], score_n=busy[row.window], states=many, citations=9_876_543)
        for row in world.windows
    ]
    async with served(world) as address:
        for view, path in (("overview", ""), ("group", GROUP), ("trace", f"#/trace/{trace.trace_id}")):
            async with chromium.tab(address + path, width=width, height=450) as tab:
                await tab.drawn(view)
                await tab.fits()
                if view == "group":
                    await tab.page.locator(".traces summary").first.click()
                await chromium.picture(tab, f"wide-{view}-{width}")
                assert await tab.page.evaluate(OVERLAPS) == [], view
