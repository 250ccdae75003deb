"""USERS: which traces have spans of which user, beside the join, which knows no users. Pure."""

from __future__ import annotations

from citegauge.domain.span import Span


class SeenUsers:
    """What was seen since it was last taken: one entry per user and trace."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bytes, bytes], int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, span: Span, record_ns: int) -> None:
        """A span of a record with this timestamp; nothing without a user."""
        if span.user_hash:
            key = span.user_hash, span.trace_id
            self._seen[key] = max(record_ns, self._seen.get(key, 0))

    def take(self) -> list[tuple[bytes, bytes, int]]:
        """(user's hash, trace id, timestamp of the newest record in ns), and forget them."""
        seen, self._seen = self._seen, {}
        return [(*key, record_ns) for key, record_ns in seen.items()]
