"""Where the links of an alert lead. They are followed from a pager, so they are absolute."""

from __future__ import annotations

from typing import NamedTuple

from citegauge.errors import ConfigError
from citegauge.section_alerts import AlertSettings
from citegauge.sections import WebSettings


class Links(NamedTuple):
    """Two absolute addresses; both end with `/`."""

    runbooks: str
    dashboard: str


def links(alerts: AlertSettings, web: WebSettings) -> Links:
    """What the settings say, and where they say nothing, what the worker itself serves.

    Raises `ConfigError` when it serves at a port that nobody knows beforehand.
    """
    if not (web.port or web.public_url or (alerts.runbook_base_url and alerts.dashboard_base_url)):
        raise ConfigError("web.port is 0, so alerts cannot link to the page: set web.public_url")
    own = (web.public_url or f"http://127.0.0.1:{web.port}").removesuffix("/") + "/"
    return Links(alerts.runbook_base_url or f"{own}runbooks/", alerts.dashboard_base_url or own)
