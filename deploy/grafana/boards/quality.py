"""How much of what was retrieved the answers cite: one route and top_k bucket at a time, beside a table of all of them.

Nothing here is pooled over top_k buckets or over scorers: recall falls with k by its very definition, and scores of
different scorers share no scale. Where a chart can show one bucket or one scorer only, the variable takes one value.
"""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import DashboardLink, VariableModel

from boards.parts import (
    NUMBER,
    QUALITY,
    RATIO,
    SCORE,
    TRACES,
    Promql,
    Query,
    Sql,
    Words,
    band,
    board,
    choice,
    columns,
    dashed,
    heat,
    label_variable,
    leads,
    lines,
    link,
    marks,
    merged,
    note,
    ratio_lines,
    rows,
    sql_variable,
    units,
)
from boards.quality_sql import (
    BY_VERSION,
    BY_VERSION_OVER_TIME,
    NEW_VERSIONS,
    PLACE,
    RANK_CURVE,
    RANKS_MAX,
    RECALL_HEAT,
    SCORE_HEAT,
    SCORES_MAX,
)

PROXY = (
    "**Cited-chunk recall** is the share of the retrieved chunks that the answer cites. It is a *proxy* from "
    "production traces, not recall against labels: it falls by itself as top_k grows, so it is never pooled over "
    "top_k buckets, and a change is a reason to look, not a verdict. Scores of different scorers are never mixed. "
    "What cannot be measured is left out, not drawn as 0."
)
RECALL, SHARE = "citegauge_cited_chunk_recall_ratio", "citegauge_window_share_ratio"
FROM, TO = ", 95 % from", ", 95 % to"
PLACED = 'route="$route",top_k_bucket="$top_k_bucket"'
AT = f'{PLACED},window="$window"'


def quality() -> Dashboard:
    """The board."""
    made = board(
        QUALITY,
        "citegauge: quality",
        "Cited-chunk recall and top-1 scores, per route and top_k bucket.",
        since="now-24h",
    )
    for variable in _variables():
        made.with_variable(variable)
    made.annotation(
        marks("Alerts", "red", Promql('ALERTS{alertstate="firing",route="$route",signal="quality"}', "{{alertname}}"))
    )
    made.annotation(marks("New retriever version", "blue", Sql(NEW_VERSIONS)))
    made.with_panel(note(PROXY))
    _overview(made)
    _recall(made)
    _like_for_like(made)
    _shares(made)
    _distribution(made)
    _scores(made)
    _versions(made)
    return made


def _variables() -> list[Builder[VariableModel]]:
    scorers = 'citegauge_top1_score_samples{route="$route",top_k_bucket="$top_k_bucket"}'
    found = f"SELECT DISTINCT %s FROM panes WHERE $__timeFilter(pane) AND {PLACE} ORDER BY 1"
    return [
        label_variable("route", "Route", "citegauge_window_traces"),
        label_variable("top_k_bucket", "top_k", 'citegauge_window_traces{route="$route"}'),
        choice("window", "Window", "1h", "6h", "24h"),
        label_variable("scorer", "Scorer", scorers),
        sql_variable("model", "Model", found % "model", many=True),
        sql_variable("retriever_version", "Retriever version", found % "retriever_version", many=True),
    ]


