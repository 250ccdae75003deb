"""Stories for `promtool test rules`: the series of a healthy deployment, what goes wrong in them, and which alerts fire.

A story lasts an hour and a half in steps of a minute; what happens, happens at `BREAK`. It holds two routes with
two buckets each.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from citegauge.domain.compare import Part, like_for_like
from citegauge.domain.intervals import Moments
from citegauge.domain.signals import Signal
from citegauge.metrics import BY_NAME
from citegauge.tools.samples import signal_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MINUTES, BREAK = 90, 25
INSTANCE = {"job": "citegauge", "instance": "service:9464"}
GONE = "_"
WANDER = 0.003
"""By how much the level of an hour moves by itself, in every story."""
PROMTOOL = shutil.which("promtool")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Number, mean and standard deviation of some values."""

    n: float
    mean: float
    sd: float

    def __add__(self, other: Sample) -> Sample:
        """Both together, by the sums of squares."""
        n = self.n + other.n
        if n < 1:
            return self
        mean = (self.n * self.mean + other.n * other.mean) / n
        squares = sum((part.n - 1) * part.sd**2 + part.n * part.mean**2 for part in (self, other) if part.n)
        return Sample(n=n, mean=mean, sd=(max(0.0, squares - n * mean**2) / max(1.0, n - 1)) ** 0.5)


@dataclass(frozen=True, kw_only=True)
class Hour:
    """What one (route, bucket) shows in the 1 h window, and in the 24 h window without it."""

    recall: Sample
    day: Sample
    score: Sample
    score_day: Sample
    scorer: str = "reranker:a"
    hallucinated: float = 0.01
    nonconformant: int = 0
    empty: int = 0
    unjoined: int = 0
    """Retrievals without a generation."""
    generations: int = 0
    """Generations without a retrieval."""
    others: tuple[tuple[str, int, int], ...] = ()
    """Further states: name, traces of the hour, and traces of the day before it."""
    distances: bool = False
    """The route declares its scores to be distances."""
    old_scorer: str = ""
    """A scorer that only the day has."""
    versions: tuple[tuple[Sample, Sample], ...] = ()
    """Further models or retriever versions of the slice: recall of each in the hour, and in the day before it."""
    low: tuple[Sample, Sample] | None = None
    """Share of traces of low confidence: of the hour, and of the day before it."""
    cusum: float = 0.2
    """What the detector of recall says."""
    shift: float = 0.2
    """What the detector of scores says."""


NORMAL = Hour(
    recall=Sample(n=200, mean=0.6, sd=0.3),
    day=Sample(n=4_000, mean=0.6, sd=0.3),
    score=Sample(n=200, mean=0.8, sd=0.1),
    score_day=Sample(n=4_000, mean=0.8, sd=0.1),
)
SLICES = {("support", "1-5"): NORMAL, ("support", "6-10"): NORMAL, ("sales", "1-5"): NORMAL, ("sales", "6-10"): NORMAL}


def key(name: str, **labels: str) -> str:
    """A series as promtool writes it."""
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in (INSTANCE | labels).items()) + "}"


def steady(value: float | str, minutes: int) -> str:
    """The same value each minute, or no value at all."""
    return f"_x{minutes}" if value == GONE else f"{value!r}+0x{minutes - 1}"


def then(before: float | str, after: float | str) -> str:
    """One value before the break, another after it."""
    return f"{steady(before, BREAK)} {steady(after, MINUTES - BREAK)}"


def rising(per_minute: float, until: int = MINUTES) -> str:
    """A counter that grows, and stands still from some minute on."""
    end = per_minute * (until - 1)
    return f"0+{per_minute!r}x{until - 1}" + (f" {end!r}+0x{MINUTES - until - 1}" if until < MINUTES else "")


def gone(series: Mapping[str, str]) -> dict[str, str]:
    """Series that end at the break."""
    return {
        name: re.sub(r"x\d+$", f"x{BREAK - 1} {steady(GONE, MINUTES - BREAK)}", values)
        for name, values in series.items()
    }


