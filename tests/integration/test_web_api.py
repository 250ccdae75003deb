"""The HTTP endpoints, asked through a real server on loopback with fake sources."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from citegauge.adapters import web as web_package
from citegauge.adapters.web import Health, WebLimits, build_web_app
from citegauge.adapters.web.shape import DROP_FIELDS
from citegauge.errors import ConfigError, FatalError, RetryableError
from citegauge.settings import Settings
from support.web_world import FALLEN, World, make_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp import ClientResponse, web

AS_OF_NS = 1_795_997_477_000_000_000
STATIC = Path(web_package.__file__).parent / "static"
GROUP = {"route": FALLEN[0], "top_k_bucket": FALLEN[1]}


@pytest.fixture(scope="module")
def made() -> World:
    """A world to copy from."""
    return make_world(AS_OF_NS)


@pytest.fixture
def world(made: World) -> World:
    """A world of this test's own."""
    return made.copy()


@pytest.fixture
async def client(world: World) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of the page over `world`."""
    async with _client(world) as opened:
        yield opened


def _client(world: World, limits: WebLimits | None = None) -> TestClient[web.Request, web.Application]:
    server = TestServer(build_web_app(world.sources(), limits=limits), host="127.0.0.1")
    return TestClient(server)


async def _json(response: ClientResponse, status: int = 200) -> Any:
    assert response.status == status, await response.text()
    assert response.content_type == "application/json"
    return await response.json()


def _noted(world: World) -> list[tuple[str, Mapping[str, Any]]]:
    """Let ClickHouse answer nothing, and note what it is asked."""
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def query(sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        asked.append((sql, parameters))
        return []

    world.query = query
    return asked


# ------------------------------------------------------------------------------------------------ live windows


async def test_windows_show_every_roll_up_once(client: TestClient[Any, Any], world: World) -> None:
    """Each route x top_k bucket is one entry with its three windows, and its numbers are the service's own."""
    answer = await _json(await client.get("/api/windows"))
    rolled = {(row.route, row.top_k_bucket): row for row in world.windows if row.scorer == "*" and row.window == "1h"}
    assert [(group["route"], group["top_k_bucket"]) for group in answer["groups"]] == [
        ("billing/refunds-and-chargebacks-eu", "1-5"),
        ("contracts", "21-50"),
        ("docs-search", "6-10"),
        ("docs-search", "11-20"),
        ("support", "1-5"),
        ("support", "6-10"),
    ]
    for group in answer["groups"]:
        row = rolled[group["route"], group["top_k_bucket"]]
        assert set(group["windows"]) == {"1h", "6h", "24h"}
        hour = group["windows"]["1h"]
        assert (hour["n"], hour["p25"], hour["p50"], hour["mean"]) == (
            row.n,
            row.recall_p25,
            row.recall_p50,
            row.recall_mean,
        )
        assert hour["states"] == row.states
    assert answer["as_of_ms"] == AS_OF_NS // 1_000_000
    assert answer["now_ms"] - answer["as_of_ms"] == 4_000
    assert answer["cut"] is False


async def test_scores_of_two_scorers_stay_apart(client: TestClient[Any, Any], world: World) -> None:
    """A group whose models use different scorers has one score entry per scorer and none that mixes them."""
    answer = await _json(await client.get("/api/windows"))
    group = next(group for group in answer["groups"] if (group["route"], group["top_k_bucket"]) == FALLEN)
    assert sorted(group["scores"]) == ["reranker:bge-v2", "retriever:e5"]
    for scorer, windows in group["scores"].items():
        row = next(
            row
            for row in world.windows
            if (row.route, row.top_k_bucket, row.model, row.scorer, row.window) == (*FALLEN, "*", scorer, "24h")
        )
        assert windows["24h"] == {"n": row.score_n, "p25": row.score_p25, "p50": row.score_p50, "p75": row.score_p75}


async def test_detail_lists_the_full_groups(client: TestClient[Any, Any]) -> None:
    """Asking for one group adds the models, retriever versions and scorers that it is made of."""
    answer = await _json(await client.get("/api/windows", params=GROUP))
    assert answer["group"]["windows"]["24h"]["n"] == sum(part["windows"]["24h"]["n"] for part in answer["parts"])
    assert [(part["model"], part["retriever_version"], part["scorer"]) for part in answer["parts"]] == [
        ("m-large-2", "r7", "reranker:bge-v2"),
        ("m-large-2", "r8", "reranker:bge-v2"),
        ("m-small-1", "r7", "retriever:e5"),
    ]


