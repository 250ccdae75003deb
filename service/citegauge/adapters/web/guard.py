"""Who may ask, and how often: bearer token, Host header, a rate per visitor. Not what is answered (`app`).

Health checks are open to all, and so are the page's own files and the runbooks, which hold no numbers: a browser cannot
send a header with the first request. Everything else needs the token wherever there is one, and there must be one beyond
loopback.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from citegauge.errors import ConfigError

HEALTH = frozenset({"/healthz", "/readyz"})
PAGE = frozenset({"/", "/static", "/runbooks/", "/runbooks/{name}"})
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Secret(Protocol):
    """What hides a token until it is used; pydantic's `SecretStr` is one."""

    def get_secret_value(self) -> str:
        """The token; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebGuard:
    """The rules."""

    host: str = "127.0.0.1"
    """Address that is listened on."""
    token: Secret | None = None
    """Asked for, as `Authorization: Bearer …`, wherever it is not empty."""
    hosts: tuple[str, ...] = ()
    """Further names under which visitors may call the service, as in the Host header."""
    requests_per_s: float = 50.0
    """Requests of one address that are answered in the long run; health checks do not count."""
    requests_burst: int = 200
    """Requests of one address that are answered at once."""
    remotes_max: int = 4096
    """Addresses whose rate is known; past it the one that was silent for longest is forgotten."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` when anyone could read the numbers, or nobody."""
        token = self.secret
        if not token and not is_loopback(self.host):
            raise ConfigError(
                f"web.host {self.host} can be reached from other machines: set web.token, best by the environment "
                "(CITEGAUGE_WEB__TOKEN), or listen on 127.0.0.1"
            )
        if not all("!" <= character <= "~" for character in token):
            raise ConfigError("web.token must be printable ASCII without spaces, or no client can send it")

    @property
    def secret(self) -> str:
        """The token in plain text; empty: none."""
        return "" if self.token is None else self.token.get_secret_value()

    def known_hosts(self) -> frozenset[str] | None:
        """Names that the Host header may have; None: any, because the token keeps strangers out."""
        own = tuple(name.lower() for name in self.hosts)
        if is_loopback(self.host):
            # Without this check a page elsewhere could have its name resolve to 127.0.0.1 and read the numbers.
            return frozenset((*_LOOPBACK_NAMES, self.host.lower(), *own))
        return frozenset((*own, self.host.lower())) if own else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name other than localhost may resolve to anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Buckets:
    """A token bucket per address: full at first, refilled steadily."""

    def __init__(self, per_s: float, burst: int, remotes_max: int) -> None:
        self._per_s, self._burst, self._remotes_max = per_s, burst, remotes_max
        self._known: dict[str, tuple[float, float]] = {}
        """Address to (tokens, when), silent for longest first."""

    def __len__(self) -> int:
        return len(self._known)

    def take(self, remote: str, now_s: float) -> bool:
        """Whether one more request of this address is answered now."""
        tokens, then_s = self._known.pop(remote, (float(self._burst), now_s))
        tokens = min(float(self._burst), tokens + (now_s - then_s) * self._per_s)
        allowed = tokens >= 1
        self._known[remote] = (tokens - allowed, now_s)
        if len(self._known) > self._remotes_max:
            del self._known[next(iter(self._known))]
        return allowed


def middleware(guard: WebGuard, clock: Callable[[], float] = time.monotonic) -> Middleware:
    """The rules as aiohttp's middleware."""
    buckets = Buckets(guard.requests_per_s, guard.requests_burst, guard.remotes_max)
    hosts, digest = guard.known_hosts(), _digest(guard.secret) if guard.secret else None

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        where = "" if resource is None else resource.canonical
        if where in HEALTH:
            return await handler(request)
        if not buckets.take(request.remote or "", clock()):
            return _refusal(429, "too many requests from this address; try again in a moment", {hdrs.RETRY_AFTER: "1"})
        if hosts is not None and _name(request.headers.get(hdrs.HOST, "")) not in hosts:
            return _refusal(
                421, "this name is not mine: call me by the address I listen on, or add the name to web.hosts"
            )
        if digest is not None and where not in PAGE and not _authorised(request, digest):
            return _refusal(401, "the token is missing or wrong", {hdrs.WWW_AUTHENTICATE: 'Bearer realm="citegauge"'})
        return await handler(request)

    return check


def _authorised(request: web.Request, digest: bytes) -> bool:
    given = request.headers.getall(hdrs.AUTHORIZATION, [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    # Digests have one length, so the comparison takes the same time whatever was sent.
    return hmac.compare_digest(_digest(token.strip()), digest) and scheme.lower() == "bearer"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _name(host: str) -> str:
    """The name or address of a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def _refusal(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": why}, status=status, headers=headers)
