"""Fixtures of the faults: what they run on, `--short`, and the one table at the end. `make fault` runs them.

They are not part of `pytest` without arguments, because they take an hour: see `testpaths`.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

import pytest

from support.clickhouse import ClickHouseFront
from support.faults import TABLE, Trial, seed_of_run, table_lines
from support.kafka import create_topic, unique
from support.worker import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TEST_S_MAX = 1_200
INTAKES = ("keyed", "default")


class MakeTrial(Protocol):
    """Makes a trial on a site of its own, by default on a new source topic of 3 partitions."""

    def __call__(
        self, fault: str, *, kafka: str = "", clickhouse: str = "", topic: str = "", partitions: int = 3, **options: str
    ) -> Trial:
        """`kafka`, `clickhouse`: addresses, by default of the servers that all faults share; `options`: settings."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--short`: what CI runs."""
    parser.addoption(
        "--short", action="store_true", help="Shorter faults with a fixed seed, without those marked `full`."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Names the marks."""
    config.addinivalue_line("markers", "full: left out of the short run")
    config.addinivalue_line("markers", "short_in(intake): the short run has it in that intake alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the full run has. Recovery may take its time, and a time-out ends the whole run."""
    for item in items:
        item.add_marker(pytest.mark.timeout(TEST_S_MAX))
    if config.getoption("--short"):
        left_out = [item for item in items if _left_out(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _left_out(item: pytest.Item) -> bool:
    """Each family runs in both intakes in the short run too, but not each of its members."""
    alone = item.get_closest_marker("short_in")
    intake = (
        item.callspec.params.get("intake") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    return bool(item.get_closest_marker("full") or (alone and intake not in (None, alone.args[0])))


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, so that a run can be repeated."""
    return f"CITEGAUGE_SEED={_seed(config)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table."""
    if TABLE:
        terminalreporter.section("faults")
        for line in table_lines():
            terminalreporter.write_line(line)


_seed_key = pytest.StashKey[int]()


def _seed(config: pytest.Config) -> int:
    return config.stash.setdefault(_seed_key, seed_of_run(bool(config.getoption("--short"))))


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseFront]:
    """A ClickHouse for the faults that do not break it."""
    server = ClickHouseFront(tmp_path_factory.mktemp("clickhouse")).start()
    yield server
    server.stop()


@pytest.fixture
def own_front(tmp_path: Path) -> Iterator[ClickHouseFront]:
    """A ClickHouse that this fault may break."""
    server = ClickHouseFront(tmp_path / "clickhouse").start()
    yield server
    server.kill()


@pytest.fixture
def chance(pytestconfig: pytest.Config) -> random.Random:
    """What decides the moments."""
    return random.Random(_seed(pytestconfig))


@pytest.fixture(params=INTAKES)
def intake(request: pytest.FixtureRequest) -> str:
    """How the source comes in: a topic keyed by trace id, or (the default) any topic, through the re-key stage."""
    return str(request.param)


@pytest.fixture
def trial(
    request: pytest.FixtureRequest, front: ClickHouseFront, tmp_path: Path, pytestconfig: pytest.Config, intake: str
) -> MakeTrial:
    """Makes the trial of a test."""

    def make(
        fault: str, *, kafka: str = "", clickhouse: str = "", topic: str = "", partitions: int = 3, **options: str
    ) -> Trial:
        kafka = kafka or request.getfixturevalue("kafka")
        topic = topic or asyncio.run(create_topic(kafka, unique("spans"), partitions=partitions))
        keyed = intake == "keyed"
        if not keyed:
            options = {"REKEY__SPANS_PARTITIONS": str(partitions)} | options
        site = Site(kafka=kafka, clickhouse=clickhouse or front.url, topic=topic, keyed=keyed, options=options)
        return Trial(fault, site, tmp_path, _seed(pytestconfig), bool(pytestconfig.getoption("--short")))

    return make
