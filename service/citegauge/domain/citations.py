"""Citations as an answer states them: ids and positions from lists, JSON answers and inline markers. Pure.

Not their resolution: which of them were retrieved, and what a position means, is the score's work (`domain.score`).

Never taken for a marker: markdown links and images, reference definitions (`[1]: …`), code (fenced or inline), array
indexes, years, dates, and any bracket with prose in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from citegauge.domain.span import CitationForm

CHUNK_ID_LENGTH_MAX = 512
"""A longer id is replaced by its digest, so that no span can fill the memory with ids."""
TEXT_LENGTH_MAX = 1_000_000
"""Characters of an answer that are searched for markers."""
MARKER_LENGTH_MAX = 300
"""Characters between the brackets of one marker."""
RANGE_LENGTH_MAX = 100
"""A wider `[1-500]` is no list of citations."""
POSITION_MAX = 1_000_000
"""A larger number in a JSON answer is not a position."""
CITATIONS_MAX = 10_000
"""Citations kept of one answer, and parts of brackets that are looked at, whether or not they cite: `[1, 2]` has two.

With more of them an answer is `cut`: a ratio over some of its citations would be a wrong one, and a record of nothing but
brackets would hold up all others for seconds.
"""


class Citations(NamedTuple):
    """What one answer cites, in order of appearance, ids and positions apart."""

    form: int
    """A `CitationForm`."""
    cited: list[str]
    positions: list[int]
    """As written; the base belongs to the route."""
    unresolved: int = 0
    """Citations that name nothing: null, a wrong type, an opaque number."""
    cut: bool = False
    """There may be more: beyond `CITATIONS_MAX` or `TEXT_LENGTH_MAX` nothing was read."""


def chunk_id(value: object) -> str | None:
    """A chunk id as text: as it is, ints as decimal digits, overlong ones as a digest. None where there is none."""
    if type(value) is str:
        found = value
    elif type(value) is int:
        found = str(value) if value.bit_length() <= 256 else hex(value)
    elif type(value) is float and math.isfinite(value) and value.is_integer():
        found = str(int(value))
    else:
        return None
    if len(found) > CHUNK_ID_LENGTH_MAX:
        return "sha256:" + hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return found or None


def from_ids(items: Iterable[object], form: int = CitationForm.EXPLICIT) -> Citations:
    """Explicit ids; ints are ids too. Null, empty and other values are unresolved."""
    cited: list[str] = []
    unresolved = 0
    stated = iter(items)
    for item in islice(stated, CITATIONS_MAX):
        found = chunk_id(item.get("id", item.get("chunk_id")) if isinstance(item, dict) else item)
        if found is None:
            unresolved += 1
        else:
            cited.append(found)
    return Citations(int(form), cited, [], unresolved, cut=next(stated, _END) is not _END)


_END = object()
_ID_KEYS = ("chunk_id", "chunkId", "id", "document_id", "doc_id", "source_id", "node_id")
_POSITION_KEYS = ("index", "position", "number", "source", "citation", "ref")


def from_json_list(items: Iterable[object], form: int = CitationForm.STRUCTURED) -> Citations:
    """The `citations` of a JSON answer: strings are ids, ints positions, objects name one or the other."""
    cited: list[str] = []
    positions: list[int] = []
    unresolved = 0
    for entry in items:
        if len(cited) + len(positions) + unresolved >= CITATIONS_MAX:
            return Citations(int(form), cited, positions, unresolved, cut=True)
        item = _named(entry) if isinstance(entry, dict) else entry
        if type(item) is int and abs(item) <= POSITION_MAX:
            positions.append(item)
        elif type(item) is str:
            marker = _read_bracketed(item)
            if marker is not None:
                cited += marker.cited
                positions += marker.positions
                unresolved += marker.unresolved
            elif (found := chunk_id(item.strip())) is not None:
                cited.append(found)
            else:
                unresolved += 1
        else:
            unresolved += 1
    return Citations(int(form), cited, positions, unresolved)


def _named(entry: dict[Any, Any]) -> object:
    for key in _ID_KEYS:
        value = entry.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    for key in _POSITION_KEYS:
        value = entry.get(key)
        if type(value) in (int, str):
            return value
    return None


def _read_bracketed(item: str) -> _Marker | None:
    stripped = item.strip()
    if len(stripped) > 2 and stripped[0] == "[" and stripped[-1] == "]" and len(stripped) <= MARKER_LENGTH_MAX:
        return _read_marker(stripped[1:-1])
    return None


def from_answer(answer: object) -> Citations | None:
    """Citations of a parsed JSON answer; None unless it is an object that has `citations`."""
    if not isinstance(answer, dict) or "citations" not in answer:
        return None
    stated = answer["citations"]
    if stated is None:
        return Citations(int(CitationForm.STRUCTURED), [], [])
    if isinstance(stated, list):
        return from_json_list(stated)
    if isinstance(stated, str):
        return from_json_list([part for part in re.split(r"[,;\n]", stated) if part.strip()])
    return from_json_list([stated])


_ANSWER_KEYS = ("answer", "response", "text", "content", "output", "result", "message")


class Answer(NamedTuple):
    """Citations of an answer text, and whether the text is JSON that cannot be read."""

    citations: Citations
    broken_json: bool


def from_text(text: str) -> Answer:
    """Citations of an answer: JSON with `citations` (also in a fence), else the inline markers, possibly none.

    Markers are never sought in broken JSON: what stands there may be cut off.
    """
    body = text[:TEXT_LENGTH_MAX]
    candidate = _unfenced(body.strip())
    if candidate[:1] == "{":
        try:
            answer = _loads(candidate)
        except ValueError:
            if re.match(r'\{\s*"', candidate):
                # Of a longer text nobody knows whether it was broken before we cut it.
                cut = len(text) > TEXT_LENGTH_MAX
                return Answer(Citations(int(CitationForm.INLINE), [], [], cut=cut), broken_json=not cut)
        else:
            found = from_answer(answer)
            if found is not None:
                return Answer(found, broken_json=False)
            body = next((answer[key] for key in _ANSWER_KEYS if isinstance(answer.get(key), str)), "")
    found = from_markers(body)
    return Answer(found._replace(cut=True) if len(text) > TEXT_LENGTH_MAX else found, broken_json=False)


def _unfenced(text: str) -> str:
    """The inside of a text that is one fence as a whole, any other text as it is."""
    if len(text) < 7 or not text.startswith("```") or not text.endswith("```"):
        return text
    language, _, inside = text[3:-3].partition("\n")
    return inside.strip() if language.strip().lower() in ("", "json") else text


def _loads(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError:
        if "NaN" not in text and "Infinity" not in text:
            raise
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# ---------------------------------------------------------------------------------------------- inline markers

_BRACKETS = re.compile(rf"\[([^\[\]\n]{{1,{MARKER_LENGTH_MAX}}})\]|【([^【】\n]{{1,{MARKER_LENGTH_MAX}}})】")
_CITE_TAG = re.compile(r"<cite\s+(?:id|ref|source)\s*=\s*[\"']([^\"'<>\n]{1,300})[\"']", re.IGNORECASE)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TILDE_FENCE = re.compile(r"^~~~.*?(?:^~~~|\Z)", re.DOTALL | re.MULTILINE)
_INLINE_CODE = re.compile(r"``[^\n]{1,500}?``|`[^`\n]{1,500}`")
_POSITION = re.compile(
    r"(?:\^|(?:source|sources|doc|document|passage|context|ref|reference|citation|cite|chunk)[ :#]+|ID:|#)?(\d{1,4})",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\^?(\d{1,4})\s?[-–—]\s?\^?(\d{1,4})")
_NUMERIC = re.compile(r"[\d.,:/%$€-]+")
_ID_TOKEN = re.compile(r"[^\s,;'\"<>*{}()=|\\]*[^\W_][^\s'\"<>*{}()|\\,;]*")
_FORMULA = re.compile(r"\w{1,12}[=+]\w*")
_OPAQUE = re.compile(r"\d+(?::\d+)?†[^】]*")
_CODE_NAMES = frozenset(
    """
    args argv arr array arrays buf cells chars col cols data dict elem element elements foo bar idx
    index item items key keys list lst mat matrix nums obj params res row rows self str sys temp tmp
    tuple val vals values var vec vector
    """.split()  # noqa: SIM905  # a list of words reads better
)
"""Words that stand before a bracket in code rather than in prose."""
_LAST_WORD = re.compile(r"[\w.$]+\Z")


class _Marker(NamedTuple):
    cited: list[str]
    positions: list[int]
    unresolved: int


def from_markers(text: str) -> Citations:
    """Ids and positions of the inline markers, in order of appearance. No marker at all is a fact: empty lists."""
    cited: list[str] = []
    positions: list[int] = []
    unresolved = parts = 0
    cut = False
    if "[" in text or "【" in text or "<cite" in text or "<CITE" in text:
        plain = _without_code(text)
        link_end = word_end = -1  # ends of brackets that are not (surely) markers: `[some text][1]` is a link
        for match in _BRACKETS.finditer(plain):
            parts += 1 + match.group().count(",") + match.group().count(";")
            if max(parts, len(cited) + len(positions)) > CITATIONS_MAX:
                cut = True
                break
            marker = None
            if match.group(2) is not None:
                marker = _read_marker(match.group(2))
            elif match.start() != link_end and not _is_code_or_link(plain, match.start(), match.end()):
                marker = _read_marker(match.group(1))
            if marker is None:
                link_end = match.end()
                continue
            if marker.positions and not marker.cited and match.start() == word_end:
                continue
            if not marker.positions and not any(map(_has_digit, marker.cited)):
                word_end = match.end()
            cited += marker.cited
            positions += marker.positions
            unresolved += marker.unresolved
        for match in _CITE_TAG.finditer(plain):
            parts += 1 + match.group().count(",") + match.group().count(";")
            if max(parts, len(cited) + len(positions)) > CITATIONS_MAX:
                cut = True
                break
            marker = _read_marker(match.group(1))
            if marker is not None:
                cited += marker.cited
                positions += marker.positions
    return Citations(int(CitationForm.INLINE), cited, positions, unresolved, cut)


def _without_code(text: str) -> str:
    if "~~~" in text:
        text = _TILDE_FENCE.sub(" ", text)
    if "`" not in text:
        return text
    # A space, so that the words around code do not grow together. An open fence runs to the end of the text.
    return _INLINE_CODE.sub(" ", _FENCE.sub(" ", text))


def _is_code_or_link(text: str, start: int, end: int) -> bool:
    following = text[end : end + 1]
    if following == "(":
        return True
    line_start = text.rfind("\n", max(0, start - 8), start) + 1 or (0 if start < 8 else -1)
    if following == ":" and line_start >= 0 and not text[line_start:start].strip(" >"):
        return True  # a definition: `[1]: https://…`, `[^1]: Policy`
    if following.isalnum() or following == "_":
        return True
    before = _LAST_WORD.search(text[max(0, start - 40) : start])
    if before is None:
        return False
    word = before.group()
    if word.endswith("."):
        return False  # the end of a sentence: `refunds.[1]`
    if word.isascii() and word.isalpha():
        return len(word) == 1 or word.lower() in _CODE_NAMES
    return not (word.isdigit() or (word.replace("_", "").isalpha() and "_" not in word))


def _read_marker(inside: str) -> _Marker | None:
    """The parts of one bracket; None when any of them is neither a position nor an id: then it is prose."""
    if _OPAQUE.fullmatch(inside):
        return _Marker([], [], 1)
    cited: list[str] = []
    positions: list[int] = []
    for written in re.split(r"[,;]", inside):
        part = written.strip()
        if (ranged := _RANGE.fullmatch(part)) is not None:
            first, last = int(ranged.group(1)), int(ranged.group(2))
            if not 0 <= last - first < RANGE_LENGTH_MAX or _is_year(ranged.group(1)):
                return None
            positions += range(first, last + 1)
        elif (single := _POSITION.fullmatch(part)) is not None:
            if part.isdigit() and _is_year(part):
                return None
            positions.append(int(single.group(1)))
        elif part[:1] == "^" or _NUMERIC.fullmatch(part) or _FORMULA.fullmatch(part) or not _ID_TOKEN.fullmatch(part):
            return None
        elif (found := chunk_id(part)) is not None:
            cited.append(found)
    return _Marker(cited, positions, 0)


def _has_digit(token: str) -> bool:
    return any(character.isdigit() for character in token)


def _is_year(digits: str) -> bool:
    return len(digits) == 4 and digits[:2] in ("19", "20")
