"""No input makes decode raise anything but a dead letter, give an unkeepable span, or take more than linear time."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citegauge.domain.citations import from_text
from support.decode_laws import DECODERS, RECORDS, check

DOCUMENTS = [(encoding, json.loads(record)) for encoding, record in RECORDS if not encoding.endswith("_proto")]

TEXTS = [
    "", "0" * 32, "NaN", "1e999", "-1", "0.5", "[", "{", '[{"id"', "[1]", '{"citations": [1, null]}', "RETRIEVER",
    '"RETRIEVER"', "LLM", "{}", "[]", "😀", "tr-", "0x", "====",
    "@deep", "@huge",
]  # fmt: skip
HOLES = {"@deep": "[" * 700 + "]" * 700, "@huge": "9" * 5000}
"""Values that Python's own functions fail on; they are put in as text, when the record is written."""
KEYS = [
    "id", "score", "metadata", "document", "value", "type", "citations", "documents", "content", "stringValue",
    "arrayValue", "values", "kvlistValue", "key", "intValue", "doubleValue",
]  # fmt: skip
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(TEXTS),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)),
    max_leaves=6,
)


def _written(document: object) -> bytes:
    text = json.dumps(document)
    for name, value in HOLES.items():
        text = text.replace(f'"{name}"', value)
    return text.encode()


@settings(max_examples=500)
@given(record=st.binary(max_size=200), encoding=st.sampled_from(sorted(DECODERS)))
def test_any_bytes(record: bytes, encoding: str) -> None:
    """Noise is a dead letter or nothing."""
    check(encoding, record)


@settings(max_examples=1500)
@given(data=st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    """A real record that was cut, or has bytes replaced, in its own encoding and sniffed."""
    encoding, record = data.draw(st.sampled_from(RECORDS))
    damaged = bytearray(record)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1)) if damaged else 0
        until = at + data.draw(st.sampled_from([0, 1, 4, len(damaged)]))
        damaged[at:until] = data.draw(st.binary(max_size=4))
    check(encoding, bytes(damaged))
    check("auto", bytes(damaged))


def _places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return found + [place for key, inner in items for place in _places(inner, (*path, key))]


@settings(max_examples=3000)
@given(data=st.data())
def test_damaged_values(data: st.DataObject) -> None:
    """A real record in which up to three values, on any level, are something else."""
    encoding, document = data.draw(st.sampled_from(DOCUMENTS))
    damaged = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        places = _places(damaged)
        if not places:
            break
        *path, last = data.draw(st.sampled_from(places))
        node = damaged
        for key in path:
            node = node[key]
        node[last] = data.draw(VALUES)
    check(encoding, _written(damaged))


@pytest.mark.parametrize("odd", [None, True, -1, "", [], {}, [None], "@deep", "@huge"], ids=repr)
def test_every_value_in_turn(odd: object) -> None:
    """Each value of each published shape replaced by one odd value; this does not wait for luck."""
    for encoding, document in DOCUMENTS:
        for *path, last in _places(document):
            node = document
            for key in path:
                node = node[key]
            kept, node[last] = node[last], odd
            record = _written(document)
            node[last] = kept
            check(encoding, record)


@settings(max_examples=1000)
@given(attributes=st.dictionaries(
    st.sampled_from(sorted({
        attribute["key"]
        for encoding, document in DOCUMENTS if encoding == "otlp_json" and "resourceSpans" in document
        for scopes in document["resourceSpans"] for scope in scopes["scopeSpans"] for span in scope["spans"]
        if isinstance(span, dict)
        for attribute in span.get("attributes", [])
    })), VALUES, max_size=6))  # fmt: skip
def test_any_mixture_of_attributes(attributes: dict[str, Any]) -> None:
    """Attributes of several conventions on one span, with any values."""
    event = {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
        "end_time_unix_nano": 1, "attributes": attributes,
    }  # fmt: skip
    check("jsonl", _written(event))


@settings(max_examples=1000)
@given(text=st.text(alphabet="[]()`~{}\"'\n :,;^-0123456789abc【】†<>/=_.\\", max_size=60))
def test_any_answer(text: str) -> None:
    """Whatever the model writes, the citations are ids, positions and a count."""
    found = from_text(text).citations
    assert all(item for item in found.cited)
    assert all(isinstance(position, int) for position in found.positions)
    assert found.unresolved >= 0


SHORT_S, TIMES = 0.05, 16
"""What is over sooner is not judged; how many times larger the large input is."""