async def test_an_unknown_group_is_empty_and_not_an_error(client: TestClient[Any, Any]) -> None:
    """A group without traffic may come back: its page must live on with nothing in it."""
    answer = await _json(await client.get("/api/windows", params={"route": "gone", "top_k_bucket": "1-5"}))
    assert (answer["group"], answer["parts"]) == (None, [])


async def test_before_the_first_trace_there_is_no_as_of(client: TestClient[Any, Any], world: World) -> None:
    """Without windows as-of is null, which the page must be able to tell from zero."""
    world.windows = []
    answer = await _json(await client.get("/api/windows"))
    assert (answer["as_of_ms"], answer["groups"]) == (None, [])


async def test_more_rows_than_the_bound_are_cut_and_said_so(world: World) -> None:
    """The size of an answer has a bound, and cutting is never silent."""
    async with _client(world, WebLimits(rows_max=4)) as client:
        answer = await _json(await client.get("/api/windows"))
        assert answer["cut"] is True
        assert 0 < len(answer["groups"]) < 6


async def test_a_large_answer_travels_compressed(client: TestClient[Any, Any]) -> None:
    """The overview repeats itself every 5 s on every open page, also over a thin line."""
    response = await client.get("/api/windows", headers={"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert len((await response.json())["groups"]) == 6


async def test_drops_carry_only_known_fields(client: TestClient[Any, Any], world: World) -> None:
    """What the detector adds for itself does not leak into the page's interface."""
    world.drops = [{**world.drops[0], "internal": object()}]
    answer = await _json(await client.get("/api/drops"))
    assert set(answer["drops"][0]) == set(DROP_FIELDS)
    assert answer["drops"][0]["since_s"] is None, "what the rule cannot tell is not 0"
    assert answer["drops"][0]["sentence"].startswith("support, top_k 1-5: median recall fell")


# ------------------------------------------------------------------------------------------------ parameters


WRONG = [
    ("/api/windows?route=a", "top_k_bucket is missing"),
    ("/api/windows?rout=a", "unknown parameter 'rout'"),
    ("/api/drops?since=1", "unknown parameter 'since'"),
    ("/api/series?top_k_bucket=1-5", "route is missing"),
    (f"/api/series?route={'r' * 201}&top_k_bucket=1-5", "route must be at most 200"),
    ("/api/series?route=a%0Ab&top_k_bucket=1-5", "route must be at most 200 printable"),
    ("/api/series?route=a&top_k_bucket=1-5&step_s=90", "step_s must be a multiple of 60"),
    ("/api/series?route=a&top_k_bucket=1-5&step_s=0", "step_s must be an integer from 60"),
    ("/api/series?route=a&top_k_bucket=1-5&step_s=1_000", "step_s must be an integer"),
    ("/api/series?route=a&top_k_bucket=1-5&window_s=3601", "window_s must be a multiple of step_s"),
    ("/api/series?route=a&top_k_bucket=1-5&window_s=-60", "window_s must be an integer"),
    ("/api/series?route=a&top_k_bucket=1-5&from=1795997477000", "from must be an integer"),
    ("/api/series?route=a&top_k_bucket=1-5&from=1795990000&to=1795980000", "from must be before to"),
    ("/api/series?route=a&top_k_bucket=1-5&from=1700000000", "from must be before to, by at most"),
    ("/api/series?route=a&top_k_bucket=1-5&step_s=60&window_s=60&from=1795797477", "more than 1500 points"),
    ("/api/series?route=a&top_k_bucket=1-5&to=1795997477%20OR%201=1", "to must be an integer"),
    ("/api/distribution?route=a&top_k_bucket=1-5&window=7d", "window must be one of 1h, 6h, 24h"),
    ("/api/heat?route=a&top_k_bucket=1-5&step_s=60", "unknown parameter 'step_s'"),
    ("/api/ranks?route=a", "top_k_bucket is missing"),
    ("/api/traces?route=a&top_k_bucket=1-5&state=lost", "state must be one of measured, empty_retrieval"),
    ("/api/trace", "trace_id must be 32 lower-case hexadecimal digits"),
    ("/api/trace?trace_id=' OR 1=1 --", "trace_id must be 32"),
    (f"/api/trace?trace_id={'A' * 32}", "trace_id must be 32 lower-case"),
    (f"/api/trace?trace_id={'a' * 32}&at=-1", "at must be an integer from 0"),
]


@pytest.mark.parametrize(("path", "words"), WRONG, ids=[path[5:60] for path, _ in WRONG])
async def test_a_wrong_parameter_is_one_line_that_says_what_is_right(
    client: TestClient[Any, Any], world: World, path: str, words: str
) -> None:
    """Bad input ends before ClickHouse is asked, with status 400 and one line."""
    answer = await _json(await client.get(path), 400)
    assert words in answer["error"]
    assert "\n" not in answer["error"]
    assert world.queries == 0


async def test_values_reach_clickhouse_bound_and_whole(client: TestClient[Any, Any], world: World) -> None:
    """Whatever a route is called, the SQL text is the same and the name travels beside it."""
    asked = _noted(world)
    evil = "x' OR 1=1 --"
    paths = ("series", "distribution", "heat", "ranks", "versions", "traces")
    for path in paths:
        await _json(await client.get(f"/api/{path}", params={"route": evil, "top_k_bucket": "1-5"}))
    assert [parameters["route"] for _, parameters in asked] == [evil] * len(paths)
    assert not any("OR 1=1" in sql for sql, _ in asked)


def test_a_database_that_is_no_identifier_is_refused(world: World) -> None:
    """The one name that is formatted into SQL is checked when the page is built."""
    with pytest.raises(ConfigError, match=r"clickhouse\.database"):
        build_web_app(world.sources("x; DROP DATABASE y"))


# ------------------------------------------------------------------------------------------------ history


async def test_series_ends_on_whole_steps_up_to_as_of(client: TestClient[Any, Any], world: World) -> None:
    """By default the lines cover 24 h up to as-of, not up to the reader's clock, in whole windows only."""
    asked = _noted(world)
    answer = await _json(await client.get("/api/series", params=GROUP))
    assert asked[0][1]["to_s"] == AS_OF_NS // 1_000_000_000 // 300 * 300
    assert asked[0][1]["to_s"] - asked[0][1]["from_s"] == 24 * 3600
    assert (answer["t"], answer["scores"]) == ([], [])


async def test_distribution_covers_exactly_the_live_window(client: TestClient[Any, Any], world: World) -> None:
    """Bars and table must be of the same panes, or the reader compares two different hours."""
    asked = _noted(world)
    for window in ("1h", "6h", "24h"):
        await _json(await client.get("/api/distribution", params={**GROUP, "window": window}))
        row = next(row for row in world.windows if (row.route, row.top_k_bucket, row.window) == (*FALLEN, window))
        assert (asked[-1][1]["start_s"], asked[-1][1]["end_s"]) == (row.window_start, row.window_end)


async def test_clickhouse_away_is_503_and_the_live_table_goes_on(client: TestClient[Any, Any], world: World) -> None:
    """What needs ClickHouse says so in one line; what does not is unharmed."""

    def away(_sql: str, _parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        raise RetryableError("query: ClickHouse does not answer\nstack trace")

    world.query = away
    answer = await _json(await client.get("/api/series", params=GROUP), 503)
    assert answer["error"] == "query: ClickHouse does not answer"
    assert (await client.get("/api/windows")).status == 200
    world.query = lambda _sql, _parameters: []
    assert (await client.get("/api/series", params=GROUP)).status == 200, "an error must not be remembered"


async def test_a_refused_query_is_500_with_its_reason(client: TestClient[Any, Any], world: World) -> None:
    """A missing view is a defect of the installation: the page repeats ClickHouse's one line."""

    def refused(_sql: str, _parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        raise FatalError("query: unknown table rolling: run `citegauge migrate`")

    world.query = refused
    assert "citegauge migrate" in (await _json(await client.get("/api/series", params=GROUP), 500))["error"]


async def test_many_readers_of_one_group_ask_clickhouse_once(client: TestClient[Any, Any], world: World) -> None:
    """Ten open pages cost ClickHouse no more than one."""
    world.query = lambda _sql, _parameters: []
    answers = await asyncio.gather(*(client.get("/api/series", params=GROUP) for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert world.queries == 1


async def test_a_hanging_clickhouse_is_bounded(world: World) -> None:
    """Readers get an answer in time, questions past the bound are turned away, and Prometheus still scrapes."""
    hang = threading.Event()
    world.query = lambda _sql, _parameters: [{}] * (not hang.wait(30))
    try:
        async with _client(world, WebLimits(answers_max=3, queries_max=1, query_wait_s=0.3)) as client:
            groups = [{"route": f"r{at}", "top_k_bucket": "1-5"} for at in range(4)]
            answers = await asyncio.gather(*(client.get("/api/series", params=group) for group in groups))
            errors = sorted([(await _json(answer, 503))["error"] for answer in answers])
            assert errors[:3] == ["ClickHouse has not answered within 0.3 s"] * 3
            assert errors[3].startswith("too many questions")
            async with asyncio.timeout(10):  # Far below the 30 s for which ClickHouse hangs here.
                assert (await client.get("/metrics")).status == 200
    finally:
        hang.set()


# ------------------------------------------------------------------------------------------------ for machines


async def test_metrics_pass_through(client: TestClient[Any, Any]) -> None:
    """Prometheus decides by the content type how to parse: it must arrive unchanged."""
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert await response.read() == b"# HELP citegauge_up Up.\n"


async def test_metrics_are_rendered_off_the_loop(client: TestClient[Any, Any], world: World) -> None:
    """Rendering may take 100 ms, and other readers must not wait for it."""
    threads: list[int] = []

    def render() -> tuple[bytes, str]:
        threads.append(threading.get_ident())
        return b"", "text/plain"

    world.metrics = render
    assert (await client.get("/metrics")).status == 200
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_a_status_and_lines(client: TestClient[Any, Any], world: World, path: str) -> None:
    """Orchestrators read the status, people the lines."""
    assert (await client.get(path)).status == 200
    world.healthy = world.ready = Health(ok=False, lines=("partition 3: no progress for 90 s", "lag 12 s"))
    response = await client.get(path)
    assert response.status == 503
    assert await response.text() == "partition 3: no progress for 90 s\nlag 12 s\n"


# ------------------------------------------------------------------------------------------------ page and headers


@pytest.mark.parametrize("path", ["/", "/static/js/app.js", "/api/windows", "/api/series", "/metrics", "/nowhere"])
async def test_every_answer_carries_the_policy(client: TestClient[Any, Any], path: str) -> None:
    """No answer, not even an error, may run a script that is not ours or be framed."""
    headers = (await client.get(path)).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_names_only_files_that_exist(client: TestClient[Any, Any]) -> None:
    """The page, its modules and their imports load from this server alone, by relative addresses."""
    page = await (await client.get("/")).text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", page), "no inline script or style"
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page):
        assert (await client.get(f"/{name}")).status == 200, name
    for module in STATIC.glob("js/*.js"):
        for name in re.findall(r'^import .* from "([^"]+)";$', module.read_text(), re.MULTILINE):
            assert (module.parent / name).is_file(), f"{module.name} imports {name}"
    for ours in (*STATIC.glob("js/*.js"), *STATIC.glob("*.*")):
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", ours.read_text()), (
            f"{ours.name}: nothing from elsewhere"
        )


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/", "/static//etc/passwd"]
)
async def test_static_stays_in_its_folder(client: TestClient[Any, Any], path: str) -> None:
    """No path leads out of the folder, and folders are not listed."""
    from yarl import URL  # noqa: PLC0415  # only here: an address that the client must not tidy up

    assert (await client.get(URL(path, encoded=True))).status in {403, 404}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_page_only_reads(client: TestClient[Any, Any], method: str) -> None:
    """There is nothing to write, so nothing takes a body."""
    assert (await client.request(method, "/api/windows", data=b"x" * 10_000)).status == 405


def test_settings_named_on_the_page_exist() -> None:
    """Advice to change a setting that does not exist is worse than none."""
    named = re.findall(r'"((?:kafka|clickhouse|web)\.\w+)"', (STATIC / "js" / "status.js").read_text())
    assert named
    for setting in named:
        section, field = setting.split(".")
        assert hasattr(getattr(Settings(), section), field), setting


def test_vendored_files_are_what_the_notice_says() -> None:
    """A changed library file is found, and the notice cannot go stale."""
    folder = STATIC / "vendor" / "uplot"
    named: dict[str, str] = {}
    for line in (folder / "NOTICE.md").read_text().splitlines():
        if line.startswith("    "):
            digest, name = line.split()
            named[name] = digest
    assert set(named) == {path.name for path in folder.iterdir()} - {"NOTICE.md"}
    for name, digest in named.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
