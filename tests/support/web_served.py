"""Pytest plug-in: a world for the page whose panes and traces stand in a real ClickHouse (chDB)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import EmbeddedTarget, connect
from citegauge.adapters.migrations import migrate
from support.served import END_S
from support.web_world import DATABASE, World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def made() -> Iterator[World]:
    """A world whose panes stand in ClickHouse, always the same: chance and the time of day must not decide."""
    world = make_world((END_S + 17) * 1_000_000_000)
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