def assert_linear(seconds: Callable[[int], float], large: int) -> None:
    """Sixteen times as much takes less than 48 times as long; were it quadratic, it would take 256 times as long.

    The best of several tries: other processes and garbage collection only ever make it slower.
    """
    tried = []
    for _ in range(5):
        small_s = min(seconds(large // TIMES) for _ in range(3))
        large_s = seconds(large)
        if large_s < max(3 * TIMES * small_s, SHORT_S):
            return
        tried.append(f"{small_s:.4f} s became {large_s:.4f} s")
    raise AssertionError(f"for {TIMES} times as much: {'; '.join(tried)}")


HOSTILE = [
    "[", "[1]", "[[1]", "`", "``x", "~~~\n", "```\n", "<cite id=", "[a](", "【", "[1-100]", "a[", "[1111", "[ ", "[,",
    '{"', "[a-", "[^", '<cite  id = "', "\n[1]:", "[1]\n>", "doc ", "[source ", "[x=", "[1:", "a.b.c[1]",
]  # fmt: skip


@pytest.mark.parametrize("start", ["", "```\n", '{"answer": "', "<cite id='", "["])
@pytest.mark.parametrize("unit", [*HOSTILE, " ", "\n", "\t\n ", "x"])
def test_hostile_text_takes_linear_time(unit: str, start: str) -> None:
    """No unit, however often it is repeated, makes the search for citations go back over what it has read."""

    def seconds(length: int) -> float:
        text = start + (unit * (length // len(unit) + 1))[:length]
        started = time.process_time()
        from_text(text)
        return time.process_time() - started

    assert_linear(seconds, 80_000)


def test_nested_conversations_take_linear_time() -> None:
    """An answer is sought at most once in every part of a response, so depth does not multiply."""

    def seconds(depth: int) -> float:
        node: object = {"role": "assistant", "content": ["x"] * 20_000}
        for _ in range(depth):
            node = {"messages": [node]}
        event = {
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "end_time_unix_nano": 1,
            "attributes": {"langfuse.observation.type": "generation", "langfuse.observation.output": node},
        }  # fmt: skip
        record = json.dumps(event).encode()
        started = time.process_time()
        check("jsonl", record)
        return time.process_time() - started

    flat, nested = min(seconds(0) for _ in range(3)), min(seconds(5) for _ in range(3))
    assert nested < 3 * flat + 0.02


def test_many_keys_take_linear_time() -> None:
    """A span may have as many attributes as its record holds."""

    def seconds(keys: int) -> float:
        attributes: dict[str, object] = {f"retrieval.documents.{at}.document.id": f"c{at}" for at in range(keys)}
        event = {
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "end_time_unix_nano": 1,
            "attributes": {"openinference.span.kind": "RETRIEVER", **attributes},
        }  # fmt: skip
        record = json.dumps(event).encode()
        started = time.process_time()
        check("jsonl", record)
        return time.process_time() - started

    assert_linear(seconds, 20_000)


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def _langwatch(n: int) -> object:
    spans = [{"span_id": f"s{at}", "type": "rag", "timestamps": {"started_at": 1}} for at in range(n)]
    return {"trace_id": "t", "metadata": {f"k{at}": at for at in range(n)}, "spans": spans}


def _jaeger(n: int) -> object:
    tags = [{"key": f"k{at}", "value": at} for at in range(n)]
    spans = [{"traceID": TRACE, "spanID": f"{at + 1:016x}", "operationName": "o", "processID": "p"} for at in range(n)]
    return {"data": [{"traceID": TRACE, "spans": spans, "processes": {"p": {"serviceName": "s", "tags": tags}}}]}


def _logs(n: int) -> object:
    shared = [{"key": f"k{at}", "value": {"intValue": at}} for at in range(n)]
    log = {"timeUnixNano": "1", "eventName": "gen_ai.choice", "traceId": TRACE, "spanId": "00f067aa0ba902b7"}
    return {"resourceLogs": [{"resource": {"attributes": shared}, "scopeLogs": [{"logRecords": [log] * n}]}]}


def _spans(n: int) -> object:
    shared = [{"key": f"k{at}", "value": {"intValue": at}} for at in range(n)]
    span = {"traceId": TRACE, "spanId": "00f067aa0ba902b7", "endTimeUnixNano": "1"}
    return {"resourceSpans": [{"resource": {"attributes": shared}, "scopeSpans": [{"spans": [span] * n}]}]}


def _long_names(n: int) -> object:
    inner: dict[str, object] = {f"k{at}": at for at in range(n)}
    context = {"trace_id": TRACE, "span_id": "00f067aa0ba902b7"}
    return {"context": context, "attributes": {"llm": {"x" * (20 * n): inner}}}


@pytest.mark.parametrize("made", [_langwatch, _jaeger, _logs, _spans, _long_names])
def test_what_spans_share_is_not_copied_for_each(made: Callable[[int], object]) -> None:
    """A record of which half is shared and half is spans takes linear time, not the product of the halves."""

    def seconds(n: int) -> float:
        record = json.dumps(made(n)).encode()
        started = time.process_time()
        check("auto", record)
        return time.process_time() - started

    assert_linear(seconds, 4_000)
