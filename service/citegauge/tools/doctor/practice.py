"""The settings under which a sample is read and judged, as the worker would read and judge it. No reading here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from citegauge.conventions import DecodePolicy
from citegauge.domain.policy import JoinPolicy, ScorePolicy
from citegauge.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How one source is read."""

    encoding: str = "auto"
    decode: DecodePolicy = field(default_factory=DecodePolicy)
    keyed: bool | None = None
    """What the settings say of a topic; None: they do not name it."""
    keyed_setting: str = ""
    """The setting that says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """How all sources are read and judged."""

    topics: Mapping[str, Reading]
    other: Reading
    """Files, and topics that the settings do not name."""
    join: JoinPolicy
    score: ScorePolicy
    record_bytes_max: int

    def reading(self, name: str, *, is_topic: bool) -> Reading:
        """How the source of this name is read."""
        return self.topics.get(name, self.other) if is_topic else self.other


def practice_of(settings: Settings, encoding: str | None = None) -> Practice:
    """The practice of the settings; `encoding` overrides theirs. Raises `ConfigError`."""
    topics = {
        name: Reading(
            encoding=encoding or source.encoding,
            decode=settings.decode_policy(source),
            keyed=source.keyed,
            keyed_setting=f'sources."{name}".keyed' if settings.sources else "kafka.keyed",
        )
        for name, source in settings.source_topics().items()
    }
    return Practice(
        topics=topics,
        other=Reading(encoding=encoding or "auto", decode=settings.decode_policy()),
        join=settings.join_policy(),
        score=settings.score_policy(),
        record_bytes_max=settings.join.record_bytes_max,
    )
