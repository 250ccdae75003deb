"""Secrets come from the environment or from files, and are never shown: not by settings, logs, errors or endpoints."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import HttpTarget
from citegauge.errors import ConfigError
from citegauge.settings import FILE_VARIABLES, SECRETS, Settings, load
from citegauge.tools.reference import settings_table
from support.clickhouse import child_environment, free_port

if TYPE_CHECKING:
    from pathlib import Path

SENTINELS = {name: f"S3NTINEL-{at}-{name.replace('.', '-')}" for at, name in enumerate(SECRETS)}
VARIABLES = {f"CITEGAUGE_{name.replace('.', '__')}".upper(): value for name, value in SENTINELS.items()}


def shown(text: str) -> list[str]:
    """Sentinels that a text gives away."""
    return [value for value in SENTINELS.values() if value in text]


@pytest.fixture
def secretive(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a sentinel in every secret."""
    for variable, value in VARIABLES.items():
        monkeypatch.setenv(variable, value)
    return load()


def test_every_secret_is_known() -> None:
    """What is called a password, token or key is a secret by type, so that the tests below see it."""
    named = set()
    for name, section in Settings.model_fields.items():
        for field in getattr(section.annotation, "model_fields", {}):
            if any(word in field for word in ("password", "token", "secret", "hmac")):
                named.add(f"{name}.{field}")
    assert named == set(SECRETS)
    assert len(SECRETS) >= 3


def test_settings_do_not_show_them(secretive: Settings) -> None:
    """Whichever way settings are turned into text."""
    texts = [
        repr(secretive),
        str(secretive),
        f"{secretive.web}",
        str(secretive.model_dump()),
        secretive.model_dump_json(),
    ]
    assert [shown(text) for text in texts] == [[]] * len(texts)
    assert shown(settings_table()) == []
    assert shown(str(pickle.dumps(secretive))) != [], "the sentinels are in there"


def test_a_secret_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As orchestrators mount them; the line end is not part of it, and the variable itself wins over the file."""
    for number, (variable, name) in enumerate(FILE_VARIABLES.items()):
        path = tmp_path / str(number)
        path.write_text(SENTINELS[name] + "\n")
        monkeypatch.setenv(variable, str(path))
    settings = load(web={"port": 1})
    for name, value in SENTINELS.items():
        section, field = name.split(".")
        assert getattr(getattr(settings, section), field).get_secret_value() == value
    assert settings.web.port == 1
    monkeypatch.setenv("CITEGAUGE_WEB__TOKEN", "from-the-variable")
    assert load().web.token.get_secret_value() == "from-the-variable"


def test_a_secret_file_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting and the file; what is in the file is not repeated."""
    monkeypatch.setenv("CITEGAUGE_WEB__TOKEN_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"web\.token.*nowhere"):
        load()
    bad = tmp_path / "bad"
    bad.write_bytes(b"S3NTINEL\xff")
    monkeypatch.setenv("CITEGAUGE_WEB__TOKEN_FILE", str(bad))
    with pytest.raises(ConfigError, match=r"web\.token.*UTF-8") as caught:
        load()
    assert "S3NTINEL" not in repr(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CITEGAUGE_WEB", '{"token": "S3NTINEL"'),
        ("CITEGAUGE_WEB", '{"token": {"S3NTINEL": 1}}'),
        ("CITEGAUGE_WEB", '["S3NTINEL"]'),
        ("CITEGAUGE_KAFKA", '{"sasl_password": ["S3NTINEL"], "x": 1}'),
        ("CITEGAUGE_CLICKHOUSE__PASSWORD__X", "S3NTINEL"),
    ],
)
def test_a_wrong_setting_does_not_repeat_a_secret(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a mistake names the setting, not the value."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load()
    assert "S3NTINEL" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_file_does_not_repeat_a_secret(tmp_path: Path) -> None:
    """Neither a broken TOML file nor a value of the wrong type."""
    path = tmp_path / "citegauge.toml"
    for text in (
        '[web]\ntoken = "S3NTINEL',
        '[web]\ntoken = ["S3NTINEL"]',
        "[web]\ntoken = S3NTINEL",
        'web = "S3NTINEL"',
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert "S3NTINEL" not in str(caught.value), text


@pytest.mark.parametrize(
    "url", ["http://u:S3NTINEL@h:8123", "ftp://u:S3NTINEL@h", "u:S3NTINEL@h:8123", "https://S3NTINEL@h"]
)
def test_a_password_in_an_address_is_refused_in_silence(url: str) -> None:
    """It would stand in every error message; the refusal does not begin with it."""
    with pytest.raises(ConfigError) as caught:
        HttpTarget(url=url)
    assert "S3NTINEL" not in str(caught.value)


FAILURES = {
    "run without ClickHouse": ("-v", "run"),
    "run without Kafka": ("-v", "run"),
    "run on all interfaces": ("-v", "run"),
    "migrate": ("-v", "migrate"),
    "doctor": ("-v", "doctor"),
    "audit": ("-v", "audit"),
    "forget": ("-v", "forget", "--trace-id", "ab" * 16),
    "simulate": ("-v", "simulate", "--to", "kafka", "--traces", "1"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failing_commands_do_not_show_them(name: str) -> None:
    """With every secret set and nothing to connect to, even verbose output holds none of them, and no traceback."""
    environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
    environment |= VARIABLES | {
        "CITEGAUGE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "CITEGAUGE_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "CITEGAUGE_KAFKA__SASL_USERNAME": "citegauge",
        "CITEGAUGE_CLICKHOUSE__URL": f"http://127.0.0.1:{free_port()}",
        "CITEGAUGE_WEB__PORT": "0",
    }
    if name == "run without Kafka":
        environment["CITEGAUGE_CLICKHOUSE__URL"] = "chdb:"
    if name == "run on all interfaces":
        environment |= {"CITEGAUGE_WEB__HOST": "0.0.0.0", "CITEGAUGE_WEB__TOKEN": ""}
        environment["CITEGAUGE_CLICKHOUSE__URL"] = "chdb:"
    waits = name in {"run without ClickHouse", "run without Kafka"}
    bound = ["timeout", "--signal=TERM", "15"] if waits else []
    done = subprocess.run(
        [*bound, sys.executable, "-m", "citegauge", *FAILURES[name]],
        env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode in ({124} if waits else {1, 2}), done.stderr
    assert shown(done.stdout + done.stderr) == []
    assert "Traceback" not in done.stderr
    if waits:
        assert "; try 2 in " in done.stderr, "it waits, and says why"
        return
    assert done.stderr.splitlines()[-1].startswith("citegauge: ")
    if name == "run on all interfaces":
        assert done.returncode == 2
        assert "web.token" in done.stderr


def test_the_environment_of_this_process_is_clean() -> None:
    """A variable left over from a shell would make the tests above see their own noise."""
    assert not [name for name in os.environ if name in VARIABLES or name in FILE_VARIABLES]
