"""Connections of the web server: half a request does not stay open, many are bounded, honest clients notice nothing."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.web import Health, WebSources
from citegauge.domain.drop import Limits
from citegauge.sections import WebSettings
from citegauge.tools.services import WebService

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 1.0
CONNECTIONS_MAX = 20


def sources() -> WebSources:
    """Nothing to show but health."""
    return WebSources(
        windows=list,
        drops=list,
        drop_limits=Limits(),
        query=lambda *_: [],
        database="d",
        metrics=lambda: (b"", "text/plain"),
        healthy=lambda: Health(ok=True),
        ready=lambda: Health(ok=True),
    )


@contextmanager
def served(**settings: float) -> Iterator[int]:
    """The port of a server in a thread of its own."""
    found: list[int] = []
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        service = WebService(WebSettings(port=0, **settings), sources(), found.append)
        await service.on_start()
        ready.set()
        await over.wait()
        await service.on_stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def closed_after_s(connection: socket.socket, drip: bytes, most_s: float = 8 * TIMEOUT_S) -> float:
    """When the server closed it, while one byte after the other is sent."""
    begun = time.monotonic()
    connection.settimeout(TIMEOUT_S / 10)
    while (took_s := time.monotonic() - begun) < most_s:
        try:
            if drip:
                connection.send(drip)
            if not connection.recv(65_536):
                return took_s
        except TimeoutError:
            continue
        except OSError:
            return took_s
    raise AssertionError(f"still open after {most_s} s")


@pytest.mark.parametrize(
    ("begun", "drip"),
    [(b"", b""), (b"GET /healthz?", b"a"), (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"a")],
    ids=["nothing", "half a line", "half the headers"],
)
def test_half_a_request_is_cut_off(begun: bytes, drip: bytes) -> None:
    """Nothing, a request line or headers, byte by byte: also after a whole request on the same connection."""
    with served(header_timeout_s=TIMEOUT_S) as port:
        with socket.create_connection(("127.0.0.1", port)) as fresh:
            fresh.sendall(begun)
            assert closed_after_s(fresh, drip) < 4 * TIMEOUT_S
        with socket.create_connection(("127.0.0.1", port)) as kept:
            kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert kept.recv(65_536).startswith(b"HTTP/1.1 200 ")
            kept.sendall(begun)
            assert closed_after_s(kept, drip) < 4 * TIMEOUT_S


def test_honest_clients_notice_nothing() -> None:
    """A connection that is kept and used goes on far beyond the limit."""
    with served(header_timeout_s=TIMEOUT_S) as port:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        client.connect()
        first = client.sock
        begun = time.monotonic()
        while time.monotonic() - begun < 3 * TIMEOUT_S:
            client.request("GET", "/healthz")
            answer = client.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            time.sleep(TIMEOUT_S / 4)
        assert client.sock is first, "it was kept"
        client.close()


def test_connections_are_bounded() -> None:
    """What comes past the bound is closed at once; when some have gone there is room again."""
    with served(header_timeout_s=60, connections_max=CONNECTIONS_MAX) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS_MAX)]
        with socket.create_connection(("127.0.0.1", port)) as past:
            assert closed_after_s(past, b"") < 4 * TIMEOUT_S
        for connection in held:
            connection.close()
        deadline = time.monotonic() + 10
        while True:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                client.request("GET", "/healthz")
                assert client.getresponse().status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
            finally:
                client.close()
