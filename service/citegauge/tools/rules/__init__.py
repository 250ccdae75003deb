"""Prometheus rules from the settings: `rule_file` is the text of a rule file.

* `model`: what a rule is, and the words of its annotations.
* `quality`: the recorded series that gather what the workers compared, and the alerts on them; `shares`: the shares
  of traces among them.
* `pipeline`: the alerts on the worker itself; `stalls`: those on what stands still, which are looked at more often.
* `links`: where an alert leads; `render`: rules as YAML.
"""

from __future__ import annotations

from citegauge.section_alerts import AlertSettings
from citegauge.sections import WebSettings
from citegauge.tools.rules.links import links
from citegauge.tools.rules.model import Alert, Group
from citegauge.tools.rules.pipeline import pipeline_group
from citegauge.tools.rules.quality import baseline_group, quality_group
from citegauge.tools.rules.render import render
from citegauge.tools.rules.stalls import stalls_group

__all__ = ["alerts", "rule_file", "rule_groups"]


def rule_groups(settings: AlertSettings) -> tuple[Group, ...]:
    """All rules, in the order in which the file has them."""
    return baseline_group(), quality_group(settings), pipeline_group(settings), stalls_group(settings)


def alerts(settings: AlertSettings) -> tuple[Alert, ...]:
    """The alerts alone."""
    return tuple(rule for group in rule_groups(settings) for rule in group.rules if isinstance(rule, Alert))


def rule_file(settings: AlertSettings, web: WebSettings | None = None) -> str:
    """A Prometheus rule file; `web` says where the worker is, for the links.

    Raises `ConfigError` where it is not known.
    """
    return render(rule_groups(settings), links(settings, web or WebSettings()))
