"""Running Faust's worker to its end, also when a part of it does not stop."""

from __future__ import annotations

import asyncio

import mode
import pytest

from citegauge.adapters import supervise
from citegauge.errors import FatalError


class Crashing(mode.Service):
    """Crashes at once."""

    async def on_start(self) -> None:
        """Crash in the background, as a loop does."""
        self.add_future(self._end_badly())

    async def _end_badly(self) -> None:
        raise FatalError("the reason")


class Hanging(mode.Service):
    """Never stops, as Faust's consumer whose thread is gone."""

    async def on_stop(self) -> None:
        """Wait for nobody."""
        await asyncio.Event().wait()


def test_a_crash_is_raised_although_a_part_does_not_stop() -> None:
    """The process must end with its reason, or its partitions stay with it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = mode.Worker(Hanging(), Crashing(), loop=loop, override_logging=False, redirect_stdouts=False, quiet=True)
    with pytest.raises(FatalError, match="the reason"):
        supervise.run(worker, 0.2)
