"""Thresholds of low confidence: how the settings read them, and that rows from before them are still read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from citegauge.domain.pane import COUNTERS
from citegauge.errors import ConfigError
from citegauge.pipeline import tally_of
from citegauge.ports import PaneMessage, PaneUpdate
from citegauge.settings import load
from support.clickhouse_rows import pane_row

NEW = ("cited_top1", "cited_top3", "low_confidence", "confidence_known")


def config(folder: Path, text: str) -> Path:
    """A configuration file."""
    path = folder / "citegauge.toml"
    path.write_text(f"[routes.support.low_confidence_below]\n{text}\n")
    return path


def test_thresholds_by_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers and negative ones are scores too; the environment, which has strings, adds to the file."""
    monkeypatch.setenv("CITEGAUGE_ROUTES__SUPPORT__LOW_CONFIDENCE_BELOW__BM25", "12.5")
    found = load(config(tmp_path, '"reranker:bge" = -2\nmindist = 0.3')).score_policy().for_route("support")
    assert dict(found.low_confidence_below) == {"reranker:bge": -2.0, "mindist": 0.3, "bm25": 12.5}


@pytest.mark.parametrize("value", ["true", '"high"', "nan", "inf", "[0.3]", "{}"])
def test_a_threshold_is_a_number(tmp_path: Path, value: str) -> None:
    """Anything else is refused, with one line that names route and scorer; `true` is not 1."""
    with pytest.raises(
        ConfigError, match=r"routes\.support\.low_confidence_below\.bge: .*must be a number, a top-1 score"
    ):
        load(config(tmp_path, f"bge = {value}"))


def test_a_threshold_names_its_scorer(tmp_path: Path) -> None:
    """A scorer without a name would never be found."""
    with pytest.raises(ConfigError, match="low_confidence_below"):
        load(config(tmp_path, '"" = 0.3'))


def test_panes_from_before_the_counters_are_read() -> None:
    """A message of an older worker counts 0 of what it did not know, and everything else as it was."""
    sent = pane_row(60, citations=7)
    message = msgspec.to_builtins(PaneUpdate(sent))
    for name in NEW:
        del message["row"][name]
    back = msgspec.json.decode(msgspec.json.encode(message), type=PaneMessage)
    assert isinstance(back, PaneUpdate)
    tally = tally_of(back.row)
    assert {name: getattr(tally, name) for name in COUNTERS} == {name: getattr(sent, name) for name in COUNTERS}
    assert tally.citations == 7
