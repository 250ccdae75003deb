"""The user of a span: read only to be turned into a keyed hash, so that a user's traces can be forgotten."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from citegauge.conventions.routes import RouteReader

DEFAULT_USER_KEYS: tuple[str, ...] = (
    "user.id",
    "enduser.id",
    "langfuse.user.id",
    "langwatch.user.id",
    "traceloop.association.properties.user_id",
    "langsmith.metadata.user_id",
    "ai.telemetry.metadata.userId",
    "mlflow.trace.user",
    "metadata#user_id",
    "user_id",
    "resource:user.id",
)
"""In the form of route keys."""
HASH_BYTES = 16


def user_hash(user: str, key: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) of a user id under the installation's key, its first 16 bytes."""
    return hmac.digest(key, user.encode(errors="surrogatepass"), "sha256")[:HASH_BYTES]


class UserReader:
    """Reads the hash of a span's user. Without a key no user is ever looked at."""

    def __init__(self, key: bytes, attributes: tuple[str, ...] = DEFAULT_USER_KEYS) -> None:
        self._key = key
        # What is a legible route is a legible user: cleaned the same way, so that `forget` finds it by what people see.
        self._names = RouteReader(attributes)

    def read(self, attributes: Mapping[str, Any], resource: Mapping[str, Any]) -> bytes:
        """16 bytes; empty without a user, or without a key."""
        if not self._key:
            return b""
        user, _ = self._names.read(attributes, resource)
        return user_hash(user, self._key) if user else b""
