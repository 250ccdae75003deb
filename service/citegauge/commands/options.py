"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

config_option = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), envvar="CITEGAUGE_CONFIG", help="Settings in TOML."
)
