"""DECODE: what a Kafka record holds → normalised spans. No I/O, and no judgement of what the spans amount to.

The way through this package:

    envelope   bytes → `RawSpan`     otlp (and otlp_logs), jaeger, zipkin, zipkin_proto; lines and the shapes of
                                     JSON objects: flat, langfuse_json, langwatch_json, span_json
    convention `RawSpan` → `Facts`   one file each, see `CONVENTIONS`: the first that claims a span reads it;
                                     before them the user's own (mapping)
    route      attributes → route    routes
    user       attributes → hash     users
    fast       the clean native event without these steps
    finish     → `domain.span.Span`  base

    shared: identity (trace and span ids, times), values (single attributes), documents (retrieved lists),
    answers (what a generation cites), blocks (providers' citation structures)

To add a convention: one file with a `Convention`, one line in `CONVENTIONS`, golden cases in `tests/golden/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from citegauge.conventions import (
    datadog,
    haystack,
    jaeger,
    langfuse,
    langsmith,
    langwatch,
    lines,
    mlflow,
    native,
    openinference,
    openlit,
    openllmetry,
    otel_genai,
    otlp,
    span_kind,
    spring_ai,
    trulens,
    vector_db,
    vercel,
    zipkin,
    zipkin_proto,
)
from citegauge.conventions.base import Convention, Envelope, Facts, Opened, RawSpan, SpanFault, finished, inside_of
from citegauge.conventions.fast import fast_native
from citegauge.conventions.mapping import CompiledMapping, SpanMapping
from citegauge.conventions.routes import DEFAULT_ROUTE_KEYS, RouteReader
from citegauge.conventions.users import DEFAULT_USER_KEYS, UserReader
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError

__all__ = [
    "CONVENTIONS",
    "ENVELOPES",
    "Convention",
    "DecodePolicy",
    "Decoder",
    "Reader",
    "SpanFault",
    "SpanMapping",
    "convention_of",
    "decoder",
    "opener",
    "reader",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePolicy:
    """What the settings say about reading a source."""

    route_keys: tuple[str, ...] = DEFAULT_ROUTE_KEYS
    """Where the route stands, most specific first: `name`, `name#json_field` or `resource:name`."""
    mappings: tuple[SpanMapping, ...] = ()
    """The user's own kinds of span; the first that claims a span reads it, before any convention."""
    user_hmac_key: bytes = field(default=b"", repr=False)
    """Under which user ids are hashed; empty: none is read."""
    user_keys: tuple[str, ...] = DEFAULT_USER_KEYS
    """Where the user id stands, as `route_keys`."""


# The order is the precedence of a span that several claim: what says its kind most exactly comes first.
CONVENTIONS: tuple[Convention, ...] = (
    native.CONVENTION,
    langfuse.CONVENTION,
    openinference.CONVENTION,
    mlflow.CONVENTION,
    langsmith.CONVENTION,
    datadog.CONVENTION,
    trulens.CONVENTION,
    langwatch.CONVENTION,
    haystack.CONVENTION,
    span_kind.CONVENTION,
    vercel.CONVENTION,
    openlit.CONVENTION,
    openllmetry.CONVENTION,
    spring_ai.CONVENTION,
    otel_genai.CONVENTION,
    vector_db.CONVENTION,
)


def sniffed_spans(record: bytes, mappings: tuple[CompiledMapping, ...] = ()) -> Opened:
    """Spans of a record in whichever envelope it turns out to be. Raises `DeadLetterError`."""
    if record[:1] in (b"{", b"["):
        return lines.spans(record, mappings)
    if record[:2] == b"\x0a\x10" and record[18:20] == b"\x12\x08":  # ids of 16 and 8 bytes: Jaeger's span
        return jaeger.proto_spans(record)
    if zipkin_proto.is_record(record):
        return zipkin_proto.spans(record)
    # A protobuf record starts with a line feed (field 1), which may also stand before JSON.
    if record.lstrip()[:1] in (b"{", b"["):
        try:
            return lines.spans(record, mappings)
        except DeadLetterError:
            pass
    return otlp.proto_spans(record)