def pipeline() -> dict[str, str]:
    """Everything but the windows, in health."""
    partition = {"topic": "spans", "partition": "0"}
    return {
        key("up"): steady(1, MINUTES),
        key("citegauge_records_total"): rising(500),
        key("citegauge_spans_total", kind="retrieval"): rising(500),
        key("citegauge_spans_late_total"): rising(0),
        key("citegauge_position_lag_records", **partition): steady(0, MINUTES),
        key("citegauge_watermark_timestamp_seconds", **partition): rising(60),
        key("citegauge_commit_age_seconds", **partition): steady(5, MINUTES),
        key("citegauge_reading_paused"): steady(0, MINUTES),
        key("citegauge_clickhouse_failing", tier="hot"): steady(0, MINUTES),
        key("citegauge_clickhouse_backlog_rows", tier="hot"): steady(0, MINUTES),
        key("citegauge_as_of_timestamp_seconds"): rising(60),
        key("citegauge_as_of_caught_up"): steady(1, MINUTES),
        key("citegauge_windows_ready"): steady(1, MINUTES),
    }


def windows(slices: Mapping[tuple[str, str], Hour]) -> dict[str, float]:
    """The gauges of the 1 h and the 24 h window."""
    found: dict[str, float] = {}
    for (route, bucket), hour in slices.items():
        place = {"route": route, "top_k_bucket": bucket}
        for window in ("1h", "24h"):
            at = place | {"window": window}
            recall = _pooled(hour, window)
            bad = {"nonconformant": hour.nonconformant, "empty_retrieval": hour.empty, "no_generation": hour.unjoined}
            bad["no_retrieval"] = hour.generations
            bad |= {state: now + (day if window == "24h" else 0) for state, now, day in hour.others}
            if window == "24h" or recall.n or any(bad.values()):
                found[key("citegauge_window_traces", **at, state="measured")] = recall.n
            for state, n in bad.items():
                found[key("citegauge_window_traces", **at, state=state)] = n
            found |= _values("citegauge_cited_chunk_recall_ratio", at, recall)
            found |= _scores(at, hour, window)
            found |= _shares(at, hour, recall.n)
        found |= _signals(route, bucket, hour)
    return found


def _pooled(hour: Hour, window: str) -> Sample:
    """Recall of the slice in a window, all versions together."""
    found = hour.recall
    for now, _ in hour.versions:
        found += now
    if window == "24h":
        for day in (hour.day, *(day for _, day in hour.versions)):
            found += day
    return found


def _signals(route: str, bucket: str, hour: Hour) -> dict[str, float]:
    """What the workers say of it, by the domain's own comparison."""
    found: dict[str, float] = {}
    recall = like_for_like(_part(now, day) for now, day in ((hour.recall, hour.day), *hour.versions))
    score = None if hour.old_scorer else like_for_like([_part(hour.score, hour.score_day)])
    for scorer, compared in (("*", recall), (hour.scorer, score)):
        low = like_for_like([_part(*hour.low)]) if hour.low and scorer == "*" else None
        signal = Signal(
            route=route,
            top_k_bucket=bucket,
            scorer=scorer,
            compared=compared,
            lower_is_better=hour.distances and scorer != "*",
            low_confidence=low,
        )
        for sample in signal_samples(signal):
            found[key(sample.name, **dict(zip(BY_NAME[sample.name].labels, sample.labels, strict=True)))] = sample.value
    place = {"route": route, "top_k_bucket": bucket}
    if recall is not None:
        found[key("citegauge_detector_ratio", **place, scorer="*", detector="recall_cusum")] = hour.cusum
    if score is not None:
        found[key("citegauge_detector_ratio", **place, scorer=hour.scorer, detector="score_shift")] = hour.shift
    return found


def _part(now: Sample, day: Sample) -> Part:
    before, after = (Moments(int(part.n), part.mean, part.sd**2) for part in (day, now))
    return Part(before, after, WANDER**2)


def _values(name: str, at: dict[str, str], sample: Sample) -> dict[str, float]:
    if sample.n < 2:
        return {}
    half = 1.96 * sample.sd / sample.n**0.5
    stats = {"mean": sample.mean, "sd": sample.sd}
    if "recall" in name:
        stats |= {"mean_lower": sample.mean - half, "mean_upper": sample.mean + half}
    return {key(name, **at, stat=stat): value for stat, value in stats.items()}


