"""The cookbook in `sql/queries` runs on the service's own rows, on a real engine, and tells the service's own numbers.

The rows are those that the pipeline flushed for a simulated day; what is expected comes from its panes by the core's
arithmetic, and from its trace rows by NumPy. `now()` is set to the end of that day; nothing else of a query is changed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from citegauge.domain.distribution import fraction_value, histogram_value, mean, quantiles
from citegauge.domain.intervals import moments
from citegauge.domain.mix import split
from citegauge.domain.policy import RoutePolicy, ScorePolicy
from citegauge.domain.recall import STATE_NAMES, Group, State
from citegauge.domain.summary import stats
from support.clickhouse import embedded
from support.clickhouse_rows import pane_row, trace_row
from support.served import END_S, day, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from citegauge.adapters.clickhouse import ClickHouse
    from citegauge.domain.pane import Tally
    from citegauge.ports import TraceRow
    from support.served import Served

QUERIES = Path(__file__).parents[2] / "sql" / "queries"
NAMES = sorted(path.stem for path in QUERIES.glob("*.sql"))
EMPTY_WHEN_WELL = {"panes_against_traces"}
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
YESTERDAY_S = END_S - DAY_S
BUCKET = ("route", "top_k_bucket")
SCORING = ScorePolicy(routes={"support/easy": RoutePolicy(low_confidence_below={"reranker:bge-v2": 0.75})})
Row = dict[str, Any]


@pytest.fixture(scope="module")
def served() -> Served:
    """The service's day."""
    return serve(day(), scoring=SCORING)


@pytest.fixture(scope="module")
def clickhouse(served: Served) -> Iterator[ClickHouse]:
    """Its rows, in every version that was flushed."""
    with embedded(database="cookbook") as client:
        client.command("SYSTEM STOP MERGES cookbook.traces")  # so that old versions stay, and FINAL has work
        served.store(client)
        yield client


def run(client: ClickHouse, name: str, **parameters: Any) -> list[Row]:
    """One query of the cookbook as of the day's end, with the format left to the client."""
    sql = (QUERIES / f"{name}.sql").read_text().replace("FORMAT Vertical", "")
    return client.query(sql.replace("now()", f"toDateTime({END_S}, 'UTC')"), parameters)


def by(rows: list[Row], *names: str) -> dict[tuple[Any, ...], Row]:
    """Rows by their key; times as unix seconds."""
    keys = [tuple(_plain(row[name]) for name in names) for row in rows]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, rows, strict=True))


def _plain(value: Any) -> Any:
    return int(value.timestamp()) if hasattr(value, "timestamp") else value


def near(value: Any) -> Any:
    """Equal but for the last digits; None is None."""
    return None if value is None else pytest.approx(value, rel=1e-12, abs=1e-12)


def traces_since(served: Served, start_s: int) -> list[TraceRow]:
    """The newest rows from `start_s` on."""
    return [row for row in served.newest_traces() if row.pane >= start_s]


@pytest.mark.parametrize("name", NAMES)
def test_every_query_says_what_for_and_finds_something(clickhouse: ClickHouse, served: Served, name: str) -> None:
    """A recipe that fails, is always empty, or says not what it is for is worse than none."""
    some = {"one_trace": {"trace_id": served.newest_traces()[0].trace_id}, "recall_heatmap": {"route": "sales_eu"}}
    rows = run(clickhouse, name, **some.get(name, {}))
    assert bool(rows) != (name in EMPTY_WHEN_WELL), rows
    text = (QUERIES / f"{name}.sql").read_text()
    assert text.startswith("-- ")
    assert max(map(len, text.splitlines())) <= 125


