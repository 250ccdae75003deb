"""Who gets in, by which name and how often; asked through a real server on loopback, and in a browser."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession, CookieJar
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from citegauge.adapters.web import WebGuard, WebLimits, build_web_app
from citegauge.adapters.web.guard import Buckets, is_loopback
from citegauge.errors import ConfigError
from support.web_world import World, make_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from support.browser import Chromium

pytest_plugins = ["support.browser"]

AS_OF_NS = 1_795_997_477_000_000_000
TOKEN = "s3cret-Token~!"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
NUMBERS = [
    "/api/windows",
    "/api/drops",
    "/api/series",
    "/api/distribution",
    "/api/traces",
    "/metrics",
    "/nowhere",
    "/api",
]
OPEN = ["/healthz", "/readyz", "/", "/static/js/app.js", "/static/page.css", "/runbooks/", "/runbooks/down.md"]


@pytest.fixture(scope="module")
def world() -> World:
    """A world without a ClickHouse."""
    return make_world(AS_OF_NS)


@asynccontextmanager
async def served(world: World, **rules: Any) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of the page under these rules."""
    app = build_web_app(world.sources(), limits=WebLimits(), guard=WebGuard(**rules))
    async with TestClient(TestServer(app, host="127.0.0.1"), cookie_jar=CookieJar()) as client:
        yield client


# ------------------------------------------------------------------------------------------------ token


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "", "127.0.0.1.example.org"])
def test_without_a_token_only_loopback_is_served(host: str) -> None:
    """Numbers of production do not lie open to the network by one careless setting; the refusal is one line."""
    for empty in (None, SecretStr("")):
        with pytest.raises(ConfigError, match=r"web\.token") as caught:
            WebGuard(host=host, token=empty)
        assert "\n" not in str(caught.value)
    WebGuard(host=host, token=SecretStr(TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_token(host: str) -> None:
    """On one's own machine it works at once."""
    assert is_loopback(host)
    WebGuard(host=host)


@pytest.mark.parametrize("token", ["with space", "naïve", "line\nbreak", "\x00", " "])
def test_a_token_that_no_client_can_send_is_refused(token: str) -> None:
    """Else nobody would get in, and nobody would know why. The token is not repeated in the message."""
    with pytest.raises(ConfigError, match=r"web\.token") as caught:
        WebGuard(token=SecretStr(token))
    assert token.strip() == "" or token not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_numbers_want_the_token_and_health_does_not(world: World, host: str) -> None:
    """Everything but health and the page's own files answers 401 until the right token comes, however it is bound."""
    async with served(world, host=host, token=SecretStr(TOKEN)) as client:
        for path in NUMBERS:
            response = await client.get(path)
            assert response.status == 401, path
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert await response.json() == {"error": "the token is missing or wrong"}
            assert (await client.get(path, headers=RIGHT)).status != 401, path
        for path in OPEN:
            assert (await client.get(path)).status == 200, path


@pytest.mark.parametrize(
    "wrong",
    ["Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}",
     "Bearer é", f"Bearer {TOKEN} {TOKEN}", "Bearer " + "x" * 4_000],
)  # fmt: skip
async def test_nearly_right_is_wrong(world: World, wrong: str) -> None:
    """A prefix, another scheme, another case: none is the token."""
    async with served(world, token=SecretStr(TOKEN)) as client:
        assert (await client.get("/metrics", headers={"Authorization": wrong})).status == 401


async def test_prometheus_sends_it_as_it_does(world: World) -> None:
    """`authorization: {credentials: …}` of a scrape configuration is this header; the scheme's case does not matter."""
    async with served(world, token=SecretStr(TOKEN)) as client:
        assert (await client.get("/metrics", headers=RIGHT)).status == 200
        assert (await client.get("/metrics", headers={"Authorization": f"bearer {TOKEN}"})).status == 200


async def test_two_tokens_are_none(world: World) -> None:
    """A proxy that looks at one header and a service that looks at the other would disagree about who is asking."""
    async with served(world, token=SecretStr(TOKEN)) as client:
        twice = [("Authorization", RIGHT["Authorization"]), ("Authorization", "Bearer other")]
        assert (await client.get("/metrics", headers=twice)).status in {400, 401}


@pytest.mark.parametrize(
    "path", ["/static/../metrics", "/static/%2e%2e/metrics", "//metrics", "/./metrics", "/healthz/../metrics"]
)
async def test_no_path_leads_around_the_token(world: World, path: str) -> None:
    """What a path resolves to decides, not how it begins."""

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: raw.recv(65_536), b""))

    async with served(world, token=SecretStr(TOKEN)) as client:
        answer = await asyncio.to_thread(ask, int(client.port or 0))
        assert answer.split()[1] in {b"400", b"401", b"403", b"404"}
        assert b"citegauge_up" not in answer


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "127.0.0.1:9464", "localhost:1", "LOCALHOST", "localhost.", "[::1]:9464", "[::1]"]
)
async def test_loopback_answers_to_its_own_names(world: World, name: str) -> None:
    """Any port: a tunnel may end at another one."""
    async with served(world) as client:
        assert (await client.get("/api/windows", headers={"Host": name})).status == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9464", "[::2]", "x@127.0.0.1"]
)
async def test_a_foreign_name_on_loopback_is_turned_away(world: World, name: str) -> None:
    """A page whose name was made to resolve to 127.0.0.1 (DNS rebinding) reads nothing, not even the page itself."""
    async with served(world) as client:
        for path in ("/", "/api/windows", "/metrics"):
            response = await client.get(path, headers={"Host": name})
            assert response.status == 421, path
            assert "web.hosts" in (await response.json())["error"]
        assert (await client.get("/healthz", headers={"Host": name})).status == 200


