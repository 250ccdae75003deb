"""The Compose file, the image and the scrape configuration agree with each other and with the settings.

No Docker engine is needed: the Compose file is validated against the Compose specification's JSON schema, as
`check-jsonschema` carries it, and read as YAML.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from citegauge.settings import Settings, load

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"].startswith("citegauge:")}


def test_the_compose_file_follows_the_specification() -> None:
    """What `docker compose` would refuse by shape is refused here."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_nonsense(tmp_path: Path) -> None:
    """The check above can fail: an unknown key is an error."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text("services:\n  a:\n    image: b:1\n    helthcheck: {}\n")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "helthcheck" in done.stdout


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - OWN.keys()))
def test_images_are_pinned(name: str) -> None:
    """The same file brings up the same versions next year."""
    assert re.fullmatch(r"[a-z/-]+:v?\d+(\.\d+)+", SERVICES[name]["image"])


def test_the_image_is_built_on_a_pinned_base() -> None:
    """Both stages of the Dockerfile use the same pinned Python, which is one that the package allows."""
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.1[1-9]-slim-[a-z]+", bases[0])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_ports_are_published_on_loopback_only(name: str) -> None:
    """A laptop in a café serves nobody else."""
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_says_whether_it_is_well(name: str) -> None:
    """What others wait for has a health check; what has none says that it is left out on purpose."""
    check = SERVICES[name]["healthcheck"]
    awaited = {each for service in SERVICES.values() for each in service.get("depends_on", {})}
    assert check.get("disable") is not True or name not in awaited
    assert check.get("disable") is True or check["test"][0] == "CMD"


def test_dependencies_wait_for_health() -> None:
    """Started is not ready."""
    for service in SERVICES.values():
        for target, how in service.get("depends_on", {}).items():
            assert target in SERVICES
            assert how["condition"] == "service_healthy"


@pytest.mark.parametrize("name", sorted(OWN))
def test_the_environment_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt setting would be ignored by the environment reader; here it is an error."""
    environment: dict[str, str] = OWN[name]["environment"]
    for variable, value in environment.items():
        section, field = re.fullmatch(r"CITEGAUGE_([A-Z]+)__([A-Z_]+)", variable).groups()  # type: ignore[union-attr]
        section_type = Settings.model_fields[section.lower()].annotation
        assert field.lower() in section_type.model_fields, variable  # type: ignore[union-attr]
        monkeypatch.setenv(variable, value)
    settings = load()
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert "kafka" in OWN[name]["depends_on"]


def test_the_worker_has_time_to_stop() -> None:
    """Docker kills after the grace period, which must exceed the worker's own drain time-out."""
    grace = SERVICES["service"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings().kafka.drain_timeout_s


def test_prometheus_scrapes_the_worker() -> None:
    """The target is a service of the Compose file, at the port where it serves /metrics."""
    (job,) = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, port = target.split(":")
    assert name in OWN
    assert int(port) == Settings().web.port
    assert job.get("metrics_path", "/metrics") == "/metrics"


def test_worker_and_prometheus_have_one_token() -> None:
    """The image listens on all interfaces, which wants a token; Prometheus sends the same one, and nothing else reads it."""
    assert "CITEGAUGE_WEB__HOST=0.0.0.0" in (ROOT / "Dockerfile").read_text()
    compose = yaml.safe_load(COMPOSE.read_text())
    (given,) = SERVICES["prometheus"]["configs"]
    assert compose["configs"][given["source"]]["content"] == OWN["service"]["environment"]["CITEGAUGE_WEB__TOKEN"]
    (job,) = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    assert given["target"] == f"/etc/prometheus/{job['authorization']['credentials_file']}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's package prometheus")
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    """Prometheus itself reads the file."""
    folder = shutil.copytree(PROMETHEUS.parent, tmp_path / "prometheus")
    (folder / "web-token").write_text("token")
    command = ["promtool", "check", "config", str(folder / PROMETHEUS.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_kafka_stamps_records_itself() -> None:
    """LogAppendTime on every topic, and none made by accident."""
    environment = SERVICES["kafka"]["environment"]
    assert environment["KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE"] == "LogAppendTime"
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
