"""Rules on the measured quality: recording rules that gather what the workers compared, and alerts on them.

The workers set an hour against the day before it within each model, retriever version and scorer, at the hour's mix of them
(`domain.compare`), and run the detectors. A slice is (job, route, top_k bucket). A route is put together here, at the hour's
mix of buckets: no worker has them all. So neither a new version nor traffic that moves between versions, buckets or routes
moves anything. Shares of traces that have no bucket of their own are told of a route, over all its buckets. Every alert asks
for enough traces, a difference beyond chance and one that matters. Workers show no comparison while their windows are old.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from citegauge.domain.intervals import Z_95
from citegauge.section_alerts import AlertSettings
from citegauge.tools.rules.model import DIGITS, FALL, ONE, PCT, SHARE, THREE, WHOLE, Alert, Group, Recording, looked_up
from citegauge.tools.rules.shares import RISES, ROUTE, ROUTE_SHARES, SHARE_OF, SLICE, Rise

SCORER = (*SLICE, "scorer")
WHERE = "{{ $labels.route }} (top_k {{ $labels.top_k_bucket }})"


def baseline_group() -> Group:
    """The recorded series; no setting changes them."""
    rules = [
        *_compared("slice:citegauge_recall", SLICE, "citegauge_compared_recall", "_ratio"),
        *_route(),
        *_compared("scorer:citegauge_top1_score", SCORER, "citegauge_compared_top1_score", ""),
        *_compared("slice:citegauge_low_confidence", SLICE, "citegauge_compared_low_confidence", "_ratio"),
        _detector("slice:citegauge_recall_cusum", SLICE, "recall_cusum"),
        _detector("scorer:citegauge_score_shift", SCORER, "score_shift"),
        *_shares(", ".join(SLICE)),
        *_route_shares(", ".join(ROUTE)),
    ]
    return Group(name="citegauge-baselines", interval="1m", rules=rules)


def _largest(by: str, series: str) -> str:
    """A series of whichever worker shows it: while it moves between two, both may."""
    return f"max by ({by}) ({series})"


def _compared(name: str, labels: Sequence[str], series: str, unit: str) -> Iterator[Recording]:
    """Mean, error and number of the hour and of the day before it, and what lies between them."""
    by = ", ".join(labels)
    for side, of in (("after", "1h"), ("before", "before")):
        for what, shown in (
            ("mean", f'{series}{unit}{{stat="{side}"}}'),
            ("error", f'{series}{unit}{{stat="se_{side}"}}'),
            ("n", f'{series}_traces{{side="{side}"}}'),
        ):
            yield Recording(record=f"{name}_{what}:{of}", expr=_largest(by, shown))
    fall = f"({name}_mean:before - {name}_mean:1h)"
    if not unit:
        yield Recording(record=f"{name}_sd:before", expr=_largest(by, f'{series}{{stat="sd"}}'))
        # Of distances a rise is worse. A worker of before this series shows none of it, and then a fall is.
        known = _largest(by, f"{series}_sign")
        yield Recording(record=f"{name}_sign:1h", expr=f"{known}\n  or ({name}_n:1h * 0 + 1)")
        fall = f"{name}_sign:1h * {fall}"
    error = f"sqrt({name}_error:before ^ 2 + {name}_error:1h ^ 2)"
    yield Recording(record=f"{name}_drop_z:1h", expr=f"{fall}\n  / {error}")


def _route() -> Iterator[Recording]:
    """A route at the hour's mix of buckets. Their levels may wander together, so that part of the errors adds up."""
    part, route, by = "slice:citegauge_recall", "route:citegauge_recall", "job, route"
    wander = 'citegauge_compared_recall_ratio{stat="wander"}'
    yield Recording(record=f"{part}_wander:1h", expr=_largest(", ".join(SLICE), wander))
    weight = f"{part}_n:1h"
    for of in ("1h", "before"):
        yield Recording(record=f"{route}_n:{of}", expr=f"sum by ({by}) ({part}_n:{of})")
    for of in ("1h", "before"):
        yield Recording(record=f"{route}_mean:{of}", expr=f"sum by ({by}) ({weight} * {part}_mean:{of}) / {route}_n:1h")
    chance = f"{part}_error:before ^ 2 + {part}_error:1h ^ 2 - {part}_wander:1h ^ 2"
    yield Recording(
        record=f"{route}_drop_z:1h",
        expr=(
            f"({route}_mean:before - {route}_mean:1h) * {route}_n:1h\n  / sqrt(\n"
            f"    sum by ({by}) ({weight} ^ 2 * ({chance}))\n      + sum by ({by}) ({weight} * {part}_wander:1h) ^ 2\n  )"
        ),
    )


