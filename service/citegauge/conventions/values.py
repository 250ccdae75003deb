"""Single attribute values, which lie about their type: numbers, counts, chunk ids, embedded JSON. Not documents."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

import msgspec

from citegauge.conventions.base import MALFORMED, Facts
from citegauge.domain.citations import chunk_id

COUNT_MAX = 2**31 - 1
"""A larger top_k is not a top_k."""
TEXT_LENGTH_MAX = 200
"""Characters kept of a model, version or scorer name."""
_NUMBER = re.compile(r"[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LENIENT_TEXT = re.compile(r"NaN|Infinity|[0-9][eE][+]?[0-9]{3}")
_LENIENT_BYTES = re.compile(_LENIENT_TEXT.pattern.encode())
_LOOKS_LIKE_JSON = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"\]])')
_JSON_STARTS = ("{", "[", '"')
_json = msgspec.json.Decoder()

__all__ = [
    "as_float",
    "chunk_id",
    "count",
    "digest_id",
    "dumps",
    "embedded",
    "id_list",
    "loads",
    "score",
    "text",
    "unquoted",
]


def loads(data: bytes | str) -> Any:
    """JSON to Python values; bare `NaN` and `Infinity`, which Python writes, are read. Raises ValueError."""
    try:
        return _json.decode(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError:
        pass
    lenient = _LENIENT_BYTES.search(data) if isinstance(data, bytes) else _LENIENT_TEXT.search(data)
    if lenient is None:
        raise ValueError("not JSON")
    try:
        found = json.loads(data)
        # Unpaired surrogates cannot be written again, neither as JSON nor to a database.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        raise ValueError("not JSON") from exc
    return found


def dumps(value: object) -> str:
    """A value that came from JSON, as JSON text."""
    return msgspec.json.encode(value).decode()


def as_float(value: object) -> float | None:
    """A finite float from a number or a strict numeric string; None for anything else, bools included."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return None
    if type(value) is str and _NUMBER.fullmatch(value):
        number = float(value)
        return number if math.isfinite(number) else None
    return None


def score(value: object, facts: Facts) -> float | None:
    """A score, or None: silently where there is none, with the malformed flag where there is something else."""
    if value is None or value == "":
        return None
    found = as_float(value)
    if found is None:
        facts.flags |= MALFORMED
    return found


def count(value: object, facts: Facts) -> int:
    """A positive count from an int, an integral double or a strict integer string; 0 where there is none."""
    if value is None or value == "":
        return 0
    is_digits = type(value) is str and value.isascii() and value.isdigit() and len(value) <= 10
    number: int | None = None
    if is_digits or type(value) is int or (type(value) is float and value.is_integer()):
        number = int(value)  # type: ignore[call-overload]  # one of the three
    if number is None or not 1 <= number <= COUNT_MAX:
        facts.flags |= MALFORMED
        return 0
    return number


def text(value: object) -> str:
    """A short, printable name, or empty: it becomes a label. JSON-quoted names lose their quotes; numbers become text."""
    if type(value) is str:
        name = unquoted(value).strip()[:TEXT_LENGTH_MAX]
        return name if name.isprintable() else _printable(name)
    if (type(value) is int and value.bit_length() <= 256) or (type(value) is float and math.isfinite(value)):
        return str(value)
    return ""


def _printable(name: str) -> str:
    """Controls, line ends, invisible and direction-changing characters become single spaces."""
    return " ".join("".join(character if character.isprintable() else " " for character in name).split())


def unquoted(value: str) -> str:
    """The text inside a JSON-quoted string, any other text as it is."""
    if len(value) >= 2 and value[0] == '"' and value[-1] == '"':
        try:
            found = loads(value)
        except ValueError:
            return value
        return found if isinstance(found, str) else value
    return value


def embedded(value: object, facts: Facts) -> Any:
    """The value of an attribute that may be JSON text. Plain text stays text; cut-off JSON is None and flagged."""
    if type(value) is not str:
        return value
    if value[:1] not in _JSON_STARTS and value.lstrip()[:1] not in _JSON_STARTS:
        return value
    try:
        found = loads(value)
    except ValueError:
        if not _LOOKS_LIKE_JSON.match(value):
            return value  # such as `[1] passage …`
        facts.flags |= MALFORMED
        return None
    # Some exporters encode twice.
    if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):
        try:
            return loads(found)
        except ValueError:
            return found
    return found


def id_list(value: object, facts: Facts) -> list[str] | None:
    """Chunk ids in order, null and empty ones counted in `facts.ids_dropped`. None: no list, or no id left."""
    if type(value) is str:
        value = embedded(value, facts)
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        facts.flags |= MALFORMED
        return None
    ids: list[str] = []
    for item in value:
        found = chunk_id(item)
        if found is None:
            facts.ids_dropped += 1
            if item is not None and item != "":
                facts.flags |= MALFORMED
        else:
            ids.append(found)
    return ids if ids or not value else None


def digest_id(content: str) -> str:
    """A stand-in for a chunk id that was not recorded: a digest of the content, white space normalised."""
    normalised = " ".join(content.split())
    return "sha256:" + hashlib.sha256(normalised.encode("utf-8", "surrogatepass")).hexdigest()[:32]
