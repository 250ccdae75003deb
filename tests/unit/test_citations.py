"""What an answer's text cites, and what is never a citation."""

from __future__ import annotations

import pytest

from citegauge.domain import citations
from citegauge.domain.citations import (
    CHUNK_ID_LENGTH_MAX,
    CITATIONS_MAX,
    RANGE_LENGTH_MAX,
    TEXT_LENGTH_MAX,
    chunk_id,
    from_ids,
    from_markers,
    from_text,
)
from citegauge.domain.span import CitationForm

MARKERS: list[tuple[str, list[str], list[int]]] = [
    ("Five days [chunk_3].", ["chunk_3"], []),
    ("Five days [chunk_3, chunk_7].", ["chunk_3", "chunk_7"], []),
    ("Five days [1] and [1, 3].", [], [1, 1, 3]),
    ("Adjacent[2][3], and [4] [5]", [], [2, 3, 4, 5]),
    ("A range [1-3] and [5–6].", [], [1, 2, 3, 5, 6]),
    ("A footnote[^2].\n\n[^2]: Policy", [], [2]),
    ("【1】 and 【2】", [], [1, 2]),
    ("[Source 2] [Document 3; Document 4] [ID:0]", [], [2, 3, 4, 0]),
    ('<cite id="c9">five</cite>', ["c9"], []),
    ("[c9; 2]", ["c9"], [2]),
    ("[kb/policy_1.md#2] and [file.pdf#page=2]", ["kb/policy_1.md#2", "file.pdf#page=2"], []),
    ("as of 2024[1]", [], [1]),
    ("中文[1]。", [], [1]),
    ("[alpha] may be an id", ["alpha"], []),
    ("[some words are none]", [], []),
]


@pytest.mark.parametrize(("text", "cited", "positions"), MARKERS)
def test_markers(text: str, cited: list[str], positions: list[int]) -> None:
    """Ids and positions are found in order, grouped, adjacent, ranged and as footnotes."""
    found = from_markers(text)
    assert (found.form, found.cited, found.positions, found.unresolved) == (CitationForm.INLINE, cited, positions, 0)


@pytest.mark.parametrize(
    "text",
    [
        "[1](https://example.org) and ![2](x.png) and [text](url)",
        "see [the policy][1]",
        "[1]: https://example.org\n> [2]: another",
        "a[1] = arr[2] + self.rows[3] + x_y[4] + items[0]",
        "in [2021] and [1999]",
        "`code [1]` and ``more `[2]` ``",
        "```python\nx = [1]\n```",
        "```\nnever closed [1]",
        "~~~\n[1]\n~~~",
        "[2021-03-04] [12:30] [10%] [3.5] [x=1] [i+1]",
        "[1-900] [9-3]",
        "[] [ ] [,] [[]]",
        "no brackets at all",
    ],
)
def test_what_is_never_a_citation(text: str) -> None:
    """Links, definitions, code, array indexes, years, dates, formulas and wide ranges cite nothing."""
    found = from_markers(text)
    assert (found.cited, found.positions, found.unresolved) == ([], [], 0)


def test_opaque_assistants_markers_are_unresolved() -> None:
    """The numbers in `【4:0†source】` mean nothing without the annotations."""
    assert from_markers("five days 【4:0†source】").unresolved == 1


def test_a_json_answer_with_citations_is_structured() -> None:
    """Strings are ids, ints and numbered markers positions, objects name either; the rest is unresolved."""
    answer = from_text(
        '{"answer": "x [9]", "citations": ["c9", 2, "[3]", {"chunk_id": 7}, {"index": 4}, null, true, {}]}'
    )
    assert answer.citations == (CitationForm.STRUCTURED, ["c9", "7"], [2, 3, 4], 3, False)
    assert not answer.broken_json


def test_a_fenced_json_answer_is_json() -> None:
    """Models wrap JSON in a fence even when told not to."""
    assert from_text('```json\n{"citations": []}\n```').citations == (CitationForm.STRUCTURED, [], [], 0, False)


def test_a_json_answer_without_citations_is_searched_for_markers() -> None:
    """Only the answer inside it is, not its other fields."""
    answer = from_text('{"thoughts": "[7]", "answer": "five days [1]"}')
    assert answer.citations == (CitationForm.INLINE, [], [1], 0, False)


def test_broken_json_is_never_searched() -> None:
    """What was cut off cannot be counted, so nothing is read from what remains."""
    answer = from_text('{"answer": "five days [1]", "citations": ["c9"')
    assert answer.broken_json
    assert answer.citations == (CitationForm.INLINE, [], [], 0, False)


def test_text_that_begins_with_a_marker_is_not_json() -> None:
    """`[1] says …` is prose."""
    assert from_text("[1] says five days").citations.positions == [1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("c1", "c1"), (7, "7"), (7.0, "7"), ("", None), (None, None), (True, None), (7.5, None), ([], None)],
)
def test_chunk_ids(value: object, expected: str | None) -> None:
    """Ids are compared as text; bools and fractions are none."""
    assert chunk_id(value) == expected


def test_an_overlong_id_is_a_digest() -> None:
    """No span can fill the memory with ids, and the same id has the same digest on both sides."""
    long_id = "x" * (CHUNK_ID_LENGTH_MAX + 1)
    found = chunk_id(long_id)
    assert found is not None
    assert len(found) < 60
    assert from_ids([long_id]).cited == [found]


def test_citations_have_a_bound() -> None:
    """Further citations are not read, and the answer says so: a ratio over some of them would be a wrong one."""
    found = from_ids(f"c{number}" for number in range(CITATIONS_MAX + 5))
    assert (len(found.cited), found.unresolved, found.cut) == (CITATIONS_MAX, 0, True)


@pytest.mark.parametrize(
    "text",
    ["[1]" * (CITATIONS_MAX + 1), "[c1] " * (CITATIONS_MAX + 1), "[1, 2, 3]" * CITATIONS_MAX, "[1-99] " * CITATIONS_MAX,
     "[no marker, but prose] " * CITATIONS_MAX, "[some text]" * (CITATIONS_MAX + 1), '<cite id="c1">' * (CITATIONS_MAX + 1),
     "x" * TEXT_LENGTH_MAX + "[1]", '{"a": "' + "x" * TEXT_LENGTH_MAX + '", "citations": [1]}',
     '{"citations": [' + "1," * CITATIONS_MAX + "1]}"],
    ids=["positions", "ids", "lists", "ranges", "prose", "words", "tags", "long", "long_json", "json"],
)  # fmt: skip
def test_an_answer_of_too_many_citations_is_cut(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more parts of brackets are read than the bound says, whatever they are, and the answer says that it was cut."""
    looked, read = [], citations._read_marker

    def counted(inside: str) -> object:
        looked.append(inside.count(",") + 1)
        return read(inside)

    monkeypatch.setattr(citations, "_read_marker", counted)
    found = from_text(text)
    assert found.citations.cut
    assert not found.broken_json
    assert sum(looked) <= CITATIONS_MAX
    assert len(found.citations.cited) + len(found.citations.positions) <= CITATIONS_MAX + RANGE_LENGTH_MAX


def test_an_answer_within_the_bounds_is_not_cut() -> None:
    """The last citation that is read is one that counts."""
    found = from_text("[1]" * CITATIONS_MAX).citations
    assert (len(found.positions), found.cut) == (CITATIONS_MAX, False)
    assert not from_ids(["c1"] * CITATIONS_MAX).cut