def _detector(name: str, labels: Sequence[str], detector: str) -> Recording:
    series = f'citegauge_detector_ratio{{detector="{detector}"}}'
    return Recording(record=name, expr=_largest(", ".join(labels), series))


def _shares(by: str) -> Iterator[Recording]:
    """Of each share of a slice: its value and what it is a share of, in the hour and in the day before."""
    share = "citegauge_window_share_ratio"
    for name, whole in SHARE_OF.items():
        short = f"slice:citegauge_{name}"
        for stat, window in (("value", "1h"), ("lower", "1h"), ("value", "24h")):
            yield Recording(
                record=f"{short}_{stat}:{window}",
                expr=_largest(by, f'{share}{{window="{window}",share="{name}",stat="{stat}"}}'),
            )
        for window in ("1h", "24h"):
            # Inside by instance, outside the larger one: two workers that show one series are not added up.
            total = f"sum by ({by}, instance) ({whole.format(window=window)})"
            yield Recording(record=f"{short}_of:{window}", expr=f"max by ({by}) ({total})")
        yield Recording(record=f"{short}_of:before", expr=f"({short}_of:24h - {short}_of:1h) > 0")
        difference = f"({short}_value:24h * {short}_of:24h - {short}_value:1h * {short}_of:1h)"
        yield Recording(record=f"{short}_value:before", expr=f"clamp_min({difference} / {short}_of:before, 0)")


def _route_shares(by: str) -> Iterator[Recording]:
    """Of each share of a route: part and whole over all buckets, and from them its value, its bound and the day before."""
    rising = {rise.name for rise in RISES}
    for name, states in ROUTE_SHARES.items():
        short = f"route:citegauge_{name}"
        for window in ("1h", "24h"):
            for what, matcher in zip(("part", "of"), states, strict=True):
                shown = ",".join(filter(None, (f'window="{window}"', matcher)))
                # Buckets of one route may be with several workers, and one bucket with two while it moves.
                each = _largest(f"{by}, top_k_bucket, state", f"citegauge_window_traces{{{shown}}}")
                yield Recording(record=f"{short}_{what}:{window}", expr=f"sum by ({by}) (\n  {each}\n)")
        part, of = f"{short}_part:1h", f"({short}_of:1h > 0)"
        yield Recording(record=f"{short}_value:1h", expr=f"{part} / {of}")
        yield Recording(record=f"{short}_lower:1h", expr=_wilson_lower(part, of))
        if short in rising:
            yield Recording(record=f"{short}_of:before", expr=f"({short}_of:24h - {short}_of:1h) > 0")
            difference = f"({short}_part:24h - {part})"
            yield Recording(record=f"{short}_value:before", expr=f"clamp_min({difference} / {short}_of:before, 0)")
        else:
            yield Recording(record=f"{short}_value:24h", expr=f"{short}_part:24h / ({short}_of:24h > 0)")


def _wilson_lower(part: str, of: str) -> str:
    """The lower end of a share's 95 % interval, as `domain.intervals.wilson` has it, multiplied out by the whole."""
    z2 = Z_95**2
    spread = f"sqrt({part} * (1 - {part} / {of}) + {z2 / 4:.6f})"
    return f"clamp_min(\n  ({part} + {z2 / 2:.6f} - {Z_95:.6f} * {spread})\n    / ({of} + {z2:.6f}),\n  0\n)"


