"""Pytest plug-in: a world for the page whose panes and traces stand in a real ClickHouse (chDB)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import EmbeddedTarget, connect
from citegauge.adapters.migrations import migrate
from support.web_world import DATABASE, World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def made() -> Iterator[World]:
    """A world whose panes stand in ClickHouse."""
    world = make_world(time.time_ns() // 60_000_000_000 * 60_000_000_000 + 17_000_000_000)
    pytest.importorskip("chdb")
    clickhouse = connect(EmbeddedTarget(), DATABASE)
    clickhouse.command(f"DROP DATABASE IF EXISTS {DATABASE}")
    migrate(clickhouse, DATABASE)
    clickhouse.insert(world.panes)
    clickhouse.insert(world.traces)
    world.query = clickhouse.query
    yield world
    clickhouse.close()


@pytest.fixture
def world(made: World) -> World:
    """The same with nothing changed by other tests."""
    return made.copy()
