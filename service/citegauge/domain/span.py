"""The normalised span: the one value that every convention maps to and the join keeps. Not what a vendor sent."""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.IntEnum):
    """What a span is to the measurement. OTHER is kept only for its route and its parent link."""

    OTHER = 0
    RETRIEVAL = 1
    RERANK = 2
    GENERATION = 3


class CitationForm(enum.IntEnum):
    """How a generation span says what it cites, strongest first. UNKNOWN: the answer was not captured."""

    UNKNOWN = 0
    EXPLICIT = 1
    """A list of ids (or positions) on the span itself."""
    STRUCTURED = 2
    """The answer is JSON and has a `citations` list."""
    BLOCKS = 3
    """Provider citation blocks beside the text."""
    INLINE = 4
    """Markers in the text, possibly none: the answer was captured, so citing nothing is a fact."""


class Flag(enum.IntFlag):
    """States of one span that decide what may be measured from it."""

    NONE = 0
    TRUNCATED = 1
    """Attributes were dropped, or document indices do not run 0, 1, 2, …; ids and first score cannot be trusted."""
    SYNTHETIC_IDS = 2
    """At least one chunk id was made from the content, because none was recorded."""
    RETRIEVED_IS_CITED = 4
    """The source lists only the chunks that it cites, so the ratio is 1 by construction."""
    BAD_TIME = 8
    """The end lies outside [2000-01-01, record timestamp + skew]; set by the join, never by a convention."""
    EXPECTS_JSON = 16
    """The span itself says that its output had to be JSON."""
    FILE_LEVEL_CITATIONS = 32
    """The citations name files, not chunks."""
    FILE_LEVEL_IDS = 64
    """The retrieved ids name files, not chunks."""
    DISTANCE = 128
    """The recorded scores are distances (lower is better)."""
    MALFORMED = 256
    """An attribute was present but unreadable (wrong type, non-finite, cut-off JSON); it was treated as missing."""
    CITATIONS_CUT = 512
    """The answer is longer, or cites more, than is read (`domain.citations`); what it cites is not known in full."""


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One span, normalised. Times are integer ns since the epoch; empty string, 0 or None mean "not recorded".

    Field order is the wire order of the packed form (`domain.kept`), last what does not belong to it.
    """

    span_id: bytes
    """8 bytes."""
    parent_id: bytes = b""
    """8 bytes, or empty for a root."""
    kind: int = 0
    """A `Kind`."""
    start_ns: int = 0
    end_ns: int = 0
    flags: int = 0
    """A `Flag` set."""
    route: str = ""
    route_rank: int = 255
    """Position of the key that gave `route` in the source's list of route keys; the lowest rank in a trace wins."""

    # retrieval and rerank (`final_ids` may also stand on a generation span)
    ids: list[str] | None = None
    """Chunk ids in rank order, null and empty ones dropped, not de-duplicated. None: not recorded; []: returned nothing."""
    ids_dropped: int = 0
    """How many documents had a null or empty id."""
    scores: list[float | None] | None = None
    """Finite scores aligned with `ids`, None where one is missing. None: no document has a score."""
    first_score: float | None = None
    """Score of the first document, whether or not it has an id."""
    final_ids: list[str] | None = None
    """Ids that reached the model's context, where the source says so."""
    top_k: int = 0
    retriever_version: str = ""
    scorer: str = ""
    """Explicit scorer, else `<stage>:<model>`, else empty."""

    # generation
    model: str = ""
    citation_form: int = 0
    """A `CitationForm`."""
    cited: list[str] | None = None
    """Cited ids in order of appearance. Inline candidates without a digit count only if they were retrieved."""
    positions: list[int] | None = None
    """Cited positions as written (the base belongs to the route)."""
    unresolved: int = 0
    """Citations that decode already knew to be malformed."""

    trace_id: bytes = b""
    """16 bytes."""
    user_hash: bytes = b""
    """16 bytes of a keyed hash, or empty. The join neither keeps nor looks at it."""