def _scores(at: dict[str, str], hour: Hour, window: str) -> dict[str, float]:
    found: dict[str, float] = {}
    days = {hour.scorer: hour.score_day} if not hour.old_scorer else {hour.old_scorer: hour.score_day}
    samples = {hour.scorer: hour.score} if window == "1h" else days
    if window == "24h":
        now = hour.score
        samples = {**days, hour.scorer: now + days[hour.scorer] if hour.scorer in days else now}
    for scorer, sample in samples.items():
        found[key("citegauge_top1_score_samples", **at, scorer=scorer)] = sample.n
        found |= _values("citegauge_top1_score", at | {"scorer": scorer}, sample)
    return found


def _shares(at: dict[str, str], hour: Hour, n: float) -> dict[str, float]:
    """Shares of the day are those of `NORMAL`, so what an hour shows in addition is a rise."""
    retrieved = n + hour.nonconformant + hour.empty + hour.unjoined
    shares = {
        "hallucinated": (hour.hallucinated * hour.recall.n * 2 + 0.01 * (n - hour.recall.n) * 2, n * 2),
        "nonconformant": (hour.nonconformant, n + hour.nonconformant + hour.empty),
        "zero_results": (hour.empty, retrieved),
        "unjoined": (hour.unjoined + hour.generations, retrieved + hour.generations),
    }
    found: dict[str, float] = {
        key("citegauge_window_citations", **at, outcome="never_retrieved"): shares["hallucinated"][0],
        key("citegauge_window_citations", **at, outcome="valid"): shares["hallucinated"][1] - shares["hallucinated"][0],
    }
    for share, (part, whole) in shares.items():
        if whole:
            value = part / whole
            half = 1.96 * (value * (1 - value) / whole) ** 0.5
            for stat, shown in (("value", value), ("lower", max(0.0, value - half)), ("upper", value + half)):
                found[key("citegauge_window_share_ratio", **at, share=share, stat=stat)] = shown
    return found


def story(
    after: Mapping[tuple[str, str], Hour] | None = None,
    changes: Mapping[str, str] | None = None,
    before: Mapping[tuple[str, str], Hour] | None = None,
) -> dict[str, str]:
    """Series of a whole deployment: `before` until the break, then `after`; `changes` replaces single series."""
    first, second = windows(SLICES if before is None else before), windows(SLICES if after is None else after)
    names = first.keys() | second.keys()
    found = {name: then(first.get(name, GONE), second.get(name, GONE)) for name in names}
    return pipeline() | found | dict(changes or {})


def changed(route: str, bucket: str = "", **changes: object) -> dict[tuple[str, str], Hour]:
    """`SLICES` with one route's hours (or one bucket's) replaced in part."""
    return {
        at: replace(hour, **changes) if at[0] == route and bucket in ("", at[1]) else hour  # type: ignore[arg-type]
        for at, hour in SLICES.items()
    }


def promtool_test(
    folder: Path, rules: str, series: Mapping[str, str], tests: Mapping[str, object], interval: str = "1m"
) -> str:
    """What promtool says: empty when all is as expected. `interval`: of the series, and of all groups' evaluations."""
    assert PROMTOOL is not None
    (folder / "rules.yml").write_text(rules)
    group = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        **tests,
    }
    test: dict[str, object] = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": [group]}
    # Without it promtool takes the groups in random order, and alerts now and then see what was recorded a minute ago.
    test["group_eval_order"] = re.findall(r"^  - name: (\S+)$", rules, re.MULTILINE)
    (folder / "test.yml").write_text(json.dumps(test))
    command = [PROMTOOL, "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def expect_firing(
    folder: Path, rules: str, series: Mapping[str, str], expected: Mapping[int, Mapping[str, int]]
) -> None:
    """At each minute, exactly these alerts fire, each so many times, beside the one that always does."""
    tests = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing",alertname!="CitegaugeWatchdog"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": n} for name, n in alerts.items()],
        }
        for minute, alerts in expected.items()
    ]
    said = promtool_test(folder, rules, series, {"promql_expr_test": tests})
    assert not said, said


def rendered_texts(folder: Path, rules: str, series: Mapping[str, str], alert: str, minute: int) -> Iterable[str]:
    """The texts of an alert as promtool renders them: it shows them when it is told to expect others."""
    test = {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": [{"exp_labels": {"none": "such"}}]}
    said = promtool_test(folder, rules, series, {"alert_rule_test": [test]})
    got = said.partition("got:")[2]
    return re.findall(r'(?:summary|description|runbook_url|dashboard_url)="((?:[^"\\]|\\.)*)"', got)
