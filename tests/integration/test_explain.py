"""`citegauge explain` on what the service stored: its numbers are the core's on the service's counts, and it says why."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from citegauge.adapters.clickhouse_http import ClickHouseHttp, Engine
from citegauge.adapters.web import Past
from citegauge.domain.distribution import fraction_value
from citegauge.domain.drop import Limits
from citegauge.domain.intervals import moments
from citegauge.domain.mix import split
from citegauge.domain.recall import Group
from citegauge.domain.versions import Cell, comparisons
from citegauge.errors import FatalError
from citegauge.pipeline import tally_of
from citegauge.tools.explain import Arguments, Asked, Explanation, asked_of, explain, show
from support.clickhouse import ClickHouseFront, child_environment, embedded, over_http
from support.clickhouse_rows import pane_row
from support.served import END_S, day, recall_of, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from citegauge.adapters.clickhouse import ClickHouse
    from support.served import Served

HOUR_S = 3_600
TERMS = ("within", "mix", "interaction", "new", "gone")


@pytest.fixture(scope="module")
def served() -> Served:
    """26 hours of the service."""
    return serve(day())


@pytest.fixture(scope="module")
def database(served: Served) -> Iterator[ClickHouse]:
    """Its rows, each version of them."""
    with embedded(database="explain") as client:
        served.store(client)
        yield client


def asked(**arguments: str) -> Asked:
    """As the command asks at the end of the traffic."""
    return asked_of(Arguments(**arguments), now_ns=END_S * 1_000_000_000)


def explained(database: ClickHouse, **arguments: str) -> Explanation:
    """What the command finds."""
    return explain(database, database.database, asked(**arguments))


@pytest.mark.parametrize(
    ("arguments", "routes"),
    [
        ({}, ["support/easy", "support/hard", "sales_eu"]),
        ({"family": "support/*"}, ["support/easy", "support/hard"]),
        ({"route": "sales_eu"}, ["sales_eu"]),
        ({"route": "support/easy", "starts": "-90m", "ends": "-7m", "against": "-5h/-100m"}, ["support/easy"]),
    ],
)
def test_the_split_is_the_cores(
    database: ClickHouse, served: Served, arguments: dict[str, str], routes: list[str]
) -> None:
    """The same terms and groups as from the pipeline's own panes; the change is that of NumPy's plain means."""
    found = explained(database, **arguments)
    sides = [
        {Group(*key): tally for key, tally in served.tallies(*period, *Group._fields).items() if key[0] in routes}
        for period in (found.asked.before, found.asked.after)
    ]
    earlier, later = ({g: moments(t.recall_counts, fraction_value) for g, t in side.items()} for side in sides)
    expected = split(earlier, later)
    assert expected is not None
    assert found.split.parts == expected.parts
    assert [getattr(found.split, term) for term in TERMS] == [getattr(expected, term) for term in TERMS]
    before, after = (np.mean([x for tally in side.values() for x in recall_of(tally)]) for side in sides)
    assert found.split.change == pytest.approx(after - before, abs=1e-12)
    assert found.split.within_se is not None
    assert expected.within_se is not None
    assert found.split.within_se >= expected.within_se, "hours that wander make it less sure, never surer"


def test_traffic_that_moved_is_told_from_retrieval_that_got_worse(database: ClickHouse) -> None:
    """The hard route takes over, no group cites less: all of the fall is mix, and the sentence says so."""
    found = explained(database, family="support/*")
    assert found.split.change < -0.1
    assert found.split.mix < -0.1
    assert not found.within_decided
    assert "traffic moved to groups that always cited less" in found.sentence
    assert "within the same groups there is no change that is beyond chance" in found.sentence
    assert found.suspect.route == "support/hard"


def test_retrieval_that_got_worse_is_told_from_traffic_that_moved(database: ClickHouse) -> None:
    """Half of each group's citations are gone, the traffic stays: all of it is within, and the sentence says so."""
    end_s, rows = END_S + 10 * 24 * HOUR_S, []
    for minute in range(25 * 60):
        fell = minute >= 24 * 60
        for route, cited in (("billing/a", 4), ("billing/b", 2)):
            counts = {5 << 16 | cited // (2 if fell else 1): 2, 5 << 16: 1}
            rows.append(
                pane_row(end_s - 25 * HOUR_S + 60 * minute, route=route, recall_counts=counts, states={"measured": 3})
            )
    database.insert(rows)
    question = asked_of(Arguments(family="billing/*"), now_ns=end_s * 1_000_000_000)
    past = Past(database.query, database.database, Limits())
    found = explain(database, database.database, question, past.of)
    (episode,) = found.episodes
    assert (episode.worst.route, episode.ongoing) == ("billing/a", True)
    assert end_s - 2 * HOUR_S < episode.started_s <= episode.detected_s <= end_s
    assert 0.4 < episode.worst.moved < 0.51
    assert found.split.within == pytest.approx(found.split.change, abs=1e-12)
    assert found.within_decided
    assert f"fell by {-100 * found.split.change / found.split.mean_before:.0f} %, from" in found.sentence
    assert f"in absolute terms {found.split.change:+.3f}:" in found.sentence
    assert "the same groups cite less than before" in found.sentence
    assert "traffic" not in found.sentence
    assert found.suspect.route == "billing/a"
    assert found.worst == [], "panes alone: there is no trace to show"


def test_versions_are_the_cores(database: ClickHouse, served: Served) -> None:
    """r8 beside r7 over the same hours is worse; m3 after m2 is undecided; both as the core says of the service's panes."""
    found = explained(database)
    cells: dict[tuple[Group, int], Any] = {}
    for row in served.newest_panes():
        if found.asked.before.start_s <= row.pane < found.asked.after.end_s:
            group = Group(*(getattr(row, name) for name in Group._fields))
            cells.setdefault((group, row.pane // HOUR_S * HOUR_S), []).append(row)
    expected = []
    for (group, at_s), rows in cells.items():
        tally = tally_of(rows[0])
        for row in rows[1:]:
            tally.merge(tally_of(row))
        if tally.measured:
            expected.append(Cell(group, at_s, min(row.pane for row in rows), max(row.pane for row in rows), tally))
    assert found.versions == comparisons(expected)
    told = {(one.new.group.route, one.changed, one.over, one.verdict) for one in found.versions}
    assert told == {
        ("support/easy", ("retriever_version",), "the same time", "worse"),
        ("sales_eu", ("model",), "before and after", "undecided"),
    }
    assert len(found.versions) == 4, "each model of the easy route, each bucket of sales"


def test_the_worst_traces_are_the_suspects(database: ClickHouse, served: Served) -> None:
    """The traces to read are those of its group that cite least in the later period."""
    found = explained(database)
    own = sorted(
        (row.recall, -row.retrieved, -row.event_time_ns, row.trace_id)
        for row in served.newest_traces()
        if row.recall is not None
        and found.asked.after.start_s <= row.pane < found.asked.after.end_s
        and all(getattr(row, name) == value for name, value in found.suspect._asdict().items())
    )
    assert [row["trace_id"] for row in found.worst] == [each[3] for each in own[:5]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"route": "nobody"}, ["route nobody", "2039-12-30T23:00:00Z and 2039-12-31T23:00:00Z"]),
        ({"against": "-60h/-50h"}, ["all routes", "2039-12-29"]),
        ({"starts": "-1m", "ends": "2040-01-01T03:00:00Z", "route": "support/eas_"}, ["support/eas_"]),
    ],
)
def test_no_data_is_one_clear_line(database: ClickHouse, arguments: dict[str, str], words: list[str]) -> None:
    """Which period has no trace of what was asked for; not a change of 0."""
    with pytest.raises(FatalError) as refused:
        explained(database, **arguments)
    said = str(refused.value)
    assert said.startswith("no measured trace of ")
    assert "\n" not in said
    assert all(word in said for word in words), said


