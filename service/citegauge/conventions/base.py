"""The values that pass between envelope, convention and the finished `Span`. No decoding here.

bytes → envelope → `RawSpan` (ids and times canonical, attributes as sent) → convention → `Facts` → `Span`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from citegauge.domain.span import Flag, Kind, Span

OTHER, RETRIEVAL, RERANK, GENERATION = int(Kind.OTHER), int(Kind.RETRIEVAL), int(Kind.RERANK), int(Kind.GENERATION)
# Plain integers: arithmetic on enum members costs more than the attribute look-ups around it.
TRUNCATED, MALFORMED, SYNTHETIC_IDS = int(Flag.TRUNCATED), int(Flag.MALFORMED), int(Flag.SYNTHETIC_IDS)
EXPECTS_JSON, DISTANCE = int(Flag.EXPECTS_JSON), int(Flag.DISTANCE)
FILE_LEVEL_CITATIONS, RETRIEVED_IS_CITED = int(Flag.FILE_LEVEL_CITATIONS), int(Flag.RETRIEVED_IS_CITED)
FILE_LEVEL_IDS, CITATIONS_CUT = int(Flag.FILE_LEVEL_IDS), int(Flag.CITATIONS_CUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFault:
    """One unreadable span inside a record whose other spans are good."""

    index: int
    """Position of the span in the record, 0-based over all spans in order."""
    reason: str
    """Short, stable label such as `bad_trace_id`; it becomes a metric label."""
    detail: str
    """What was found, shortened; never a whole record."""


class FaultError(Exception):
    """Raised inside an envelope for one span; the envelope turns it into a `SpanFault` or a dead letter."""

    def __init__(self, reason: str, detail: object = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = shown(detail)


_WORD = re.compile(r"[\w.:/+=-]{1,64}", re.ASCII)
"""What an identifier or a time may look like. Anything else in their place may be somebody's question."""


def shown(value: object) -> str:
    """A value for a fault's detail: one word or number, else only what kind of thing it is and how long."""
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("ascii", "replace")
        return repr(value) if _WORD.fullmatch(text) else f"{type(value).__name__} of length {len(value)}"
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 256):
        return repr(value)
    return type(value).__name__


class RawEvent(NamedTuple):
    """A span event as sent."""

    name: str
    attributes: Mapping[str, Any]


class RawSpan(msgspec.Struct, gc=False, kw_only=True):
    """A span whose envelope is open: canonical ids and times; attributes are plain Python values as sent."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes = b""
    name: str = ""
    start_ns: int = 0
    end_ns: int = 0
    attributes: Mapping[str, Any] = {}  # msgspec copies an empty default for each instance
    resource: Mapping[str, Any] = {}
    scope: str = ""
    events: list[RawEvent] | None = None
    dropped: int = 0
    """Attributes and events that the SDK dropped at its limits."""


class Facts(msgspec.Struct, gc=False, kw_only=True):
    """What a convention found in one span; the fields mean what they mean in `Span`."""

    kind: int = OTHER
    flags: int = 0
    ids: list[str] | None = None
    ids_dropped: int = 0
    scores: list[float | None] | None = None
    first_score: float | None = None
    final_ids: list[str] | None = None
    top_k: int = 0
    retriever_version: str = ""
    scorer: str = ""
    model: str = ""
    citation_form: int = 0
    cited: list[str] | None = None
    positions: list[int] | None = None
    unresolved: int = 0
    inside: Facts | None = None
    """A retrieval that the model's provider did within this generation; it becomes a span of its own."""


FILES = "files"
"""Marks, in the retriever's version, that ids name files: such a recall is another number, so it is another series."""


IDS_MAX = 10_000
"""Ids kept of one list. A longer one is cut off, and says so: each span of the trace asks for all of them again."""
VERSION_LENGTH_MAX = 190
"""Characters of a version that is marked so."""


def inside_of(raw: RawSpan) -> RawSpan:
    """The span of a retrieval inside `raw`: the same times, an id made from its id, which a repeated record repeats."""
    return RawSpan(
        trace_id=raw.trace_id,
        span_id=hashlib.sha256(raw.span_id + b"inside").digest()[:8],
        parent_id=raw.span_id,
        start_ns=raw.start_ns,
        end_ns=raw.end_ns,
    )


def finished(raw: RawSpan, facts: Facts, route: str, route_rank: int, user_hash: bytes = b"") -> Span:
    """The span as the join takes it."""
    flags = facts.flags
    if raw.dropped and facts.kind in (RETRIEVAL, RERANK):
        # The SDK drops the oldest attributes first, and these are the best documents.
        flags |= TRUNCATED
    ids, scores, final_ids = facts.ids, facts.scores, facts.final_ids
    if max(len(ids or ()), len(final_ids or ())) > IDS_MAX:
        ids, scores, final_ids = ids and ids[:IDS_MAX], scores and scores[:IDS_MAX], final_ids and final_ids[:IDS_MAX]
        flags |= TRUNCATED
    version = facts.retriever_version
    if flags & FILE_LEVEL_IDS:
        version = f"{version[:VERSION_LENGTH_MAX]}/{FILES}" if version else FILES
    return Span(
        span_id=raw.span_id,
        parent_id=raw.parent_id,
        kind=facts.kind,
        start_ns=raw.start_ns,
        end_ns=raw.end_ns,
        flags=flags,
        route=route,
        route_rank=route_rank,
        ids=ids,
        ids_dropped=facts.ids_dropped,
        scores=scores,
        first_score=facts.first_score,
        final_ids=final_ids,
        top_k=facts.top_k,
        retriever_version=version,
        scorer=facts.scorer,
        model=facts.model,
        citation_form=facts.citation_form,
        cited=facts.cited,
        positions=facts.positions,
        unresolved=facts.unresolved,
        trace_id=raw.trace_id,
        user_hash=user_hash,
    )


Opened: TypeAlias = Iterable[RawSpan | SpanFault]


class Envelope(NamedTuple):
    """How bytes become spans. `spans` raises `DeadLetterError` when nothing in the record can be read."""

    name: str
    spans: Callable[[bytes], Opened]


class Convention(NamedTuple):
    """How one family of instrumentation says what it retrieved and cited."""

    name: str
    claims: Callable[[RawSpan], bool]
    """True when this convention says what kind of span it is. Cheap: it runs on every span."""
    normalise: Callable[[RawSpan], Facts]
    """Never raises for any content of a claimed span."""
