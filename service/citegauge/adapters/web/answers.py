"""Runs blocking work for visitors: few threads, one run per question at a time, answers kept for a moment.

Not a general cache: it exists so that ten open pages cost ClickHouse no more than one.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from citegauge.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from citegauge.adapters.web.sources import WebLimits

T = TypeVar("T")


class Answers:
    """Answers by question. Belongs to one event loop; `close` it when that loop ends."""

    def __init__(self, limits: WebLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._pool = ThreadPoolExecutor(limits.queries_max, thread_name_prefix="web-query")
        self._kept: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The answer to `question`, from `ask` run in a thread unless it is being or was just asked.

        Raises what `ask` raises, and `RetryableError` when too much is asked or the answer takes too long.
        """
        self._forget()
        kept = self._kept.get(question)
        if kept is None:
            if len(self._kept) >= self._limits.answers_max:
                raise RetryableError("too many questions to ClickHouse at once; try again in a moment")
            future: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(self._pool, ask)
            self._kept[question] = (self._clock(), future)
            future.add_done_callback(lambda done: self._settle(question, done))
        else:
            future = kept[1]
        try:
            # Shielded: one visitor who leaves must not take the answer away from the others.
            return await asyncio.wait_for(asyncio.shield(future), self._limits.query_wait_s)
        except TimeoutError as exc:
            raise RetryableError(f"ClickHouse has not answered within {self._limits.query_wait_s:g} s") from exc

    def close(self) -> None:
        """Take no more work; what runs ends by the client's own time-outs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _settle(self, question: Hashable, done: asyncio.Future[Any]) -> None:
        # Reading the exception also keeps asyncio from reporting it a second time when every visitor has left.
        if done.cancelled() or done.exception() is not None:
            self._kept.pop(question, None)
        elif question in self._kept:
            self._kept[question] = (self._clock(), done)

    def _forget(self) -> None:
        """Drop answers that are too old, and the oldest ones when there is no room."""
        oldest = self._clock() - self._limits.answer_age_s
        finished = [(born, question) for question, (born, future) in self._kept.items() if future.done()]
        surplus = len(self._kept) - self._limits.answers_max + 1
        for rank, (born, question) in enumerate(sorted(finished, key=lambda pair: pair[0])):
            if born <= oldest or rank < surplus:
                del self._kept[question]
