"""Running mode's (or Faust's) worker to its end: a signal returns, a crash raises what caused it. Not the services.

Left alone, mode exits the process itself and logs a crash with its traceback in every service that it passes. Here the
exception goes to the caller, who says it once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from typing import Any, NoReturn

import mode

from citegauge.errors import CitegaugeError

logger = logging.getLogger(__name__)

_CRASH_MESSAGES = frozenset(
    {
        "Crashed reason=%r",
        "Error: %r",
        "We experienced a crash! Reraising original exception...",
    }
)


COLLECT_AFTER_OBJECTS = 50_000
"""Objects that may be made and not freed before the garbage collector looks at them; Python's default is 700."""
THREADS_END_S = 1.0
"""Threads that still run when everything else has ended are waited for so long."""


class _SaidByCaller(logging.Filter):
    """Keeps back what `run` raises anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        message = str(record.msg)
        expected = isinstance(error, CitegaugeError) or any(text in message for text in _CRASH_MESSAGES)
        # A thread of Faust's that has crashed as well has no loop left to be stopped in.
        return not expected and not (isinstance(error, RuntimeError) and "Event loop is closed" in str(error))


def run(worker: mode.Worker, stop_s_max: float) -> None:
    """Run until a signal, then return; raises what made a service fail to start or crash.

    Stopping takes `stop_s_max` at most. A crash also ends the thread of Faust's consumer, and then its last commit may wait
    for that thread for ever: the process must end all the same, or nobody takes its partitions over.
    """
    _bound_stopping(worker, stop_s_max)
    if hasattr(worker, "spinner"):
        worker.spinner = None  # Faust's; it writes escape codes where there is no terminal, too
    said = _SaidByCaller()
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(said)
    try:
        cause = _end_of(worker)
    finally:
        for handler in handlers:
            handler.removeFilter(said)
    if cause is not None:
        raise cause


def _bound_stopping(worker: Any, stop_s_max: float) -> None:
    stop = worker.stop

    async def bounded() -> None:
        # Not cancelled when it is late: what hangs would hang in its cancellation, too. The loop's end is its end.
        _, late = await asyncio.wait({asyncio.ensure_future(stop())}, timeout=stop_s_max)
        if late:
            logger.warning("a part of the worker did not stop within %g s and is left behind", stop_s_max)

    worker.stop = bounded


def tame_collector() -> None:
    """Let Python's cyclic garbage collector look less often, for a process that does nothing else but this work.

    Spans and rows die by their reference counts; the collector only walks over those that wait to be published, again
    and again: a sixth of a worker's time. What the start has made stays for good and is not looked at any more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 20, 50)


def leave(status: int) -> NoReturn:
    """End the process with this status, without a thread that hangs: a frozen ClickHouse would hold it for a minute."""
    deadline = time.monotonic() + THREADS_END_S
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _end_of(worker: Any) -> BaseException | None:
    """What ended it; None for a clean stop."""
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        # mode turns every exception into an exit; what it was stands in the context.
        cause = worker.crash_reason or ended.__context__
        if cause is None and ended.code:
            raise
        return cause if isinstance(cause, BaseException) else None
    return None
