"""What the page says of traces that were not measured: why, and nothing that would read as a number."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace as replace_row

from support.web_world import FALLEN, World, served

if TYPE_CHECKING:
    from support.browser import Chromium

pytest_plugins = ["support.browser", "support.web_served"]

GROUP = "#/group?" + urlencode({"route": FALLEN[0], "top_k_bucket": FALLEN[1]})
UNMEASURED = {
    "no_generation": ("5 retrieved, no answer", "retrieved", ["rank", "chunk", "score"]),
    "empty_retrieval": ("none retrieved, no answer", "retrieved", []),
    "nonconformant": ("5 retrieved", "answered", ["rank", "chunk", "score", "cited"]),
    "truncated": ("5 retrieved", "answered", ["rank", "chunk", "score", "cited"]),
}
"""In the list, on the page, and above the chunks."""


@pytest.mark.parametrize("state", UNMEASURED)
async def test_of_an_unmeasured_trace_nothing_is_counted(chromium: Chromium, world: World, state: str) -> None:
    """A count would read as a recall of 0, and what was never answered has no time at which it was."""
    row = next(row for row in world.traces if row.state == state)
    if state == "empty_retrieval":
        row = replace_row(row, lag_ns=0)
        found = {name: getattr(row, name) for name in row.__struct_fields__}
        found |= {"pane_s": row.pane, "dropped_cited_ids": [], "unjudged_cited_ids": []}
        world_query = world.query
        world.query = lambda sql, given: [dict(found)] if "chunk_ids" in sql else world_query(sql, given)
    short, time, heads = UNMEASURED[state]
    async with served(world) as address, chromium.tab(f"{address}{GROUP}&state={state}") as tab:
        await tab.drawn("group")
        line = tab.page.locator(".traces summary", has_text=row.trace_id)
        assert [part for part in (await line.inner_text()).splitlines() if part][:2] == ["–", short]
        await line.click()
        await tab.page.get_by_role("link", name="Everything about this trace").click()
        await tab.drawn("trace")
        facts = (await tab.page.inner_text(".facts")).splitlines()
        assert facts[0] == time
        assert ("answer after" in facts) == (time == "answered")
        assert await tab.page.locator(".chunks th").all_inner_texts() == heads
        await chromium.picture(tab, f"trace-{state}")
        assert tab.complaints == []
