"""What a rule is, and how its annotations name numbers. Data only: expressions stand in `quality` and `pipeline`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A series that is computed from others."""

    record: str
    expr: str


def _group_page(bucket: str) -> str:
    """The page's address of a group, as `static/js/address.js` reads it; without a bucket that is the overview."""
    return f"#/group?route={{{{ $labels.route | urlquery }}}}&top_k_bucket={bucket}"


_LARGEST = (
    '{{ with printf "topk(1, citegauge_window_traces{job=%q,route=%q,window=\\"24h\\",state=\\"measured\\"})" '
    '$labels.job $labels.route | query }}{{ . | first | label "top_k_bucket" | urlquery }}{{ end }}'
)
_SLICE_PAGE = _group_page("{{ $labels.top_k_bucket | urlquery }}")
_ROUTE_PAGE = _group_page(_LARGEST)
"""A route has no page of its own: that of its bucket with most measured traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert. Its runbook is `<runbook>.md`."""

    name: str
    runbook: str
    severity: Literal["page", "ticket", "none"]
    signal: Literal["quality", "traffic", "pipeline"]
    """What it is about: Alertmanager holds back `quality` while the pipeline stalls."""
    expr: str
    hold: str
    """`for`: how long it must be true."""
    keep: str
    """`keep_firing_for`: how long it may be false without ending, so that an edge does not ring twice."""
    summary: str
    description: str
    stalls: bool = False
    """While it fires, the windows cannot be trusted to be new."""

    @property
    def page(self) -> str:
        """What of the worker's page shows it: the group that its summary names, else the overview."""
        if "$labels.top_k_bucket " in self.summary:
            return _SLICE_PAGE
        return _ROUTE_PAGE if "$labels.route " in self.summary else "#/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated together, in order."""

    name: str
    interval: str
    rules: Sequence[Recording | Alert]


def looked_up(series: str, labels: Sequence[str], form: str) -> str:
    """Template text: the value of another series with the alert's own labels, e.g. the mean that fell.

    `series` may have fixed matchers (`name{stat="mean"}`); label values are quoted, whatever a route is called.
    """
    name, _, fixed = series.partition("{")
    matchers = [f"{label}=%q" for label in labels] + ([fixed.removesuffix("}").replace('"', '\\"')] if fixed else [])
    given = " ".join(f"$labels.{label}" for label in labels)
    times = "100 * " if form == PCT else ""
    query = f'printf "{times}{name}{{{",".join(matchers)}}}" {given} | query'
    return f"{{{{ with {query} }}}}{{{{ . | first | value | {form} }}}}{{{{ else }}}}?{{{{ end }}}}"


PCT = 'printf "%.1f %%"'
"""Of a ratio, which `looked_up` multiplies; `humanizePercentage` would write `27.31%`, and the page writes `27 %`."""
_VALUE = '{{ with printf "100 * %%f" $value | query }}{{ . | first | value | printf "%s %%%%" }}{{ end }}'
FALL, SHARE = _VALUE % "%.0f", _VALUE % "%.1f"
"""The alert's own value: a relative fall in whole percent, and a share."""
ONE = 'printf "%.1f"'
THREE = 'printf "%.3f"'
WHOLE = 'printf "%.0f"'
DIGITS = 'printf "%.4g"'
