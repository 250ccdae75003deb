"""The doctor's report as text for a terminal. Formatting only: every judgement is made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from citegauge.domain.recall import STATE_NAMES, State
from citegauge.tools.doctor import Report
from citegauge.tools.doctor.counts import AnswerCounts, ConventionCounts, SourceCounts, StageCounts
from citegauge.tools.doctor.delivery import Finding
from citegauge.tools.doctor.sample import Reach
from citegauge.tools.doctor.verdict import CAUSES_SHOWN_MAX, Counted, Verdict, share_text
from citegauge.tools.replay import rfc3339

WIDTH_MAX = 120
"""Longer lines are hard to read."""
_COLOURS = {"can": "green", "partly": "yellow", "cannot": "red", "good": "green", "note": "yellow", "problem": "red"}

STATES: dict[State, str] = {
    State.measured: "enters the recall",
    State.empty_retrieval: "the retriever ran and returned nothing",
    State.no_retrieval: "an LLM span without a retrieval",
    State.no_generation: "a retrieval without an LLM span",
    State.no_output: "the answer's text was not captured",
    State.nonconformant: "the answer had to be JSON with citations, and is not",
    State.no_citation_format: "the settings say that this route never cites",
    State.ids_missing: "the retrieval names no chunk ids",
    State.truncated: "not all of it was seen",
    State.granularity_mismatch: "the answer cites files, the retriever returns chunks",
    State.retrieved_is_cited: "the source lists only what it cites",
    State.bad_time: "a span's end is no believable time",
}


def print_report(report: Report, console: Console) -> None:
    """Print the whole report."""
    width = min(console.width, WIDTH_MAX)
    for part in _parts(report):
        console.print(part, width=width, highlight=False)


def _parts(report: Report) -> Iterator[RenderableType]:
    for source, reaches in zip(report.sources, report.reaches, strict=True):
        yield Text(source_line(source, reaches))
    yield _heading("What can be measured")
    yield Text(
        "recall: share of the retrieved chunks that the answer cites; top-1 score: that of the first chunk", "dim"
    )
    yield _verdicts(report)
    first = first_change(report)
    if first:
        broken = report.verdicts[0].answer != "can" or any(one.level == "problem" for one in report.findings)
        label = "Change first: " if broken else "To measure more: "
        yield Padding(Text.assemble((label, "bold"), first), (1, 0, 0, 0))
    if report.findings:
        yield _heading("What was noticed")
        yield _findings(report)
    if any(source.conventions for source in report.sources):
        yield _heading("What the spans carry")
        yield _conventions(report)
    if report.traces.joined:
        yield _heading("What the traces count as")
        yield _states(report)


def _heading(text: str) -> RenderableType:
    return Padding(Text(text, style="bold underline"), (1, 0, 0, 0))


def source_line(source: SourceCounts, reaches: dict[int, Reach]) -> str:
    """One line that says what was looked at."""
    if not source.is_topic:
        name = "standard input" if source.name == "-" else Path(source.name).name
        parts = [f"file {name}: {_n(source.records, 'record')}"]
    else:
        held = sum(reach.log_records for reach in reaches.values())
        some = (
            f"{source.records:,} of about {_n(held, 'record')}"
            if held > source.records
            else _n(source.records, "record")
        )
        parts = [f"topic {source.name}: {some}", _n(max(len(reaches), 1), "partition")]
        if source.first_ns:
            parts.append(f"{rfc3339(source.first_ns)[:19]} to {rfc3339(source.last_ns)[11:19]} UTC")
    parts.append(_n(source.spans, "span"))
    parts += [name if len(source.envelopes) == 1 else f"{name} ({n:,})" for name, n in source.envelopes.most_common()]
    if len(source.trace_id_forms) == 1:  # several are a finding
        parts.append(f"trace ids as {next(iter(source.trace_id_forms))}")
    if source.is_topic and source.records:
        parts.append(f"largest record {_n(source.largest_bytes, 'byte')}")
    return ", ".join(parts)


def _n(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def first_change(report: Report) -> str:
    """The change that helps most: what makes the records readable, then what makes recall measurable, then the rest."""
    recall = report.verdicts[0]
    clocks = [one for one in report.findings if one.level == "problem" and one.code.startswith("clock:") and one.change]
    if recall.causes and recall.causes[0].cause.code == "bad_time" and clocks:
        return clocks[0].change
    if recall.change:
        return recall.change
    problems = [one.change for one in report.findings if one.level == "problem" and one.change]
    rest = [one.change for one in report.verdicts if one.answer == "cannot" and one.change]
    rest += [one.change for one in report.verdicts if one.answer == "partly" and one.change]
    return next(iter(problems + rest), "")


# ----------------------------------------------------------------------------------------------------------- verdicts


def _verdicts(report: Report) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for verdict in report.verdicts:
        answer: str = verdict.answer
        if answer == "partly" and 0 < verdict.good < verdict.traces:
            answer += f" {share_text(verdict.good, verdict.traces)}"
        table.add_row(Text(answer, style=_COLOURS[verdict.answer]), verdict.title, _explained(verdict))
    return table


def _explained(verdict: Verdict) -> RenderableType:
    lines: list[RenderableType] = [Text(verdict.because)]
    if verdict.change:
        lines.append(_arrow(verdict.change))
    if verdict.answer != "can" and verdict.metric in ("cited_chunk_recall", "top1_score"):
        lines += [
            _other(counted) for counted in verdict.causes[:CAUSES_SHOWN_MAX] if counted.cause.change != verdict.change
        ]
    return Group(*lines)


def _other(counted: Counted) -> RenderableType:
    text = f"also, in {_n(counted.traces, 'trace')}: {counted.cause.because}"
    return Group(Text(text), _arrow(counted.cause.change))


def _arrow(change: str) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text("→"), Text(change, style="cyan"))
    return table


# ------------------------------------------------------------------------------------------------------------ delivery


def _findings(report: Report) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    several = len(report.sources) > 1
    for finding in report.findings:
        table.add_row(Text(finding.level, style=_COLOURS[finding.level]), _finding(finding, several=several))
    return table


def _finding(finding: Finding, *, several: bool) -> RenderableType:
    where = f"{finding.source}: " if several and finding.source else ""
    lines: list[RenderableType] = [Text(where + finding.says)]
    if finding.change:
        lines.append(_arrow(finding.change))
    return Group(*lines)


# --------------------------------------------------------------------------------------------------------- conventions


def _conventions(report: Report) -> Table:
    several = len(report.sources) > 1
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0) if several else (0, 1), pad_edge=False)
    if several:
        table.add_column("source", overflow="fold", max_width=24)
    for name in ("convention", "kind"):
        table.add_column(name, no_wrap=True)
    table.add_column("spans", justify="right", no_wrap=True)
    table.add_column("share of these spans with …", min_width=24)
    for source in report.sources:
        name = escape(Path(source.name).name if not source.is_topic else source.name)
        for convention, counts in sorted(source.conventions.items(), key=lambda item: -item[1].spans):
            for number, (kind, spans, said) in enumerate(_kinds(counts)):
                shown = escape(convention) if not number else ""
                table.add_row(*([name] if several else []), shown, kind, f"{spans:,}", said)
                name = ""
    return table


def _kinds(counts: ConventionCounts) -> Iterator[tuple[str, int, str]]:
    for kind, stage in (("retrieval", counts.retrievals), ("rerank", counts.reranks)):
        if stage.spans:
            yield kind, stage.spans, _stage(stage)
    if counts.answers.spans:
        yield "generation", counts.answers.spans, _answers(counts.answers)
    if counts.other:
        yield "other", counts.other, ""


def _stage(stage: StageCounts) -> str:
    always = (("ids", stage.with_ids), ("scores", stage.with_scores), ("top_k", stage.with_top_k))
    sometimes = (
        ("made-up ids", stage.synthetic_ids),
        ("distances", stage.distances),
        ("nothing found", stage.returned_nothing),
        ("cut off", stage.truncated),
        ("unreadable values", stage.malformed),
        ("version", stage.with_version),
    )
    return _shares(always, sometimes, stage.spans) + (
        f" ({_n(stage.ids_dropped, 'document')} without id)" if stage.ids_dropped else ""
    )


def _answers(answers: AnswerCounts) -> str:
    always = (("answer", answers.with_answer), ("citations", answers.citing))
    sometimes = (
        *((f"{form} citations", n) for form, n in answers.forms.most_common()),
        ("citations by number", answers.by_position),
        ("a stream object", answers.streamed),
        ("model", answers.with_model),
    )
    return _shares(always, sometimes, answers.spans)


def _shares(always: tuple[tuple[str, int], ...], sometimes: tuple[tuple[str, int], ...], of: int) -> str:
    return ", ".join(f"{name} {share_text(n, of)}" for name, n in (*always, *((a, b) for a, b in sometimes if b)))


# -------------------------------------------------------------------------------------------------------------- states


def _states(report: Report) -> Table:
    traces = report.traces
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("state", no_wrap=True)
    table.add_column("traces", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("meaning")
    judged = traces.judged
    states = Counter(one.result.state for one in judged)
    for state, n in sorted(states.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(STATE_NAMES[state], f"{n:,}", share_text(n, len(judged)), STATES[State(state)])
    cut = len(traces.joined) - len(judged)
    if cut:
        table.add_row("(cut)", f"{cut:,}", "", "the other half may lie outside the sample", style="dim")
    if traces.without_stage:
        table.add_row(
            "(other)", f"{traces.without_stage:,}", "", "neither a retrieval nor an LLM span; not counted", style="dim"
        )
    return table
