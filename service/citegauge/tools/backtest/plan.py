"""Which rules can be replayed, in which order, and what they need. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from citegauge.domain.window import WINDOWS
from citegauge.metrics import METRICS
from citegauge.tools.backtest.engine import Rule
from citegauge.tools.backtest.expression import Reads, reach_s, reads

STORED = frozenset(metric.name for metric in METRICS if "route" in metric.labels) | {"citegauge_as_of_caught_up"}
"""What history knows: the windows' values. The worker is taken to have been up to date at all times."""
SIGNALS = frozenset(metric.name for metric in METRICS if "route" in metric.labels and "window" not in metric.labels)
"""What the detectors say."""
_ALL_WINDOWS = frozenset(window.name for window in WINDOWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is evaluated."""

    recordings: tuple[Rule, ...]
    """Those that an alert needs, each after what it reads."""
    alerts: tuple[Rule, ...]
    not_replayable: tuple[tuple[Rule, str], ...]
    """Alerts, and why not: what they read has no history."""
    metrics: frozenset[str]
    """Names of the metrics that are read."""
    windows: frozenset[str]
    """Names of the windows that are read."""
    signals: bool
    """Whether the detectors are read."""
    warm_up_s: int
    """How long before the first minute of interest evaluation must begin, so that what is pending then is known."""


def plan(rules: Sequence[Rule]) -> Plan:
    """Sort rules by what they read."""
    recordings = _in_order([rule for rule in rules if rule.recording])
    known = STORED | {rule.name for rule in recordings}
    alerts: list[Rule] = []
    lacking: list[tuple[Rule, str]] = []
    for rule in rules:
        if not rule.recording:
            missing = sorted({_shown(read) for read in reads(rule.expr)} - known)
            if not reads(rule.expr):
                lacking.append((rule, "it reads no metric, and so says nothing of the past"))
            elif missing:
                lacking.append((rule, _reason(missing, rules)))
            else:
                alerts.append(rule)
    needed: set[str] = set()
    for rule in (*alerts, *reversed(recordings)):
        if not rule.recording or rule.name in needed:
            needed.update(read.name for read in reads(rule.expr))
    kept = tuple(rule for rule in recordings if rule.name in needed)
    evaluated = (*kept, *alerts)
    return Plan(
        recordings=kept,
        alerts=tuple(alerts),
        not_replayable=tuple(lacking),
        metrics=STORED & needed,
        windows=_windows([read for rule in evaluated for read in reads(rule.expr) if read.name in STORED]),
        signals=bool(SIGNALS & needed),
        warm_up_s=_warm_up_s(kept, alerts),
    )


def _in_order(recordings: Sequence[Rule]) -> list[Rule]:
    """Those whose reads have a history, each after what it reads; what reads its own past never comes."""
    found: list[Rule] = []
    waiting = list(recordings)
    while True:
        held = {rule.name for rule in waiting}
        ready = [rule for rule in waiting if all(_comes(read, held, found) for read in reads(rule.expr))]
        if not ready:
            return found
        found += ready
        waiting = [rule for rule in waiting if rule not in ready]


def _comes(read: Reads, held: set[str], found: Sequence[Rule]) -> bool:
    return read.name in STORED or (read.name not in held and any(rule.name == read.name for rule in found))


def _shown(read: Reads) -> str:
    return read.name or "{" + ",".join(read.matchers) + "}"


def _reason(missing: Sequence[str], rules: Sequence[Rule]) -> str:
    """In terms of metrics: a recorded series is named by what it lacks itself."""
    exprs = {rule.name: rule.expr for rule in rules if rule.recording}
    named: dict[str, None] = {}
    seen: set[str] = set()
    waiting = list(missing)
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in exprs:
            waiting += sorted({_shown(read) for read in reads(exprs[name])} - STORED)
        else:
            named[name] = None
    if not named:
        return "reads its own past"
    return "not stored: " + ", ".join(named)


def _windows(found: Sequence[Reads]) -> frozenset[str]:
    """Windows that are named; all of them where a metric of the windows is read without naming one."""
    names: set[str] = set()
    for read in found:
        if "window" in next(metric.labels for metric in METRICS if metric.name == read.name):
            exact = {name for name in _ALL_WINDOWS if f'window="{name}"' in read.matchers}
            if not exact:
                return _ALL_WINDOWS
            names |= exact
    return frozenset(names)


def _warm_up_s(recordings: Sequence[Rule], alerts: Sequence[Rule]) -> int:
    """Ranges add up along what reads what, and after them come `for` and `keep_firing_for`."""
    reach: dict[str, int] = {}
    for rule in recordings:
        reach[rule.name] = max(reach.get(rule.name, 0), _reach_s(rule, reach))
    longest = max((_reach_s(rule, reach) + rule.hold_s + rule.keep_s for rule in alerts), default=0)
    return -int(-longest // 60) * 60


def _reach_s(rule: Rule, reach: Mapping[str, int]) -> int:
    return reach_s(rule.expr) + max((reach.get(read.name, 0) for read in reads(rule.expr)), default=0)
