"""One record, looked at: which convention claimed each span, the span as sent, and the span as the core takes it.

Not counting (`counts`) and not judging (`verdicts`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from citegauge.conventions import DecodePolicy, SpanFault, convention_of, decoder, opener
from citegauge.conventions.base import RawSpan
from citegauge.conventions.mapping import CompiledMapping
from citegauge.domain.span import Span

UNCLAIMED = "(none)"
"""Name of the convention of spans that no convention claims."""


class Seen(NamedTuple):
    """One readable span."""

    raw: RawSpan | None
    """None where the envelope's spans could not be told apart again."""
    convention: str
    span: Span


def looker(encoding: str, policy: DecodePolicy) -> Callable[[bytes], tuple[list[Seen], list[SpanFault]]]:
    """A function from a record to its spans and faults. It raises `DeadLetterError` when nothing can be read."""
    decode = decoder(encoding, policy)
    open_record = opener(encoding)
    mappings = tuple(CompiledMapping(mapping) for mapping in policy.mappings)
    if mappings and encoding in ("auto", "jsonl"):
        open_record = partial(open_record, mappings=mappings)  # type: ignore[call-arg]  # these two take them

    def look(record: bytes) -> tuple[list[Seen], list[SpanFault]]:
        spans = decode(record)
        raws = list(open_record(record))
        if len(raws) > len(spans):
            raws = list(spans)  # type: ignore[arg-type]  # no raw spans then
        seen: list[Seen] = []
        faults: list[SpanFault] = []
        for raw, span in zip(raws, spans, strict=False):
            if isinstance(span, SpanFault):
                faults.append(span)
            elif isinstance(raw, RawSpan):
                convention = convention_of(raw, mappings)
                seen.append(Seen(raw, convention.name if convention is not None else UNCLAIMED, span))
            else:
                seen.append(Seen(None, UNCLAIMED, span))
        # What a provider retrieved within a generation follows, as spans of their own: they are its convention's.
        around = {each.span.span_id: each.convention for each in seen}
        for span in spans[len(raws) :]:
            assert isinstance(span, Span)
            seen.append(Seen(None, around.get(span.parent_id, UNCLAIMED), span))
        return seen, faults

    return look