async def test_further_names_can_be_allowed(world: World) -> None:
    """A proxy on the same machine may pass its own name on."""
    async with served(world, hosts=("citegauge.example.org",)) as client:
        assert (await client.get("/api/windows", headers={"Host": "Citegauge.example.org"})).status == 200
        assert (await client.get("/api/windows", headers={"Host": "other.example.org"})).status == 421


async def test_beyond_loopback_the_token_decides(world: World) -> None:
    """Which names a network has for the service is not ours to know, unless the settings say it."""
    async with served(world, host="0.0.0.0", token=SecretStr(TOKEN)) as client:
        assert (await client.get("/metrics", headers={**RIGHT, "Host": "scrape.me"})).status == 200
    async with served(world, host="0.0.0.0", token=SecretStr(TOKEN), hosts=("a.example",)) as client:
        assert (await client.get("/metrics", headers={**RIGHT, "Host": "b.example"})).status == 421


# ------------------------------------------------------------------------------------------------ rate and size


async def test_too_many_requests_are_turned_away(world: World) -> None:
    """One address gets a burst and then a rate; the answer says when to come again, and health is always answered."""
    async with served(world, requests_burst=5, requests_per_s=0.001) as client:
        statuses = [(await client.get("/api/windows")).status for _ in range(8)]
        assert statuses == [200] * 5 + [429] * 3
        refused = await client.get("/metrics")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert "default-src 'none'" in refused.headers["Content-Security-Policy"]
        assert (await client.get("/healthz")).status == 200


async def test_guessing_tokens_is_slow(world: World) -> None:
    """A wrong token costs as much of the rate as a right one."""
    async with served(world, token=SecretStr(TOKEN), requests_burst=3, requests_per_s=0.001) as client:
        guesses = [(await client.get("/metrics", headers={"Authorization": f"Bearer {n}"})).status for n in range(5)]
        assert guesses == [401, 401, 401, 429, 429]


def test_a_bucket_fills_at_its_rate_and_no_further() -> None:
    """Time gives tokens back, up to the burst; a clock that stands still gives none."""
    buckets = Buckets(2.0, 3, 10)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b", 0.0), "another address has its own"
    assert [buckets.take("a", 0.6) for _ in range(2)] == [True, False]
    assert [buckets.take("a", 1_000.0) for _ in range(4)] == [True, True, True, False]


def test_known_addresses_have_a_bound() -> None:
    """A flood from many addresses costs no memory; who was silent for longest is forgotten first."""
    buckets = Buckets(1.0, 2, 100)
    for at in range(1_000):
        buckets.take(f"10.0.{at // 250}.{at % 250}", 0.0)
    assert len(buckets) == 100


async def test_a_huge_request_is_refused(world: World) -> None:
    """Neither a long line nor a long header nor a long body is read to its end."""
    async with served(world) as client:
        assert (await client.get("/api/windows?route=" + "x" * 100_000)).status in {400, 414}
        assert (await client.get("/api/windows", headers={"X-Long": "x" * 100_000})).status == 400
        assert (await client.post("/api/windows", data=b"x" * 10_000)).status == 405


# ------------------------------------------------------------------------------------------------ in a browser


async def test_the_page_asks_for_the_token_and_keeps_it_for_the_tab(chromium: Chromium, world: World) -> None:
    """A wrong token is said to be wrong; the right one shows the numbers, survives a reload, and no other tab has it."""
    async with served(world, token=SecretStr(TOKEN)) as client:
        address = str(client.make_url("/"))
        async with chromium.tab(address) as tab:
            await tab.drawn("login")
            assert await tab.page.locator("#token").is_visible()
            assert not await tab.page.locator("#view").is_visible()
            assert await tab.page.evaluate("document.activeElement.id") == "token"
            await chromium.picture(tab, "login")
            await tab.page.fill("#token", "guess")
            await tab.page.keyboard.press("Enter")
            await tab.page.get_by_text("That token is wrong").wait_for()
            await tab.page.fill("#token", "nicht ASCII: ü")
            await tab.page.keyboard.press("Enter")
            await tab.page.get_by_text("printable ASCII").wait_for()
            await tab.page.fill("#token", TOKEN)
            await tab.page.get_by_role("button", name="Show the numbers").click()
            await tab.drawn("overview")
            assert not await tab.page.locator("#login").is_visible()
            assert await tab.page.locator(".overview .row").count() == 6
            await tab.page.reload()
            await tab.drawn("overview")
            assert TOKEN not in tab.page.url
            assert TOKEN not in await tab.page.content()
            assert [said for said in tab.complaints if "401" not in said] == []
        async with chromium.tab(address) as tab:
            await tab.drawn("login")


async def test_raw_bytes_that_are_no_request_are_survived(world: World) -> None:
    """Whoever speaks another protocol to the port gets no traceback and takes nobody down."""
    async with served(world) as client:
        for sent in (
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET\r\n\r\n",
            b"GET /metrics HTTP/1.0\r\n\r\n",
            b"\x00" * 70_000,
        ):
            with socket.create_connection(("127.0.0.1", int(client.port or 0)), timeout=5) as raw:
                raw.sendall(sent)
        async with ClientSession() as session, session.get(client.make_url("/healthz")) as response:
            assert response.status == 200
