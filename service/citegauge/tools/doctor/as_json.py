"""The doctor's report as one JSON object for programs. The names are stable; sentences may change."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import msgspec

from citegauge.domain.recall import STATE_NAMES
from citegauge.tools.doctor import Report
from citegauge.tools.doctor.counts import ClockCounts, SourceCounts
from citegauge.tools.doctor.report import first_change
from citegauge.tools.doctor.sample import Reach
from citegauge.tools.doctor.verdict import Verdict


def report_json(report: Report) -> dict[str, Any]:
    """Everything that the text says, and the counts behind it."""
    traces = report.traces
    states = Counter(STATE_NAMES[one.result.state] for one in traces.judged)
    return {
        "can_measure_recall": report.can_measure,
        "change_first": first_change(report),
        "verdicts": [_verdict(verdict) for verdict in report.verdicts],
        "findings": [asdict(finding) for finding in report.findings],
        "traces": {
            "judged": len(traces.judged),
            "maybe_cut": len(traces.joined) - len(traces.judged),
            "other": traces.without_stage,
            "states": dict(sorted(states.items())),
            "repeated_spans": traces.repeated_spans,
        },
        "route_key_candidates": [{"key": key, "values": values} for key, values in report.hints.route_keys()],
        "unknown_spans": [
            suspect._asdict() for kind in ("retrieval", "generation") for suspect in report.hints.suspects(kind)[:20]
        ],
        "sources": [_source(source, reaches) for source, reaches in zip(report.sources, report.reaches, strict=True)],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "metric": verdict.metric,
        "answer": verdict.answer,
        "traces": verdict.traces,
        "measurable": verdict.good,
        "share": verdict.share,
        "because": verdict.because,
        "change": verdict.change,
        "causes": [{"traces": counted.traces, **counted.cause._asdict()} for counted in verdict.causes],
    }


def _source(source: SourceCounts, reaches: dict[int, Reach]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(source, str_keys=True)
    found["reading"] = {"encoding": source.reading.encoding, "keyed": source.reading.keyed}
    found["clock"] = _clock(source.clock)
    found["partitions"] = {
        str(partition): {"records": source.partitions[partition], **reach._asdict()}
        for partition, reach in sorted(reaches.items())
    }
    return found


def _clock(clock: ClockCounts) -> dict[str, Any]:
    delays = sorted(clock.delays_ns)
    return {
        "wrong_unit": dict(clock.wrong_unit),
        "missing": clock.missing,
        "too_old": clock.too_old,
        "future": clock.future,
        "backwards": clock.backwards,
        "delay_s": {
            name: delays[min(int(len(delays) * part), len(delays) - 1)] / 1e9
            for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            if delays
        },
    }
