"""A child of `endtoend.py`: the same job as a plain Faust agent, as Faust's own documentation would write it.

`async for span in stream`: decode, join, recall, panes of one minute, rows to ClickHouse in batches from a thread. It has
what makes Faust fast (the compiled stream loop, raw bytes decoded by msgspec, no web server) and the same row format and
insert as citegauge, and it leaves out what costs it time: late spans, duplicates, closing, validation. Concurrency 1, as
the order of a partition demands. Three forms: `dict` keeps the traces that wait in a dict, which a restart forgets;
`take` does so too and reads in batches; `table` keeps them in a Faust table, which a restart recovers from its changelog.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import faust
import msgspec

from citegauge.bootstrap import migrate, open_clickhouse
from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.ports import PaneRow, Row, TraceRow
from citegauge.settings import load
from job import Job, JobResult, State, check

INSERT_ROWS = 10_000
TAKE_RECORDS, TAKE_S = 1_000, 0.5
decode = msgspec.json.Decoder().decode
PaneKey = tuple[int, str, str, str, str]


class Spans:
    """The agent's own state: traces that wait for their other half, minutes, rows to be inserted."""

    def __init__(self, source: str, waiting: MutableMapping[str, dict[str, Any]]) -> None:
        self.source = source
        self.waiting = waiting
        self.panes: dict[PaneKey, tuple[Counter[int], Counter[int]]] = {}
        self.rows: list[TraceRow] = []
        self.records = 0

    def add(self, record: bytes) -> None:
        """Join one span."""
        span = decode(record)
        self.records += 1
        other = self.waiting.pop(span["trace_id"], None)
        if other is None:
            self.waiting[span["trace_id"]] = span
        elif other["kind"] != span["kind"]:
            self._measure(*(other, span) if span["kind"] == "generation" else (span, other))

    def _measure(self, retrieval: dict[str, Any], generation: dict[str, Any]) -> None:
        asked, answered = retrieval["attributes"], generation["attributes"]
        ids, cited = asked["retrieval.retrieved_ids"], answered["generation.cited_ids"]
        ranks = sorted(ids.index(chunk) + 1 for chunk in cited if chunk in ids)
        weighted = sum(1 / rank for rank in ranks) / sum(1 / rank for rank in range(1, len(ids) + 1))
        end_ns = generation["end_time_unix_nano"]
        pane = end_ns // 60_000_000_000 * 60
        key = (
            pane, asked["route"], answered["generation.model"], asked["retriever.version"], asked["retrieval.scorer"]
        )  # fmt: skip
        scores = asked["retrieval.scores"]
        recalls, firsts = self.panes.setdefault(key, (Counter(), Counter()))
        recalls[fraction_key(len(ranks), len(ids))] += 1
        firsts[histogram_key(scores[0])] += 1
        self.rows.append(
            TraceRow(
                pane=pane, route=key[1], top_k_bucket="6-10", model=key[2], retriever_version=key[3], scorer=key[4],
                trace_id=generation["trace_id"], version=self.records, event_time_ns=end_ns, state="measured",
                top_k=asked["retrieval.top_k"], retrieved=len(ids), cited_retrieved=len(ranks),
                recall=len(ranks) / len(ids), rank_weighted_recall=weighted, top1_score=scores[0], nonconformant=False,
                unresolved=0, ids_dropped=0, synthetic_ids=False, lag_ns=end_ns - retrieval["end_time_unix_nano"],
                chunk_ids=ids, chunk_scores=scores, cited_ids=cited, cited_ranks=ranks,
                hallucinated_ids=[chunk for chunk in cited if chunk not in ids], source=self.source,
            )
        )  # fmt: skip

    def take(self) -> list[Sequence[Row]]:
        """Rows to insert: traces, and every minute that is not long past, as it stands."""
        traces, self.rows = self.rows, []
        newest = max((key[0] for key in self.panes), default=0)
        panes: list[PaneRow] = []
        for key, (recalls, firsts) in list(self.panes.items()):
            panes.append(self._pane(key, recalls, firsts))
            if key[0] < newest - 120:
                del self.panes[key]
        return [traces, panes]

    def _pane(self, key: PaneKey, recalls: Counter[int], firsts: Counter[int]) -> PaneRow:
        return PaneRow(
            pane=key[0], route=key[1], top_k_bucket="6-10", model=key[2], retriever_version=key[3], scorer=key[4],
            source=self.source, version=self.records, final=False, forced=False,
            states={"measured": recalls.total()}, citations=0, hallucinated=0, unresolved=0, ids_dropped=0,
            nonconformant=0, recounted=0, recall_counts=dict(recalls), rank_weighted_counts={},
            score_counts=dict(firsts),
        )  # fmt: skip


def main(job: Job) -> None:
    """Run the agent until it has read its share of the topic."""
    settings = load(None, clickhouse={"url": job.clickhouse, "database": job.database})
    database = open_clickhouse(settings)
    migrate(database, settings)
    app = faust.App(
        job.name, broker=f"kafka://{job.bootstrap}", store="memory://", web_enabled=False, topic_disable_leader=True
    )
    topic = app.topic(job.topic, value_type=bytes, value_serializer="raw")
    spans = Spans(job.topic, app.Table("waiting", partitions=job.partitions) if job.form == "table" else {})
    results: list[JobResult] = []
    first: State | None = None

    async def insert() -> None:
        for rows in spans.take():
            await asyncio.to_thread(database.insert, rows)

    def before() -> None:
        nonlocal first
        first = first or State(0, time.monotonic(), time.process_time())

    async def after() -> None:
        assert first is not None
        done = spans.records >= job.records
        if not results and (len(spans.rows) >= INSERT_ROWS or done):
            await insert()
        if done and not results:
            last = State(spans.records, time.monotonic(), time.process_time())
            results.append(JobResult.between(first, last, await asyncio.to_thread(check, database)))
            signal.raise_signal(signal.SIGTERM)

    async def one_by_one(stream: AsyncIterator[bytes]) -> None:
        async for record in stream:
            before()
            spans.add(record)
            await after()

    async def by_batches(stream: Any) -> None:
        async for records in stream.take(TAKE_RECORDS, within=TAKE_S):
            before()
            for record in records:
                spans.add(record)
            await after()

    app.agent(topic, concurrency=1, name="measure")(by_batches if job.form == "take" else one_by_one)
    with contextlib.suppress(SystemExit):
        faust.Worker(
            app, loglevel="ERROR", override_logging=False, redirect_stdouts=False, quiet=True
        ).execute_from_commandline()
    database.close()
    Path(job.result).write_bytes(msgspec.json.encode(results[0]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    main(msgspec.json.decode(sys.argv[1], type=Job))