@pytest.mark.parametrize("columns", [80, 160])
def test_tables_fit_and_say_everything(database: ClickHouse, columns: int) -> None:
    """Names, versions, verdicts, trace ids and the sentence stand whole in what is printed, in a narrow terminal too."""
    found = explained(database)
    console = Console(width=columns)
    with console.capture() as capture:
        show(found, console)
    text = capture.get()
    assert text.rstrip().endswith(found.sentence)
    assert max(map(len, text.splitlines()[:-1])) <= columns
    assert "…" not in text
    for word in (
        *(row["trace_id"] for row in found.worst),
        "r7 → r8",
        "m2 → m3",
        "worse",
        "undecided:",
        "within",
        "gone",
    ):
        assert word in text, word
    for part in found.split.parts:
        assert f"{part.group.route}  {part.group.top_k_bucket} " in text
        assert all(f" {side.n} " in text for side in (part.before, part.after))


def test_the_command_reads_from_the_demos_interface(database: ClickHouse) -> None:
    """A read-only server is enough, such as the one that `make demo` shows."""
    status, out, err = asyncio.run(_over_read_only(database.database))
    assert (status, err) == (0, "")
    assert "Mean recall of all routes fell by" in out


async def _over_read_only(database: str) -> tuple[int | None, str, str]:
    engine = Engine(None, read_only=True)
    server = ClickHouseHttp(engine, port=0, database=database)
    await server.start()
    settings = {
        "CITEGAUGE_CLICKHOUSE__DATABASE": database,
        "CITEGAUGE_CLICKHOUSE__URL": f"http://127.0.0.1:{server.port}",
    }
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "citegauge", "explain", "--to", "2040-01-01T00:00:00Z",
            env=child_environment() | settings,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 120)
        return process.returncode, out.decode(), err.decode()
    finally:
        await server.stop()
        engine.close()


