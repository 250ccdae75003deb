"""`citegauge audit` on random logs: it agrees with the worker's own pipeline, and finds every row that was tampered with.

The oracle and the pipeline were written apart and share the formulas only, so each is the other's test.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citegauge.domain.pane import COUNTERS
from citegauge.domain.policy import SECOND_NS, JoinPolicy, RoutePolicy, ScorePolicy
from citegauge.domain.progress import Clock, Commit
from citegauge.domain.rekeyed import Rekeyed, trace_partition
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError
from citegauge.pipeline import PartitionPipeline, Record, Source
from citegauge.ports import LateRow, PaneRow
from citegauge.tools.audit import AuditReport, PartitionAudit, Range, StoredRows, opener
from citegauge.tools.audit import partition as partition_module
from support.core_logs import SHORT_JOIN, T0_NS, Log, LogRecord, Shape, generation, random_log, retrieval

SOURCE = Source("traces", 0)
REKEYED = Source("citegauge.spans", 0)
GROUP = ("route", "top_k_bucket", "model", "retriever_version", "scorer")
Row = dict[str, Any]


class Tables(StoredRows):
    """ClickHouse as a few lists, filled by the worker's pipeline."""

    def __init__(self, source: Source = SOURCE) -> None:
        self.source = source
        self.rows: dict[str, dict[tuple[Any, ...], Row]] = {"panes": {}, "traces": {}, "late": {}}

    def put(self, row: msgspec.Struct) -> None:
        """What `FINAL` would show of it: the highest version of each key."""
        fields = msgspec.structs.asdict(row)
        fields["pane_s"] = fields.pop("pane")
        fields.pop("source", None)
        if isinstance(row, LateRow):
            self.rows["late"][row.topic, row.partition, row.offset, row.index] = fields
            return
        table = "panes" if isinstance(row, PaneRow) else "traces"
        key = tuple(fields[name] for name in ("pane_s", *GROUP, "trace_id") if name in fields)
        known = self.rows[table].get(key)
        if known is None or known["version"] <= fields["version"]:
            self.rows[table][key] = fields

    def panes(self, from_s: int, to_s: int) -> list[Row]:
        """Rows of `panes`."""
        return self._between("panes", from_s, to_s)

    def traces(self, from_s: int, to_s: int) -> list[Row]:
        """Rows of `traces`."""
        return self._between("traces", from_s, to_s)

    def late(self, first: int, end: int) -> list[Row]:
        """Rows of `late`."""
        return [dict(row) for row in self.rows["late"].values() if first <= row["offset"] < end]

    def late_by_trace(self, partitions: int, from_ns: int, to_ns: int) -> list[Row]:
        """Rows of `late` of re-keyed traces."""
        own = [
            row
            for row in self.rows["late"].values()
            if trace_partition(bytes.fromhex(row["trace_id"]), partitions) == 0
        ]
        return [dict(row) for row in own if from_ns <= row["watermark_ns"] < to_ns]

    def late_again(self, origin: tuple[Any, ...], late: Mapping[str, Any]) -> bool:
        """Whether the span has a later row."""
        row = self.rows["late"].get(origin)
        return row is not None and row["watermark_ns"] > late["watermark_ns"]

    def forced(self) -> tuple[dict[int, int], int]:
        """Early closings."""
        found: dict[int, int] = {}
        rows = [row for row in self.rows["panes"].values() if row["forced"]]
        for row in rows:
            offset = (row["version"] & ((1 << 48) - 1)) >> 1
            found[offset] = max(row["pane_s"], found.get(offset, -1))
        return found, len(rows)

    def _between(self, table: str, from_s: int, to_s: int) -> list[Row]:
        return [dict(row) for row in self.rows[table].values() if from_s <= row["pane_s"] < to_s]