def test_the_table_of_contents_is_complete() -> None:
    """The README names each query once, and no other."""
    text = (QUERIES / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[(\w+)\]\(\1\.sql\) \|", text, flags=re.MULTILINE)) == NAMES


def test_recall_rolling(clickhouse: ClickHouse, served: Served) -> None:
    """Each point of each line is the service's window of that hour."""
    found = by(run(clickhouse, "recall_rolling"), *BUCKET, "window_end")
    ends = range(YESTERDAY_S + 300, END_S + 1, 300)
    assert {key[2] for key in found} == set(ends)
    for end_s in ends[::24]:
        tallies = served.tallies(end_s - HOUR_S, end_s, *BUCKET)
        for key, row in found.items():
            if key[2] == end_s:
                tally = tallies.get(key[:2])
                expected = stats(tally, with_scores=False) if tally else None
                assert row["n"] == (expected.n if expected else 0)
                for column in ("recall_p25", "recall_p50", "recall_mean"):
                    assert row[column] == near(getattr(expected, column, None))


def test_recall_heatmap(clickhouse: ClickHouse, served: Served) -> None:
    """Tenths of recall per quarter of an hour."""
    expected: Counter[tuple[int, float]] = Counter()
    for at_s in range(YESTERDAY_S, END_S, 900):
        for tally in served.tallies(at_s, at_s + 900, "route").items():
            if tally[0] == ("sales_eu",):
                for key, n in tally[1].recall_counts.items():
                    expected[at_s, (key & 0xFFFF) * 10 // (key >> 16) / 10] += n
    rows = run(clickhouse, "recall_heatmap", route="sales_eu")
    assert {key: row["traces"] for key, row in by(rows, "at", "recall_from").items()} == expected


def test_scores_by_day(clickhouse: ClickHouse, served: Served) -> None:
    """Quartiles of each scorer and the share of low confidence, where there is a threshold; days are UTC's."""
    found = {(str(row["day"]), row["route"], row["scorer"]): row for row in run(clickhouse, "scores_by_day")}
    known = 0
    expected: dict[tuple[str, str, str], Tally] = {}
    for start_s, name in ((YESTERDAY_S - DAY_S, "2039-12-30"), (YESTERDAY_S, "2039-12-31")):
        for (route, scorer), tally in served.tallies(start_s, start_s + DAY_S, "route", "scorer").items():
            if tally.score_counts:
                expected[name, route, scorer] = tally
    assert found.keys() == expected.keys()
    for key, tally in expected.items():
        row = found[key]
        levels = quantiles(tally.score_counts, histogram_value, (0.25, 0.5, 0.75))
        assert [row["score_p25"], row["score_p50"], row["score_p75"]] == near(levels)
        assert row["score_n"] == sum(tally.score_counts.values())
        ratio = tally.low_confidence / tally.confidence_known if tally.confidence_known else None
        assert row["low_confidence_ratio"] == near(ratio)
        known += ratio is not None
    assert known == 2, "the easy route has a threshold, the others have none"


def test_mix_shift(clickhouse: ClickHouse, served: Served) -> None:
    """Every term of every group is the core's, the largest first."""
    before, after = (
        {Group(*key): moments(tally.recall_counts, fraction_value) for key, tally in side.items()}
        for side in (
            served.tallies(END_S - 25 * HOUR_S, END_S - HOUR_S, *Group._fields),
            served.tallies(END_S - HOUR_S, END_S, *Group._fields),
        )
    )
    expected = split(before, after)
    assert expected is not None
    rows = run(clickhouse, "mix_shift")
    assert len(rows) == len(expected.parts)
    found = by(rows, *Group._fields)
    for part in expected.parts:
        row = found[part.group]
        assert (row["n_before"], row["n_after"]) == (part.before.n, part.after.n)
        assert row["mean_before"] == near(part.before.mean if part.before.n else None)
        assert row["mean_after"] == near(part.after.mean if part.after.n else None)
        for name in ("share_before", "share_after", "within", "mix", "interaction", "new", "gone"):
            assert row[name] == near(getattr(part, name)), name
    changes = [sum(row[name] for name in ("within", "mix", "interaction", "new", "gone")) for row in rows]
    assert sum(changes) == near(expected.change)
    assert [abs(change) for change in changes] == sorted(map(abs, changes), reverse=True)


def test_version_before_after(clickhouse: ClickHouse, served: Served) -> None:
    """Each version's numbers are those of its tally, its change and interval against the version before it Welch's."""
    tallies = served.tallies(END_S - 7 * DAY_S, END_S, *Group._fields)
    panes: dict[Group, list[int]] = defaultdict(list)
    for one in served.newest_panes():
        if one.recall_counts:
            panes[Group(*(getattr(one, name) for name in Group._fields))].append(one.pane)
    found = by(run(clickhouse, "version_before_after"), *Group._fields)
    assert found.keys() == {key for key, tally in tallies.items() if tally.measured > 1}
    followed = 0
    for key, row in found.items():
        group, tally = Group(*key), tallies[key]
        own = moments(tally.recall_counts, fraction_value)
        assert (row["n"], row["recall_mean"]) == (own.n, near(own.mean))
        assert row["cited_any_ratio"] == near(tally.cited_any / tally.measured)
        assert row["hallucinated_ratio"] == near(tally.hallucinated / tally.citations)
        assert row["score_mean"] == near(mean(tally.score_counts, histogram_value))
        assert (_plain(row["first_seen"]), _plain(row["last_seen"])) == (min(panes[group]), max(panes[group]))
        if group.retriever_version == "r7":
            assert row["before"] is row["recall_change"] is row["change_lower"] is row["score_change"] is None
            continue
        followed += 1
        older = tallies[group._replace(retriever_version="r7")]
        old = moments(older.recall_counts, fraction_value)
        change, half = own.mean - old.mean, 1.96 * np.sqrt(own.variance / own.n + old.variance / old.n)
        assert row["before"] == "r7"
        assert row["recall_change"] == near(change)
        assert (row["change_lower"], row["change_upper"]) == (near(change - half), near(change + half))
        scores = [mean(one.score_counts, histogram_value) or 0.0 for one in (older, tally)]
        assert row["score_change"] == near(scores[1] - scores[0])
    assert followed == 2, "r8 of both models"


def test_scores_of_a_new_scorer_are_not_set_against_the_old_ones(clickhouse: ClickHouse) -> None:
    """A version that brings a scorer of its own has a change of recall, and none of the score."""
    panes = [
        pane_row(END_S - HOUR_S, route="new/scorer", retriever_version="r1", scorer="a"),
        pane_row(END_S - 60, route="new/scorer", retriever_version="r2", scorer="b"),
    ]
    clickhouse.insert(panes)
    try:
        old, new = (row for row in run(clickhouse, "version_before_after") if row["route"] == "new/scorer")
        assert (old["before"], new["before"], new["recall_change"]) == (None, "r1", 0.0)
        assert new["score_mean"] is not None
        assert new["score_change"] is None
    finally:
        clickhouse.command("DELETE FROM cookbook.panes WHERE route = 'new/scorer'")


def test_citation_ranks(clickhouse: ClickHouse, served: Served) -> None:
    """The share of traces that cite a rank, of those that have it; of rank 1 it is what the service counts in its panes."""
    counts: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    for trace in traces_since(served, YESTERDAY_S):
        for rank in range(1, trace.retrieved + 1) if trace.recall is not None else ():
            one = counts[trace.route, trace.top_k_bucket, rank]
            one[0] += 1
            one[1] += rank in trace.cited_ranks
    found = by(run(clickhouse, "citation_ranks"), *BUCKET, "rank")
    assert {key: [row["traces"], row["cited"]] for key, row in found.items()} == counts
    for (route, bucket), tally in served.tallies(YESTERDAY_S, END_S, *BUCKET).items():
        if tally.measured:
            assert found[route, bucket, 1]["cited_ratio"] == near(tally.cited_top1 / tally.measured)


def test_hallucinated_ids(clickhouse: ClickHouse, served: Served) -> None:
    """How many traces cite each id that was not retrieved, and the newest of them; together all that the panes count."""
    traces: dict[tuple[str, str, str], list[TraceRow]] = defaultdict(list)
    for trace in traces_since(served, YESTERDAY_S):
        for chunk in trace.hallucinated_ids:
            traces[trace.route, trace.model, chunk].append(trace)
    rows = run(clickhouse, "hallucinated_ids")
    assert len(rows) == min(100, len(traces))
    assert [row["traces"] for row in rows] == sorted(map(len, traces.values()), reverse=True)[:100]
    for key, row in by(rows, "route", "model", "id").items():
        assert row["traces"] == len(traces[key])
        assert row["dropped"] == sum(key[2] in trace.dropped_cited_ids for trace in traces[key])
        assert row["newest_trace"] == max(traces[key], key=lambda trace: trace.event_time_ns).trace_id
    (tally,) = served.tallies(YESTERDAY_S, END_S).values()
    assert sum(map(len, traces.values())) == tally.hallucinated


def test_worst_traces(clickhouse: ClickHouse, served: Served) -> None:
    """The measured traces of the hour that cite least, longest lists first."""
    measured = [trace for trace in traces_since(served, END_S - HOUR_S) if trace.recall is not None]
    worst = sorted(measured, key=lambda trace: (trace.recall, -trace.retrieved, -trace.event_time_ns))[:50]
    assert [row["trace_id"] for row in run(clickhouse, "worst_traces")] == [trace.trace_id for trace in worst]


def test_one_trace(clickhouse: ClickHouse, served: Served) -> None:
    """Everything of one trace, in its newest version."""
    trace = next(trace for trace in served.newest_traces() if trace.hallucinated_ids)
    (row,) = run(clickhouse, "one_trace", trace_id=trace.trace_id)
    for name in ("version", "recall", "chunk_ids", "cited_ids", "hallucinated_ids", "lag_ns", "low_confidence"):
        assert row[name] == getattr(trace, name), name


def test_states_by_route(clickhouse: ClickHouse, served: Served) -> None:
    """Traces by state as in the panes; the shares of a route sum to 1."""
    tallies = served.tallies(YESTERDAY_S, END_S, "route")
    found = by(run(clickhouse, "states_by_route"), "route", "state")
    expected = {
        (route, STATE_NAMES[state]): n for (route,), tally in tallies.items() for state, n in tally.states.items()
    }
    assert {key: row["traces"] for key, row in found.items()} == expected
    for (route, _), row in found.items():
        assert row["share"] == near(row["traces"] / tallies[route,].traces)


def test_join_health(clickhouse: ClickHouse, served: Served) -> None:
    """Unjoined and recounted traces as in the panes, late spans as in their table; where none is late there is no delay."""
    late: dict[int, list[float]] = defaultdict(list)
    for one in served.late:
        late[one.pane // HOUR_S * HOUR_S].append((one.watermark_ns - one.end_ns) / 1e9)
    found = by(run(clickhouse, "join_health"), "hour")
    assert [key for (key,) in found] == list(range(YESTERDAY_S, END_S, HOUR_S))
    for (hour_s,), row in found.items():
        (tally,) = served.tallies(hour_s, hour_s + HOUR_S).values()
        halves = [tally.states.get(state, 0) for state in (State.no_generation, State.no_retrieval)]
        assert [row["no_generation"], row["no_retrieval"]] == halves
        assert row["traces"] == tally.traces
        assert row["unjoined_ratio"] == near(sum(halves) / tally.traces)
        assert (row["recounted_traces"], row["forced_panes"]) == (tally.recounted, 0)
        assert row["late_spans"] == len(late[hour_s])
        assert row["late_by_s"] == near(np.median(late[hour_s]) if late[hour_s] else None)
    assert sum(row["late_spans"] for row in found.values()) > 100


def test_an_hour_of_late_spans_alone_is_told(clickhouse: ClickHouse, served: Served) -> None:
    """Spans that are late for an hour without a single pane are no reason to leave the hour out, and it has no ratio."""
    clickhouse.command(f"DELETE FROM cookbook.panes WHERE pane < toDateTime({YESTERDAY_S + HOUR_S}, 'UTC')")
    row = by(run(clickhouse, "join_health"), "hour")[YESTERDAY_S,]
    clickhouse.insert(served.panes)
    assert row["late_spans"] > 0
    assert (row["traces"], row["unjoined_ratio"]) == (0, None)


def test_latency(clickhouse: ClickHouse, served: Served) -> None:
    """NumPy's quantiles of the time from the last retrieval to the answer, of traces that have both."""
    lags: dict[tuple[int, str], list[float]] = defaultdict(list)
    for trace in traces_since(served, YESTERDAY_S):
        if trace.state not in ("no_generation", "no_retrieval"):
            lags[trace.pane // HOUR_S * HOUR_S, trace.route].append(trace.lag_ns / 1e9)
    found = by(run(clickhouse, "latency"), "hour", "route")
    assert found.keys() == lags.keys()
    for key, row in found.items():
        assert row["traces"] == len(lags[key])
        assert [row["answer_s_p50"], row["answer_s_p95"]] == near(list(np.quantile(lags[key], (0.5, 0.95))))


def test_freshness(clickhouse: ClickHouse, served: Served) -> None:
    """The newest pane, and the newest one that is closed."""
    (row,) = run(clickhouse, "freshness")
    panes = [one for one in served.panes if one.pane >= YESTERDAY_S]
    closed_s = max(one.pane for one in panes if one.final)
    assert _plain(row["newest_pane"]) == max(one.pane for one in panes)
    assert _plain(row["closed_through"]) == closed_s
    assert row["closed_age_s"] == END_S - closed_s - MINUTE_S


def test_panes_and_traces_are_compared_up_to_what_each_source_has_closed() -> None:
    """A partition that is a minute behind another has no final pane of that minute yet, and nothing is wrong."""
    first, second = END_S - 600, END_S - 540
    panes = [pane_row(at, source=f"spans/{one}", final=True) for one, at in ((0, first), (0, second), (1, first))]
    once = {"states": {"measured": 1}, "recall_counts": {3 << 16 | 1: 1}, "score_counts": {}}
    panes = [replace(one, **once) for one in [*panes, pane_row(second, source="spans/1")]]
    traces = [
        trace_row(one.pane, source=one.source, trace_id=f"{number:032x}", top1_score=None)
        for number, one in enumerate(panes)
    ]
    with embedded(database="behind") as client:
        client.insert(panes)
        client.insert(traces)
        assert run(client, "panes_against_traces") == []
        client.insert([trace_row(first, source="spans/1", trace_id="f" * 32)])
        (row,) = run(client, "panes_against_traces")
        assert (_plain(row["pane"]), row["source"]) == (first, "spans/1")


def test_a_pane_that_lies_is_found(clickhouse: ClickHouse, served: Served) -> None:
    """The comparison with the trace rows is not empty by construction."""
    right = next(row for row in served.newest_panes() if row.pane == END_S - 1_200 and row.recall_counts)
    wrong = pane_row(
        right.pane,
        **{name: getattr(right, name) for name in (*Group._fields, "source", "states")},
        final=True,
        version=2**40,
        recall_counts={3 << 16 | 2: 9},
    )
    clickhouse.insert([wrong])
    assert [_plain(row["pane"]) for row in run(clickhouse, "panes_against_traces")] == [right.pane]
