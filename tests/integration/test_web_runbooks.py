"""The runbooks as the worker serves them: the links of an alert, and the links in the pages, lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from citegauge.adapters.web import WebGuard, WebLimits, build_web_app
from citegauge.section_alerts import AlertSettings
from citegauge.sections import WebSettings
from citegauge.tools.rules import alerts
from citegauge.tools.rules.links import links
from support.web_world import make_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FOLDER = Path(__file__).parents[2] / "docs" / "runbooks"


async def answer(url: str, **asked: Any) -> tuple[int, str, str]:
    """Status, kind of content and text."""
    async with ClientSession() as session, session.get(url, **asked) as got:
        return got.status, got.content_type, await got.text()


@pytest.fixture
async def base() -> AsyncIterator[str]:
    """Where a worker with a token serves, as the settings would have it in `web.public_url`."""
    guard = WebGuard(token=SecretStr("s3cret"))
    app = build_web_app(make_world(1_795_997_477_000_000_000).sources(), limits=WebLimits(), guard=guard)
    async with TestServer(app, host="127.0.0.1") as server:
        yield str(server.make_url("/"))


async def test_every_alert_leads_to_its_page(base: str) -> None:
    """A browser cannot send the token, and the pages hold no numbers: they are shown, as HTML, with their name."""
    found = links(AlertSettings(), WebSettings(public_url=base))
    for alert in alerts(AlertSettings()):
        status, kind, text = await answer(f"{found.runbooks}{alert.runbook}.md")
        assert (status, kind) == (200, "text/html")
        assert f"<h1>{alert.name}</h1>" in text
        assert f"<title>{alert.name} " in text


async def test_links_in_the_pages_lead_somewhere(base: str) -> None:
    """From the index to every page, from a page to others, and to the page's own files; nothing is fetched from afar."""
    waiting, seen = [f"{base}runbooks/"], set()
    while waiting:
        at = waiting.pop()
        seen.add(at)
        status, kind, text = await answer(at)
        assert status == 200, at
        if kind == "text/html" and "/runbooks/" in at:
            for link in re.findall(r'(?:href|src)="([^"]+)"', text):
                to = urljoin(at, link)
                assert urlsplit(to).netloc == urlsplit(base).netloc, link
                waiting += [to] if to not in seen and to not in waiting else []
    pages = {path.name for path in FOLDER.glob("*.md")} - {"README.md"}
    assert pages <= {url.rpartition("/")[2] for url in seen}


@pytest.mark.parametrize("suffix", ["", ".md"])
async def test_a_page_is_whole(suffix: str, base: str) -> None:
    """Tables are tables, queries are code, and what looks like HTML is text; the headers are those of the page."""
    _, _, text = await answer(f"{base}runbooks/README{suffix}")
    assert text.count("<tr>") == 1 + len(alerts(AlertSettings()))
    _, _, text = await answer(f"{base}runbooks/recall-drop{suffix}")
    assert '<code class="language-sql">SELECT model' in text
    assert "<script" not in text
    async with ClientSession() as session, session.get(f"{base}runbooks/recall-drop{suffix}") as got:
        assert got.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "name", ["nothing", "nothing.md", "..%2fREADME", "..%2f..%2fREADME.md", "<b>", "%00", "x" * 4_000]
)
async def test_other_names_lead_nowhere(name: str, base: str) -> None:
    """Names are looked up among those that there are, and not repeated."""
    status, kind, text = await answer(f"{base}runbooks/{name}")
    assert (status, kind, text) == (404, "text/plain", "there is no such runbook\n")


async def test_the_guard_holds(base: str) -> None:
    """Under a name that is not the worker's, runbooks are refused as everything else is."""
    app = build_web_app(make_world(1_795_997_477_000_000_000).sources(), limits=WebLimits(), guard=WebGuard())
    async with TestServer(app, host="127.0.0.1") as server:
        url = str(server.make_url("/runbooks/down.md"))
        assert (await answer(url))[0] == 200
        assert (await answer(url, headers={"Host": "elsewhere.example"}))[0] == 421
