"""The last resort: a thread that ends the process when a part of it has been stuck for too long.

A stuck event loop cannot notice that it is stuck, and a partition that is never fetched looks like a quiet one. Ending
the process lets its partitions move to another worker; where every thread stood goes to standard error first.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

CHECKS_PER_LIMIT = 10
"""Looks within the time that is allowed, so that it is overrun by a tenth at most."""


@contextmanager
def watchdog(
    stuck: Callable[[float], Sequence[str]], limit_s: float, end: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """Call `stuck(limit_s)` from a thread of its own, and end the process with status 1 when it returns lines.

    `stuck` must not block and may raise RuntimeError when it reads what changes meanwhile.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(limit_s / CHECKS_PER_LIMIT):
            try:
                lines = stuck(limit_s)
            except RuntimeError:
                continue  # something changed its size while it was read: so it moves
            if lines:
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                print(f"citegauge: {'; '.join(lines)}: stopping, so that another worker can go on", file=sys.stderr)  # noqa: T201 - the logging lock may be what is stuck
                sys.stderr.flush()
                end(1)
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
