"""Grafana in the Compose file: closed to strangers, pinned, reading only, and given what it is told to load.

No Docker engine is needed; whether Grafana itself starts is not seen here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import yaml

from citegauge.settings import Settings

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SERVICE = SERVICES["grafana"]
ENVIRONMENT: dict[str, str] = SERVICE["environment"]
SOURCES = {
    source["uid"]: source
    for source in yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "citegauge.yaml").read_text())[
        "datasources"
    ]
}
READER = "CITEGAUGE_GRAFANA_CLICKHOUSE_PASSWORD"


def mounts(name: str) -> dict[str, Path]:
    """Path in the container to the file or folder of this repository that is mounted there, read-only."""
    found = {}
    for volume in SERVICES[name]["volumes"]:
        if volume.startswith("./"):
            own, there, mode = volume.split(":")
            assert mode == "ro", volume
            found[there] = ROOT / own
    return found


def test_strangers_stay_out() -> None:
    """Nobody looks without a name, nobody makes one, and there is no password that everybody knows."""
    assert ENVIRONMENT["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert ENVIRONMENT["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert ENVIRONMENT["GF_SECURITY_ADMIN_PASSWORD"].startswith("${CITEGAUGE_GRAFANA_PASSWORD:?")


def test_the_plug_in_is_pinned() -> None:
    """The data source's plug-in is fetched in one version, before anything needs it, and stays."""
    (plugin,) = ENVIRONMENT["GF_PLUGINS_PREINSTALL_SYNC"].split(",")
    assert re.fullmatch(r"grafana-clickhouse-datasource@\d+\.\d+\.\d+", plugin)
    assert ENVIRONMENT["GF_PLUGINS_PREINSTALL_AUTO_UPDATE"] == "false"


def test_what_is_mounted_exists() -> None:
    """A path that is missing here would be an empty folder there, and Grafana would show nothing."""
    for name in ("grafana", "clickhouse"):
        assert mounts(name)
        for path in mounts(name).values():
            assert path.exists(), path


def test_dashboards_are_loaded_from_where_they_are_mounted() -> None:
    """The provider reads the folder that the Compose file mounts; the first board is the home page."""
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "citegauge.yaml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert mounts("grafana")[folder] == GRAFANA / "dashboards"
    home = ENVIRONMENT["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (mounts("grafana")[folder] / Path(home).relative_to(folder)).exists()
    assert provider["allowUiUpdates"] is False


def test_prometheus_is_where_the_source_says() -> None:
    """Host, port, and the scrape interval, from which Grafana takes the range of a rate."""
    source = SOURCES["citegauge-prometheus"]
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"][
        "scrape_interval"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scrape
    assert {"prometheus", "clickhouse"} <= SERVICE["depends_on"].keys()


def test_clickhouse_is_asked_by_a_user_who_can_only_read() -> None:
    """Grafana passes on any SQL: its user is not the service's, has its own password, and reads the service's tables."""
    source = SOURCES["citegauge-clickhouse"]
    data = source["jsonData"]
    assert (data["host"], data["port"], data["protocol"]) == ("clickhouse", 8123, "http")
    assert data["defaultDatabase"] == Settings().clickhouse.database
    assert source["secureJsonData"] == {"password": f"${READER}"}
    file = mounts("clickhouse")["/etc/clickhouse-server/users.d/grafana.xml"]
    root = ET.parse(file).getroot()
    user = root.find(f"users/{data['username']}")
    assert user is not None
    assert data["username"] != SERVICES["clickhouse"]["environment"]["CLICKHOUSE_USER"]
    assert [query.text for query in user.iter("query")] == [f"GRANT SELECT ON {data['defaultDatabase']}.*"]
    assert root.findtext(f"profiles/{user.findtext('profile')}/readonly") == "2"
    password = user.find("password")
    assert password is not None
    assert password.get("from_env") == READER
    assert ENVIRONMENT[READER] == SERVICES["clickhouse"]["environment"][READER]
