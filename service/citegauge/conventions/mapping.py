"""A user's own mapping: span-name patterns and attribute paths to our fields, from the settings. Not a convention.

A path is an attribute's name, optionally followed by `#` and a path into its JSON: `output.value#results[*].chunk.id`.
In a flat JSON record without a mapped envelope the record's own fields are the attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from citegauge.conventions import identity, native
from citegauge.conventions.answers import explicit, is_answer, read_answer, texts_in
from citegauge.conventions.base import (
    DISTANCE,
    GENERATION,
    MALFORMED,
    OTHER,
    RERANK,
    RETRIEVAL,
    Convention,
    Facts,
    FaultError,
    RawSpan,
)
from citegauge.conventions.documents import documents_in, read_documents
from citegauge.conventions.flat import flexible_time_ns
from citegauge.conventions.values import count, dumps, embedded, id_list, score, text

PATH_STEPS_MAX = 16
_KINDS = {"retrieval": RETRIEVAL, "rerank": RERANK, "generation": GENERATION, "other": OTHER}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanMapping:
    """One kind of span that no convention knows. Empty paths are not read. Raises ValueError for a bad one."""

    name: str
    """A label for the doctor and for error messages."""
    kind: Literal["retrieval", "rerank", "generation", "other"]
    span_name: str = ""
    """Regular expression that the whole span name must match; empty: any."""
    has: str = ""
    """An attribute that must be there, or `name=value`; empty: none."""
    documents: str = ""
    """A list of objects with ids and scores, read like any convention's documents."""
    ids: str = ""
    scores: str = ""
    distances: str = ""
    """As `scores`, where lower is better."""
    top_k: str = ""
    final_ids: str = ""
    retriever_version: str = ""
    scorer: str = ""
    model: str = ""
    cited_ids: str = ""
    output: str = ""
    """The answer: text, JSON with `citations`, or a recorded response."""
    trace_id: str = ""
    """For flat JSON records: where the ids and times stand (times in s, ms, µs, ns or ISO 8601)."""
    span_id: str = ""
    parent_id: str = ""
    start: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        """Check what the settings say, once."""
        if self.kind not in _KINDS:
            raise ValueError(f"mapping {self.name!r}: kind must be one of {', '.join(_KINDS)}")
        if not self.span_name and not self.has:
            raise ValueError(f"mapping {self.name!r}: give span_name or has, or it would claim every span")
        try:
            re.compile(self.span_name)
            for field in _PATH_FIELDS:
                compile_path(getattr(self, field))
        except (re.error, ValueError) as exc:
            raise ValueError(f"mapping {self.name!r}: {exc}") from exc


_PATH_FIELDS = (
    "documents", "ids", "scores", "distances", "top_k", "final_ids", "retriever_version", "scorer", "model",
    "cited_ids", "output", "trace_id", "span_id", "parent_id", "start", "end",
)  # fmt: skip
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\*|\d{1,6})\]")
Read = Callable[[Mapping[str, Any]], Any]


def compile_path(path: str) -> Read:
    """A function from attributes to the value at a path, None where there is none. Raises ValueError."""
    name, _, inner = path.partition("#")
    steps: list[str | int] = []
    at = 0
    while at < len(inner):
        match = _STEP.match(inner, at)
        if match is None or len(steps) >= PATH_STEPS_MAX:
            raise ValueError(f"bad path {path!r} at {inner[at:]!r}")
        key, place = match.groups()
        steps.append(key if key is not None else "*" if place == "*" else int(place))
        at = match.end()

    def read(attributes: Mapping[str, Any]) -> Any:
        value = attributes.get(name)
        if not inner or value is None:
            return value
        return _walk(embedded(value, Facts()), steps, 0)

    return read


def _walk(value: Any, steps: list[str | int], at: int) -> Any:
    for index in range(at, len(steps)):
        step = steps[index]
        if step == "*":
            return [_walk(item, steps, index + 1) for item in value] if isinstance(value, list) else None
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return None
    return value


