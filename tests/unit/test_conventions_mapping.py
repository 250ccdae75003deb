"""The worked examples of a user's own mapping: what no convention understands is measured by settings alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from citegauge.conventions import DecodePolicy, Decoder, decoder
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State, TraceResult
from citegauge.domain.score import score
from citegauge.domain.span import Kind, Span
from citegauge.settings import load

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tests" / "golden" / "mapping"


def spans_of(decode: Decoder, record: bytes) -> list[Span]:
    """The spans of a record that has no faults."""
    found = decode(record)
    assert all(isinstance(span, Span) for span in found)
    return [span for span in found if isinstance(span, Span)]


def measured(spans: list[Span]) -> TraceResult:
    """The result of one trace."""
    found = score(spans, ScorePolicy())
    assert found is not None
    return found


@pytest.mark.parametrize("encoding", ["otlp_json", "auto"])
def test_a_search_behind_a_tool_call_is_mapped(encoding: str) -> None:
    """The README's example reads its sample record, which without it has no retrieval."""
    record = (EXAMPLES / "search_tool.otlp_json.json").read_bytes()
    unmapped = measured(spans_of(decoder(encoding, DecodePolicy()), record))
    assert unmapped.state == State.no_retrieval
    found = measured(spans_of(decoder(encoding, load(EXAMPLES / "search_tool.toml").decode_policy()), record))
    assert (found.state, found.retrieved) == (State.measured, ["refunds-2", "refunds-5", "returns-1"])
    assert (found.cited, found.top_k, found.top1_score) == (["refunds-2"], 3, 0.83)


def test_the_readme_shows_this_example() -> None:
    """What the README prints is the file that is tested here."""
    blocks = re.findall(
        r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert (EXAMPLES / "search_tool.toml").read_text(encoding="utf-8") in blocks


@pytest.mark.parametrize("joined", [True, False])
def test_opik_is_read_by_a_mapping(joined: bool) -> None:
    """A system without a kind for retrievers, in its own JSON: ids, times and documents by paths."""
    text = (EXAMPLES / "opik.jsonl").read_bytes()
    decode = decoder("jsonl", load(EXAMPLES / "opik.toml").decode_policy())
    spans = [span for record in ([text] if joined else text.splitlines()) for span in spans_of(decode, record)]
    assert [span.kind for span in spans] == [Kind.RETRIEVAL, Kind.GENERATION]
    found = measured(spans)
    assert (found.state, found.cited, found.top_k) == (State.measured, ["refunds-5", "refunds-2"], 3)
    assert (found.top1_score, found.group.model) == (0.83, "m1")
