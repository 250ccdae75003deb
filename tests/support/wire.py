"""Golden bytes of what workers say to each other: `tests/golden/wire/vN/<form>.<case>.wire`, with their meaning as JSON.

A worker of one release runs beside one of the next and reads what it left behind, so a form that was once written stays
readable. Run as a script it adds what today's code writes and no version holds yet; a file that stands is never written
again: what a release wrote does not change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from citegauge.domain.identity import Claim, from_metadata
from citegauge.domain.progress import Clock, Commit, Event
from citegauge.domain.rekeyed import Rekeyed, decode, encode, source_id
from citegauge.domain.sources import SourceClock, pack_clocks, unpack_clocks
from citegauge.domain.span import CitationForm, Flag, Kind, Span
from citegauge.ports import ClosedMarker, HeartbeatMessage, PaneMessage, PaneRow, PaneUpdate
from support.core_logs import T0_NS, generation, other, retrieval
from support.golden import readable

FOLDER = Path(__file__).parents[1] / "golden" / "wire"
NEWEST = "v2"
_decode_panes = msgspec.json.Decoder(PaneMessage).decode


class Wire(NamedTuple):
    """One golden message."""

    version: str
    form: str
    """`rekeyed`, `panes`, `commit` or `claim`."""
    name: str
    bytes_path: Path
    expected_path: Path


def golden() -> list[Wire]:
    """All of them, in the order of their paths."""
    found = []
    for path in sorted(FOLDER.glob("*/*.wire")):
        form, name, _ = path.name.split(".")
        found.append(Wire(path.parent.name, form, name, path, path.with_suffix(".json")))
    return found


def read(form: str, wire: bytes, offset: int = 0) -> Any:
    """What today's code reads, as JSON knows it. `offset`: where a commit stands."""
    if form == "rekeyed":
        (found,) = decode(wire)
        place = {name: getattr(found, name) for name in ("topic", "partition", "offset", "index", "record_ns")}
        return {**place, "span": readable(found.span)}
    if form == "panes":
        message = _decode_panes(wire)
        return {"type": type(message).__name__, **msgspec.to_builtins(message, str_keys=True)}
    if form == "claim":
        return msgspec.to_builtins(from_metadata(wire.decode()))
    commit = Commit.from_metadata(offset, wire.decode("ascii"))
    shown = {name: getattr(commit, name) for name in ("offset", "position")}
    clock = msgspec.structs.asdict(commit.clock)
    clock["sources"] = [one._asdict() for one in unpack_clocks(commit.clock.sources)]
    return {**shown, "events": [msgspec.structs.asdict(event) for event in commit.events], "clock": clock}


def samples() -> dict[str, tuple[bytes, int]]:
    """What today's code writes, by `<form>.<case>`, and for a commit the offset at which it stands."""
    written: dict[str, bytes] = {}
    for name, span in _spans().items():
        written[f"rekeyed.{name}"] = encode(Rekeyed("otlp_späns", 11, (1 << 47) - 1, 3, T0_NS + 7_000_000, span))
    for name, message in _messages().items():
        written[f"panes.{name}"] = msgspec.json.encode(message)
    clock = Clock(T0_NS, 1_764_460_740, True)
    sources = [
        SourceClock(source_id("otlp_späns", number), T0_NS + number, T0_NS + number * 1_000_000)
        for number in (0, 1, 11)
    ]
    events = (Event(40, "force_close", 1_764_460_740), Event(40, "freeze"), Event(1_041, "thaw"))
    names = {"kafka.group_id": "citegauge-join", "kafka.panes_topic": "pänes"}
    written["claim.panes"] = Claim("prod-1", names, T0_NS).to_metadata().encode()
    found: dict[str, Commit] = {}
    found["commit.fresh"] = Commit(0, 0, Clock())
    found["commit.plain"] = Commit((1 << 47) - 9, (1 << 47) - 1, Clock(T0_NS))
    found["commit.events"] = Commit(40, 2_000, clock, events)
    found["commit.sources"] = Commit(40, 2_000, Clock(T0_NS, sources=pack_clocks(sources)))
    found["commit.events_and_sources"] = Commit(40, 2_000, Clock(T0_NS, -1, True, pack_clocks(sources)), events)
    commits = {name: (commit.to_metadata().encode(), commit.offset) for name, commit in found.items()}
    return {name: (wire, 0) for name, wire in written.items()} | commits


