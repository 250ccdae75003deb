"""An HTTP proxy in front of ClickHouse, in a thread of the test, that can lie about what ClickHouse has done."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self

from aiohttp import ClientSession, DummyCookieJar, web

from citegauge.adapters.embedded import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding"})


class FaultyProxy:
    """Forwards everything; an answer to an insert becomes 500 when `lies()` says so, after ClickHouse has applied it."""

    def __init__(self, target: str, lies: Callable[[], bool]) -> None:
        self._target = target
        self._lies = lies
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.lying = False
        self.lied = 0
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with ClientSession(cookie_jar=DummyCookieJar(), auto_decompress=False) as self._client:
            app = web.Application(client_max_size=1 << 28)
            app.router.add_route("*", "/{rest:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, auto_decompress=False)
            await runner.setup()
            site = web.TCPSite(runner, HOST, 0)
            await site.start()
            self.url = f"http://{HOST}:{runner.addresses[0][1]}"
            self._ready.set()
            await self._ended.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in {"host", "content-length"}
        }
        async with self._client.request(
            request.method, self._target + str(request.rel_url), data=body, headers=headers
        ) as answer:
            content = await answer.read()
            insert = b"INSERT" in body[:200] or "INSERT" in request.query_string
            if insert and answer.status == 200 and self.lying and self._lies():
                self.lied += 1
                return web.Response(status=500, text="the answer got lost")
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN}
            if "content-encoding" in {name.lower() for name in answer.headers}:
                kept["Content-Encoding"] = answer.headers["Content-Encoding"]
            return web.Response(status=answer.status, body=content, headers=kept)
