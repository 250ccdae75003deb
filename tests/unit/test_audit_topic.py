"""Where an audit begins, and what it must know of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from citegauge.errors import ConfigError
from citegauge.tools.audit import Asked
from citegauge.tools.audit.topic import KEPT_S

SQL = Path(__file__).parents[2] / "sql"


def test_the_audit_knows_how_long_tables_keep_rows() -> None:
    """A table whose TTL is shortened must not make the audit miss rows that are gone by rule."""
    for table, kept_s in KEPT_S.items():
        (migration,) = SQL.glob(f"*_create_{table}.sql")
        days = re.search(r"^TTL pane \+ INTERVAL (\d+) DAY$", migration.read_text(), re.MULTILINE)
        assert days is not None
        assert int(days[1]) * 86_400 == kept_s


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ((), ""),
        (("12",), "12"),
        (("12", "traces/3=40"), "40"),
        (("traces/3=40", "12"), "12"),
        (("traces/2=40",), ""),
        (("2026-01-01T00:00:00Z",), "2026-01-01T00:00:00Z"),
        (("a=b/3=7", "traces/3=2026-01-01"), "2026-01-01"),
    ],
)
def test_the_last_start_that_fits_counts(starts: tuple[str, ...], expected: str) -> None:
    """A start is for every partition or for a named one."""
    assert Asked(starts=starts).start_of(TopicPartition("traces", 3)) == expected


@pytest.mark.parametrize("wrong", ["", "-5", "traces/3=", "noon", "traces/3=1.5"])
def test_a_start_is_an_offset_or_a_time(wrong: str) -> None:
    """Anything else is refused before a client is made."""
    with pytest.raises(ConfigError, match="neither an offset nor an RFC 3339 time"):
        Asked(starts=(wrong,))
