"""Pytest plug-in: tests in unit/, property/ and golden/ cannot reach the network.

A try fails at once and, should the code under test swallow that, the test fails at its end. It sees what goes through
Python's sockets, by an audit hook; it does not see C libraries that open their own.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

GUARDED_FOLDERS = frozenset({"unit", "property", "golden"})
_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"})

_attempts: list[str] | None = None
"""What was tried during the guarded test that runs now; None outside of one."""


class NetworkBlockedError(Exception):
    """Not an `OSError`, so that code which retries on those does not go on trying."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _attempts is None or event not in _EVENTS:
        return
    target = arguments[0]
    if isinstance(target, socket.SocketType) and target.family == socket.AF_UNIX:
        return
    _attempts.append(f"{event} {arguments[1] if event != 'socket.getaddrinfo' else arguments[:2]}")
    raise NetworkBlockedError(_attempts[-1])


sys.addaudithook(_hook)  # cannot be removed again; outside guarded tests it does nothing


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest) -> Iterator[None]:
    global _attempts  # noqa: PLW0603 - an audit hook is global, so is its state
    if GUARDED_FOLDERS.isdisjoint(request.path.relative_to(request.config.rootpath).parts):
        yield
        return
    attempts: list[str] = []
    _attempts = attempts
    yield
    _attempts = None
    if attempts:
        pytest.fail(f"this test must not use the network, and tried: {'; '.join(attempts)}", pytrace=False)
