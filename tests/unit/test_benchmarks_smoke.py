"""The benchmarks still run: tiny ones, whose numbers mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def tiny(*arguments: str) -> list[dict[str, Any]]:
    """The figures of a tiny run."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--tiny", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = json.loads(done.stdout)["figures"]
    return figures


@pytest.mark.timeout(900)
def test_core_and_memory_are_measured() -> None:
    """The pure core finds what its traffic holds in both encodings, and each figure with a goal has a verdict."""
    figures = tiny("core", "memory")
    assert [figure["part"] for figure in figures] == ["core", "core", "core", "memory", "memory"]
    assert all(figure["value"] > 0 for figure in figures)
    assert all((figure["passed"] is not None) == bool(figure["goal"]) for figure in figures)


@pytest.mark.timeout(900)
def test_both_jobs_run_from_kafka_to_clickhouse(kafka: str) -> None:
    """The worker and every form of the Faust agent store the traces that the topic holds, in both kinds of ClickHouse."""
    figures = tiny("endtoend", "--bootstrap", kafka)
    assert len(figures) == 8
    assert all(figure["value"] > 0 for figure in figures)


def test_an_unknown_part_is_refused() -> None:
    """A mistyped name is an error with the choices, not an empty table."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "cores"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "choose from core, memory" in done.stderr


@pytest.mark.timeout(900)
def test_the_trust_of_alerts_is_measured(tmp_path: Path) -> None:
    """False alarms and delays of every detector, at every rate, in one page; pages are silent where nothing fell."""
    written = tmp_path / "trust.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "trust.py"), "--quick", "--write", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    text = written.read_text()
    assert text.strip() == done.stdout.strip()
    assert text.count("| page: hour | 0 (0) | 0 (0) | 0 (0) | 0 (0) |") == 3
    assert text.count("| naive: p50") == 7
    assert "**At most one false page in 30 days over 360 series**: met" in text