def _overview(made: Dashboard) -> None:
    by = "max by (route, top_k_bucket)"
    every = {
        "measured": f'{by} (citegauge_window_traces{{window="$window",state="measured"}})',
        "recall mean": f'{by} (citegauge_cited_chunk_recall_ratio{{window="$window",stat="mean"}})',
        "recall median": f'{by} (citegauge_cited_chunk_recall_ratio{{window="$window",stat="p50"}})',
        "recall p25": f'{by} (citegauge_cited_chunk_recall_ratio{{window="$window",stat="p25"}})',
        "cites anything": f'{by} (citegauge_cited_any_ratio{{window="$window"}})',
        "hallucinated": f'{by} (citegauge_window_share_ratio{{window="$window",share="hallucinated",stat="value"}})',
        "nonconformant": f'{by} (citegauge_window_share_ratio{{window="$window",share="nonconformant",stat="value"}})',
        "zero results": f'{by} (citegauge_window_share_ratio{{window="$window",share="zero_results",stat="value"}})',
        "unjoined": f'{by} (citegauge_window_share_ratio{{window="$window",share="unjoined",stat="value"}})',
    }
    at = {"route": "${__data.fields.route}", "top_k_bucket": "${__data.fields.top_k_bucket}", "window": "${window}"}
    words = Words(
        "All routes and top_k buckets",
        "The $window window as it is now; each row is a route and bucket of its own. A row's route leads to it here, "
        "its bucket to its traces. An empty cell: nothing to measure.",
        width=16,
    )
    links = {
        "route": link(QUALITY, **at),
        "top_k_bucket": link(TRACES, **{k: at[k] for k in ("route", "top_k_bucket")}),
    }
    table = merged(rows(words, *(Promql(expr, now=True) for expr in every.values()), links=links), *every)
    made.with_panel(units(table, **dict.fromkeys([name.replace(" ", "_") for name in list(every)[1:]], RATIO)))
    told = "alertname, severity, route, top_k_bucket, scorer"
    firing = f'max by ({told}) (ALERTS{{alertstate="firing",alertname=~"Citegauge.*"}})'
    alerts = Words(
        "Alerts that fire now", "From Prometheus; Alertmanager may hold some back. Empty: none fires.", width=8
    )
    made.with_panel(merged(rows(alerts, Promql(firing, now=True), links={"route": link(QUALITY, **at)}), "firing"))


def _recall(made: Dashboard) -> None:
    made.with_row(Row("Recall of $route, top_k $top_k_bucket, window $window"))
    words = Words(
        "Cited-chunk recall, mean",
        "With its 95 % interval (from 30 measured traces on), over the window that ends at each point.",
        8,
    )
    mean = {"mean": "mean"}
    made.with_panel(_banded(ratio_lines(words, *_intervals(RECALL, AT, mean)), mean).links(_traces_by("least recall")))
    words = Words(
        "Cited-chunk recall, median and lower quartile",
        "With their 95 % intervals (from 6 and from 13 measured traces on).",
        8,
    )
    quantiles = {"p50": "median", "p25": "p25"}
    made.with_panel(_banded(ratio_lines(words, *_intervals(RECALL, AT, quantiles)), quantiles))
    words = Words("Measured traces in the window", "What the ratios stand on; few traces say little.", 8)
    measured = f'max(citegauge_window_traces{{{AT},state="measured"}})'
    made.with_panel(lines(words, NUMBER, Promql(measured, "measured")).min(0))
    words = Words(
        "Rank-weighted recall",
        "Recall with each chunk weighted by 1/rank, which falls when the first ranks lose their citations.",
    )
    weighted = Promql(f'max(citegauge_rank_weighted_recall_ratio{{{AT},stat="mean"}})', "mean")
    made.with_panel(ratio_lines(words, weighted))
    words = Words("Traces by state", "What became of the traces of the window. Only *measured* enters a ratio.")
    states = f"max by (state) (citegauge_window_traces{{{AT}}}) > 0"
    made.with_panel(lines(words, NUMBER, Promql(states, "{{state}}")).min(0))


def _intervals(name: str, at: str, named: Mapping[str, str]) -> list[Query]:
    """For each statistic its line and the ends of its interval; `named`: statistic to legend."""
    return [
        Promql(f'max({name}{{{at},stat="{stat}{end}"}})', f"{legend}{said}")
        for stat, legend in named.items()
        for end, said in (("", ""), ("_lower", FROM), ("_upper", TO))
    ]


def _banded(panel: timeseries.Panel, named: Mapping[str, str]) -> timeseries.Panel:
    for legend in named.values():
        band(panel, f"{legend}{FROM}", f"{legend}{TO}")
    return panel


