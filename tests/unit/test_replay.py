"""`citegauge replay`: the same core over files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from citegauge.cli import UNREADABLE_SHOWN_MAX, cli
from citegauge.tools.replay import split_records

TRACES = Path(__file__).parents[1] / "golden" / "traces"
JSON_FILES = sorted(str(path) for path in TRACES.glob("*.otlp.json"))
PROTO_FILES = sorted(str(path) for path in TRACES.glob("*.otlp.binpb"))


def run(*arguments: str, stdin: bytes | None = None) -> list[dict[str, Any]]:
    """Rows that the command prints as JSON lines."""
    outcome = CliRunner().invoke(cli, ["replay", *arguments], input=stdin)
    assert outcome.exit_code == 0, outcome.output
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def trace_ids_in_json() -> set[str]:
    """Every trace id that the JSON files mention."""
    return {
        span["traceId"]
        for path in JSON_FILES
        for resource in json.loads(Path(path).read_text(encoding="utf-8"))["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }


def test_protobuf_and_json_agree_trace_by_trace() -> None:
    """The two encodings of the real traces give the same rows, and no trace is missing."""
    rows = run("--traces", "--json", *JSON_FILES)
    assert rows == run("--traces", "--json", *PROTO_FILES)
    assert {row["trace_id"] for row in rows} == trace_ids_in_json()


def test_the_order_of_files_does_not_matter() -> None:
    """Any order of the files gives the same rows and windows."""
    expected = run("--traces", "--json", *JSON_FILES), run("--json", *JSON_FILES)
    for files in itertools.islice(itertools.permutations(JSON_FILES), 1, 400, 97):
        assert (run("--traces", "--json", *files), run("--json", *files)) == expected


def test_stable_fields_of_a_trace() -> None:
    """Scripts rely on these names."""
    row = run("--traces", "--json", *JSON_FILES)[0]
    assert list(row) == [
        "trace_id", "state", "route", "model", "retriever_version", "scorer", "top_k", "top_k_bucket", "retrieved",
        "cited", "cited_retrieved", "hallucinated", "unresolved", "recall", "rank_weighted_recall", "top1_score",
        "nonconformant", "late_spans", "event_time", "low_confidence",
    ]  # fmt: skip
    assert row["event_time"].endswith("Z")


def test_windows_of_the_worked_example() -> None:
    """One trace with recall 1/3 is the p25, p50 and mean of every window, per roll-up, scorer and group."""
    events = [
        {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "kind": "retrieval",
         "name": "retrieve", "start_time_unix_nano": 1764460800000000000, "end_time_unix_nano": "1764460800041000000",
         "attributes": {"route": "support", "retrieval.retrieved_ids": ["c9", "c1", "c3"], "retrieval.top_k": 3,
                        "retrieval.scores": [0.88, 0.71, 0.64], "retrieval.scorer": "reranker:bge-v2"}},
        {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "53995c3f42cd8ad8", "kind": "generation",
         "name": "answer", "start_time_unix_nano": 1764460800050000000, "end_time_unix_nano": 1764460802050000000,
         "attributes": {"generation.model": "m1", "generation.cited_ids": ["c9", "c7"]}},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, reversed(events))).encode()
    rows = run("--json", "-", stdin=text)
    assert {(row["window"], row["scorer"], row["model"]) for row in rows} == {
        (window, *rest)
        for window in ("1h", "6h", "24h")
        for rest in (("*", "*"), ("reranker:bge-v2", "*"), ("reranker:bge-v2", "m1"))
    }
    for row in rows:
        assert row["n"] == 1
        assert row["recall"]["p25"] == row["recall"]["p50"] == row["recall"]["mean"] == pytest.approx(1 / 3, abs=1e-15)
        assert row["top1_score"]["p50"] == pytest.approx(0.88, rel=0.0028)
        assert row["hallucinated"] == 1
        assert row["recall"]["mid_p50"] == pytest.approx(1 / 3)
        assert row["recall"]["sd"] is row["recall"]["p50_lower"] is row["top1_score"]["p25_upper"] is None
        assert row["shares"]["hallucinated"] == {
            "n": 2, "value": 0.5, "lower": pytest.approx(0.0945, abs=1e-4), "upper": pytest.approx(0.9055, abs=1e-4),
        }  # fmt: skip
        assert row["shares"]["cites_rank1"]["value"] == 1.0
        assert row["shares"]["low_confidence"] is None
        assert row["window_end"] == "2025-11-30T00:01:00Z"


def test_unreadable_records_are_named_and_the_rest_is_read() -> None:
    """A bad line costs that line alone, and standard error says where it stands."""
    good = (
        b'{"trace_id":"%032x","span_id":"00f067aa0ba902b7","kind":"retrieval",'
        b'"end_time_unix_nano":1764460800000000000,"attributes":{"retrieval.retrieved_ids":["a"]}}'
    )
    lines = b"\n".join([good % 1, b"not json", good % 2])
    outcome = CliRunner().invoke(cli, ["replay", "--encoding", "jsonl", "--traces", "--json", "-"], input=lines)
    assert outcome.exit_code == 0
    assert len(outcome.stdout.splitlines()) == 2
    assert "-, record 1: " in outcome.stderr


def test_the_table_of_traces_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Route and numbers are whole; what nobody can judge (the second trace has no retrieval) is a dash, not 0."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [
        json.dumps(
            {
                "trace_id": f"{trace:032x}",
                "span_id": f"{span:016x}",
                "kind": kind,
                "end_time_unix_nano": 1764460800000000000,
                "attributes": {"route": "support", **attributes},
            }
        )
        for trace, span, kind, attributes in (
            (1, 1, "retrieval", {"chunk_ids": ["a", "b", "c", "d"]}),
            (1, 2, "generation", {"cited_ids": ["a", "d", "x"]}),
            (2, 3, "generation", {"cited_ids": ["a", "x"]}),
        )
    ]
    outcome = CliRunner().invoke(cli, ["replay", "--traces", "--encoding", "jsonl", "-"], input="\n".join(lines))
    assert outcome.exit_code == 0, outcome.output
    table = outcome.stdout.splitlines()
    assert max(map(len, table)) <= 80
    rows = {row.split()[2]: row.split() for row in table if " support " in row}
    assert rows["measured"][3:] == ["support", "1-5", "2/4", "1", "0.500", "–"]
    assert rows["no_retrieval"][3:] == ["support", "unknown", "0/0", "–", "–", "–"]


def test_what_is_no_trace_fails_in_a_few_lines() -> None:
    """A wrong encoding makes every line unreadable: some are shown, the rest is counted, and it says what to run next."""
    outcome = CliRunner().invoke(cli, ["replay", "--encoding", "jsonl", "-"], input="what\n" * 50)
    assert outcome.exit_code != 0
    told = outcome.stderr.splitlines()
    assert len(told) == UNREADABLE_SHOWN_MAX + 1
    assert told[-1] == f"unreadable: {50 - UNREADABLE_SHOWN_MAX} more"
    assert "`citegauge doctor`" in str(outcome.exception)


def test_live_rules_drop_late_spans() -> None:
    """With `--live-rules` a half that comes after its minute has closed is late; without, nothing is."""

    def event(trace: int, kind: str, end_s: int) -> str:
        attributes = {"retrieval": {"retrieval.retrieved_ids": ["a"]}, "generation": {"generation.cited_ids": ["a"]}}
        return json.dumps(
            {"trace_id": f"{trace:032x}", "span_id": f"{end_s + 1:016x}", "kind": kind,
             "end_time_unix_nano": (1764460800 + end_s) * 10**9, "attributes": attributes[kind]}
        )  # fmt: skip

    text = "\n".join([event(1, "retrieval", 0), event(2, "retrieval", 3_600), event(1, "generation", 2)]).encode()
    states = {
        row["trace_id"][-1]: (row["state"], row["late_spans"]) for row in run("--traces", "--json", "-", stdin=text)
    }
    assert states == {"1": ("measured", 0), "2": ("no_generation", 0)}
    live = run("--traces", "--json", "--live-rules", "-", stdin=text)
    assert {row["trace_id"][-1]: (row["state"], row["late_spans"]) for row in live} == {
        "1": ("no_generation", 1), "2": ("no_generation", 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (b'{"a": 1}\n{"b": 2}\n', 2),
        (b'{\n "a": 1\n}', 1),
        (b'{"a": 1}', 1),
        (b"\n{\x0abc", 1),  # protobuf: field 1, length 123
        (b'{"a": 1}\r\n\r\n{"b": 2}', 2),
    ],
)
def test_files_of_unknown_form(whole: bytes, expected: int) -> None:
    """Lines are told from one document, and from protobuf that happens to start like JSON."""
    assert len(list(split_records(whole))) == expected


def test_a_missing_file_is_one_line_and_status_1() -> None:
    """No traceback for a wrong path."""
    outcome = subprocess.run(
        [sys.executable, "-m", "citegauge", "replay", "/nowhere"], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 1
    assert outcome.stderr.strip().splitlines() == ["citegauge: cannot read /nowhere: No such file or directory"]
