"""The views tell the same numbers as Python: NumPy on raw values, the domain's quantiles on counts, panes recounted."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from citegauge.domain.distribution import fraction_key, histogram_key, histogram_value, quantiles
from citegauge.domain.summary import stats
from citegauge.errors import FatalError
from citegauge.pipeline import tally_of
from support.clickhouse import embedded, recent_minute
from support.clickhouse_rows import GROUP_FIELDS, pane_key, pane_row, panes_of, random_traces, tombstone, trace_row
from support.oracle import JUDGED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from citegauge.adapters.clickhouse import ClickHouse
    from citegauge.ports import PaneRow, TraceRow

SEED = 20_261_130
MINUTES = 180
START = recent_minute() // 3600 * 3600 - MINUTES * 60
END = START + MINUTES * 60
LEVELS = (0.25, 0.5, 0.75)
ABSOLUTE = 1e-12


@pytest.fixture(scope="module")
def traces() -> list[TraceRow]:
    """Random traces of two sources; the seed is printed by `test_recount`'s failure and fixed here."""
    return random_traces(random.Random(SEED), START, MINUTES, 4_000)


@pytest.fixture(scope="module")
def clickhouse(traces: list[TraceRow]) -> Iterator[ClickHouse]:
    """Traces and panes of one truth, inserted badly: twice, with stale versions before and after, and a tombstone."""
    with embedded(database="views") as client:
        client.insert([trace_row(row.pane, **_key(row), version=0, top1_score=99.0) for row in traces[:500]])
        client.insert(traces)
        client.insert(traces[100:900])
        gone = trace_row(START, trace_id="e" * 32)
        client.insert([gone])
        client.insert([tombstone(gone, version=2)])
        panes = panes_of(traces)
        client.insert(panes)
        client.insert([pane_row(row.pane, **_key(row), version=0) for row in panes[::3]])
        client.insert(panes[::2])
        yield client


def _key(row: Any) -> dict[str, Any]:
    names = (*GROUP_FIELDS, "source", *(("trace_id",) if hasattr(row, "trace_id") else ()))
    return {name: getattr(row, name) for name in names}


