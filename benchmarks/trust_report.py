"""The trust benchmark's tables, as Markdown."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from trust_traffic import RHO, TOPIC_SPREAD, TRAFFIC_CYCLE, WANDER_H, Floats, Mood, recalls

SERIES, RATE_GOAL, FALL_GOAL = 360, 200, 0.25
MONTH_S, WEEK_S = 30 * 86_400, 7 * 86_400


class Named(Protocol):
    """A detector."""

    @property
    def name(self) -> str:
        """As it stands in the tables."""


class Rate(Protocol):
    """False alarms."""

    @property
    def found(self) -> int:
        """How many."""

    @property
    def per_week(self) -> float:
        """And series."""

    @property
    def per_month(self) -> float:
        """Over 360 series and 30 days."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"


def opening(command: str, day: dt.date) -> str:
    """What this is."""
    return (
        "# How far the alerts can be trusted\n\n"
        f"Written by `{command}` on {day}; not by hand. Traffic is simulated: it says what the rules do when routes behave "
        "like this, not that yours do. Everything is evaluated each minute; what the way from a span to a rule takes on top "
        "(publishing, scraping, evaluating: one to three minutes) is not in the delays.\n"
    )


def traffic(means: Sequence[float], ks: Sequence[int], moods: Sequence[Mood]) -> str:
    """The assumptions."""
    level = "; ".join(
        f"{mood.name}: topic mix {mood.wander:.0%} sd, daily cycle ±{mood.cycle:.0%}, together {mood.level_sd:.1%} sd"
        for mood in moods
    )
    rows = [
        row
        for mean in means
        for row in (
            [f"mean {mean:g}: sd of a trace", *(f"{recalls(k, mean).sd:.3f}" for k in ks)],
            *(
                [
                    f"mean {mean:g}: hours that {what} must take at {RATE_GOAL}/h (Lorden's bound)",
                    *(f"{_lorden(k, mean, length_s):.1f}" for k in ks),
                ]
                for what, length_s in (("a page", MONTH_S), ("a ticket", WEEK_S))
            ),
        )
    ]
    return (
        "## Traffic\n\n"
        f"Beta-binomial citations (correlation {RHO}) around a mean recall of {means[0]:g}, and of "
        f"{means[1]:g} where it says so; two topics {TOPIC_SPREAD:.0%} above "
        f"and below it, whose mix wanders with a correlation time of {WANDER_H:g} h; traffic ±{TRAFFIC_CYCLE:.0%} by day. "
        f"How much a level moves without any regression, relative to it: {level}.\n\n"
        + table(["k", *map(str, ks)], rows)
        + "\nLorden's bound: what any detector needs on average for a fall of 25 % if it may be wrong once in 30 days "
        "(page) or once a week (ticket) over 360 series: ln(traces between two false alarms) / information of a trace, even "
        "when all traces are independent and both distributions are known to the last digit.\n"
    )


def _lorden(k: int, mean: float, length_s: int) -> float:
    """Hours. Information: the Kullback-Leibler divergence of a fallen trace from a usual one."""
    between = SERIES * length_s / 3_600 * RATE_GOAL
    of = recalls(k, mean, FALL_GOAL)
    usual, fallen = (of.easy + of.hard) / 2, (of.fallen_easy + of.fallen_hard) / 2
    return math.log(between) / float(fallen @ np.log(fallen / usual)) / RATE_GOAL


def alarms(title: str, detectors: Sequence[Named], found: Mapping[int, Sequence[Rate]]) -> str:
    """False alarms by detector and rate."""
    rows = [
        [detector.name, *(f"{each[at].per_week:.2g} ({each[at].per_month:.3g})" for each in found.values())]
        for at, detector in enumerate(detectors)
    ]
    return (
        f"## {title}\n\nPer week and series; in brackets: in 30 days over 360 series. At so many traces an hour:\n\n"
        + table(["detector", *(f"{rate:,}" for rate in found)], rows)
    )


def delays(title: str, detectors: Sequence[Named], found: Mapping[tuple[int, float], Floats], unit: str) -> str:
    """Delays by detector, rate and drop."""
    falls = sorted({fall for _, fall in found})
    legend = (
        "Median; in brackets: share found within an hour. –: most not within 24 h. "
        "An alert that fires already does not count."
    )
    parts = [f"## {title}\n\n{legend}\n"]
    for rate in sorted({rate for rate, _ in found}):
        rows = [
            [detector.name, *(delay(found[rate, fall][at]) for fall in falls)] for at, detector in enumerate(detectors)
        ]
        parts.append(table([f"{rate:,} traces/h", *(unit.format(fall) for fall in falls)], rows))
    return "\n".join(parts)


def delay(hours: Floats) -> str:
    """Median and share within an hour."""
    middle = float(np.quantile(hours, 0.5, method="higher"))
    within = f"({float((hours <= 1).mean()):.0%})"
    return f"{middle:.{2 if middle < 2 else 1}f} {within}" if math.isfinite(middle) else f"– {within}"


def goal(
    upto: tuple[int, int], usual: Mapping[int, Sequence[Rate]], found: Mapping[tuple[float, Mood], Mapping[int, Floats]]
) -> str:
    """The two goals, and by how much they are met or missed. `upto`: how many detectors page, and how many alert at all."""
    pages, rules = upto
    worst = {rate: sum(each.per_month for each in rates[:pages]) for rate, rates in usual.items()}
    counts = {rate: sum(each.found for each in rates[:pages]) for rate, rates in usual.items()}
    met = all(value <= 1 for value in worst.values())
    rows = []
    for (mean, mood), by_k in found.items():
        for what, first in (("a page", pages), ("a page or a ticket", rules)):
            rows.append(
                [f"mean {mean:g}, {mood.name}: {what}", *(delay(each[:first].min(axis=0)) for each in by_k.values())]
            )
    ks = next(iter(found.values()))
    said = ", ".join(f"{worst[rate]:.2g} at {rate:,}/h ({counts[rate]} seen)" for rate in worst)
    return (
        f"## The goals\n\n**At most one false page in 30 days over 360 series**: {'met' if met else 'missed'}: {said}.\n\n"
        f"**A fall of 25 % at {RATE_GOAL} traces/h found within an hour for k ≥ 3**: {_verdict(rules, found)}. "
        "Median hours to the first alert (share within an hour), by k:\n\n"
        + table(["", *(f"k = {k}" for k in ks)], rows)
    )


def _verdict(rules: int, found: Mapping[tuple[float, Mood], Mapping[int, Floats]]) -> str:
    """Whether half the drops of every k >= 3 are found within an hour, by a page or a ticket."""
    said = []
    for (mean, mood), by_k in found.items():
        middles = [
            float(np.quantile(each[:rules].min(axis=0), 0.5, method="higher")) for k, each in by_k.items() if k >= 3
        ]
        met = "met" if max(middles) <= 1 else "missed"
        said.append(
            f"{met} at mean {mean:g}, {mood.name} mood (half of them within {min(middles):.2f} to {max(middles):.2f} h)"
        )
    return "; ".join(said)
