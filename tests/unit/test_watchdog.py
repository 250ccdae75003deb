"""The last resort: a process that is stuck ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from citegauge.tools.watchdog import watchdog

LIMIT_S = 0.1


def test_it_ends_the_process_and_says_where_it_stood(capfd: pytest.CaptureFixture[str]) -> None:
    """Lines of what is stuck lead to status 1, after the stacks of all threads and one line of why."""
    ended = threading.Event()
    status: list[int] = []

    def end(code: int) -> None:
        status.append(code)
        ended.set()

    with watchdog(lambda limit_s: [f"nothing moved for {limit_s} s"], LIMIT_S, end):
        assert ended.wait(10)
    assert status == [1]
    error = capfd.readouterr().err
    assert "Thread" in error
    assert error.rstrip().splitlines()[-1].startswith("citegauge: nothing moved for 0.1 s: stopping")


def test_it_leaves_alone_what_moves() -> None:
    """No lines, or a reading that was disturbed by change, ends nothing."""
    looks = threading.Semaphore(0)
    seen: list[int] = []

    def stuck(_: float) -> Sequence[str]:
        looks.release()
        seen.append(1)
        if len(seen) % 2:
            raise RuntimeError("dictionary changed size during iteration")
        return []

    with watchdog(stuck, LIMIT_S, lambda code: pytest.fail(f"ended with {code}")):
        for _ in range(5):
            assert looks.acquire(timeout=10)
