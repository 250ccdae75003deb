"""From a number down to one trace: which traces are behind it, and what each retrieved and cited. ClickHouse alone."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from boards.parts import (
    NUMBER,
    RATIO,
    SCORE,
    TRACES,
    Sql,
    Words,
    bars,
    board,
    choice,
    link,
    number,
    rows,
    sql_variable,
    units,
)

CHOSEN = """$__timeFilter(pane)
    AND $__conditionalAll(route IN (${route:singlequote}), $route)
    AND $__conditionalAll(top_k_bucket IN (${top_k_bucket:singlequote}), $top_k_bucket)
    AND $__conditionalAll(model IN (${model:singlequote}), $model)
    AND $__conditionalAll(retriever_version IN (${retriever_version:singlequote}), $retriever_version)
    AND $__conditionalAll(scorer IN (${scorer:singlequote}), $scorer)"""
STATE = "$__conditionalAll(state IN (${state:singlequote}), $state)"
THIS = "trace_id = ${trace_id:singlequote}"
_N_HALLUCINATED = "if(state IN ('measured', 'nonconformant', 'empty_retrieval'), length(hallucinated_ids), NULL)"
"""Elsewhere the whole retrieved set is not known, which is no 0."""
ORDERS = ("least recall", "least rank-weighted recall", "most hallucinated citations", "latest")
ROWS_MAX = 200


def traces() -> Dashboard:
    """The board."""
    made = board(TRACES, "citegauge: traces", "From a number down to one trace.", since="now-6h")
    dimensions = {
        "route": "Route",
        "top_k_bucket": "top_k",
        "model": "Model",
        "retriever_version": "Retriever version",
        "scorer": "Scorer",
    }
    for name, label in dimensions.items():
        sql = f"SELECT DISTINCT {name} FROM panes WHERE $__timeFilter(pane) ORDER BY 1"
        made.with_variable(sql_variable(name, label, sql, many=True))
    states = "SELECT DISTINCT arrayJoin(mapKeys(states)) AS state FROM panes WHERE $__timeFilter(pane) ORDER BY 1"
    made.with_variable(sql_variable("state", "State", states, many=True))
    made.with_variable(choice("order", "Order", *ORDERS))
    made.with_variable(dashboard.TextBoxVariable("trace_id").label("Trace id").default_value(""))
    _many(made)
    _one(made)
    return made


def _many(made: Dashboard) -> None:
    words = Words(
        "States over time",
        "What became of the traces, for the choice above except the state. Only *measured* enters a ratio.",
    )
    made.with_panel(bars(words, NUMBER, Sql(_STATES, lines=True)).interval("5m"))
    words = Words(
        "Hallucinated ids",
        "Chunks that answers cite without having retrieved them, most frequent first. *Dropped*: an earlier stage had "
        "returned it. The id of an example leads to its trace, below.",
    )
    here = link(TRACES, trace_id="${__value.raw}", **_KEPT)
    made.with_panel(rows(words, Sql(_HALLUCINATED), links={"example": here}))
    words = Words(
        "Traces",
        f"At most {ROWS_MAX}, in the chosen order. Recall is comparable within one top_k bucket, a score within one "
        "scorer. A trace id leads to the trace, below.",
        24,
        12,
    )
    made.with_panel(
        units(rows(words, Sql(_WORST), links={"trace_id": here}), recall=RATIO, rank_weighted=RATIO, score=SCORE)
    )


def _one(made: Dashboard) -> None:
    made.with_row(Row("Trace $trace_id"))
    for title, sql, unit, description in (
        (
            "Recall",
            "recall",
            RATIO,
            "Share of the retrieved chunks that the answer cites; none where it cannot be measured.",
        ),
        ("Rank-weighted recall", "rank_weighted_recall", RATIO, "The same with each chunk weighted by 1/rank."),
        ("Retrieved", "retrieved", NUMBER, "Distinct chunks retrieved."),
        ("Cited", "cited_retrieved", NUMBER, "How many of the retrieved are cited."),
        (
            "Hallucinated",
            f"{_N_HALLUCINATED} AS hallucinated",
            NUMBER,
            "Distinct ids cited that were not retrieved; none where the state says that this cannot be known.",
        ),
        ("Top-1 score", "top1_score", SCORE, "Score of the first retrieved chunk, by the trace's own scorer."),
    ):
        query = Sql(f"SELECT {sql} FROM traces FINAL WHERE {THIS} ORDER BY pane DESC LIMIT 1")
        made.with_panel(number(Words(title, description, 4, 4), unit, query))
    words = Words(
        "Retrieved chunks", "In the order of the retrieved set, with scores, and whether the answer cites them.", 12, 12
    )
    made.with_panel(units(rows(words, Sql(_CHUNKS)), score=SCORE))
    words = Words(
        "Cited, but not retrieved", "Hallucinated ids; *dropped* where an earlier stage had returned them.", 12, 12
    )
    made.with_panel(rows(words, Sql(_OWN_HALLUCINATED)))
    words = Words(
        "The row", "Everything that is stored of the trace. A trace whose answer came much later has two.", 24, 6
    )
    made.with_panel(rows(words, Sql(f"SELECT *, event_time FROM traces FINAL WHERE {THIS} ORDER BY pane")))


_KEPT = {name: f"${{{name}}}" for name in ("order",)}

_STATES = f"""
SELECT $__timeInterval(pane) AS time, counted.1 AS state, sum(counted.2) AS traces
FROM
(
    SELECT pane, arrayJoin(states) AS counted
    FROM panes FINAL
    WHERE {CHOSEN}
)
GROUP BY time, state
ORDER BY time, state
"""

_HALLUCINATED = f"""
SELECT
    arrayJoin(hallucinated_ids) AS chunk_id,
    count() AS traces,
    countIf(has(dropped_cited_ids, chunk_id)) AS dropped,
    uniqExact(route) AS routes,
    max(event_time) AS newest,
    argMax(trace_id, event_time_ns) AS example
FROM traces FINAL
WHERE {CHOSEN}
    AND {STATE}
GROUP BY chunk_id
ORDER BY traces DESC, chunk_id
LIMIT {ROWS_MAX}
"""

_WORST = f"""
SELECT
    trace_id,
    event_time AS time,
    route,
    top_k_bucket,
    state,
    recall,
    rank_weighted_recall AS "rank weighted",
    retrieved,
    cited_retrieved AS cited,
    {_N_HALLUCINATED} AS hallucinated,
    top1_score AS score,
    scorer,
    model,
    retriever_version
FROM traces FINAL
WHERE {CHOSEN}
    AND {STATE}
ORDER BY
    multiIf(
        ${{order:singlequote}} = '{ORDERS[0]}', recall,
        ${{order:singlequote}} = '{ORDERS[1]}', rank_weighted_recall,
        ${{order:singlequote}} = '{ORDERS[2]}', -toFloat64(length(hallucinated_ids)),
        0.
    ) ASC NULLS LAST,
    event_time_ns DESC
LIMIT {ROWS_MAX}
"""

_CHUNKS = f"""
SELECT rank, chunk_id, score, toBool(has(cited_ranks, rank)) AS cited
FROM traces FINAL
ARRAY JOIN arrayEnumerate(chunk_ids) AS rank, chunk_ids AS chunk_id, chunk_scores AS score
WHERE {THIS}
ORDER BY pane DESC, rank
"""

_OWN_HALLUCINATED = f"""
SELECT arrayJoin(hallucinated_ids) AS chunk_id, toBool(has(dropped_cited_ids, chunk_id)) AS dropped
FROM traces FINAL
WHERE {THIS}
ORDER BY chunk_id
"""
