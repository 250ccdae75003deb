"""Rules on the measured quality: recording rules that set an hour against the day before it, and alerts on them.

*Hour* is the 1 h window, *day* the 24 h window without that hour: both end at the same minute, so n, mean and sum of squares
subtract exactly. A slice is (job, route, top_k bucket). A route is compared at the hour's mix of buckets (direct
standardisation): each bucket with its own past, weighted by its traces of the hour. So traffic that moves between buckets
or routes moves nothing here. Every alert asks for enough traces, a difference beyond chance and one that matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from citegauge.sections import AlertSettings
from citegauge.tools.rules.model import DIGITS, ONE, PERCENT, THREE, WHOLE, Alert, Group, Recording, looked_up

SLICE = ("job", "route", "top_k_bucket")
SCORER = (*SLICE, "scorer")
WHERE = "{{ $labels.route }} (top_k {{ $labels.top_k_bucket }})"
RECALL, SCORE, TRACES = "citegauge_cited_chunk_recall_ratio", "citegauge_top1_score", "citegauge_window_traces"
SHARE_OF = {
    "hallucinated": 'citegauge_window_citations{{window="{window}"}}',
    "nonconformant": 'citegauge_window_traces{{window="{window}",state!~"no_generation|no_output"}}',
    "zero_results": 'citegauge_window_traces{{window="{window}",state!="no_retrieval"}}',
    "unjoined": 'citegauge_window_traces{{window="{window}"}}',
}
"""What each share is a share of, as in the table of metrics."""


class Rise(NamedTuple):
    """An alert on a share that rose."""

    share: str
    alert: str
    runbook: str
    what: str


RISES = (
    Rise(
        "hallucinated",
        "CitegaugeHallucinatedCitations",
        "hallucinated-citations",
        "of citations name chunks that were not retrieved",
    ),
    Rise(
        "nonconformant",
        "CitegaugeNonconformantAnswers",
        "nonconformant-answers",
        "of answers are not in the agreed form",
    ),
    Rise("zero_results", "CitegaugeZeroResults", "zero-results", "of retrievals return nothing"),
)


def baseline_group() -> Group:
    """The recorded series; no setting changes them."""
    by = ", ".join(SLICE)
    recall_n = f'{TRACES}{{window="%s",state="measured"}}'
    rules = [
        *_hour_and_day("slice:citegauge_recall", by, recall_n, RECALL),
        *_hour_and_day(
            "scorer:citegauge_top1_score", ", ".join(SCORER), 'citegauge_top1_score_samples{window="%s"}', SCORE
        ),
        *_route(),
        *_shares(by),
    ]
    return Group(name="citegauge-baselines", interval="1m", rules=rules)


def _hour_and_day(name: str, by: str, n: str, values: str) -> Iterator[Recording]:
    """Number, mean and variance of the hour and of the day before it, and what lies between them.

    `max`: while a series moves between workers, both may show it.
    """
    for window in ("1h", "24h"):
        yield Recording(record=f"{name}_n:{window}", expr=f"max by ({by}) ({n % window})")
        yield Recording(
            record=f"{name}_mean:{window}", expr=f'max by ({by}) ({values}{{window="{window}",stat="mean"}})'
        )
        yield Recording(
            record=f"{name}_variance:{window}", expr=f'max by ({by}) ({values}{{window="{window}",stat="sd"}}) ^ 2'
        )
    n1, m1, v1 = (f"{name}_{what}:1h" for what in ("n", "mean", "variance"))
    n24, m24, v24 = (f"{name}_{what}:24h" for what in ("n", "mean", "variance"))
    nb, mb, vb = (f"{name}_{what}:before" for what in ("n", "mean", "variance"))
    yield Recording(record=nb, expr=f"({n24} - {n1}) > 1")
    yield Recording(record=mb, expr=f"({n24} * {m24} - {n1} * {m1}) / {nb}")
    squares = (
        f"({n24} - 1) * {v24} + {n24} * {m24} ^ 2\n    - ({n1} - 1) * {v1} - {n1} * {m1} ^ 2\n    - {nb} * {mb} ^ 2"
    )
    yield Recording(record=vb, expr=f"clamp_min(\n  (\n    {squares}\n  ) / ({nb} - 1),\n  0\n)")
    yield Recording(record=f"{name}_drop_z:1h", expr=f"({mb} - {m1}) / sqrt({vb} / {nb} + {v1} / {n1})")


def _route() -> Iterator[Recording]:
    """A route at the hour's mix of buckets; buckets without a past stay out."""
    part, route, by = "slice:citegauge_recall", "route:citegauge_recall", "job, route"
    yield Recording(record=f"{part}_weight:1h", expr=f"{part}_n:1h and {part}_variance:1h and ({part}_n:before >= 30)")
    weight = f"{part}_weight:1h"
    yield Recording(record=f"{route}_n:1h", expr=f"sum by ({by}) ({weight})")
    yield Recording(record=f"{route}_n:before", expr=f"sum by ({by}) ({part}_n:before and {weight})")
    for of in ("1h", "before"):
        yield Recording(record=f"{route}_mean:{of}", expr=f"sum by ({by}) ({weight} * {part}_mean:{of}) / {route}_n:1h")
    error = f"{weight} ^ 2 * ({part}_variance:before / {part}_n:before + {part}_variance:1h / {part}_n:1h)"
    yield Recording(
        record=f"{route}_drop_z:1h",
        expr=f"({route}_mean:before - {route}_mean:1h) * {route}_n:1h\n  / sqrt(sum by ({by}) ({error}))",
    )


