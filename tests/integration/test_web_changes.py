"""What changed, now and over the last day: the ranking of the overview, the alert history, and whether all can read it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace as replace_row

from citegauge.domain.cusum import Cusum
from citegauge.domain.drop import Limits, drops
from citegauge.domain.episodes import HOUR_S, STEP_S
from support.web_world import FALLEN, World, served

if TYPE_CHECKING:
    from citegauge.domain.signals import Signal
    from support.browser import Chromium

pytest_plugins = ["support.browser", "support.web_served"]

GROUP = "#/group?" + urlencode({"route": FALLEN[0], "top_k_bucket": FALLEN[1]})
CONTRAST_MIN = 4.5
"""WCAG 2.2, 1.4.3 (AA)."""


async def _ask(address: str, path: str, status: int = 200, **parameters: str) -> Any:
    async with ClientSession() as session, session.get(f"{address}api/{path}?{urlencode(parameters)}") as response:
        assert response.status == status, await response.text()
        return await response.json()


def _of(world: World, key: tuple[str, str], scorer: str = "*") -> Signal:
    return next(one for one in world.signals if (one.route, one.top_k_bucket, one.scorer) == (*key, scorer))


def _set(world: World, key: tuple[str, str], ratio: float) -> None:
    """Let this group's recall have changed to `ratio` of what it was, beyond doubt."""
    old = _of(world, key)
    assert old.compared is not None
    sure = replace(old.compared, after=old.compared.before * ratio, se_after=0.001, se_before=0.001)
    world.signals = [replace(one, compared=sure) if one is old else one for one in world.signals]


# ------------------------------------------------------------------------------------------------ now


async def test_changes_are_those_of_the_detectors(world: World) -> None:
    """What the page calls a change is the detectors' own comparison, with the interval of the relative change."""
    async with served(world) as address:
        overview = await _ask(address, "windows")
        detail = await _ask(address, "windows", route=FALLEN[0], top_k_bucket=FALLEN[1])
    group = next(one for one in overview["groups"] if (one["route"], one["top_k_bucket"]) == FALLEN)
    assert group["changes"] == detail["group"]["changes"]
    assert set(group["changes"]) == {"*", "reranker:bge-v2", "retriever:e5"}
    compared = _of(world, FALLEN).compared
    assert compared is not None
    assert compared.fall_interval is not None
    change = group["changes"]["*"]
    assert (change["before"], change["after"]) == (compared.before, compared.after)
    assert (change["n"], change["n_before"]) == (compared.n_after, compared.n_before)
    assert change["change"] == pytest.approx(compared.after / compared.before - 1)
    assert (change["lower"], change["upper"]) == (-compared.fall_interval.upper, -compared.fall_interval.lower)


async def test_groups_are_ranked_by_what_changed(chromium: Chromium, world: World) -> None:
    """Drops, then falls beyond doubt by their size, then rises; what may be chance keeps the order of names."""
    world.signals = list(world.signals)
    for one in list(world.signals):  # chance must not decide: of some minutes it may be beyond doubt
        if one.scorer == "*" and one.compared is not None and (one.route, one.top_k_bucket) != FALLEN:
            _set(world, (one.route, one.top_k_bucket), 1.0)
    _set(world, ("docs-search", "6-10"), 0.95)
    _set(world, ("docs-search", "11-20"), 0.9)
    _set(world, ("support", "6-10"), 1.3)
    sure = {"recall_mean_lower": 0.21, "recall_mean_upper": 0.36}
    world.windows = [replace_row(row, **sure) if row.window == "1h" else row for row in world.windows]
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        rows = tab.page.locator(".overview .row")
        names = await rows.locator("th").all_inner_texts()
        buckets = await rows.locator(".bucket").all_inner_texts()
        assert list(zip(names, buckets, strict=True)) == [
            FALLEN,
            ("docs-search", "11-20"),
            ("docs-search", "6-10"),
            ("support", "6-10"),
            ("billing/refunds-and-chargebacks-eu", "1-5"),
            ("contracts", "21-50"),
        ]
        change = await rows.nth(1).locator(".change").first.inner_text()
        assert " ".join(change.split()).startswith("−10 % −1")
        compared = _of(world, FALLEN).compared
        assert compared is not None
        fall = round(100 * (1 - compared.after / compared.before))
        assert (await rows.first.locator(".change .by").first.inner_text()) == f"−{fall} %"
        await rows.first.locator("th a").click()
        await tab.drawn("group")
        assert "0.21–0.36" in await tab.page.inner_text(".numbers tbody")
        said = await tab.page.inner_text(".changes")
        assert f"Mean recall fell: −{fall} %" in said
        assert f"n = {compared.n_after:,} in the last hour against {compared.n_before:,} of the day before it" in said
        assert tab.complaints == []


async def test_before_the_detectors_spoke_nothing_is_a_change(chromium: Chromium, world: World) -> None:
    """In the first minute there is no comparison: a dash, not 0 %."""
    world.signals = []
    async with served(world) as address, chromium.tab(address) as tab:
        await tab.drawn("overview")
        assert set(await tab.page.locator(".overview .change").all_inner_texts()) == {"–"}
        assert tab.complaints == []


# ------------------------------------------------------------------------------------------------ over the last day


