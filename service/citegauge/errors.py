"""Exceptions, classed by fate. Not a place for messages to users: those are written where the fault is known.

    CitegaugeError            has a `fate`
    ├── DeadLetterError       fate "dead-letter": this record or span is set aside with its origin; the rest goes on
    ├── RetryableError        fate "retry": nothing is lost by trying the same call again
    └── FatalError            fate "crash": the process stops with one line that names what to change
        └── ConfigError       the same, found while reading settings (exit status 2)

Adapters translate foreign exceptions into these, `from exc`. Anything else that escapes is a defect and crashes too.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fate = Literal["dead-letter", "retry", "crash"]


class CitegaugeError(Exception):
    """Base of every error that citegauge raises on purpose."""

    fate: ClassVar[Fate]


class DeadLetterError(CitegaugeError):
    """A record, or one span of it, cannot be read. `reason` is a short, stable label (it becomes a metric label)."""

    fate: ClassVar[Fate] = "dead-letter"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class RetryableError(CitegaugeError):
    """The outside world did not answer, or answered that it is busy. The outcome of the call may be unknown."""

    fate: ClassVar[Fate] = "retry"


class FatalError(CitegaugeError):
    """Going on would lose data or publish wrong numbers. The message is one line and says what to change."""

    fate: ClassVar[Fate] = "crash"


class ConfigError(FatalError):
    """The settings contradict themselves or cannot be read."""
