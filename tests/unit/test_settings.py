"""Settings say what is wrong with a name, and the demo's are closed to the environment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from citegauge.errors import ConfigError
from citegauge.settings import load
from citegauge.tools.demo import DemoOptions, demo_settings


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (
            '[kafka]\nbootstrap_server = "x"',
            "there is no setting kafka.bootstrap_server: is kafka.bootstrap_servers meant?",
        ),
        ("[alert]\ntraces_min = 60", "there is no setting alert: is alerts meant?"),
        ("[kafka]\nqqqq = 1", "there is no setting kafka.qqqq"),
    ],
)
def test_a_mistyped_name_is_told_with_what_may_be_meant(tmp_path: Path, toml: str, said: str) -> None:
    """One line in our words."""
    path = tmp_path / "citegauge.toml"
    path.write_text(toml)
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (
            "CITEGAUGE_KAFKA_GROUP_ID",
            "CITEGAUGE_KAFKA_GROUP_ID is ignored: the variable of kafka.group_id is CITEGAUGE_KAFKA__GROUP_ID",
        ),
        ("CITEGAUGE_KAFK__TOPIC", "CITEGAUGE_KAFK__TOPIC is ignored: there is no section kafk of settings"),
        ("CITEGAUGE_SEED", None),
        ("CITEGAUGE_WEB_SERVICE_HOST", None),
        ("KAFKA__TOPIC", None),
        ("CITEGAUGE_KAFKA__GROUP_ID", None),
        ("CITEGAUGE_WEB__TOKEN_FILE", None),
    ],
)
def test_a_variable_that_is_ignored_is_warned_of(
    variable: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it looks like a setting; and its value, which may be a secret, is not repeated."""
    path = tmp_path / "value"
    path.write_text("S3CRET")
    monkeypatch.setenv(variable, str(path))
    with caplog.at_level(logging.WARNING):
        load()
    assert caplog.messages == ([said] if said else [])


def test_the_demo_never_leaves_the_house(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a production in the environment must not find the demo's traffic there."""
    for name, value in {
        "KAFKA__BOOTSTRAP_SERVERS": "prod-kafka:9092",
        "KAFKA__SOURCE_TOPIC": "prod.spans",
        "KAFKA__SECURITY_PROTOCOL": "SSL",
        "CLICKHOUSE__URL": "http://prod-clickhouse:8123",
        "WEB__PORT": "1",
        "SOURCES": '{"prod.spans": {}}',
    }.items():
        monkeypatch.setenv(f"CITEGAUGE_{name}", value)
    settings = demo_settings(DemoOptions(port=9465), "127.0.0.1:1111")
    assert settings.kafka.bootstrap_servers == "127.0.0.1:1111"
    assert settings.clickhouse.url == "chdb:"
    assert settings.web.port == 9465
    assert settings.kafka.security_protocol == "PLAINTEXT"
    assert list(settings.source_topics()) == ["citegauge.traces"]
    assert "prod" not in settings.model_dump_json()


@pytest.mark.parametrize(
    "toml",
    [
        '[kafka]\nsource_topic = "citegauge.spans"',
        '[kafka]\nsource_topic = "citegauge.dead-letters"',
        '[kafka]\npanes_topic = "citegauge.spans"',
        '[sources."citegauge.panes"]\nkeyed = true',
    ],
)
def test_no_topic_has_two_parts(tmp_path: Path, toml: str) -> None:
    """A worker that reads what it writes would feed itself."""
    path = tmp_path / "citegauge.toml"
    path.write_text(toml)
    with pytest.raises(ConfigError, match=r"name the same topic, citegauge.*: give each its own"):
        load(path)


def test_a_session_longer_than_kafka_allows_is_refused(tmp_path: Path) -> None:
    """Half an hour is a broker's own limit."""
    path = tmp_path / "citegauge.toml"
    path.write_text("[kafka]\nsession_timeout_s = 100000")
    with pytest.raises(ConfigError, match="session_timeout_s"):
        load(path)
