"""Golden cases of DECODE: finding them, and spans as readable JSON. Run as a script it rewrites the expectations.

A case is `tests/golden/decode/<convention>/<case>.<encoding>.json` (one Kafka record, as sent) with `<case>.spans.json`
beside it: per span who claimed it, and every field that differs from its default. After rewriting, read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from citegauge.conventions import CONVENTIONS, DecodePolicy, SpanFault, convention_of, decoder, opener
from citegauge.domain.span import CitationForm, Flag, Kind, Span

DECODE = Path(__file__).parents[1] / "golden" / "decode"


class Case(NamedTuple):
    """One record and what is expected of it."""

    convention: str
    name: str
    encoding: str
    record: Path
    expected: Path


def cases() -> list[Case]:
    """All cases, in the order of their paths."""
    found = []
    for record in sorted(DECODE.glob("*/*.json")):
        stem, _, encoding = record.name.removesuffix(".json").rpartition(".")
        if encoding != "spans":
            expected = record.with_name(f"{stem}.spans.json")
            found.append(Case(record.parent.name, stem, encoding, record, expected))
    return found


def readable(span: Span | SpanFault) -> dict[str, Any]:
    """The fields that differ from their defaults, enums by name, bytes as hex."""
    if isinstance(span, SpanFault):
        return {"fault": span.reason, "index": span.index}
    shown: dict[str, Any] = {"kind": Kind(span.kind).name}
    defaults = Span(span_id=b"")
    for field in Span.__struct_fields__:
        value = getattr(span, field)
        if field == "kind" or value == getattr(defaults, field):
            continue
        if field == "flags":
            value = [flag.name for flag in Flag if value & flag]
        elif field == "citation_form":
            value = CitationForm(value).name
        elif isinstance(value, bytes):
            value = value.hex()
        shown[field] = value
    return shown


def outcome(case: Case) -> list[dict[str, Any]]:
    """What decoding gives for a case, with the conventions that claim each span."""
    record = case.record.read_bytes()
    spans = decoder(case.encoding, DecodePolicy())(record)
    shown = []
    raws = list(opener(case.encoding)(record))
    for raw, span in zip(raws, spans[: len(raws)], strict=True):
        entry = readable(span)
        if not isinstance(raw, SpanFault):
            first = convention_of(raw)
            claimed = [convention.name for convention in CONVENTIONS if convention.claims(raw)]
            entry = {"claimed_by": first.name if first else None, **entry}
            if claimed[1:]:
                entry["also"] = claimed[1:]
        shown.append(entry)
    # Retrievals found inside generations follow, as spans of their own.
    claimed_by = {entry.get("span_id"): entry.get("claimed_by") for entry in shown}
    inside = map(readable, spans[len(raws) :])
    return shown + [{"claimed_by": claimed_by.get(entry["parent_id"]), "inside": True, **entry} for entry in inside]


def main() -> None:
    """Rewrite every expectation."""
    for case in cases():
        lines = ",\n ".join(json.dumps(entry, ensure_ascii=False) for entry in outcome(case))
        case.expected.write_text(f"[\n {lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