def quality_group(settings: AlertSettings) -> Group:
    """The alerts."""
    ratios = (
        settings.hallucinated_ratio,
        settings.nonconformant_ratio,
        settings.zero_results_ratio,
        settings.unmeasurable_ratio,
    )
    rules = [
        _route_recall(settings),
        _slice_recall(settings),
        _cusum(settings),
        _score(settings),
        _shift(settings),
        _low_confidence(settings),
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
        summary=f"{{{{ $labels.route }}}}: cited-chunk recall fell by {FALL} in the last hour",
        description=(
            f"From {looked_up(f'{name}_mean:before', labels, THREE)} in the day before (at the hour's mix of top_k buckets, "
            f"models, retriever versions and scorers) to {looked_up(f'{name}_mean:1h', labels, THREE)}, on "
            f"{looked_up(f'{name}_n:1h', labels, WHOLE)} measured traces: "
            f"{looked_up(f'{name}_drop_z:1h', labels, ONE)} standard errors."
        ),
    )


def _slice_recall(settings: AlertSettings) -> Alert:
    name = "slice:citegauge_recall"
    return Alert(
        name="CitegaugeRecallDrop",
        runbook="recall-drop",
        severity="ticket",
        signal="quality",
        expr=_fall(name, page=False, settings=settings),
        hold="2m",
        keep="30m",
        summary=f"{WHERE}: cited-chunk recall fell by {FALL} in the last hour",
        description=(
            f"From {looked_up(f'{name}_mean:before', SLICE, THREE)} in the day before (each model, retriever version and "
            f"scorer with its own past, at the hour's mix) to {looked_up(f'{name}_mean:1h', SLICE, THREE)}, on "
            f"{looked_up(f'{name}_n:1h', SLICE, WHOLE)} measured traces: "
            f"{looked_up(f'{name}_drop_z:1h', SLICE, ONE)} standard errors."
        ),
    )