async def test_the_alert_history_knows_the_drop_and_since_when(world: World) -> None:
    """The fall of the last hour is found in the panes, goes on, and is told like the live comparison tells it."""
    async with served(world) as address:
        answer = await _ask(address, "alerts", route=FALLEN[0], top_k_bucket=FALLEN[1])
        quiet = await _ask(address, "alerts", route="docs-search", top_k_bucket="6-10")
        missing = await _ask(address, "alerts", 400)
    (alert,) = answer["alerts"]
    assert (alert["scorer"], alert["ongoing"], alert["ended_s"]) == ("*", True, None)
    assert answer["end_s"] - HOUR_S <= alert["detected_s"] <= answer["end_s"] <= world.as_of_ns // 10**9
    assert alert["detected_s"] % STEP_S == 0
    assert abs(alert["started_s"] - (answer["end_s"] - HOUR_S)) <= STEP_S, "it fell an hour ago"
    live = _of(world, FALLEN).compared
    assert live is not None
    assert live.fall is not None
    assert alert["change"] <= -live.fall, "at worst it is no less than it is now"
    assert alert["lower"] < alert["change"] < alert["upper"] < 0
    assert quiet["alerts"] == []
    assert missing["error"] == "route is missing"


async def test_the_alert_history_judges_by_the_settings(world: World) -> None:
    """A fall that the settings do not call one is none in the past either."""
    world.drop_limits = Limits(traces_min=100_000)
    async with served(world) as address:
        answer = await _ask(address, "alerts", route=FALLEN[0], top_k_bucket=FALLEN[1])
    assert answer["alerts"] == []


async def test_a_page_tells_one_episode(chromium: Chromium, world: World) -> None:
    """The sentence above, the line of the alert history and the mark on the chart are of one drop: one start, one size."""
    (drop,) = drops(world.signals)
    started_s = world.as_of_ns // 10**9 // 60 * 60 - 50 * 60
    compared = _of(world, FALLEN).compared
    signal = replace(_of(world, FALLEN), cusum=Cusum(ratio=3.0, since_s=started_s, n=drop.n, fall=drop.moved))
    world.signals = [signal if one.scorer == "*" and one.compared is compared else one for one in world.signals]
    (drop,) = drops(world.signals)
    world.drops = [drop.as_dict()]
    async with served(world) as address:
        (alert,) = (await _ask(address, "alerts", route=FALLEN[0], top_k_bucket=FALLEN[1]))["alerts"]
        assert alert["started_s"] == started_s
        assert alert["change"] == pytest.approx(-drop.moved)
        assert alert["worst_s"] == alert["detected_s"] or -alert["change"] >= drop.moved
        async with chromium.tab(address + GROUP) as tab:
            await tab.drawn("group")
            above, line = await tab.page.inner_text("#status .drops"), await tab.page.inner_text(".alerts .ongoing")
            assert f"fell by {100 * drop.moved:.0f} %" in above
            assert f"at worst −{100 * drop.moved:.0f} %" in line
            when = f"{started_s // 3600 % 24:02d}:{started_s // 60 % 60:02d}"
            assert f"since about {when} UTC" in above
            assert re.match(rf"\d+ \w+ {when} to now", line)
            text = await tab.page.inner_text("body")
            assert re.findall(r"\d%", text) == [], "a space before each percent sign"
            assert f"fell: −{100 * drop.moved:.0f} %" in text
            await chromium.picture(tab, "one-episode")
            assert tab.complaints == []


async def test_what_is_over_now_has_ended(world: World) -> None:
    """The live hour has the last word: what it does not find fallen any more does not go on below."""
    _set(world, FALLEN, 1.0)
    async with served(world) as address:
        answer = await _ask(address, "alerts", route=FALLEN[0], top_k_bucket=FALLEN[1])
    (alert,) = answer["alerts"]
    assert (alert["ongoing"], alert["ended_s"]) == (False, answer["end_s"])


async def test_the_alert_history_is_shown(chromium: Chromium, world: World) -> None:
    """Since when, how much and how sure, in one line; a quiet group says that nothing had dropped."""
    async with served(world) as address:
        alert = (await _ask(address, "alerts", route=FALLEN[0], top_k_bucket=FALLEN[1]))["alerts"][0]
        async with chromium.tab(address + GROUP) as tab:
            await tab.drawn("group")
            line = await tab.page.inner_text(".alerts .ongoing")
            assert "to now" in line
            assert f"recall at worst −{abs(100 * alert['change']):.0f} %" in line
            assert f"n = {alert['n']}" in line
            assert tab.complaints == []
        other = "#/group?" + urlencode({"route": "docs-search", "top_k_bucket": "6-10"})
        async with chromium.tab(address + other) as tab:
            await tab.drawn("group")
            assert await tab.page.get_by_text("Nothing had dropped.").is_visible()


# ------------------------------------------------------------------------------------------------ for every reader


PALE = """(least) => {
    const rgba = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
    const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
    const part = (value) => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const chain = (node) => (node ? [...chain(node.parentElement), node] : []);
    const found = new Set();
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!own || !node.checkVisibility() || node.closest(".unseen, .skip, noscript")) continue;
        let behind = [255, 255, 255], seen = 1;
        for (const one of chain(node)) {
            const style = getComputedStyle(one);
            behind = over(rgba(style.backgroundColor), behind);
            seen *= Number(style.opacity);
        }
        const style = getComputedStyle(node);
        const [r, g, b, a] = rgba(node instanceof SVGElement ? style.fill : style.color);
        const [one, other] = [light(over([r, g, b, a * seen], behind)), light(behind)];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < least) found.add(`${node.textContent.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return [...found];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_stands_out(chromium: Chromium, world: World, scheme: Literal["light", "dark"]) -> None:
    """No text on any page is paler than WCAG's AA asks for, in light and in dark."""
    trace = world.traces[-1]
    pages = (("overview", ""), ("group", GROUP), ("trace", f"#/trace/{trace.trace_id}"))
    async with served(world) as address:
        for view, path in pages:
            async with chromium.tab(address + path, scheme=scheme) as tab:
                await tab.drawn(view)
                assert await tab.page.evaluate(PALE, CONTRAST_MIN) == [], view
