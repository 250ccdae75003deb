"""OpenLIT: GenAI names, but only the first three documents and the true number beside them."""

from __future__ import annotations

from citegauge.conventions import otel_genai
from citegauge.conventions.base import TRUNCATED, Convention, Facts, RawSpan
from citegauge.conventions.otel_genai import OPERATION_KEY
from citegauge.conventions.values import count

COUNT_KEY = "gen_ai.retrieval.document_count"


def claims(raw: RawSpan) -> bool:
    """A retrieval span that counts its documents, or comes from OpenLIT's SDK."""
    return raw.attributes.get(OPERATION_KEY) == "retrieval" and (
        COUNT_KEY in raw.attributes or raw.resource.get("telemetry.sdk.name") == "openlit"
    )


def normalise(raw: RawSpan) -> Facts:
    """Facts of a retrieval; fewer documents than counted are truncation."""
    facts = otel_genai.normalise(raw)
    stated = raw.attributes.get(COUNT_KEY)
    if stated == 0 and not isinstance(stated, bool):
        facts.ids = facts.ids or []
    elif count(stated, Facts()) > len(facts.ids or ()) + facts.ids_dropped:
        facts.flags |= TRUNCATED
    return facts


CONVENTION = Convention("openlit", claims, normalise)
