"""The network guard bites."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_INNER = """
import socket

def _connect():
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    except Exception:
        pass

def test_that_swallows():
    _connect()

def test_that_looks_up_a_name():
    try:
        socket.getaddrinfo("example.invalid", 80)
    except Exception:
        pass

def test_of_a_socket_pair():
    left, right = socket.socketpair()
    left.sendall(b"x")
    assert right.recv(1) == b"x"
    left.close(), right.close()
"""


def test_a_swallowed_connect_fails_the_test_at_its_end(pytester: pytest.Pytester) -> None:
    """A guarded test that connects or resolves a name fails although it swallows the exception; AF_UNIX is free."""
    folder = pytester.mkdir("unit")
    (folder / "test_inner.py").write_text(_INNER)
    result = pytester.runpytest_subprocess("-p", "support.no_network")
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*tried: socket.connect ('127.0.0.1', 9)*", "*tried: socket.getaddrinfo*"])


def test_other_folders_may_connect(pytester: pytest.Pytester) -> None:
    """Integration tests talk to servers: there the guard does nothing."""
    folder = pytester.mkdir("integration")
    (folder / "test_inner.py").write_text(_INNER)
    result = pytester.runpytest_subprocess("-p", "support.no_network", "-k", "swallows")
    result.assert_outcomes(passed=1, deselected=2)
