"""Citations that resolve, but probably to the wrong chunk: counted from 0, or by ids that the retriever does not use."""

from __future__ import annotations

from collections.abc import Iterable

from citegauge.domain.policy import ScorePolicy
from citegauge.domain.recall import State
from citegauge.tools.doctor.causes import setting_of
from citegauge.tools.doctor.delivery import Finding
from citegauge.tools.doctor.traces import JoinedTrace
from citegauge.tools.doctor.verdict import plural, share_text, shortened

ZERO_SHARE = 0.1
"""From this share of answers on, citing 0 is a habit."""
NEVER_ZERO_MIN = 20
"""So many answers by number without a single 0 do not count from 0."""
STRANGE_SHARE = 0.5
STRANGE_MIN = 10


def citing_findings(traces: Iterable[JoinedTrace], policy: ScorePolicy) -> list[Finding]:
    """What is wrong with the citations of measured traces, per route."""
    by_route: dict[str, list[JoinedTrace]] = {}
    for trace in traces:
        if trace.result.state == State.measured:
            by_route.setdefault(trace.result.group.route, []).append(trace)
    found: list[Finding] = []
    for route, measured in sorted(by_route.items()):
        found += _base(route, [one for one in measured if one.note.by_position], policy)
        found += _strange(route, [one for one in measured if one.note.by_id])
    return found


def _base(route: str, numbered: list[JoinedTrace], policy: ScorePolicy) -> Iterable[Finding]:
    zeros = sum(one.note.position_zero for one in numbered)
    base, name = policy.for_route(route).position_base, setting_of(route, "position_base")
    if base == 1 and zeros and zeros >= ZERO_SHARE * len(numbered):
        yield Finding(
            level="problem",
            code="position_base",
            source="",
            says=f'{zeros:,} of {plural(len(numbered), "answer")} by number on route "{route}" cite 0: they count from 0, '
            "so every number names the wrong chunk",
            change=f"set {name} = 0",
        )
    elif base == 0 and not zeros and len(numbered) >= NEVER_ZERO_MIN:
        yield Finding(
            level="problem",
            code="position_base",
            source="",
            says=f'no answer by number on route "{route}" cites the number 0 (of {len(numbered):,}): they probably count '
            "from 1",
            change=f"set {name} = 1",
        )


def _strange(route: str, named: list[JoinedTrace]) -> Iterable[Finding]:
    strange = sum(len(one.result.hallucinated) for one in named)
    total = strange + sum(len(one.result.cited_ranks) for one in named)
    if total < STRANGE_MIN or strange < STRANGE_SHARE * total:
        return
    example = next(one.result for one in named if one.result.hallucinated)
    retrieved = f'"{shortened(example.retrieved[0])}"' if example.retrieved else "nothing"
    yield Finding(
        level="note",
        code="ids_differ",
        source="",
        says=f'{share_text(strange, total)} of the ids cited on route "{route}" were not retrieved (one cites '
        f'"{shortened(example.hallucinated[0])}", where {retrieved} was retrieved first): answers make them up, or the '
        "prompt shows other ids than the retriever records",
        change="compare the two; if they differ, record the ids that the prompt shows",
    )
