"""What a reader of the page sees, in headless Chromium, with real ClickHouse (chDB) under it."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import TestServer

from citegauge.adapters.clickhouse import EmbeddedTarget, connect
from citegauge.adapters.migrations import migrate
from citegauge.adapters.web import build_web_app
from support.web_world import World, make_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from support.browser import Chromium

pytest_plugins = ["support.browser"]

DATABASE = "citegauge_web_page"


@pytest.fixture(scope="module")
def made() -> Iterator[World]:
    """A world whose panes stand in ClickHouse."""
    world = make_world(time.time_ns() // 60_000_000_000 * 60_000_000_000 + 17_000_000_000)
    pytest.importorskip("chdb")
    clickhouse = connect(EmbeddedTarget(), DATABASE)
    clickhouse.command(f"DROP DATABASE IF EXISTS {DATABASE}")
    migrate(clickhouse, DATABASE)
    clickhouse.insert(world.panes)
    world.query = clickhouse.query
    yield world
    clickhouse.close()


@pytest.fixture
def world(made: World) -> World:
    """The same with nothing changed by other tests."""
    return World(**{name: getattr(made, name) for name in ("as_of_ns", "now_ns", "panes", "windows", "drops", "query")})


@asynccontextmanager
async def served(world: World) -> AsyncIterator[str]:
    """The page on a port of loopback."""
    async with TestServer(build_web_app(world.sources(DATABASE)), host="127.0.0.1") as server:
        yield str(server.make_url("/"))


LOOKS = [("light", 1360), ("dark", 1360), ("light", 390)]


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
async def test_a_reader_goes_from_the_drop_to_its_group(chromium: Chromium, world: World, scheme: str, width: int) -> None:
    """From the sentence over the row to lines and distributions: everything is drawn and nothing complains."""
    async with served(world) as address, chromium.tab(address, width=width, scheme=scheme) as tab:
        await tab.drawn("overview")
        assert await tab.page.inner_text("#status h1") == "1 drop"
        assert "fell from" in await tab.page.inner_text("#status .drops")
        assert await tab.page.locator(".overview .row").count() == 6
        assert await tab.page.locator(".overview .row.fell").count() == 1
        await chromium.picture(tab, f"overview-{scheme}-{width}")
        await tab.page.locator(".overview .row.fell .bucket").click()
        await tab.drawn("group")
        assert "route=support" in tab.page.url
        assert await tab.page.inner_text(".group h2") == "support top_k 1-5"
        assert await tab.ink(".group") > 2_000
        assert await tab.page.locator(".bars .bar").count() > 10
        await chromium.picture(tab, f"group-{scheme}-{width}")
        assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.complaints == []
