"""Rules as YAML. The file has three levels and only strings, so it is written plainly; a test reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from citegauge.tools.rules.links import Links
from citegauge.tools.rules.model import Alert, Group, Recording

HEAD = """\
# Made by `citegauge rules` from the section `alerts` of the settings: change those, not this file.
groups:
"""


def render(groups: Sequence[Group], links: Links) -> str:
    """The text of a Prometheus rule file."""
    lines = [line for group in groups for line in _group(group, links)]
    return HEAD + "\n".join(lines) + "\n"


def _group(group: Group, links: Links) -> Iterator[str]:
    yield f"  - name: {group.name}"
    yield f"    interval: {group.interval}"
    yield "    rules:"
    for rule in group.rules:
        yield from _recording(rule) if isinstance(rule, Recording) else _alert(rule, links)


def _recording(rule: Recording) -> Iterator[str]:
    yield f"      - record: {rule.record}"
    yield from _expr(rule.expr)


def _alert(rule: Alert, links: Links) -> Iterator[str]:
    yield f"      - alert: {rule.name}"
    yield from _expr(rule.expr)
    yield f"        for: {rule.hold}"
    yield f"        keep_firing_for: {rule.keep}"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield f"          signal: {rule.signal}"
    if rule.stalls:
        yield '          stalls: "true"'
    yield "        annotations:"
    yield f"          summary: {_quoted(rule.summary)}"
    yield f"          description: {_quoted(rule.description)}"
    yield f"          runbook_url: {_quoted(f'{links.runbooks}{rule.runbook}.md')}"
    yield f"          dashboard_url: {_quoted(links.dashboard + rule.page)}"


def _expr(expr: str) -> Iterator[str]:
    yield "        expr: |-"
    for line in expr.splitlines():
        yield f"          {line}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
