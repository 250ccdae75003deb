"""Attribute values of the OTLP envelopes, protobuf and JSON, as plain Python values. Not the messages around them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

VALUE_DEPTH_MAX = 32
"""Attribute values nested deeper than this are read as missing."""


def proto_attributes(attributes: Iterable[Any]) -> dict[str, Any]:
    """The attributes of a message by name."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        value = attribute.value
        # Most values are texts, and asking for the text is cheaper than asking which it is.
        found[attribute.key] = value.string_value or proto_value(value, 0)
    return found


def proto_value(value: Any, depth: int) -> Any:
    """One `AnyValue`; lists and maps become those of Python."""
    which = value.WhichOneof("value")
    if which is None or depth > VALUE_DEPTH_MAX:
        return None
    if which == "array_value":
        return [item.string_value or proto_value(item, depth + 1) for item in value.array_value.values]
    if which == "kvlist_value":
        return {item.key: proto_value(item.value, depth + 1) for item in value.kvlist_value.values}
    return getattr(value, which)


def either(found: Any, camel: str, snake: str) -> Any:
    """The field by its camelCase name, else by its snake_case one."""
    value = found.get(camel)
    return found.get(snake) if value is None else value


def dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a list; empty for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def json_attributes(attributes: object) -> dict[str, Any]:
    """The attributes of a JSON message by name."""
    if isinstance(attributes, dict):  # not OTLP, but the obvious slip
        return attributes
    found: dict[str, Any] = {}
    if isinstance(attributes, list):
        for attribute in attributes:
            if isinstance(attribute, dict) and isinstance(key := attribute.get("key"), str):
                value = attribute.get("value")
                text = value.get("stringValue") if isinstance(value, dict) else None
                found[key] = text if type(text) is str else json_value(value, 0)
    return found


def json_value(value: Any, depth: int) -> Any:
    """One `AnyValue` of the JSON form."""
    if not isinstance(value, dict) or depth > VALUE_DEPTH_MAX:
        return None
    for key, item in value.items():
        if key in ("stringValue", "string_value", "boolValue", "bool_value"):
            return item
        if key in ("intValue", "int_value"):
            return _json_int(item)
        if key in ("doubleValue", "double_value"):
            return _json_double(item)
        if key in ("arrayValue", "array_value"):
            values = item.get("values") if isinstance(item, dict) else None
            return [json_value(inner, depth + 1) for inner in values] if isinstance(values, list) else []
        if key in ("kvlistValue", "kvlist_value"):
            return {
                inner["key"]: json_value(inner.get("value"), depth + 1)
                for inner in dicts(item.get("values") if isinstance(item, dict) else None)
                if isinstance(inner.get("key"), str)
            }
        if key in ("bytesValue", "bytes_value"):
            return _json_bytes(item)
    return None


def _json_int(item: object) -> object:
    if isinstance(item, str):
        digits = item.removeprefix("-")
        return int(item) if digits.isascii() and digits.isdigit() and len(digits) < 20 else item
    if type(item) is float and item.is_integer():
        return int(item)
    return item


def _json_double(item: object) -> object:
    if isinstance(item, str):
        try:
            return float(item) if len(item) < 40 else item
        except ValueError:
            return item
    return float(item) if type(item) is int and item.bit_length() < 1000 else item


def _json_bytes(item: object) -> object:
    try:
        return base64.b64decode(item) if isinstance(item, str) else None
    except ValueError:
        return None
