"""The worked example, computed by hand: from bytes to one trace's numbers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from citegauge.conventions import DecodePolicy, decoder
from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State
from citegauge.domain.score import score
from citegauge.domain.span import Span

FOLDER = Path(__file__).parents[1] / "golden" / "worked_example"
LINES = (FOLDER / "spans.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(LINES)))), ids=str)
def test_the_worked_example(order: tuple[int, ...]) -> None:
    """Retrieved c9, c1, c3 and cited c9, c7 is a recall of 1/3 with one hallucinated citation, in any order."""
    expected = json.loads((FOLDER / "trace.json").read_text(encoding="utf-8"))
    decode = decoder("jsonl", DecodePolicy())
    spans = [span for at in order for span in decode(LINES[at]) if isinstance(span, Span)]
    result = score(spans, ScorePolicy())
    assert result is not None
    assert State(result.state).name == expected["state"]
    assert result.recall == expected["recall"][0] / expected["recall"][1]
    assert result.rank_weighted_recall == pytest.approx(
        expected["rank_weighted_recall"][0] / expected["rank_weighted_recall"][1], abs=1e-15
    )
    assert result.top1_score == expected["top1_score"]
    assert result.group.top_k_bucket == expected["top_k_bucket"]
    assert (result.cited, result.hallucinated, result.retrieved) == (
        expected["cited"], expected["hallucinated"], expected["retrieved"],
    )  # fmt: skip
