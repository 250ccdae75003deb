"""DECODE: what a Kafka record holds → normalised spans. No I/O, and no judgement of what the spans amount to.

The way through this package:

    envelope   bytes → `RawSpan`     otlp (protobuf, JSON), lines (flat JSON)
    convention `RawSpan` → `Facts`   native, langfuse, openinference, otel_genai: the first that claims a span reads it
    route      attributes → route    routes
    fast       the clean native event without these steps
    finish     → `domain.span.Span`  base

    shared: identity (trace and span ids, times), values (single attributes), documents (retrieved lists),
    answers (what a generation cites), blocks (providers' citation structures)

To add a convention: one file with a `Convention`, one line in `CONVENTIONS`, golden cases in `tests/golden/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from citegauge.conventions import langfuse, lines, native, openinference, otel_genai, otlp
from citegauge.conventions.base import Convention, Envelope, Facts, Opened, RawSpan, SpanFault, finished
from citegauge.conventions.fast import fast_native
from citegauge.conventions.routes import DEFAULT_ROUTE_KEYS, RouteReader
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError

__all__ = [
    "CONVENTIONS",
    "ENVELOPES",
    "Convention",
    "DecodePolicy",
    "Decoder",
    "SpanFault",
    "convention_of",
    "decoder",
    "opener",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePolicy:
    """What the settings say about reading a source."""

    route_keys: tuple[str, ...] = DEFAULT_ROUTE_KEYS
    """Where the route stands, most specific first: `name`, `name#json_field` or `resource:name`."""


# The order is the precedence of a span that several claim: what says its kind most exactly comes first.
CONVENTIONS: tuple[Convention, ...] = (
    native.CONVENTION,
    langfuse.CONVENTION,
    openinference.CONVENTION,
    otel_genai.CONVENTION,
)


def sniffed_spans(record: bytes) -> Opened:
    """Spans of a record in whichever envelope it turns out to be. Raises `DeadLetterError`."""
    first = record[:1]
    if first in (b"{", b"["):
        return lines.spans(record)
    # A protobuf record starts with a line feed (field 1), which may also stand before JSON.
    if record.lstrip()[:1] in (b"{", b"["):
        try:
            return lines.spans(record)
        except DeadLetterError:
            pass
    return otlp.proto_spans(record)


ENVELOPES: tuple[Envelope, ...] = (
    Envelope("jsonl", lines.spans),
    Envelope("otlp_proto", otlp.proto_spans),
    Envelope("otlp_json", otlp.json_spans),
    Envelope("auto", sniffed_spans),
)

assert len({entry.name for entry in CONVENTIONS}) == len(CONVENTIONS), "names in a table are unique"
assert len({entry.name for entry in ENVELOPES}) == len(ENVELOPES), "names in a table are unique"

Decoder: TypeAlias = Callable[[bytes], list[Span | SpanFault]]


def opener(encoding: str) -> Callable[[bytes], Opened]:
    """The envelope's reader by name. Raises ValueError for a name that is not in `ENVELOPES`."""
    for envelope in ENVELOPES:
        if envelope.name == encoding:
            return envelope.spans
    raise ValueError(f"unknown encoding {encoding!r}: one of {', '.join(envelope.name for envelope in ENVELOPES)}")


def convention_of(raw: RawSpan) -> Convention | None:
    """The first convention that claims a span; None: a span of kind OTHER."""
    for convention in CONVENTIONS:
        if convention.claims(raw):
            return convention
    return None


def decoder(encoding: str, policy: DecodePolicy) -> Decoder:
    """A function from one record to its spans, in order, unreadable ones as `SpanFault`.

    It raises `DeadLetterError` and nothing else, and only when nothing in the record can be read.
    """
    opened = opener(encoding)
    routes = RouteReader(policy.route_keys)
    fast = fast_native(routes) if encoding in ("jsonl", "auto") else None

    def decode(record: bytes) -> list[Span | SpanFault]:
        if not record:
            raise DeadLetterError("empty_record")
        if fast is not None and (clean := fast(record)) is not None:
            return [clean]
        found: list[Span | SpanFault] = []
        for raw in opened(record):
            if isinstance(raw, SpanFault):
                found.append(raw)
                continue
            convention = convention_of(raw)
            facts = convention.normalise(raw) if convention is not None else Facts()
            route, rank = routes.read(raw.attributes, raw.resource)
            found.append(finished(raw, facts, route, rank))
        return found

    return decode