def test_the_command(served: Served, tmp_path: Path) -> None:
    """Text and JSON tell the same; status 0 with an answer, 1 without data, 2 for what cannot be meant."""
    front = ClickHouseFront(tmp_path).start()
    try:
        with over_http(front.url) as client:
            served.store(client)
            settings = {"CITEGAUGE_CLICKHOUSE__URL": front.url, "CITEGAUGE_CLICKHOUSE__DATABASE": client.database}

            def run(*arguments: str) -> subprocess.CompletedProcess[str]:
                command = [sys.executable, "-m", "citegauge", "explain", "--to", "2040-01-01T00:00:00Z", *arguments]
                environment = child_environment() | settings
                return subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=120, check=False
                )

            text, answer = run(), run("--json")
            assert (text.returncode, text.stderr, answer.returncode, answer.stderr) == (0, "", 0, "")
            told = json.loads(answer.stdout)
            assert text.stdout.rstrip().endswith(told["sentence"])
            with over_http(front.url) as page:
                past = Past(page.query, client.database, Limits()).of(
                    told["worst"]["route"], told["worst"]["top_k_bucket"], END_S
                )
            assert told["episodes"] == [one.as_dict() for one in past], "as the page judges it"
            for one in past:
                assert one.sentence in text.stdout
            assert told["change"] == pytest.approx(sum(told[term] for term in TERMS), abs=1e-12)
            assert len(told["groups"]) == 12
            assert {one["verdict"] for one in told["versions"]} == {"worse", "undecided"}
            for status, arguments, word in (
                (1, ["--route", "nobody"], "no measured trace"),
                (2, ["--against", "x"], "'x'"),
            ):
                refused = run(*arguments)
                assert (refused.returncode, refused.stdout) == (status, "")
                assert word in refused.stderr
                assert len(refused.stderr.splitlines()) == 1
    finally:
        front.stop()
