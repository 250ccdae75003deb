"""The README tells what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from citegauge.tools.reference import metrics_table, rewritten, settings_table

README = Path(__file__).parents[2] / "README.md"


def test_tables_are_those_of_the_code() -> None:
    """Settings and metrics in the README are the ones that exist; `make docs` writes them anew."""
    text = README.read_text(encoding="utf-8")
    assert rewritten(text) == text


def test_every_setting_and_metric_is_explained() -> None:
    """No row of the tables lacks its meaning."""
    rows = [*settings_table().splitlines()[2:], *metrics_table().splitlines()[2:]]
    assert len(rows) > 60
    assert not [row for row in rows if row.endswith("|  |")]


def test_a_missing_marker_is_told() -> None:
    """A README whose markers were deleted is refused, not silently left old."""
    with pytest.raises(ValueError, match="settings"):
        rewritten("# nothing here")