def _like_for_like(made: Dashboard) -> None:
    made.with_row(Row("Like for like: the last hour of $route, top_k $top_k_bucket, against its past"))
    words = Words(
        "Recall, like for like",
        "Mean of the last hour (with its 95 % interval) and of the day before it, both at the hour's mix of models, "
        "retriever versions and scorers: a mix that moves moves nothing here, and a group without a past is left out.",
    )
    made.with_panel(_compared(words, "citegauge_compared_recall_ratio", PLACED, RATIO))
    words = Words(
        "Detectors",
        "Each detector's statistic over its decision limit: from 1 on it is an alarm. recall_cusum adds up how far "
        "the last 6 hours fall short of what is usual; score_shift asks whether the hour's scores are distributed "
        "otherwise, within one scorer.",
    )
    detectors = f"max by (detector, scorer) (citegauge_detector_ratio{{{PLACED}}})"
    limit = Promql("vector(1)", "limit")
    made.with_panel(dashed(lines(words, SCORE, Promql(detectors, "{{detector}} {{scorer}}"), limit), "limit").min(0))
    words = Words(
        "Top-1 score of $scorer, like for like", "The same for the score of the first chunk, by this scorer alone.", 8
    )
    made.with_panel(_compared(words, "citegauge_compared_top1_score", f'{PLACED},scorer="$scorer"', SCORE))
    words = Words(
        "What is usual",
        "Mean recall of the last day and the last 7 days at the hour's mix, without the last 6 hours, which are what "
        "is tested.",
        8,
    )
    usual = f'max by (baseline) (citegauge_baseline_recall_ratio{{{PLACED},stat="mean"}})'
    made.with_panel(ratio_lines(words, Promql(usual, "{{baseline}}")))
    words = Words(
        "What the comparison stands on",
        "Measured traces of the groups that were compared, on each side, and of the baselines.",
        8,
    )
    sides = f"max by (side) (citegauge_compared_recall_traces{{{PLACED}}})"
    behind = f"max by (baseline) (citegauge_baseline_recall_traces{{{PLACED}}})"
    made.with_panel(lines(words, NUMBER, Promql(sides, "{{side}}"), Promql(behind, "baseline {{baseline}}")).min(0))


def _compared(words: Words, name: str, at: str, unit: str) -> timeseries.Panel:
    """After and before, with the interval of after: 1.96 standard errors to each side."""
    after, error = (f'max({name}{{{at},stat="{stat}"}})' for stat in ("after", "se_after"))
    stats = (
        Promql(after, "last hour"),
        Promql(f'max({name}{{{at},stat="before"}})', "day before"),
        Promql(f"{after} - 1.96 * {error}", "95 % from"),
        Promql(f"{after} + 1.96 * {error}", "95 % to"),
    )
    panel = ratio_lines(words, *stats) if unit == RATIO else lines(words, unit, *stats)
    return dashed(band(panel, "95 % from", "95 % to"), "day before")


def _shares(made: Dashboard) -> None:
    shares = {
        "cited_any": ("Answers that cite anything", "With at least one valid citation, of the measured answers."),
        "cites_rank1": ("Answers that cite rank 1", "The first retrieved chunk, of the measured answers."),
        "cites_rank1_3": ("Answers that cite ranks 1 to 3", "One of the first three chunks, of the measured answers."),
        "low_confidence": (
            "Low confidence",
            "Top-1 score beyond the threshold of route and scorer, of the traces that have one. Empty without settings.",
        ),
        "hallucinated": (
            "Hallucinated citations",
            "Citations of chunks that were not in the retrieved set, of all citations.",
        ),
        "nonconformant": (
            "Nonconformant answers",
            "Answers not in the agreed form, of the traces that may have an answer.",
        ),
        "zero_results": ("Retrievals with zero results", "Of the traces whose retrieval is known."),
        "unjoined": (
            "Unjoined traces",
            "Traces with only one of retrieval and generation, of all traces: the pipeline, not quality.",
        ),
    }
    made.with_row(Row("Shares, with 95 % intervals (Wilson)"))
    for share, (title, description) in shares.items():
        made.with_panel(_share(share, Words(title, description, width=6)))


