"""Pytest plug-in: a headless Chromium that the page is looked at with, and a loud line when there was none.

Environment: `CITEGAUGE_CHROMIUM=/path` names the program; `CITEGAUGE_REQUIRE_CHROMIUM=1` makes its absence a failure;
`CITEGAUGE_SCREENSHOTS=DIR` says where the pictures go (else the test's temporary folder).
"""

from __future__ import annotations

import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

try:
    from playwright.async_api import async_playwright
except ImportError:
    # Its absence is reported where a browser is wanted, and is no error elsewhere.
    async_playwright = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

REQUIRE = "CITEGAUGE_REQUIRE_CHROMIUM"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS_MAX = 30_000
TABS_MAX = 80

_missing = pytest.StashKey[str]()


@dataclass(slots=True)
class Tab:
    """One page and everything it complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    async def drawn(self, view: str) -> None:
        """Wait until the page says that this view stands with its numbers."""
        await self.page.wait_for_selector(f"html[data-drawn={view}]", timeout=WAIT_MS_MAX)

    async def fits(self) -> None:
        """Wait until nothing sticks out to the right (a chart follows its place a frame later)."""
        # Not wait_for_function: it evaluates text inside the page, which the page's own policy forbids.
        script = """async () => {
            for (let frame = 0; frame < 120; frame += 1) {
                if (document.documentElement.scrollWidth <= innerWidth) return "";
                await new Promise(requestAnimationFrame);
            }
            const sticksOut = (node) => node.getBoundingClientRect().right > innerWidth;
            const name = (node) => `${node.tagName}.${node.getAttribute("class") ?? ""}`;
            return [...document.querySelectorAll("*")].filter(sticksOut).map(name).join(" ") || "something";
        }"""
        assert await self.page.evaluate(script) == ""

    async def look_again(self) -> None:
        """Have the page ask at once, as it does whenever it becomes visible, instead of at its next turn."""
        await self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    async def reach(self, selector: str) -> None:
        """Press Tab until the first element of `selector` has the focus, as a reader without a pointer does."""
        wanted = self.page.locator(selector).first
        await wanted.wait_for()
        for _ in range(TABS_MAX):
            if await wanted.evaluate("node => node === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"{selector} is not reached within {TABS_MAX} presses of Tab")

    async def ink(self, selector: str) -> int:
        """How many pixels of the canvases under `selector` are drawn on."""
        script = """(nodes) => nodes.reduce((sum, canvas) => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 3; at < data.length; at += 4) found += data[at] > 0;
            return sum + found;
        }, 0)"""
        return int(await self.page.eval_on_selector_all(f"{selector} canvas", script))


@dataclass(slots=True)
class Chromium:
    """A started browser."""

    browser: Browser
    pictures: Path

    @asynccontextmanager
    async def tab(
        self, address: str, *, width: int = 1360, height: int = 900, scheme: Literal["light", "dark"] = "light"
    ) -> AsyncIterator[Tab]:
        """Open an address in a profile of its own, noting console errors, failed requests and exceptions."""
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1, locale="en-GB"
        )
        tab = Tab(await context.new_page())
        note: Any = tab.complaints.append
        tab.page.on("console", lambda said: note(said.text) if said.type in {"error", "warning"} else None)
        tab.page.on("pageerror", lambda error: note(str(error)))
        tab.page.on("requestfailed", lambda request: note(f"{request.url}: {request.failure}"))
        await tab.page.goto(address)
        try:
            yield tab
        finally:
            await context.close()

    async def picture(self, tab: Tab, name: str) -> Path:
        """A PNG of the whole page."""
        path = self.pictures / f"{name}.png"
        await tab.page.screenshot(path=path, full_page=True)
        return path


def _program() -> str | None:
    own = os.environ.get("CITEGAUGE_CHROMIUM")
    return own or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@pytest.fixture
async def chromium(pytestconfig: pytest.Config, tmp_path: Path) -> AsyncIterator[Chromium]:
    """A headless Chromium with a fresh profile; skips, loudly, when there is none."""
    program = _program()
    reason = f"none of {', '.join(PROGRAMS)} is installed (Debian: apt-get install chromium)"
    if async_playwright is None:
        reason = "the package playwright is not installed"
    if program is None or async_playwright is None:
        pytestconfig.stash[_missing] = reason
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE}=1, but {reason}", pytrace=False)
        pytest.skip(f"no Chromium: {reason}")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield Chromium(browser, Path(os.environ.get("CITEGAUGE_SCREENSHOTS") or tmp_path))
        await browser.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The loud line."""
    reason = config.stash.get(_missing, None)
    if reason:
        terminalreporter.section("The web page WAS NOT LOOKED AT", sep="!", red=True, bold=True)
        terminalreporter.write_line(f"{reason}. Its endpoints were tested; what a reader sees was not.", red=True)