def _cusum(settings: AlertSettings) -> Alert:
    name, cusum = "slice:citegauge_recall", "slice:citegauge_recall_cusum"
    return Alert(
        name="CitegaugeRecallCusum",
        runbook="recall-cusum",
        severity="ticket",
        signal="quality",
        # What has recovered within the hour is over, although the sum still remembers it.
        expr=(
            f"{cusum} >= 1\n"
            f"  and ({name}_mean:1h < {name}_mean:before)\n"
            f"  and ({name}_n:1h >= {settings.traces_min})\n"
            f"  and ({name}_n:before >= {settings.baseline_traces_min})"
        ),
        hold="5m",
        keep="30m",
        summary=f"{WHERE}: cited-chunk recall has been low for hours",
        description=(
            'The sum of what it fell short of its baseline is {{ $value | printf "%.1f" }} times the decision limit. '
            f"Last hour {looked_up(f'{name}_mean:1h', SLICE, THREE)}, day before "
            f"{looked_up(f'{name}_mean:before', SLICE, THREE)}, on "
            f"{looked_up(f'{name}_n:1h', SLICE, WHOLE)} measured traces. Each model and version with its own past."
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
            f"{name}_sign:1h * ({name}_mean:before - {name}_mean:1h) / ({name}_sd:before > 0) "
            f">= {settings.score_drop_sd}\n"
            f"  and ({name}_drop_z:1h >= {settings.ticket_z_min})\n"
            f"  and ({name}_n:1h >= {settings.traces_min})\n"
            f"  and ({name}_n:before >= {settings.baseline_traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=WHERE
        + ': top-1 score of {{ $labels.scorer }} got worse by {{ $value | printf "%.2f" }} standard deviations',
        description=(
            f"Mean from {looked_up(f'{name}_mean:before', SCORER, DIGITS)} in the day before to "
            f"{looked_up(f'{name}_mean:1h', SCORER, DIGITS)} in the last hour, on "
            f"{looked_up(f'{name}_n:1h', SCORER, WHOLE)} traces. Compared within this scorer only."
        ),
    )


def _shift(settings: AlertSettings) -> Alert:
    name, shift = "scorer:citegauge_top1_score", "scorer:citegauge_score_shift"
    return Alert(
        name="CitegaugeScoreShift",
        runbook="score-shift",
        severity="ticket",
        signal="quality",
        expr=(
            f"{shift} >= 1\n"
            f"  and ({name}_n:1h >= {settings.traces_min})\n"
            f"  and ({name}_n:before >= {settings.baseline_traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=f"{WHERE}: the top-1 scores of {{{{ $labels.scorer }}}} are distributed otherwise than in the day before",
        description=(
            'Their distance is {{ $value | printf "%.1f" }} times the decision limit. Mean from '
            f"{looked_up(f'{name}_mean:before', SCORER, DIGITS)} to {looked_up(f'{name}_mean:1h', SCORER, DIGITS)}, on "
            f"{looked_up(f'{name}_n:1h', SCORER, WHOLE)} traces. Within this scorer, at the hour's mix of versions."
        ),
    )


def _low_confidence(settings: AlertSettings) -> Alert:
    name = "slice:citegauge_low_confidence"
    return Alert(
        name="CitegaugeLowConfidence",
        runbook="low-confidence",
        severity="ticket",
        signal="quality",
        expr=(
            f"{name}_mean:1h\n"
            f"  and ({name}_mean:1h - {name}_mean:before >= {settings.low_confidence_ratio})\n"
            f"  and ({name}_drop_z:1h <= -{settings.ticket_z_min})\n"
            f"  and ({name}_n:1h >= {settings.traces_min})\n"
            f"  and ({name}_n:before >= {settings.baseline_traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=f"{WHERE}: {SHARE} of traces are of low confidence (last hour)",
        description=(
            f"Their top-1 score lies below the route's threshold: {looked_up(f'{name}_mean:before', SLICE, PCT)} in the "
            f"day before, of {looked_up(f'{name}_n:1h', SLICE, WHOLE)} traces now. Each scorer with its own past."
        ),
    )


def _where(labels: Sequence[str]) -> str:
    """The place of an alert in its summary."""
    return WHERE if "top_k_bucket" in labels else "{{ $labels.route }}"


def _rise(settings: AlertSettings, rise: Rise, ratio: float) -> Alert:
    name, labels = rise.name, rise.labels
    return Alert(
        name=rise.alert,
        runbook=rise.runbook,
        severity="ticket",
        signal="quality",
        expr=(
            f"{name}_value:1h\n"
            f"  and ({name}_lower:1h - {name}_value:before >= {ratio})\n"
            f"  and ({name}_of:1h >= {settings.traces_min})\n"
            f"  and ({name}_of:before >= {settings.baseline_traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=f"{_where(labels)}: {SHARE} {rise.what} (last hour)",
        description=(
            f"{looked_up(f'{name}_value:before', labels, PCT)} in the day before; now at least "
            f"{looked_up(f'{name}_lower:1h', labels, PCT)} (95 %), of {looked_up(f'{name}_of:1h', labels, WHOLE)}."
        ),
    )


def _unjoined(settings: AlertSettings) -> Alert:
    name = "route:citegauge_unjoined"
    return Alert(
        name="CitegaugeUnjoinedTraces",
        runbook="unjoined-traces",
        severity="ticket",
        signal="quality",
        expr=(
            f"{name}_value:1h\n"
            f"  and ({name}_lower:1h >= {settings.unjoined_ratio})\n"
            f"  and ({name}_of:1h >= {settings.traces_min})"
        ),
        hold="15m",
        keep="30m",
        summary=f"{_where(ROUTE)}: {SHARE} of traces lack a retrieval or a generation",
        description=(
            f"Of {looked_up(f'{name}_of:1h', ROUTE, WHOLE)} traces in the last hour; "
            f"{looked_up(f'{name}_value:24h', ROUTE, PCT)} over 24 hours. Such traces are not measured."
        ),
    )
