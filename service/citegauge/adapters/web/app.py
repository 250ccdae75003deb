"""Ties sources to addresses and sets the headers. Which interface to bind is the caller's business."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import hdrs, web

from citegauge.adapters.web import params, runbooks, shape
from citegauge.adapters.web.answers import Answers
from citegauge.adapters.web.evidence import Evidence
from citegauge.adapters.web.guard import WebGuard, middleware
from citegauge.adapters.web.history import History
from citegauge.adapters.web.judged import Judged
from citegauge.adapters.web.sources import Health, WebLimits, WebSources
from citegauge.errors import FatalError, RetryableError

STATIC = Path(str(importlib.resources.files("citegauge.adapters.web"))) / "static"
ERROR_CHARS_MAX = 300
NS_PER_S = 1_000_000_000
COMPRESS_BYTES = 2_048
COMPRESS_IN_THREAD_BYTES = 65_536

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Revalidate always: after an upgrade the page and its modules must be of one version.
    "Cache-Control": "no-cache",
}

Asked = TypeVar("Asked", bound=params.DistributionParams)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_web_app(
    sources: WebSources, *, limits: WebLimits | None = None, guard: WebGuard | None = None
) -> web.Application:
    """The application: `/`, `/static/…`, `/runbooks/…`, `/api/…`, `/metrics`, `/healthz`, `/readyz`; reads only.

    `guard`: who may ask; by default everyone who calls it by a name of loopback. Raises `ConfigError` when the database's
    name is not a plain identifier.
    """
    limits = limits or WebLimits()
    pages = _Pages(sources, limits)
    who = middleware(guard or WebGuard())
    app = web.Application(client_max_size=limits.request_bytes_max, middlewares=[who, _errors_as_json])
    app.router.add_get("/", pages.page)
    app.router.add_static("/static/", STATIC, show_index=False, follow_symlinks=False)
    for where in ("/runbooks/", "/runbooks/{name}"):
        app.router.add_get(where, pages.runbook)
    app.router.add_get("/api/windows", pages.windows)
    app.router.add_get("/api/drops", pages.drops)
    app.router.add_get("/api/series", pages.series)
    for name in ("distribution", "heat", "ranks", "versions", "traces"):
        app.router.add_get(f"/api/{name}", getattr(pages, name))
    app.router.add_get("/api/trace", pages.trace)
    app.router.add_get("/api/alerts", pages.alerts)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/readyz", pages.readyz)
    app.on_response_prepare.append(_set_headers)
    app.cleanup_ctx.append(pages.lifetime)
    return app


class _Pages:
    """The handlers, with what they need."""

    def __init__(self, sources: WebSources, limits: WebLimits) -> None:
        self._sources = sources
        self._limits = limits
        self._history = History(sources)
        self._evidence = Evidence(sources)
        self._judged = Judged(sources)
        self._answers = Answers(limits)
        # A thread of its own: a ClickHouse that hangs must not keep Prometheus from scraping.
        self._metrics_pool = ThreadPoolExecutor(1, thread_name_prefix="web-metrics")

    async def lifetime(self, _app: web.Application) -> AsyncIterator[None]:
        yield
        self._answers.close()
        self._metrics_pool.shutdown(wait=False, cancel_futures=True)

    async def page(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def runbook(self, request: web.Request) -> web.Response:
        text = runbooks.page(request.match_info.get("name", runbooks.INDEX))
        if text is None:
            raise web.HTTPNotFound(text="there is no such runbook\n")
        return web.Response(text=text, content_type="text/html")

    async def windows(self, request: web.Request) -> web.Response:
        group, sources = params.group_params(request.query), self._sources
        rows, signals, rows_max = sources.windows(), sources.signals(), self._limits.rows_max
        if group is None:
            return _json(shape.overview(rows, signals, sources.now_ns(), rows_max))
        return _json(shape.detail(rows, signals, group, sources.now_ns(), rows_max))

    async def drops(self, request: web.Request) -> web.Response:
        params.no_params(request.query)
        return _json({"drops": shape.drops(self._sources.drops())})

    async def series(self, request: web.Request) -> web.Response:
        asked = params.series_params(request.query, to_default_s=self._as_of_s(), points_max=self._limits.points_max)
        return _json(await self._answers.get(asked, lambda: self._history.series(asked)))

    async def distribution(self, request: web.Request) -> web.Response:
        return await self._of_window(
            "distribution", params.distribution_params(request.query), self._history.distribution
        )

    async def heat(self, request: web.Request) -> web.Response:
        return await self._of_window("heat", params.distribution_params(request.query), self._evidence.heat)

    async def ranks(self, request: web.Request) -> web.Response:
        return await self._of_window("ranks", params.distribution_params(request.query), self._evidence.ranks)

    async def versions(self, request: web.Request) -> web.Response:
        return await self._of_window("versions", params.distribution_params(request.query), self._evidence.versions)

    async def traces(self, request: web.Request) -> web.Response:
        return await self._of_window("traces", params.traces_params(request.query), self._evidence.traces)

    async def trace(self, request: web.Request) -> web.Response:
        asked = params.trace_params(request.query)
        now_s = self._sources.now_ns() // NS_PER_S
        return _json(await self._answers.get(asked, lambda: self._evidence.trace(asked, now_s)))

    async def alerts(self, request: web.Request) -> web.Response:
        asked = params.group_params(request.query)
        if asked is None:
            raise params.ParamError("route is missing")
        # A minute is soon enough for what is judged each quarter of an hour, and the same question then asks once.
        minute_s = self._as_of_s() // 60 * 60
        question = ("alerts", asked, minute_s)
        return _json(await self._answers.get(question, lambda: self._judged.alerts(asked, minute_s)))

    async def _of_window(self, name: str, asked: Asked, ask: Callable[[Asked, int, int], Any]) -> web.Response:
        start_s, end_s = self._bounds(asked)
        return _json(await self._answers.get((name, asked, start_s, end_s), lambda: ask(asked, start_s, end_s)))

    async def metrics(self, _request: web.Request) -> web.Response:
        body, content_type = await asyncio.get_running_loop().run_in_executor(self._metrics_pool, self._sources.metrics)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        return _health(self._sources.healthy())

    async def readyz(self, _request: web.Request) -> web.Response:
        return _health(self._sources.ready())

    def _as_of_s(self) -> int:
        newest_ns = shape.as_of_ns(self._sources.windows())
        return (self._sources.now_ns() if newest_ns is None else newest_ns) // NS_PER_S

    def _bounds(self, asked: params.DistributionParams) -> tuple[int, int]:
        """The live window's own bounds; for a group without one, whole minutes up to as-of."""
        live = shape.bounds(self._sources.windows(), asked.route, asked.top_k_bucket, asked.window)
        if live is not None:
            return live
        end_s = (self._as_of_s() // 60 + 1) * 60
        return max(0, end_s - params.WINDOW_S[asked.window]), end_s


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except params.ParamError as exc:
        return _json({"error": str(exc)}, status=400)
    except RetryableError as exc:
        return _json({"error": _one_line(exc)}, status=503)
    except FatalError as exc:
        return _json({"error": _one_line(exc)}, status=500)


async def _set_headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _json(value: Any, status: int = 200) -> web.Response:
    # allow_nan=False: a NaN would be unreadable for the page; better an error here, where its cause can be found.
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    response = web.Response(
        text=text, status=status, content_type="application/json", zlib_executor_size=COMPRESS_IN_THREAD_BYTES
    )
    # 360 groups are 630 kB, every 5 s for each open page; their text repeats so much that 1 % of it is left.
    if len(text) >= COMPRESS_BYTES:
        response.enable_compression()
    return response


def _health(health: Health) -> web.Response:
    text = "\n".join(health.lines) or ("ok" if health.ok else "not ok")
    return web.Response(text=text + "\n", status=200 if health.ok else 503)


def _one_line(exc: Exception) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0][:ERROR_CHARS_MAX] if lines else type(exc).__name__
