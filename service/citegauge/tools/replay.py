"""Replay: the same core over files, without a broker and without a database.

The input is one complete log: nothing is late and panes close at its end, so the order of files and lines does not matter.
With `live_rules` watermark and lateness apply in file order, as on a topic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from citegauge.conventions import SpanFault
from citegauge.domain.join import EARLIEST_NS, JoinState
from citegauge.domain.pane import Tally
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, TraceResult
from citegauge.domain.span import Span
from citegauge.domain.summary import WindowStats, shares, stats
from citegauge.domain.window import RollUp, WindowStore, roll_up, window_end_s
from citegauge.errors import DeadLetterError, FatalError
from citegauge.pipeline import Decoder

NEVER_NS = 1 << 62
"""A join window that no watermark passes."""
WHOLE_FILE_BYTES_MAX = 1 << 30


@dataclass(slots=True)
class Unreadable:
    """One record or span that could not be read."""

    path: str
    record: int
    index: int
    reason: str
    detail: str

    @property
    def said(self) -> str:
        """In one line."""
        where = f"{self.path}, record {self.record}" + (f", span {self.index}" if self.index >= 0 else "")
        return f"{where}: {self.reason}{': ' if self.detail else ''}{self.detail}"


@dataclass(slots=True)
class Replay:
    """What the files amount to."""

    results: list[TraceResult] = field(default_factory=list)
    windows: list[RollUp] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    late_by_trace: dict[bytes, int] = field(default_factory=dict)
    spans: int = 0
    traces_without_stage: int = 0
    """Traces with neither retrieval nor generation."""


def records_of(path: str, lines: bool, stdin: BinaryIO | None = None) -> Iterator[bytes]:
    """Records of one file (`-`: standard input): one a line, or the whole file. Raises `FatalError`."""
    try:
        with (stdin or sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            if lines:
                for line in file:
                    if line.strip():
                        yield line.rstrip(b"\r\n")
                return
            whole = file.read(WHOLE_FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise FatalError(f"cannot read {path}: {exc.strerror}") from exc
    if len(whole) > WHOLE_FILE_BYTES_MAX:
        raise FatalError(f"{path} is larger than 1 GiB and not in lines: split it")
    yield from split_records(whole)


def split_records(whole: bytes) -> Iterator[bytes]:
    """A file of unknown form: one JSON document or protobuf message, else (native events, JSON lines) one a line."""
    first, _, rest = whole.strip().partition(b"\n")
    if rest and _is_json(first):
        yield from (line for line in whole.split(b"\n") if line.strip())
    else:
        yield whole


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def replay(
    files: Iterable[tuple[str, Iterable[bytes]]],
    decode: Decoder,
    join_policy: JoinPolicy,
    score_policy: ScorePolicy,
    *,
    now_ns: int,
    live_rules: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Replay:
    """Run the core over (name, records) pairs. `now_ns` bounds event times, as the record timestamp does on a topic."""
    found = Replay()
    spans: list[Span] = []
    for name, records in files:
        for number, record in enumerate(records):
            spans.extend(_spans(found, name, number, record, decode))
            if on_progress is not None:
                on_progress(len(record))
    found.spans = len(spans)
    latest_ns = max(
        (span.end_ns for span in spans if EARLIEST_NS <= span.end_ns <= now_ns + join_policy.skew_ns), default=now_ns
    )
    policy = join_policy if live_rules else replace(join_policy, join_window_ns=NEVER_NS, traces_max=len(spans) + 1)
    join = JoinState(policy, score_policy)
    rows: dict[tuple[object, ...], TraceResult] = {}
    panes: list[tuple[int, Any, Tally]] = []
    for offset, span in enumerate(spans):
        # A file has no record times: a span with a wrong clock is placed at the newest event.
        join.apply(span, offset, 0, latest_ns)
        if live_rules and len(join.changes) > 10_000:
            _collect(join, rows, panes, found)
    join.close_all(len(spans))
    _collect(join, rows, panes, found)
    found.results = sorted(rows.values(), key=lambda result: (result.event_ns, result.trace_id))
    measured_ids = {result.trace_id for result in found.results}
    found.traces_without_stage = len({span.trace_id for span in spans} - measured_ids)
    found.windows = _windows(panes, policy.pane_ns, latest_ns)
    return found


def _spans(found: Replay, name: str, number: int, record: bytes, decode: Decoder) -> Iterator[Span]:
    try:
        for item in decode(record):
            if isinstance(item, SpanFault):
                found.unreadable.append(Unreadable(name, number, item.index, item.reason, item.detail))
            elif isinstance(item, Span):
                yield item
    except DeadLetterError as exc:
        found.unreadable.append(Unreadable(name, number, -1, exc.reason, exc.detail))


def _collect(
    join: JoinState, rows: dict[tuple[object, ...], TraceResult], panes: list[tuple[int, Any, Tally]], found: Replay
) -> None:
    changes = join.take_changes()
    for key in changes.tombstones:
        rows.pop(key, None)
    rows.update((key, change.result) for key, change in changes.rows.items())
    panes.extend((snapshot.pane, snapshot.group, snapshot.tally) for snapshot in changes.finals)
    for late in changes.late:
        found.late_by_trace[late.span.trace_id] = found.late_by_trace.get(late.span.trace_id, 0) + 1


def _windows(panes: list[tuple[int, Any, Tally]], pane_ns: int, latest_ns: int) -> list[RollUp]:
    store = WindowStore(window_end_s(latest_ns))
    for number, (pane, group, tally) in enumerate(panes):
        store.upsert(str(number), pane * pane_ns // SECOND_NS, group, 1, tally)
        store.close(str(number), pane * pane_ns // SECOND_NS)
    groups = list(store.group_windows())
    return sorted([*roll_up(groups), *groups], key=lambda item: (item.window.length_s, item.group))


def trace_json(result: TraceResult, late_spans: int) -> dict[str, Any]:
    """The stable fields of one trace."""
    group = result.group
    return {
        "trace_id": result.trace_id.hex(),
        "state": STATE_NAMES[result.state],
        "route": group.route,
        "model": group.model,
        "retriever_version": group.retriever_version,
        "scorer": group.scorer,
        "top_k": result.top_k,
        "top_k_bucket": group.top_k_bucket,
        "retrieved": result.retrieved,
        "cited": result.cited,
        "cited_retrieved": len(result.cited_ranks),
        "hallucinated": result.hallucinated,
        "unresolved": result.unresolved,
        "recall": result.recall,
        "rank_weighted_recall": result.rank_weighted_recall,
        "top1_score": result.top1_score,
        "nonconformant": result.nonconformant,
        "late_spans": late_spans,
        "event_time": rfc3339(result.event_ns),
        "low_confidence": result.low_confidence,
    }


RECALL_STATS = (
    *("p25", "p50", "p75", "mean"),
    *("sd", "mean_lower", "mean_upper", "mid_p25", "mid_p50", "p25_lower", "p25_upper", "p50_lower", "p50_upper"),
)
SCORE_STATS = (*("p25", "p50", "p75", "mean"), *("sd", "p25_lower", "p25_upper", "p50_lower", "p50_upper"))


def window_json(item: RollUp) -> dict[str, Any]:
    """The stable fields of one window."""
    numbers = stats(item.tally, with_scores=item.scorers == 1)
    group, tally = item.group, item.tally
    return {
        "window": item.window.name,
        "window_start": rfc3339(item.start_s * SECOND_NS),
        "window_end": rfc3339(item.end_s * SECOND_NS),
        "route": group.route,
        "top_k_bucket": group.top_k_bucket,
        "model": group.model,
        "retriever_version": group.retriever_version,
        "scorer": group.scorer,
        "n": numbers.n,
        "recall": {
            **{name: getattr(numbers, f"recall_{name}") for name in RECALL_STATS},
            "rank_weighted_mean": numbers.rank_weighted_mean,
            "cited_any": numbers.cited_any_ratio,
        },
        "top1_score": {
            "n": numbers.score_n,
            **{name: getattr(numbers, f"score_{name}") for name in SCORE_STATS},
        },
        "shares": _shares_json(tally, numbers),
        "traces": tally.traces,
        **{name: tally.states.get(state, 0) for state, name in enumerate(STATE_NAMES)},
        "citations": tally.citations,
        "hallucinated": tally.hallucinated,
        "hallucinated_dropped": tally.dropped_citations,
        "unresolved": tally.unresolved,
        "ids_dropped": tally.ids_dropped,
        "nonconformant_answers": tally.nonconformant,
        "recounted": tally.recounted,
        "cited_top1": tally.cited_top1,
        "cited_top3": tally.cited_top3,
        "low_confidence": tally.low_confidence,
        "confidence_known": tally.confidence_known,
    }


def _shares_json(tally: Tally, numbers: WindowStats) -> dict[str, Any]:
    """Each share with its interval and what it is a share of; null where that is nothing."""
    return {
        name: {
            "n": share.whole,
            "value": getattr(numbers, f"{name}_ratio"),
            "lower": getattr(numbers, f"{name}_lower"),
            "upper": getattr(numbers, f"{name}_upper"),
        }
        if share.whole
        else None
        for name, share in shares(tally).items()
    }


def rfc3339(moment_ns: int) -> str:
    """UTC, with as many digits as the value needs up to ns."""
    seconds, rest = divmod(moment_ns, SECOND_NS)
    text = datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}Z" if rest else f"{text}Z"
