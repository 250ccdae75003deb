"""Pytest plug-in: the brokers as fixtures, and a loud line when the tests on Apache Kafka did not run.

Tests that use `kafka` or `kafka_server` are marked `kafka`; one that asks for them by name while running marks itself.

Environment: `CITEGAUGE_TEST_KAFKA=host:port` uses a server of yours instead of starting one;
`CITEGAUGE_REQUIRE_KAFKA=1` makes the run fail when no test on Apache Kafka ran.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.embedded import EmbeddedBroker
from support.kafka import KafkaServer, KafkaUnavailableError, jars, java, pinned_version

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVER = "CITEGAUGE_TEST_KAFKA"
_REQUIRE = "CITEGAUGE_REQUIRE_KAFKA"
_FIXTURES = frozenset({"kafka", "kafka_server"})

_missing = pytest.StashKey[str]()
"""Why Apache Kafka could not be used."""
_marked: set[str] = set()
"""Ids of the collected tests that use Apache Kafka."""
_passed: set[str] = set()
"""Ids of the tests that passed on Apache Kafka."""


def _unavailable(config: pytest.Config, reason: str) -> None:
    config.stash[_missing] = reason
    if os.environ.get(_REQUIRE) == "1":
        pytest.fail(f"{_REQUIRE}=1, but: {reason}", pytrace=False)
    pytest.skip(f"no Apache Kafka: {reason}")


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """An Apache Kafka of this test run, which may be stopped, killed and started again (leave it running)."""
    try:
        java()
        _say(pytestconfig, f"starting Apache Kafka {pinned_version()} (its jars are fetched with Maven the first time)")
        jars()
        server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    except KafkaUnavailableError as exc:
        _unavailable(pytestconfig, str(exc))
        raise
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> str:
    """Bootstrap address of an Apache Kafka: the user's own (environment) or one of this test run."""
    own = os.environ.get(_SERVER)
    if own:
        return own
    server: KafkaServer = request.getfixturevalue("kafka_server")
    return server.bootstrap_servers


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[str]:
    """Bootstrap address of an embedded broker of this test run."""
    broker = EmbeddedBroker()
    asyncio.run(broker.start())
    yield broker.bootstrap_servers
    asyncio.run(broker.stop())


def _say(config: pytest.Config, line: str) -> None:
    """Print past pytest's capturing, so that a long wait has a reason on the screen."""
    capture = config.pluginmanager.getplugin("capturemanager")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if capture is None or reporter is None:
        return
    with capture.global_and_fixture_disabled():
        reporter.ensure_newline()
        reporter.write_line(line)


# ------------------------------------------------------------------------------------ did the Kafka tests run?


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for Apache Kafka, so that it can be counted here and left out with `-m "not kafka"`."""
    for item in items:
        if not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")
        if item.get_closest_marker("kafka"):
            _marked.add(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note each test that passed with Apache Kafka under it."""
    if report.nodeid in _marked and report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where Kafka is required, a run without a single passed Kafka test is a failed run."""
    if os.environ.get(_REQUIRE) == "1" and not _passed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The loud line."""
    ran = len(_passed)
    reason = config.stash.get(_missing, None)
    if reason:
        terminalreporter.section("Apache Kafka tests DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.write_line(
            f"{reason}. The embedded broker was tested; restarts and commits were not.", red=True
        )
    elif os.environ.get(_REQUIRE) == "1" and not ran:
        terminalreporter.section(f"{_REQUIRE}=1, and no test ran on Apache Kafka", sep="!", red=True, bold=True)
    elif ran:
        terminalreporter.write_line(f"{ran} tests passed on Apache Kafka {os.environ.get(_SERVER) or pinned_version()}")
