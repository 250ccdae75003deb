"""KEPT: a span as the join keeps it, packed into bytes because millions live. Knows no panes' contents and no policy.

A kept span is bytes, numbers big endian: newest end (8) and id (8), which together order spans by age; first offset (8);
newest closed pane at its arrival, + 1 (8); kind (1); then the span as a MessagePack array without its trace id and user. The
newest end and the first offset are those of all its copies. A trace's spans are a tuple of kept spans, distinct by id.
"""

from __future__ import annotations

import struct

import msgspec

from citegauge.domain.span import Kind, Span

_OTHER, _GENERATION = int(Kind.OTHER), int(Kind.GENERATION)
_END = slice(0, 8)
_ID = slice(8, 16)
_ARRIVAL = slice(16, 32)
_OFFSET = slice(16, 24)
_CLOSED = slice(24, 32)
KIND = 32
"""Position of the kind's byte."""
_BODY = slice(33, None)
_HEAD = struct.Struct(">Q8sQQB")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Span).decode
assert Span.__struct_fields__[-2:] == ("trace_id", "user_hash")


def pack(span: Span, offset: int, closed_through: int) -> bytes:
    """The kept form of a span that was read at `offset`, about 45 bytes and its ids. `end_ns` must not be negative."""
    body = msgspec.structs.astuple(span)[:-2]
    return _HEAD.pack(span.end_ns, span.span_id, offset, closed_through + 1, span.kind) + _encode(body)


def unpack(kept: bytes, trace_id: bytes) -> Span:
    """Inverse of `pack`."""
    span = _decode(kept[_BODY])
    msgspec.structs.force_setattr(span, "trace_id", trace_id)
    return span


def with_copy(spans: tuple[bytes, ...], kept: bytes) -> tuple[bytes, ...]:
    """`spans` and `kept`; of two copies of a span the richer stays. `spans` itself when nothing changes."""
    span_id = kept[_ID]
    for position, other in enumerate(spans):
        if other[_ID] == span_id:
            mine, theirs = kept[_BODY], other[_BODY]
            richer = (len(mine), mine) > (len(theirs), theirs)
            if not richer and kept[_END] <= other[_END]:
                return spans
            head = max(kept[_END], other[_END]) + span_id + other[_ARRIVAL]
            return (*spans[:position], head + (kept if richer else other)[KIND:], *spans[position + 1 :])
    return (*spans, kept)


def without_old(spans: tuple[bytes, ...], oldest_ns: int) -> tuple[bytes, ...]:
    """Those that end at `oldest_ns` or later; `spans` itself when all do."""
    oldest = oldest_ns.to_bytes(8, "big")
    if min(spans) >= oldest:
        return spans
    return tuple(kept for kept in spans if kept >= oldest)


def same_spans(spans: tuple[bytes, ...], others: tuple[bytes, ...]) -> bool:
    """Whether both hold the same spans, whatever is known of their copies."""
    return spans is others or {kept[_BODY] for kept in spans} == {kept[_BODY] for kept in others}


def first_offset(spans: tuple[bytes, ...]) -> int:
    """The smallest offset at which any copy of them was read."""
    return min(int.from_bytes(kept[_OFFSET], "big") for kept in spans)


def stood_in_closed(spans: tuple[bytes, ...], closed_through: int, pane_ns: int) -> bool:
    """Whether these spans, read alone in the order of their arrival, once stood in a pane that has closed.

    `closed_through`: the newest closed pane now. That is what a replay finds which begins with the oldest of these spans,
    so what the trace has lost must not decide it.
    """
    now = (closed_through + 1).to_bytes(8, "big")
    if all(kept[_CLOSED] == now for kept in spans):
        return False
    stood = generation_ns = stage_ns = 0
    for kept in sorted(spans, key=_arrival):
        closed_then = int.from_bytes(kept[_CLOSED], "big") - 1
        if stood and stood <= closed_then:
            return True
        end_ns = _decode(kept[_BODY]).end_ns
        if kept[KIND] == _GENERATION:
            generation_ns = max(generation_ns, end_ns)
        elif kept[KIND] != _OTHER:
            stage_ns = max(stage_ns, end_ns)
        stood = (generation_ns or stage_ns) // pane_ns
        stood = stood if stood > closed_then else 0
    return 0 < stood <= closed_through


def _arrival(kept: bytes) -> bytes:
    return kept[_ARRIVAL]
