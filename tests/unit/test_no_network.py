"""The network guard bites."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

_INNER = """
import socket

def test_that_swallows():
    with socket.socket() as client:
        try:
            client.connect(("127.0.0.1", 9))
        except Exception:
            pass

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


@pytest.fixture
def guarded(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test run of its own with the guard as a plug-in."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_PLUGINS", "support.no_network")
    return pytester


def test_a_swallowed_connect_fails_the_test_at_its_end(guarded: pytest.Pytester) -> None:
    """A guarded test that connects or resolves a name fails although it swallows the exception; AF_UNIX is free."""
    folder = guarded.mkdir("unit")
    (folder / "test_inner.py").write_text(_INNER)
    result = guarded.runpytest_subprocess()
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*tried: socket.connect ('127.0.0.1', 9)*", "*tried: socket.getaddrinfo*"])


def test_other_folders_may_connect(guarded: pytest.Pytester) -> None:
    """Integration tests talk to servers: there the guard does nothing."""
    folder = guarded.mkdir("integration")
    (folder / "test_inner.py").write_text(_INNER)
    result = guarded.runpytest_subprocess("-k", "swallows")
    result.assert_outcomes(passed=1, deselected=2)
