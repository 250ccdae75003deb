"""Canonical ids and times from all the forms that they are sent in. Not for chunk ids (`values`)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from datetime import UTC, datetime, timedelta

from citegauge.conventions.base import FaultError

TIME_NS_MAX = 2**63 - 1
"""The packed span holds times as signed 64-bit integers."""
ID_LENGTH_MAX = 128
"""Characters of a trace or span id in any form."""
_DECIMAL_DIGITS_MAX = 39  # 2^128 has 39 digits
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_HEX = re.compile(r"[0-9a-fA-F]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def trace_id(value: object) -> bytes:
    """The 16 bytes of a trace id: hex of any case, `0x`, UUID, base64, `tr-`, 64-bit, decimal. Raises `FaultError`."""
    found = _id(value, 16)
    if found is None or not any(found):
        raise FaultError("bad_trace_id", value)
    return found


def span_id(value: object) -> bytes:
    """The 8 bytes of a span id, in the same forms as a trace id. Raises `FaultError`."""
    found = _id(value, 8)
    if found is None or not any(found):
        raise FaultError("bad_span_id", value)
    return found


def parent_id(value: object) -> bytes:
    """The parent's span id, or empty for a root: null, empty, and all zeros mean that. Raises `FaultError`."""
    if value is None or value in ("", b""):
        return b""
    found = _id(value, 8)
    if found is None:
        raise FaultError("bad_parent_id", value)
    return found if any(found) else b""


def foreign_trace_id(value: object) -> bytes:
    """A trace id of a system whose ids are free text: canonical where it can be, else a digest of the text."""
    return _foreign(value, 16, "bad_trace_id")


def foreign_span_id(value: object) -> bytes:
    """A span id of a system whose ids are UUIDs or free text: canonical where it can be, else a digest."""
    return _foreign(value, 8, "bad_span_id")


def foreign_parent_id(value: object) -> bytes:
    """As `foreign_span_id`; null and empty text mean a root."""
    return b"" if value is None or value == "" else _foreign(value, 8, "bad_parent_id")


def _foreign(value: object, size: int, reason: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise FaultError(reason, value)
    found = _id(value, size)
    if found is not None and any(found):
        return found
    text = str(value) if isinstance(value, str) or value.bit_length() <= 128 else hex(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:size]


def _id(value: object, size: int) -> bytes | None:
    if isinstance(value, str):
        return _from_text(value, size)
    if isinstance(value, bytes):
        return value.rjust(size, b"\0") if len(value) in (size, size // 2) and (size == 16 or len(value) == 8) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << (8 * size):
        return value.to_bytes(size, "big")
    return None


def _from_text(text: str, size: int) -> bytes | None:
    if len(text) == 2 * size and _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if len(text) > ID_LENGTH_MAX:
        return None
    text = text.strip()
    if text.startswith("trace:/"):  # a location, the id last
        text = text.rsplit("/", 1)[-1]
    text = text.removeprefix("tr-")
    if text[:2] in ("0x", "0X"):
        text = text[2:]
        if len(text) > 2 * size:
            return None
        text = text.rjust(2 * size, "0")
    if len(text) == 36 and text.count("-") == 4:
        text = text.replace("-", "")
        if size == 8:
            return None  # a UUID holds too much for a span id; half of it may be a mere timestamp
    if len(text) in (2 * size, 16) and _HEX.fullmatch(text):
        return bytes.fromhex(text.rjust(2 * size, "0")) if len(text) <= 2 * size else None
    if text.isascii() and text.isdigit() and len(text) <= _DECIMAL_DIGITS_MAX:
        number = int(text)
        return number.to_bytes(size, "big") if number < 1 << (8 * size) else None
    return _from_base64(text, size)


def _from_base64(text: str, size: int) -> bytes | None:
    if not _BASE64.fullmatch(text) or len(text.rstrip("=")) != (8 * size + 5) // 6:
        return None
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except binascii.Error:
        return None


def time_ns(value: object) -> int:
    """Integer ns since the epoch from an integer or its decimal digits; None and "" are 0. Raises `FaultError`."""
    if value is None or value == "":
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TIME_NS_MAX:
        raise FaultError("bad_time_field", value)
    return value


def scaled_time_ns(value: object, unit_ns: int) -> int:
    """As `time_ns`, from a number of units (`unit_ns` each), which may have a fraction. Raises `FaultError`."""
    if isinstance(value, float):
        try:
            # A double has no more than µs today; more digits would be noise.
            return time_ns(round(value * (unit_ns // 1_000)) * 1_000)
        except (OverflowError, ValueError):
            raise FaultError("bad_time_field", value) from None
    found = time_ns(value)
    return time_ns(found * unit_ns)


def iso_time_ns(value: object) -> int:
    """Integer ns since the epoch from an ISO 8601 time; without an offset it is UTC. None and "" are 0."""
    if value is None or value == "":
        return 0
    if not isinstance(value, str) or len(value) > ID_LENGTH_MAX:
        raise FaultError("bad_time_field", value)
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise FaultError("bad_time_field", value) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return time_ns((found - _EPOCH) // timedelta(microseconds=1) * 1_000)