class CompiledMapping:
    """A mapping that is ready to claim and read spans."""

    def __init__(self, mapping: SpanMapping) -> None:
        self.mapping = mapping
        self._pattern = re.compile(mapping.span_name) if mapping.span_name else None
        self._has, self._equals, self._value = mapping.has.partition("=")
        self._read = {name: compile_path(path) for name in _PATH_FIELDS if (path := getattr(mapping, name))}
        self.convention = Convention(f"mapping:{mapping.name}", self.claims, self.normalise)

    def claims(self, raw: RawSpan) -> bool:
        """The name matches, and the attribute is there."""
        return self._claims(raw.name, raw.attributes)

    def _claims(self, name: str, attributes: Mapping[str, Any]) -> bool:
        if self._pattern is not None and self._pattern.fullmatch(name) is None:
            return False
        if not self._has:
            return True
        value = attributes.get(self._has)
        return value is not None and (not self._equals or text(value) == self._value)

    def _at(self, field: str, attributes: Mapping[str, Any]) -> Any:
        read = self._read.get(field)
        return None if read is None else read(attributes)

    def normalise(self, raw: RawSpan) -> Facts:
        """Facts of a claimed span."""
        attributes = raw.attributes
        facts = Facts(kind=_KINDS[self.mapping.kind])
        if facts.kind in (RETRIEVAL, RERANK):
            self._stage(facts, attributes)
        elif facts.kind == GENERATION:
            facts.model = text(self._at("model", attributes))
            if not explicit(facts, self._at("cited_ids", attributes)):
                output = embedded(self._at("output", attributes), facts)
                read_answer(facts, [dumps(output)] if is_answer(output) else texts_in(output), output)
        else:
            return facts
        native.common(facts, attributes)
        final = self._at("final_ids", attributes)
        if final is not None:
            facts.final_ids = id_list(final, facts)
        return facts

    def _stage(self, facts: Facts, attributes: Mapping[str, Any]) -> None:
        documents = documents_in(self._at("documents", attributes), facts)
        if documents is not None:
            read_documents(documents, facts)
        ids = embedded(self._at("ids", attributes), facts)
        if ids is not None:
            facts.ids = id_list(ids, facts)
        values = embedded(self._at("scores", attributes), facts)
        if values is None:
            values = embedded(self._at("distances", attributes), facts)
            facts.flags |= DISTANCE if values is not None else 0
        if isinstance(values, list) and isinstance(ids, list) and len(values) == len(ids):
            native.align_scores(facts, ids, values)
        elif isinstance(values, int | float | str):
            facts.first_score = score(values, facts)
        elif values is not None:
            facts.flags |= MALFORMED
        facts.top_k = count(self._at("top_k", attributes), facts)
        facts.retriever_version = text(self._at("retriever_version", attributes))
        facts.scorer = text(self._at("scorer", attributes))

    def claims_record(self, found: Mapping[str, Any]) -> bool:
        """True for a flat JSON record whose ids this mapping knows where to find."""
        if "trace_id" not in self._read or "span_id" not in self._read:
            return False
        name = found.get("name")
        return self._claims(name if isinstance(name, str) else "", found)

    def open_record(self, found: Mapping[str, Any]) -> RawSpan:
        """The raw span of a flat JSON record. Raises `FaultError`."""
        if not isinstance(found, dict):
            raise FaultError("not_an_object", found)
        name = found.get("name")
        end = self._at("end", found)
        start = self._at("start", found)
        return RawSpan(
            trace_id=identity.foreign_trace_id(self._at("trace_id", found)),
            span_id=identity.foreign_span_id(self._at("span_id", found)),
            parent_id=identity.foreign_parent_id(self._at("parent_id", found)),
            name=name if isinstance(name, str) else "",
            start_ns=flexible_time_ns(end if start is None else start),
            end_ns=flexible_time_ns(start if end is None else end),
            attributes=found,
        )
