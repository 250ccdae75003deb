"""Says why something is tried again: one line in the log with the cause and the next wait. Decides nothing.

Everything that waits for the outside world does so with stamina, which keeps the cause of a retry to itself. What failed
stands in the error's own text; of one kind of text a line comes at most every `QUIET_S`, so that a long outage does not fill
the log, and the next one says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import stamina.instrumentation

if TYPE_CHECKING:
    from stamina.instrumentation import RetryDetails

logger = logging.getLogger(__name__)

QUIET_S = 30.0
"""Between two lines about the same."""
KIND_CHARS = 48
"""So much of a cause's text says what it is about; the rest may differ each time."""
KINDS_MAX = 64
"""Kinds that are remembered; the oldest is forgotten, and would be told again at once."""


class RetryLog:
    """A hook for stamina."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Kind to when it was told last, and how often it was not told since."""

    def __call__(self, details: RetryDetails) -> None:
        """Log this retry, unless its like was logged a moment ago."""
        text = str(details.caused_by) or repr(details.caused_by)
        kind = text[:KIND_CHARS]
        now_s = self._monotonic()
        told_s, left_out = self._told.get(kind, (-QUIET_S, 0))
        if now_s - told_s < QUIET_S:
            self._told[kind] = told_s, left_out + 1
            return
        self._told[kind] = now_s, 0
        self._told.move_to_end(kind)
        if len(self._told) > KINDS_MAX:
            self._told.popitem(last=False)
        since = f"; {left_out} more such since the last line" if left_out else ""
        logger.warning("%s; try %d in %.1f s%s", text, details.retry_num + 1, details.wait_for, since)


def log_retries() -> None:
    """From now on every retry of this process names its cause."""
    stamina.instrumentation.set_on_retry_hooks([RetryLog()])
