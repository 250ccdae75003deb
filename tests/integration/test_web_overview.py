"""The table of all groups, in headless Chromium: what has no bucket stands with its route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_row

from support.web_world import FALLEN, World, served

if TYPE_CHECKING:
    from support.browser import Chromium

pytest_plugins = ["support.browser", "support.web_served"]


@pytest.mark.parametrize("width", [1360, 390])
async def test_halves_stand_with_their_route(chromium: Chromium, world: World, width: int) -> None:
    """No row of their own; their number leads to them, and follows when it changes."""
    own = [row for row in world.windows if (row.route, row.top_k_bucket) == FALLEN and row.model == row.scorer == "*"]
    halves = [replace_row(row, top_k_bucket="unknown", n=0, states={"no_retrieval": 12}) for row in own]
    assert halves
    rows = world.windows
    world.windows = [*rows, *halves]
    async with served(world) as address, chromium.tab(address, width=width) as tab:
        await tab.drawn("overview")
        assert await tab.page.locator(".overview .row").count() == 6
        assert await tab.page.locator(".overview .apart a").all_inner_texts() == ["+12 no_retrieval"]
        assert await tab.page.locator(".overview .row.fell .apart a").count() == 1
        await tab.fits()
        await chromium.picture(tab, f"overview-halves-{width}")
        world.windows = [*rows, *(replace_row(row, states={"no_retrieval": 13}) for row in halves)]
        await tab.page.get_by_text("+13 no_retrieval").wait_for()
        await tab.page.get_by_text("+13 no_retrieval").click()
        await tab.drawn("group")
        assert "top_k_bucket=unknown&state=no_retrieval" in tab.page.url
        assert tab.complaints == []