def view(client: ClickHouse, start: int, end: int, dims: list[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    """`window_quantiles` by its dimensions."""
    rows = client.query(
        "SELECT * FROM window_quantiles(start = {start:UInt32}, end = {end:UInt32}, dims = {dims:Array(String)})",
        {"start": start, "end": end, "dims": dims},
    )
    found = {tuple(row[name] for name in GROUP_FIELDS): row for row in rows}
    assert len(found) == len(rows)
    return found


def grouped(traces: list[TraceRow], start: int, end: int, dims: list[str]) -> dict[tuple[str, ...], list[TraceRow]]:
    """The traces of a window by the same dimensions."""
    groups: dict[tuple[str, ...], list[TraceRow]] = defaultdict(list)
    for row in traces:
        if start <= row.pane < end:
            groups[tuple(getattr(row, name) if name in dims else "*" for name in GROUP_FIELDS)].append(row)
    return groups


DIMENSIONS = [
    [],
    ["route"],
    ["route", "top_k_bucket"],
    ["model", "scorer"],
    ["retriever_version"],
    ["route", "top_k_bucket", "scorer"],
    list(GROUP_FIELDS),
]
WINDOWS = [(START, END), (END - 3600, END), (START + 60 * 17, START + 60 * 18), (START + 600, START + 600 + 60 * 47)]


@pytest.mark.parametrize("dims", DIMENSIONS, ids="+".join)
@pytest.mark.parametrize(("start", "end"), WINDOWS, ids=["3h", "1h", "1min", "47min"])
def test_any_window_and_dimensions_equal_numpy(
    clickhouse: ClickHouse, traces: list[TraceRow], start: int, end: int, dims: list[str]
) -> None:
    """Recall quantiles are those of NumPy on the raw ratios, within 1e-12; counters are exact; scores never mix."""
    expected = grouped(traces, start, end, dims)
    found = view(clickhouse, start, end, dims)
    assert found.keys() == expected.keys()
    for group, rows in expected.items():
        row = found[group]
        recalls = [trace.recall for trace in rows if trace.recall is not None]
        assert row["n"] == len(recalls)
        judged = [trace for trace in rows if trace.state in JUDGED]
        assert row["citations"] == sum(len(t.cited_ranks) + len(t.hallucinated_ids) + t.unresolved for t in judged)
        assert row["ids_dropped"] == sum(trace.ids_dropped for trace in rows)
        assert sum(row["states"].values()) == len(rows)
        if not recalls:
            assert row["recall_p25"] is row["recall_p50"] is row["recall_p75"] is row["recall_mean"] is None
            assert row["cited_any_ratio"] is row["rank_weighted_mean"] is None
        else:
            assert [row["recall_p25"], row["recall_p50"], row["recall_p75"]] == pytest.approx(
                list(np.quantile(recalls, LEVELS)), abs=ABSOLUTE
            )
            assert row["recall_mean"] == pytest.approx(np.mean(recalls), abs=ABSOLUTE)
            assert row["cited_any_ratio"] == pytest.approx(np.mean(np.array(recalls) > 0), abs=ABSOLUTE)
        _check_scores(row, rows)


def _check_scores(row: dict[str, Any], rows: list[TraceRow]) -> None:
    scorers = {trace.scorer for trace in rows if trace.top1_score is not None}
    assert row["scorers"] == sorted(scorers)
    if len(scorers) != 1:
        assert row["score_n"] == 0
        assert row["score_p25"] is row["score_p50"] is row["score_p75"] is row["score_mean"] is None
        return
    scores = [trace.top1_score for trace in rows if trace.top1_score is not None]
    midpoints = [histogram_value(histogram_key(score)) for score in scores]
    assert row["score_n"] == len(scores)
    assert [row["score_p25"], row["score_p50"], row["score_p75"]] == pytest.approx(
        list(np.quantile(midpoints, LEVELS)), rel=ABSOLUTE, abs=ABSOLUTE
    )


def test_recall_equals_the_engine_on_raw_rows_and_the_domain_on_counts(
    clickhouse: ClickHouse, traces: list[TraceRow]
) -> None:
    """Three ways to one number: counts in SQL, raw rows in SQL, counts in Python."""
    raw = clickhouse.query(
        "SELECT route, top_k_bucket, quantilesExactInclusive(0.25, 0.5, 0.75)(recall) AS q FROM traces FINAL"
        " WHERE pane >= {start:UInt32} AND pane < {end:UInt32} AND recall IS NOT NULL GROUP BY route, top_k_bucket",
        {"start": START, "end": END},
    )
    found = view(clickhouse, START, END, ["route", "top_k_bucket"])
    assert len(raw) == 6
    for row in raw:
        one = found[row["route"], row["top_k_bucket"], "*", "*", "*"]
        sql = [one["recall_p25"], one["recall_p50"], one["recall_p75"]]
        assert sql == pytest.approx(row["q"], abs=ABSOLUTE)
        counts: dict[int, int] = defaultdict(int)
        for pane in panes_of(traces):
            if (pane.route, pane.top_k_bucket) == (row["route"], row["top_k_bucket"]):
                for key, n in pane.recall_counts.items():
                    counts[key] += n
        domain = quantiles(counts, lambda key: (key & 0xFFFF) / (key >> 16), LEVELS)
        assert sql == pytest.approx(domain, abs=ABSOLUTE)


def test_the_view_says_of_a_window_what_the_service_says(clickhouse: ClickHouse) -> None:
    """Every statistic, interval and share, within 1e-12, for every number of traces around the limits of the intervals."""
    pane, rng = START - 4 * 86_400, random.Random(SEED)
    rows = [_random_pane(rng, pane, n) for n in (*range(40), *range(90, 112), 1_000)]
    clickhouse.insert(rows)
    found = view(clickhouse, pane, pane + 60, ["route"])
    for row in rows:
        expected = msgspec.structs.asdict(stats(tally_of(row), with_scores=True))
        seen = {name: found[row.route, "*", "*", "*", "*"][name] for name in expected}
        differing = {
            name: (seen[name], value)
            for name, value in expected.items()
            if seen[name] != (value if value is None else pytest.approx(value, rel=ABSOLUTE, abs=ABSOLUTE))
        }
        assert not differing, f"seed {SEED}: {row.route}"


def _random_pane(rng: random.Random, pane: int, n: int) -> PaneRow:
    """`n` measured traces, as many with a score, and some of other states."""
    fractions = [(rng.randint(0, k), k) for k in (rng.choice((1, 2, 3, 5, 6)) for _ in range(n))]
    cited = sum(cited > 0 for cited, _ in fractions)
    states = {"measured": n, "no_generation": n // 7, "no_retrieval": n // 9, "empty_retrieval": n // 5}
    return pane_row(
        pane,
        route=f"n{n}",
        states={state: count for state, count in states.items() if count},
        citations=2 * n,
        hallucinated=n // 4,
        nonconformant=0,
        cited_top1=cited // 2,
        cited_top3=cited,
        confidence_known=n // 2,
        low_confidence=n // 6,
        recall_counts=dict(Counter(fraction_key(*each) for each in fractions)),
        rank_weighted_counts=dict(Counter(histogram_key(rng.random()) for _ in range(n))),
        score_counts=dict(Counter(histogram_key(rng.choice((rng.random(), -3.0))) for _ in range(n))),
    )


def test_each_score_statistic_is_within_the_promised_error(clickhouse: ClickHouse) -> None:
    """A constant score comes back within 0.28 % at every magnitude and sign, and zero as zero."""
    magnitudes = [10.0**exponent for exponent in range(-37, 38)] + [0.5, 0.62, 0.9999, 1.0, 1.0000001, 127.3]
    values = [0.0, *magnitudes, *(-m for m in magnitudes)]
    pane = START - 86_400
    clickhouse.insert(
        [pane_row(pane, route=f"r{i}", score_counts={histogram_key(value): 3}) for i, value in enumerate(values)]
    )
    found = view(clickhouse, pane, pane + 60, ["route"])
    for index, value in enumerate(values):
        row = found[f"r{index}", "*", "*", "*", "*"]
        assert row["score_p25"] == row["score_p50"] == pytest.approx(value, rel=0.0028, abs=0.0)


def test_recount_equals_the_panes(clickhouse: ClickHouse, traces: list[TraceRow]) -> None:
    """Panes are the sums of the trace rows: every count and every histogram key, also as SQL computes it."""
    recounted = clickhouse.query(
        "SELECT * FROM recount(from = {start:UInt32}, to = {end:UInt32})", {"start": START, "end": END}
    )
    expected = {pane_key(pane): pane for pane in panes_of(traces)}
    assert {pane_key(row) for row in recounted} == set(expected)
    for row in recounted:
        pane = expected[pane_key(row)]
        differing = {
            name: (value, getattr(pane, name))
            for name, value in row.items()
            if name != "pane" and value != getattr(pane, name)
        }
        assert not differing, f"seed {SEED}: {pane_key(row)}"


def test_histogram_keys_of_sql_and_python_agree(clickhouse: ClickHouse) -> None:
    """The engine's log2 and Python's put a value into the same bucket, also next to a power of two."""
    rng = random.Random(SEED)
    values = [2.0**exponent * (1 + step * 2.0**-52) for exponent in range(-120, 120) for step in (-2, -1, 0, 1, 2)]
    values += [k / n for n in range(1, 130) for k in range(1, n + 1)]
    values += [rng.random() for _ in range(20_000)] + [10 ** rng.uniform(-38, 38) for _ in range(20_000)]
    pane = START - 2 * 86_400
    clickhouse.insert(
        [
            trace_row(pane, trace_id=f"{i:032x}", route=f"r{i // 1000}", top1_score=v, rank_weighted_recall=None)
            for i, v in enumerate(values)
        ]
    )
    counts: dict[int, int] = defaultdict(int)
    for row in clickhouse.query(
        "SELECT score_counts FROM recount(from = {start:UInt32}, to = {end:UInt32})", {"start": pane, "end": pane + 60}
    ):
        for key, n in row["score_counts"].items():
            counts[key] += n
    expected: dict[int, int] = defaultdict(int)
    for value in values:
        expected[histogram_key(value)] += 1
    assert counts == expected


@pytest.mark.parametrize(("window_s", "step_s"), [(3600, 300), (600, 60), (1800, 1800)])
@pytest.mark.parametrize("route", ["", "legal"])
def test_rolling_points_are_windows(
    clickhouse: ClickHouse, traces: list[TraceRow], window_s: int, step_s: int, route: str
) -> None:
    """Every point of a line is what `window_quantiles` says of the same window; quiet windows are NULL, not 0."""
    since, until = END - 3600, END + 3600
    rows = clickhouse.query(
        "SELECT * FROM rolling(from = {a:UInt32}, to = {b:UInt32},"
        " window_s = {w:UInt32}, step_s = {s:UInt32}, route = {r:String})",
        {"a": since, "b": until, "w": window_s, "s": step_s, "r": route},
    )
    assert {row["route"] for row in rows} == ({route} if route else {"support", "sales", "legal"})
    ends = {int(row["window_end"].timestamp()) for row in rows}
    assert ends == set(range(since + step_s, until + 1, step_s))
    lines: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in rows:
        lines[row["route"], row["top_k_bucket"], row["scorer"]] += 1
    assert set(lines.values()) == {len(ends)}, "a line has a gap"
    for end in random.Random(SEED).sample(sorted(ends), k=min(len(ends), 4)):
        for dims in (["route", "top_k_bucket"], ["route", "top_k_bucket", "scorer"]):
            expected = view(clickhouse, end - window_s, end, dims)
            for row in rows:
                if int(row["window_end"].timestamp()) == end and (row["scorer"] == "*") == (len(dims) == 2):
                    _check_point(row, expected.get((row["route"], row["top_k_bucket"], "*", "*", row["scorer"])))


def _check_point(row: dict[str, Any], expected: dict[str, Any] | None) -> None:
    if expected is None:
        assert row["n"] == row["score_n"] == 0
        assert row["recall_p25"] is row["recall_mean"] is row["score_p50"] is None
        return
    names = ["n", "recall_p25", "recall_p50", "recall_mean"]
    if row["scorer"] != "*":
        names += ["score_n", "score_p25", "score_p50", "score_p75"]
    for name in names:
        value = expected[name]
        assert row[name] == (None if value is None else pytest.approx(value, rel=ABSOLUTE, abs=ABSOLUTE)), name


def test_start_and_end_may_be_numbers_or_texts(clickhouse: ClickHouse) -> None:
    """Unix seconds, a DateTime and its text mean the same window."""
    text = dt.datetime.fromtimestamp(START, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    answers = [
        clickhouse.query(
            f"SELECT * FROM window_quantiles(start = {start}, end = {END}, dims = ['route']) ORDER BY route"
        )
        for start in (str(START), f"toDateTime({START})", f"'{text}'", f"toDateTime('{text}', 'UTC')")
    ]
    assert len(answers[0]) == 3
    assert all(answer == answers[0] for answer in answers)


def test_a_missing_argument_is_an_error(clickhouse: ClickHouse) -> None:
    """No silent default window."""
    with pytest.raises(FatalError):
        clickhouse.query("SELECT * FROM window_quantiles(start = 1, dims = [])")


def test_a_window_without_panes_has_no_rows(clickhouse: ClickHouse) -> None:
    """Nothing is known of it; a row of zeros would look like an outage of quality."""
    assert view(clickhouse, END + 86_400, END + 90_000, []) == {}


def test_latest_final_pane_per_source(clickhouse: ClickHouse) -> None:
    """What the cold tier asks at its start: how far each source is closed."""
    pane = START - 3 * 86_400
    rows = [
        pane_row(pane + 60 * i, source=f"spans/{p}", final=i < 5 + p, version=i + 1) for i in range(10) for p in (0, 1)
    ]
    clickhouse.insert(rows)
    found = clickhouse.query(
        "SELECT source, toUnixTimestamp(max(pane)) AS closed FROM panes FINAL"
        " WHERE pane >= {start:UInt32} AND pane < {end:UInt32} AND `final` GROUP BY source ORDER BY source",
        {"start": pane, "end": pane + 3600},
    )
    assert found == [
        {"source": "spans/0", "closed": pane + 240},
        {"source": "spans/1", "closed": pane + 300},
    ]
