"""What a PromQL expression reads: names, matchers, and how far back. A reader of tokens, not a parser: Prometheus parses.

Only so much is understood as tells whether a rule can be replayed from history, and which samples it needs. The parser
that the dashboards' tests use would do it, but its package declares no licence, which what runs must have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)|(?P<comment>\#[^\n]*)"""
    r"""|(?P<number>\d[\w.]*)|(?P<name>[A-Za-z_:][\w:]*)|(?P<mark>[^\s])"""
)
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"})
_AGGREGATIONS = frozenset(
    {"sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile"}
)
"""They may stand before `by`, and not only before a parenthesis."""
_KEYWORDS = _LABEL_LISTS | _OPERATORS | _AGGREGATIONS
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w|y)")
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}


class Reads(NamedTuple):
    """One selector."""

    name: str
    """Empty where only matchers stand."""
    matchers: tuple[str, ...]
    """As written, without blanks: `window="1h"`."""


def reads(expr: str) -> list[Reads]:
    """The selectors of an expression, in order."""
    found: list[Reads] = []
    tokens = [(str(each.lastgroup), each[0]) for each in _TOKEN.finditer(expr) if each.lastgroup != "comment"]
    rest = iter(range(len(tokens)))
    for at in rest:
        kind, text = tokens[at]
        after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if text == "[":
            _skip(tokens, rest, "]")
        elif text == "{":
            inside = _skip(tokens, rest, "}")
            matchers = tuple(part for part in _split(inside) if part)
            named = at > 0 and found and tokens[at - 1] == ("name", found[-1].name)
            found[-1:] = [found[-1]._replace(matchers=matchers)] if named else [*found[-1:], Reads("", matchers)]
        elif kind == "name" and text.lower() in _LABEL_LISTS and after == "(":
            _skip(tokens, rest, ")")
        elif kind == "name" and after != "(" and text.lower() not in _KEYWORDS:
            found.append(Reads(text, ()))
    return found


def _skip(tokens: list[tuple[str, str]], rest: Iterator[int], end: str) -> list[str]:
    """Go on behind `end`; what stood before it."""
    inside = []
    for at in rest:
        if tokens[at][1] == end:
            break
        inside.append(tokens[at][1])
    return inside


def _split(inside: list[str]) -> Iterator[str]:
    part = ""
    for text in inside:
        if text == ",":
            yield part
            part = ""
        else:
            part += text
    yield part


def reach_s(expr: str) -> int:
    """How far back the expression looks, at most: the sum of its ranges and offsets, in seconds."""
    total, in_range, after_offset = 0.0, False, False
    for each in _TOKEN.finditer(expr):
        text = each[0]
        if text in "[]":
            in_range = text == "["
        elif each.lastgroup == "number" and (in_range or after_offset):
            total += sum(int(n) * _UNIT_S[unit] for n, unit in _DURATION.findall(text))
        after_offset = text == "offset" or (after_offset and text == "-")
    return int(total)