def _shares(by: str) -> Iterator[Recording]:
    """Of each share: its value and what it is a share of, in the hour, and for those that may rise in the day before."""
    share = "citegauge_window_share_ratio"
    rising = {rise.share for rise in RISES}
    for name, whole in SHARE_OF.items():
        short = f"slice:citegauge_{name}"
        for stat, window in (("value", "1h"), ("lower", "1h"), ("value", "24h")):
            yield Recording(
                record=f"{short}_{stat}:{window}",
                expr=f'max by ({by}) ({share}{{window="{window}",share="{name}",stat="{stat}"}})',
            )
        for window in ("1h", "24h") if name in rising else ("1h",):
            # Inside by instance, outside the larger one: two workers that show one series are not added up.
            total = f"sum by ({by}, instance) ({whole.format(window=window)})"
            yield Recording(record=f"{short}_of:{window}", expr=f"max by ({by}) ({total})")
        if name in rising:
            yield Recording(record=f"{short}_of:before", expr=f"({short}_of:24h - {short}_of:1h) > 0")
            difference = f"({short}_value:24h * {short}_of:24h - {short}_value:1h * {short}_of:1h)"
            yield Recording(record=f"{short}_value:before", expr=f"clamp_min({difference} / {short}_of:before, 0)")


def quality_group(settings: AlertSettings) -> Group:
    """The alerts."""
    ratios = (settings.hallucinated_ratio, settings.nonconformant_ratio, settings.zero_results_ratio)
    rules = [
        _route_recall(settings),
        _slice_recall(settings),
        _score(settings),
        *(_rise(settings, rise, ratio) for rise, ratio in zip(RISES, ratios, strict=True)),
        _unjoined(settings),
    ]
    return Group(name="citegauge-quality", interval="1m", rules=rules)


def _fall(name: str, page: bool, settings: AlertSettings) -> str:
    ratio = settings.recall_drop_page_ratio if page else settings.recall_drop_ticket_ratio
    z = settings.page_z_min if page else settings.ticket_z_min
    return (
        f"(1 - {name}_mean:1h / ({name}_mean:before > 0)) >= {ratio}\n"
        f"  and ({name}_drop_z:1h >= {z})\n"
        f"  and ({name}_n:1h >= {settings.traces_min})\n"
        f"  and ({name}_n:before >= {settings.baseline_traces_min})"
    )


def _route_recall(settings: AlertSettings) -> Alert:
    name, labels = "route:citegauge_recall", ("job", "route")
    return Alert(
        name="CitegaugeRouteRecallDrop",
        runbook="route-recall-drop",
        severity="page",
        signal="quality",
        expr=_fall(name, page=True, settings=settings),
        hold="5m",
        keep="15m",
        summary="{{ $labels.route }}: cited-chunk recall fell by {{ $value | humanizePercentage }} in the last hour",
        description=(
            f"From {looked_up(f'{name}_mean:before', labels, THREE)} in the day before (at the hour's mix of top_k buckets) "
            f"to {looked_up(f'{name}_mean:1h', labels, THREE)}, on {looked_up(f'{name}_n:1h', labels, WHOLE)} measured "
            f"traces: {looked_up(f'{name}_drop_z:1h', labels, ONE)} standard errors."
        ),
    )