ENVELOPES: tuple[Envelope, ...] = (
    Envelope("jsonl", lines.spans),
    Envelope("jaeger_proto", jaeger.proto_spans),
    Envelope("jaeger_json", jaeger.json_spans),
    Envelope("zipkin_json", zipkin.spans),
    Envelope("zipkin_proto", zipkin_proto.spans),
    Envelope("otlp_proto", otlp.proto_spans),
    Envelope("otlp_json", otlp.json_spans),
    Envelope("auto", sniffed_spans),
)

assert len({entry.name for entry in CONVENTIONS}) == len(CONVENTIONS), "names in a table are unique"
assert len({entry.name for entry in ENVELOPES}) == len(ENVELOPES), "names in a table are unique"

Decoder: TypeAlias = Callable[[bytes], list[Span | SpanFault]]
Reader: TypeAlias = Callable[[bytes], Iterable[Span | SpanFault]]


def opener(encoding: str) -> Callable[[bytes], Opened]:
    """The envelope's reader by name. Raises ValueError for a name that is not in `ENVELOPES`."""
    for envelope in ENVELOPES:
        if envelope.name == encoding:
            return envelope.spans
    raise ValueError(f"unknown encoding {encoding!r}: one of {', '.join(envelope.name for envelope in ENVELOPES)}")


def convention_of(raw: RawSpan, mappings: tuple[CompiledMapping, ...] = ()) -> Convention | None:
    """The first mapping or convention that claims a span; None: a span of kind OTHER."""
    if native.KIND_KEY not in raw.attributes:  # what states its kind in our own words needs no mapping
        for mapping in mappings:
            if mapping.claims(raw):
                return mapping.convention
    for convention in CONVENTIONS:
        if convention.claims(raw):
            return convention
    return None


def decoder(encoding: str, policy: DecodePolicy) -> Decoder:
    """A function from one record to its spans, in order, unreadable ones as `SpanFault`; last those found inside others.

    It raises `DeadLetterError` and nothing else, and only when nothing in the record can be read. `decoder` itself
    raises ValueError for an unknown encoding or a policy that contradicts itself.
    """
    read = reader(encoding, policy)

    def decode(record: bytes) -> list[Span | SpanFault]:
        found = read(record)
        return found if isinstance(found, list) else list(found)

    return decode


def reader(encoding: str, policy: DecodePolicy) -> Reader:
    """As `decoder`, but each span is made when it is asked for: a record may hold a hundred thousand.

    What would be raised is raised before the first span, at the latest when it is asked for.
    """
    opened = opener(encoding)
    routes = RouteReader(policy.route_keys)
    users = UserReader(policy.user_hmac_key, policy.user_keys)
    mappings = tuple(CompiledMapping(mapping) for mapping in policy.mappings)
    is_json_lines = encoding in ("jsonl", "auto")
    if is_json_lines and mappings:
        opened = partial(opened, mappings=mappings)  # type: ignore[call-arg]  # these two take them
    fast = fast_native(routes, users) if is_json_lines else None

    def read(record: bytes) -> Iterable[Span | SpanFault]:
        if not record:
            raise DeadLetterError("empty_record")
        if fast is not None and (clean := fast(record)) is not None:
            return [clean]
        return each(record)

    def each(record: bytes) -> Iterator[Span | SpanFault]:
        inside: list[Span] = []
        for raw in opened(record):
            if isinstance(raw, SpanFault):
                yield raw
                continue
            convention = convention_of(raw, mappings)
            facts = convention.normalise(raw) if convention is not None else Facts()
            route, rank = routes.read(raw.attributes, raw.resource)
            yield finished(raw, facts, route, rank, users.read(raw.attributes, raw.resource))
            if facts.inside is not None:
                inside.append(finished(inside_of(raw), facts.inside, route, rank))
        yield from inside

    return read