def _spans() -> dict[str, Span]:
    flags = Flag.TRUNCATED | Flag.SYNTHETIC_IDS | Flag.FILE_LEVEL_CITATIONS | Flag.DISTANCE | Flag.MALFORMED
    return {
        "least": Span(span_id=bytes(8), trace_id=bytes(16)),
        "retrieval": retrieval(
            1, 10, top_k=3, scorer="index:hnsw", retriever_version="r7", parent_id=b"\x07" * 8, ids_dropped=2
        ),
        "retrieval_of_nothing": retrieval(2, 10, ids=()),
        "retrieval_with_holes": retrieval(
            3, 10, ids=("a", "ünïcode/😀", ""), scores=[None, -0.5, 1e300], first_score=None, final_ids=[]
        ),
        "rerank": retrieval(4, 11, kind=Kind.RERANK, number=5, scorer="reranker:bge-v2", final_ids=["c9"]),
        "generation": generation(5, 12, cited=("c9", "nowhere"), positions=[1, 0, -3], unresolved=2),
        "generation_without_answer": generation(6, 12, cited=None),
        "generation_inline": generation(
            7, 12, cited=(), citation_form=int(CitationForm.INLINE), route="Straße/支持", model="模型-1"
        ),
        "user": generation(8, 13, user_hash=bytes(range(16))),
        "faults": other(9, 14, flags=int(flags), route="", route_rank=255, start_ns=0),
    }


def _messages() -> dict[str, PaneMessage]:
    row = PaneRow(
        pane=1_764_460_800,
        route="Straße/支持",
        top_k_bucket="(5,10]",
        model="m1",
        retriever_version="",
        scorer="reranker:bge-v2",
        source="otlp_spans/11",
        version=(3 << 48) + 4_001,
        final=True,
        forced=False,
        states={"measured": 7, "no_retrieval": 1},
        citations=12,
        hallucinated=2,
        unresolved=1,
        ids_dropped=3,
        nonconformant=1,
        recounted=1,
        recall_counts={(5 << 16) + 2: 6, (1 << 16) + 1: 1},
        rank_weighted_counts={20_000: 1, 19_900: 6},
        score_counts={-3: 2, 19_990: 5},
        dropped_citations=1,
        cited_top1=4,
        cited_top3=5,
        low_confidence=2,
        confidence_known=7,
    )
    emptied = msgspec.structs.replace(
        row, states={}, final=False, forced=True, recall_counts={}, rank_weighted_counts={}, score_counts={}
    )
    return {
        "update": PaneUpdate(row),
        "update_emptied": PaneUpdate(emptied),
        "closed": ClosedMarker("otlp_spans/11", 1_764_460_740),
        "heartbeat": HeartbeatMessage("otlp_spans/11", 1_764_460_740, T0_NS, True),
        "heartbeat_signed": HeartbeatMessage("otlp_spans/11", 1_764_460_740, T0_NS, True, "0123456789abcdef"),
        "heartbeat_of_nothing_yet": HeartbeatMessage("otlp_spans/11", -1, 0, False),
    }


def is_golden(name: str, wire: bytes) -> bool:
    """Whether some version holds these bytes under this name."""
    return any(f"{one.form}.{one.name}" == name and one.bytes_path.read_bytes() == wire for one in golden())


def main() -> None:
    """Add what no version holds to the newest one."""
    folder = FOLDER / NEWEST
    folder.mkdir(parents=True, exist_ok=True)
    for name, (wire, offset) in samples().items():
        path = folder / f"{name}.wire"
        if not path.exists() and not is_golden(name, wire):
            path.write_bytes(wire)
            text = json.dumps(read(name.partition(".")[0], wire, offset), ensure_ascii=False, indent=1)
            path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