def work(
    log: Log | RekeyedLog, join: JoinPolicy, scoring: ScorePolicy, source: Source = SOURCE, flush_every: int = 7
) -> Tables:
    """The worker's pipeline over the log, stored."""
    tables = Tables(source)
    first = log.records[0].offset
    pipeline = PartitionPipeline(source, log.decode, join, scoring, Commit(first, first, Clock()))
    for number, record in enumerate(records(log)):
        pipeline.feed(record)
        if number % flush_every == 0 or number == len(log.records) - 1:
            flush = pipeline.take_flush(idle_wall_ns=record.timestamp_ns)
            for row in (*flush.panes, *flush.traces, *flush.late):
                tables.put(row)
            for tombstone in flush.tombstones:
                group = (getattr(tombstone, name) for name in GROUP)
                key = (tombstone.pane, *group, tombstone.trace_id)
                known = tables.rows["traces"].get(key)
                if known is not None and known["version"] <= tombstone.version:
                    del tables.rows["traces"][key]
    return tables


def records(log: Log | RekeyedLog) -> Iterator[Record]:
    """As the pipeline and the audit read them: the value is the record's own offset."""
    return (Record(record.offset, record.timestamp_ns, b"%d" % record.offset) for record in log.records)


def audit(
    log: Log | RekeyedLog, join: JoinPolicy, scoring: ScorePolicy, tables: Tables, *, start: int = 0, **extent: Any
) -> AuditReport:
    """The audit's answer; `start`: how many records are left out at the beginning."""
    partitions = int(isinstance(log, RekeyedLog))
    report = AuditReport()
    read = list(records(log))[start:]
    between = Range(start=read[0].offset, end=read[-1].offset + 1, **{"whole": start == 0, **extent})
    open_record = opener(tables.source, log.decode, 1 << 20)
    one = PartitionAudit(
        tables.source, open_record, (join, scoring), between, tables, report, rekeyed_partitions=partitions
    )
    one.feed(read)
    one.finish()
    return report


class RekeyedLog(NamedTuple):
    """A log of the re-keyed topic: one span a record, each with its origin."""

    records: list[LogRecord]
    spans: dict[bytes, Rekeyed]

    def decode(self, value: bytes) -> list[Rekeyed]:
        """The pipeline's decoder for this log."""
        if value not in self.spans:
            raise DeadLetterError("not_rekeyed")
        return [self.spans[value]]


