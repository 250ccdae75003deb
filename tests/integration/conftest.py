"""Fixtures of the tests that run the worker: a ClickHouse for the session, and sites on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import HttpTarget, connect
from support.clickhouse import ClickHouseFront
from support.kafka import create_topic, unique
from support.worker import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.worker import MakeSite


TEST_S_MAX = 900
"""Also where Apache Kafka is fetched first, and on a machine three times as slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A time-out ends the whole run, so it is for what hangs and not for what is slow."""
    for item in items:
        if "integration" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX))


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseFront]:
    """A ClickHouse that all tests share; those that stop it start one of their own."""
    server = ClickHouseFront(tmp_path_factory.mktemp("clickhouse")).start()
    yield server
    server.stop()


@pytest.fixture
def own_front(tmp_path: Path) -> Iterator[ClickHouseFront]:
    """A ClickHouse for a test that stops it."""
    server = ClickHouseFront(tmp_path / "clickhouse").start()
    yield server
    server.kill()


@pytest.fixture
def database(front: ClickHouseFront) -> Iterator[ClickHouse]:
    """A reader of the shared ClickHouse."""
    client = connect(HttpTarget(url=front.url), "default")
    yield client
    client.close()


@pytest.fixture
def make_site(kafka: str, front: ClickHouseFront) -> MakeSite:
    """Makes sites on Apache Kafka and the shared ClickHouse."""

    def make(*, topic: str = "", partitions: int = 3, **options: str) -> Site:
        if not topic:
            topic = asyncio.run(create_topic(kafka, unique("spans"), partitions=partitions))
        return Site(kafka=kafka, clickhouse=front.url, topic=topic, options=options)

    return make
