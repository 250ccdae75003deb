"""A retry names its cause in the log, and a long outage does not fill it."""

from __future__ import annotations

import logging

import pytest
import stamina
import stamina.instrumentation
from stamina.instrumentation import RetryDetails

from citegauge.errors import RetryableError
from citegauge.tools.retries import KINDS_MAX, QUIET_S, RetryLog, log_retries


def retry(cause: str, number: int = 1) -> RetryDetails:
    """What stamina tells its hooks."""
    return RetryDetails("<context block>", (), {}, number, 2.5, 0.0, RetryableError(cause))


def test_the_cause_is_told_once_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The first time at once, then with the number of those that were left out; something else is told at once, too."""
    now = [100.0]
    told = RetryLog(lambda: now[0])
    told(retry("ClickHouse: insert into traces failed: no space left on device, of query 1"))
    for number in range(2, 30):
        now[0] += 1
        told(retry(f"ClickHouse: insert into traces failed: no space left on device, of query {number}", number))
    assert caplog.messages == [
        "ClickHouse: insert into traces failed: no space left on device, of query 1; try 2 in 2.5 s"
    ]
    told(retry("publishing failed: NotLeaderForPartitionError()"))
    assert caplog.messages[1:] == ["publishing failed: NotLeaderForPartitionError(); try 2 in 2.5 s"]
    now[0] = 100 + QUIET_S
    told(retry("ClickHouse: insert into traces failed: no space left on device, of query 31", 31))
    assert caplog.messages[2:] == [
        (
            "ClickHouse: insert into traces failed: no space left on device, of query 31; try 32 in 2.5 s; "
            "28 more such since the last line"
        )
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_is_remembered_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Causes without end are told, not kept."""
    told = RetryLog(lambda: 0.0)
    for number in range(10 * KINDS_MAX):
        told(retry(f"{number} is a cause"))
    assert len(told._told) <= KINDS_MAX
    assert len(caplog.messages) == 10 * KINDS_MAX


async def test_every_retry_of_the_process_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """One hook for all uses of stamina."""
    before = stamina.instrumentation.get_on_retry_hooks()
    log_retries()
    try:
        async for attempt in stamina.retry_context(on=RetryableError, attempts=2, wait_initial=0.001, wait_max=0.001):
            with attempt:
                if attempt.num == 1:
                    raise RetryableError("the reason")
    finally:
        stamina.instrumentation.set_on_retry_hooks(before)
    assert [message.split(";")[0] for message in caplog.messages] == ["the reason"]