def rekeyed(log: Log, rng: random.Random) -> RekeyedLog:
    """The spans of a log from a few sources, each with its own lag, silent for a while, some sent twice."""
    sources = [(f"source-{number // 2}", number % 2) for number in range(rng.randint(1, 4))]
    lags_ns = {source: rng.choice([0, 1, 20, 90]) * SECOND_NS for source in sources}
    # Minutes in which a source sends nothing: what it had comes afterwards.
    silent = {source: (rng.randrange(1, 20), rng.choice([1, 1, 8])) for source in sources}
    sent: list[tuple[int, Rekeyed]] = []
    counts = dict.fromkeys(sources, 0)
    for record in log.records:
        for item in record.items or ():
            if not isinstance(item, Span):
                continue
            source = rng.choice(sources)
            counts[source] += rng.randint(1, 3)
            log_ns = record.timestamp_ns + lags_ns[source] + rng.randrange(2_000) * 1_000_000
            minute = (log_ns - T0_NS) // (60 * SECOND_NS)
            if 0 <= minute - silent[source][0] < silent[source][1] and rng.random() < 0.9:
                log_ns += (60 * silent[source][1] + rng.randint(0, 70)) * SECOND_NS
            one = Rekeyed(*source, counts[source], rng.randrange(2), record.timestamp_ns, item)
            sent += [
                (log_ns + again, one) for again in ([0, rng.randrange(400) * SECOND_NS] if rng.random() < 0.1 else [0])
            ]
    sent.sort(key=lambda pair: pair[0])
    records, spans = [], {}
    offset = rng.randrange(50)
    for log_ns, one in sent:
        records.append(LogRecord(offset=offset, timestamp_ns=log_ns // 1_000_000 * 1_000_000, items=None))
        if rng.random() > 0.01:
            spans[b"%d" % offset] = one
        offset += rng.choice([1, 1, 1, 2])
    return RekeyedLog(records, spans)


def scenario(seed: int) -> tuple[Log, JoinPolicy, ScorePolicy]:
    """A random log with random bounds."""
    rng = random.Random(f"audit {seed}")
    partial_copies = rng.choice([0, 0.1])
    shape = Shape(
        traces=rng.choice([5, 20, 60]),
        minutes=rng.choice([4.0, 12.0, 25.0]),
        late=rng.choice([0, 0.04, 0.2]),
        duplicates=rng.choice([0, 0.15, 0.4]),
        partial_copies=partial_copies,
        bad_time=rng.choice([0, 0.03]),
        missing_half=rng.choice([0.1, 0.4]),
        route_on_root=rng.choice([0.1, 0.5]),
        long_traces=rng.choice([0.1, 0.4]),
        endless_traces=rng.choice([0, 0, 1, 2]),
        disorder_s=rng.choice([1, 20, 60]),
        spans_per_record=rng.choice([1, 3, 8]),
    )
    low, high = ({"unknown": threshold, "bge": threshold} for threshold in (0.95, 0.85))
    support, billing = RoutePolicy(low_confidence_below=low), RoutePolicy(cites=False, low_confidence_below=high)
    listed = {"support": support, "billing": billing} if rng.random() < 0.5 else {}
    join = JoinPolicy(
        join_window_ns=rng.choice([60, 120]) * SECOND_NS,
        out_of_orderness_ns=rng.choice([5, 30]) * SECOND_NS,
        trace_panes_max=rng.choice([4, 6, 60, 60]),
        trace_spans_max=1_000 if partial_copies else rng.choice([4, 1_000]),
        traces_max=rng.choice([3, 10, 10**6, 10**6]),
        groups_max=rng.choice([3, 8, 10**6]),
    )
    return (
        random_log(rng, shape),
        join,
        ScorePolicy(routes=MappingProxyType(listed), only_listed_routes=rng.random() < 0.1),
    )


@settings(max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_the_audit_agrees_with_the_worker(seed: int) -> None:
    """Over any log, with early closings, frozen routes and every bound, no row differs."""
    log, join, scoring = scenario(seed)
    tables = work(log, join, scoring)
    report = audit(log, join, scoring, tables)
    assert not report.differences, report.listed[0]
    assert report.judged


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), share=st.floats(0.05, 0.9))
def test_a_read_from_the_middle_accuses_nobody(seed: int, share: float) -> None:
    """Whatever lies before the first record, a worker that read it too agrees on everything that is judged."""
    rng = random.Random(f"middle {seed}")
    shape = Shape(traces=60, minutes=30.0, endless_traces=1, missing_half=0.3, disorder_s=rng.choice([1, 20, 60]))
    log = random_log(rng, shape)
    join = dataclasses.replace(SHORT_JOIN, trace_panes_max=rng.choice([4, 6]), traces_max=rng.choice([10, 10**6]))
    scoring = ScorePolicy()
    report = audit(log, join, scoring, work(log, join, scoring), start=int(len(log.records) * share))
    assert not report.differences, report.listed[0]


def test_a_read_from_the_middle_judges_what_it_can() -> None:
    """The hold-back of a pane is finite: most of a long range is judged, its beginning is not."""
    log = random_log(random.Random(7), Shape(traces=200, minutes=60.0))
    join = dataclasses.replace(SHORT_JOIN, trace_panes_max=4)
    tables = work(log, join, ScorePolicy())
    whole, part = (audit(log, join, ScorePolicy(), tables, start=start) for start in (0, len(log.records) // 3))
    assert 20 < part.judged < whole.judged
    assert part.partitions[0].compared["late"] > 0
    first_s = log.records[len(log.records) // 3].timestamp_ns // SECOND_NS
    assert part.partitions[0].judged_from is not None
    assert 240 <= part.partitions[0].judged_from - first_s <= 360  # 4 panes, the skew and a rounding


@settings(max_examples=100)
@given(seed=st.integers(0, 10**9))
def test_the_audit_agrees_over_a_rekeyed_topic(seed: int) -> None:
    """With a clock per source, silent sources and spans re-keyed twice, no row differs either."""
    log, join, scoring = scenario(seed)
    rng = random.Random(seed)
    join = dataclasses.replace(join, source_idle_ns=rng.choice([30, 60]) * SECOND_NS)
    moved = rekeyed(log, rng)
    tables = work(moved, join, scoring, REKEYED)
    report = audit(moved, join, scoring, tables)
    assert not report.differences, report.listed[0]


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), share=st.floats(0.05, 0.9))
def test_a_rekeyed_read_from_the_middle_accuses_nobody(seed: int, share: float) -> None:
    """Sources that were active before the first record may hold the worker's clock back: that is waited for."""
    rng = random.Random(f"rekeyed middle {seed}")
    log = rekeyed(random_log(rng, Shape(traces=120, minutes=40.0, missing_half=0.3, late=0.1)), rng)
    idle_ns = rng.choice([30, 400, 900]) * SECOND_NS
    join = dataclasses.replace(SHORT_JOIN, trace_panes_max=4, source_idle_ns=idle_ns)
    report = audit(
        log, join, ScorePolicy(), work(log, join, ScorePolicy(), REKEYED), start=int(len(log.records) * share)
    )
    assert not report.differences, report.listed[0]


def test_late_rows_of_a_rekeyed_topic_are_found_by_trace_and_watermark() -> None:
    """A late row that is missing, made up or changed is named by its origin."""
    rng = random.Random(4)
    log = rekeyed(random_log(rng, Shape(traces=120, minutes=20.0, late=0.3)), rng)
    tables = work(log, SHORT_JOIN, ScorePolicy(), REKEYED)
    late = tables.rows["late"]
    assert len(late) > 30
    assert audit(log, SHORT_JOIN, ScorePolicy(), tables).partitions[0].compared["late"] >= len(late)
    keys = sorted(late)
    ghost = {**late[keys[9]], "offset": 10**9}
    late[(*keys[9][:2], 10**9, 0)] = {**ghost, "index": 0}
    late[keys[5]]["route"] = "changed"
    del late[keys[20]]
    report = audit(log, SHORT_JOIN, ScorePolicy(), tables)
    assert report.differences == 3
    assert {one.key["offset"] for one in report.listed} == {10**9, keys[5][2], keys[20][2]}


# -- tampering ---------------------------------------------------------------------------------------------------------

Tamper = Callable[[random.Random, Tables], tuple[str, Any] | None]
"""Changes one row; returns its table and what must be found of it."""


def _some(rng: random.Random, tables: Tables, table: str, wanted: Callable[[Row], Any]) -> tuple[Any, Row] | None:
    found = [(key, row) for key, row in sorted(tables.rows[table].items()) if wanted(row)]
    return rng.choice(found) if found else None


def _final(row: Row) -> bool:
    return bool(row["final"] and row["states"])


def _counted(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    found = _some(rng, tables, "panes", _final)
    if found is None:
        return None
    key, row = found
    name = rng.choice(["states", *COUNTERS])
    row[name] = {**row[name], "measured": row[name].get("measured", 0) + 1} if name == "states" else row[name] + 1
    return "panes", key


def _histogram(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    name = rng.choice(["recall_counts", "rank_weighted_counts", "score_counts"])
    found = _some(rng, tables, "panes", lambda row: _final(row) and row[name])
    if found is None:
        return None
    key, row = found
    at = rng.choice(sorted(row[name]))
    row[name] = {(k + 1 if k == at else k): n for k, n in row[name].items()}
    return "panes", key


def _missing(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    table = rng.choice(["panes", "traces", "late"])
    found = _some(rng, tables, table, lambda row: row.get("states", True))
    if found is None:
        return None
    del tables.rows[table][found[0]]
    return table, found[0]


def _ghost(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    table = rng.choice(["panes", "traces", "late"])
    found = _some(rng, tables, table, lambda row: row.get("states", True))
    if found is None:
        return None
    key, row = found
    if table == "late":
        ghost = {**row, "index": row["index"] + 17}
        ghost_key: tuple[Any, ...] = (*key[:3], row["index"] + 17)
    else:
        ghost = {**row, "route": "nobody"}
        ghost_key = (key[0], "nobody", *key[2:])
    tables.rows[table][ghost_key] = ghost
    return table, ghost_key


def _version(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    table = rng.choice(["panes", "traces"])
    found = _some(rng, tables, table, lambda row: row.get("final", True) and row.get("states", True))
    if found is None:
        return None
    found[1]["version"] += rng.choice([-1, 1, 1 << 40, 1 << 48])
    return table, found[0]


def _not_final(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    found = _some(rng, tables, "panes", _final)
    if found is None:
        return None
    found[1]["final"] = False
    return "panes", found[0]


def _trace_value(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    found = _some(rng, tables, "traces", bool)
    if found is None:
        return None
    key, row = found
    name = rng.choice(sorted(set(row) - {"pane_s", "trace_id", "version", *GROUP}))
    row[name] = "changed"
    return "traces", key


def _late_value(rng: random.Random, tables: Tables) -> tuple[str, Any] | None:
    found = _some(rng, tables, "late", bool)
    if found is None:
        return None
    key, row = found
    row[rng.choice(["trace_id", "span_id", "kind", "route", "end_ns", "pane_s", "watermark_ns"])] = -1
    return "late", key


TAMPERS: Mapping[str, Tamper] = MappingProxyType(
    {
        "a count": _counted,
        "a histogram": _histogram,
        "a missing row": _missing,
        "a ghost": _ghost,
        "a version": _version,
        "not final": _not_final,
        "a value of a trace": _trace_value,
        "a value of a late row": _late_value,
    }
)


@pytest.mark.parametrize("name", TAMPERS)
def test_one_wrong_row_is_found_and_named(name: str) -> None:
    """Each kind of damage, done to one random row, is one difference that names this row and nothing else."""
    tried = 0
    for seed in range(60):
        log, join, scoring = scenario(seed)
        tables = work(log, join, scoring)
        done = TAMPERS[name](random.Random(seed), tables)
        if done is None:
            continue
        report = audit(log, join, scoring, tables)
        table, key = done
        assert report.differences == 1, (seed, key, report.listed[:3])
        found = report.listed[0]
        assert found.table == table
        assert set(key) <= set(found.key.values())
        assert report.as_dict()["equal"] is False
        tried += 1
    assert tried > 20


def test_only_the_first_hundred_differences_are_named() -> None:
    """A wrong setting makes everything differ: all is counted, and the list stays short."""
    log = random_log(random.Random(3), Shape(traces=400))
    report = audit(log, SHORT_JOIN, ScorePolicy(), Tables())
    assert len(report.listed) == 100
    assert report.differences > 400


def test_rows_that_were_deleted_on_purpose_are_no_difference() -> None:
    """`citegauge forget` deletes trace rows and leaves counts; named to the audit, they are not missed."""
    log = random_log(random.Random(5), Shape())
    tables = work(log, SHORT_JOIN, ScorePolicy())
    gone = sorted(tables.rows["traces"])[3]
    del tables.rows["traces"][gone]
    assert audit(log, SHORT_JOIN, ScorePolicy(), tables).differences == 1
    assert audit(log, SHORT_JOIN, ScorePolicy(), tables, forgotten=frozenset({gone[-1]})).differences == 0


def test_rows_past_their_retention_are_not_missed() -> None:
    """ClickHouse drops old rows by itself."""
    log = random_log(random.Random(5), Shape(late=0.2))
    tables = work(log, SHORT_JOIN, ScorePolicy())
    middle_s = sorted(row["pane_s"] for row in tables.rows["traces"].values())[20]
    for name in ("traces", "late"):
        tables.rows[name] = {key: row for key, row in tables.rows[name].items() if row["pane_s"] >= middle_s}
    assert audit(log, SHORT_JOIN, ScorePolicy(), tables).differences > 5
    kept = {"traces": middle_s, "late": middle_s}
    assert audit(log, SHORT_JOIN, ScorePolicy(), tables, kept_from_s=kept).differences == 0


def test_a_later_epoch_may_stand_beside_an_earlier_one() -> None:
    """After `--rebuild-from` with a raised epoch, rows of before are right where the log is the same, else told apart."""
    log = random_log(random.Random(5), Shape())
    tables = work(log, SHORT_JOIN, ScorePolicy())
    tables.source = Source(*SOURCE[:2], epoch=1)
    key, row = next((key, row) for key, row in sorted(tables.rows["panes"].items()) if row["states"])
    tables.rows["panes"][key[0], "gone", *key[2:]] = {**row, "route": "gone"}
    report = audit(log, SHORT_JOIN, ScorePolicy(), tables)
    assert not report.differences, report.listed[0]
    assert report.partitions[0].older_epoch == 1


def test_early_closings_are_told_apart_and_counted() -> None:
    """What was closed early is read from `panes`, applied at its offset, and reported by number."""
    log = random_log(random.Random(2), Shape(traces=60))
    join = dataclasses.replace(SHORT_JOIN, traces_max=5)
    tables = work(log, join, ScorePolicy())
    report = audit(log, join, ScorePolicy(), tables)
    forced = sum(row["forced"] for row in tables.rows["panes"].values())
    assert report.differences == 0
    assert report.forced == forced > 3


def test_comparing_by_parts_is_comparing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the pane: comparing after each one finds what comparing at the end finds."""
    log = random_log(random.Random(11), Shape(traces=120, late=0.1))
    tables = work(log, SHORT_JOIN, ScorePolicy())
    for table in ("panes", "traces", "late"):
        for key in sorted(tables.rows[table])[::5]:
            del tables.rows[table][key]
    at_once = audit(log, SHORT_JOIN, ScorePolicy(), tables)
    monkeypatch.setattr(partition_module, "COMPARE_ROWS", 1)
    by_parts = audit(log, SHORT_JOIN, ScorePolicy(), tables)
    assert sorted(map(repr, by_parts.listed)) == sorted(map(repr, at_once.listed))
    assert by_parts.partitions[0].as_dict() == at_once.partitions[0].as_dict()
    assert at_once.differences > 10


def test_a_trace_that_was_counted_wrongly_is_named_with_both_values() -> None:
    """Whoever reads the report sees what is stored and what the log says, for the fields that differ and no others."""
    spans = [retrieval(1, 10.0), generation(1, 12.0, ["c9", "c1"]), generation(2, 4_000.0, number=9)]
    log = Log([log_record(at, one) for at, one in enumerate(spans)])
    tables = work(log, SHORT_JOIN, ScorePolicy())
    next(iter(tables.rows["traces"].values()))["cited_ranks"] = [1]
    found = audit(log, SHORT_JOIN, ScorePolicy(), tables).as_dict()["listed"]
    assert len(found) == 1
    assert found[0]["key"]["trace_id"] == f"{1:032x}"
    assert found[0]["stored"] == {"cited_ranks": [1]}
    assert found[0]["expected"] == {"cited_ranks": [1, 2]}


def log_record(offset: int, span: Any) -> LogRecord:
    """A record with one span that was written when the span ended."""
    return LogRecord(offset=offset, timestamp_ns=span.end_ns, items=(span,))