def _share(share: str, words: Words) -> timeseries.Panel:
    def of(stat: str, legend: str) -> Query:
        return Promql(f'max({SHARE}{{{AT},share="{share}",stat="{stat}"}})', legend)

    panel = ratio_lines(words, of("value", "share"), of("lower", "from"), of("upper", "to"))
    order = "most hallucinated citations" if share == "hallucinated" else "latest"
    return band(panel, "from", "to").links(_traces_by(order))


def _traces_by(order: str) -> list[Builder[DashboardLink]]:
    return leads("Traces", link(TRACES, route="${route}", top_k_bucket="${top_k_bucket}", order=order))


def _distribution(made: Dashboard) -> None:
    made.with_row(Row("Distribution of recall in $route, top_k $top_k_bucket"))
    words = Words(
        "Recall over time",
        "Measured traces by recall, in tenths (the uppermost holds 1 as well), from the minutes' exact counts. For "
        "the chosen models and retriever versions.",
    )
    made.with_panel(heat(words, RATIO, Sql(RECALL_HEAT)).interval("5m"))
    words = Words(
        "Citations by rank",
        f"Of the measured traces that retrieved a chunk at this rank: how many cite it. To rank {RANKS_MAX}; over the "
        "time range, from trace rows.",
    )
    made.with_panel(columns(words, RATIO, "rank", Sql(RANK_CURVE)))


def _scores(made: Dashboard) -> None:
    made.with_row(Row("Top-1 score of $scorer in $route, top_k $top_k_bucket"))

    words = Words(
        "Top-1 score",
        "Score of the first retrieved chunk, by this scorer alone: mean, and median and lower quartile with their 95 "
        "% intervals.",
    )
    at, quantiles = f'{AT},scorer="$scorer"', {"p50": "median", "p25": "p25"}
    mean = Promql(f'max(citegauge_top1_score{{{at},stat="mean"}})', "mean")
    made.with_panel(_banded(lines(words, SCORE, mean, *_intervals("citegauge_top1_score", at, quantiles)), quantiles))
    words = Words(
        "Top-1 scores over time",
        f"Each trace's score, by this scorer alone. Of more than {SCORES_MAX:,} traces, an even sample (by trace id).",
    )
    made.with_panel(heat(words, SCORE, Sql(SCORE_HEAT), raw=True).interval("5m"))
    words = Words("Traces with a top-1 score", "What the scores stand on, per scorer.", width=24, height=6)
    samples = f"max by (scorer) (citegauge_top1_score_samples{{{AT}}})"
    made.with_panel(lines(words, NUMBER, Promql(samples, "{{scorer}}")).min(0))


def _versions(made: Dashboard) -> None:
    made.with_row(Row("Models and retriever versions of $route, top_k $top_k_bucket"))
    words = Words(
        "Recall by version",
        "Mean recall per step of the chart, one line per retriever version and model. A new version starts a new line.",
    )
    made.with_panel(ratio_lines(words, Sql(BY_VERSION_OVER_TIME, lines=True)).interval("5m"))
    words = Words(
        "Versions side by side", "Over the time range, from the minutes' exact counts. The version leads to its traces."
    )
    table = rows(words, Sql(BY_VERSION), links={"retriever_version": link(TRACES, **_HERE)})
    made.with_panel(units(table, recall_mean=RATIO, cites_anything=RATIO, hallucinated=RATIO))


_HERE = {
    "route": "${route}",
    "top_k_bucket": "${top_k_bucket}",
    "model": "${__data.fields.model}",
    "retriever_version": "${__data.fields.retriever_version}",
}