def _slice_recall(settings: AlertSettings) -> Alert:
    name = "slice:citegauge_recall"
    low, high = (looked_up(RECALL + f'{{window="1h",stat="mean_{end}"}}', SLICE, THREE) for end in ("lower", "upper"))
    return Alert(
        name="CitegaugeRecallDrop",
        runbook="recall-drop",
        severity="ticket",
        signal="quality",
        expr=_fall(name, page=False, settings=settings),
        hold="15m",
        keep="30m",
        summary=f"{WHERE}: cited-chunk recall fell by {{{{ $value | humanizePercentage }}}} in the last hour",
        description=(
            f"From {looked_up(f'{name}_mean:before', SLICE, THREE)} in the day before to "
            f"{looked_up(f'{name}_mean:1h', SLICE, THREE)} (95 % interval {low} to {high}), on "
            f"{looked_up(f'{name}_n:1h', SLICE, WHOLE)} measured traces: "
            f"{looked_up(f'{name}_drop_z:1h', SLICE, ONE)} standard errors."
        ),
    )


def _score(settings: AlertSettings) -> Alert:
    name = "scorer:citegauge_top1_score"
    return Alert(
        name="CitegaugeTop1ScoreDrop",
        runbook="top1-score-drop",
        severity="ticket",
        signal="quality",
        expr=(
            f"({name}_mean:before - {name}_mean:1h) / sqrt({name}_variance:before > 0) >= {settings.score_drop_sd}\n"
            f"  and ({name}_drop_z:1h >= {settings.ticket_z_min})\n"
            f"  and ({name}_n:1h >= {settings.traces_min})\n"
            f"  and ({name}_n:before >= {settings.baseline_traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=WHERE
        + ': top-1 score of {{ $labels.scorer }} fell by {{ $value | printf "%.2f" }} standard deviations',
        description=(
            f"Mean from {looked_up(f'{name}_mean:before', SCORER, DIGITS)} in the day before to "
            f"{looked_up(f'{name}_mean:1h', SCORER, DIGITS)} in the last hour, on "
            f"{looked_up(f'{name}_n:1h', SCORER, WHOLE)} traces. Compared within this scorer only."
        ),
    )


def _rise(settings: AlertSettings, rise: Rise, ratio: float) -> Alert:
    short = f"slice:citegauge_{rise.share}"
    return Alert(
        name=rise.alert,
        runbook=rise.runbook,
        severity="ticket",
        signal="quality",
        expr=(
            f"{short}_value:1h\n"
            f"  and ({short}_lower:1h - {short}_value:before >= {ratio})\n"
            f"  and ({short}_of:1h >= {settings.traces_min})\n"
            f"  and ({short}_of:before >= {settings.baseline_traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=f"{WHERE}: {{{{ $value | humanizePercentage }}}} {rise.what} (last hour)",
        description=(
            f"{looked_up(f'{short}_value:before', SLICE, PERCENT)} in the day before; now at least "
            f"{looked_up(f'{short}_lower:1h', SLICE, PERCENT)} (95 %), of {looked_up(f'{short}_of:1h', SLICE, WHOLE)}."
        ),
    )


def _unjoined(settings: AlertSettings) -> Alert:
    short = "slice:citegauge_unjoined"
    return Alert(
        name="CitegaugeUnjoinedTraces",
        runbook="unjoined-traces",
        severity="ticket",
        signal="quality",
        expr=(
            f"{short}_value:1h\n"
            f"  and ({short}_lower:1h >= {settings.unjoined_ratio})\n"
            f"  and ({short}_of:1h >= {settings.traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=f"{WHERE}: {{{{ $value | humanizePercentage }}}} of traces lack a retrieval or a generation",
        description=(
            f"Of {looked_up(f'{short}_of:1h', SLICE, WHOLE)} traces in the last hour; "
            f"{looked_up(f'{short}_value:24h', SLICE, PERCENT)} over 24 hours. Such traces are not measured."
        ),
    )
