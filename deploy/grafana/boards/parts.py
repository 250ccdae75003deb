"""Data sources, queries, panels and variables in one form, so that a board says only what it shows.

A panel has a title, a description and a unit. Queries of one panel get the reference ids A, B, C … in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

from grafana_foundation_sdk.builders import barchart, dashboard, heatmap, prometheus, stat, table, text, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLink,
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PROMETHEUS = common.DataSourceRef(type_val="prometheus", uid="citegauge-prometheus")
CLICKHOUSE = common.DataSourceRef(type_val="grafana-clickhouse-datasource", uid="citegauge-clickhouse")
QUALITY, PIPELINE, TRACES = "citegauge-quality", "citegauge-pipeline", "citegauge-traces"
TAG = "citegauge"

RATIO, NUMBER, SCORE, SECONDS, BYTES, PER_SECOND, BOOL = (
    "percentunit",
    "short",
    "none",
    "s",
    "bytes",
    "cps",
    "bool_yes_no",
)


# ----------------------------------------------------------------------------------------------------- queries


class Promql(NamedTuple):
    """One Prometheus query of a panel; `now`: a table of the newest values, else lines."""

    expr: str
    legend: str = ""
    now: bool = False

    def built(self, ref: str) -> Builder[Dataquery]:
        """As the SDK takes it."""
        query = prometheus.Dataquery().datasource(PROMETHEUS).expr(self.expr).ref_id(ref).legend_format(self.legend)
        return query.instant().format(PromQueryFormat.TABLE) if self.now else query.range()


class Sql(NamedTuple):
    """One ClickHouse query of a panel; `lines`: time, labels and value become lines, else a table."""

    sql: str
    lines: bool = False

    def built(self, ref: str) -> Builder[Dataquery]:
        """As the SDK takes it."""
        return _SqlBuilder(_SqlQuery(self, ref))


class _SqlQuery(Dataquery):
    """The form of the ClickHouse plug-in; the SDK has no builder for it."""

    def __init__(self, query: Sql, ref: str) -> None:
        self._query, self._ref = query, ref

    def to_json(self) -> dict[str, object]:
        """The JSON of the target; format 0 is time series, 1 a table."""
        return {
            "datasource": CLICKHOUSE,
            "editorType": "sql",
            "format": 0 if self._query.lines else 1,
            "rawSql": self._query.sql.strip(),
            "refId": self._ref,
        }


class _SqlBuilder(Builder[Dataquery]):
    def __init__(self, query: _SqlQuery) -> None:
        self._query = query

    def build(self) -> Dataquery:
        return self._query


Query = Promql | Sql

# ------------------------------------------------------------------------------------------------------ panels


class _AnyPanel(Protocol):
    """What the SDK's builders of all kinds of panel have in common."""

    def title(self, title: str) -> Self: ...
    def description(self, description: str) -> Self: ...
    def span(self, w: int) -> Self: ...
    def height(self, h: int) -> Self: ...
    def datasource(self, datasource: common.DataSourceRef) -> Self: ...
    def with_target(self, target: Builder[Dataquery]) -> Self: ...


P = TypeVar("P", bound=_AnyPanel)


class Words(NamedTuple):
    """What stands over a panel, and its size; the grid has 24 columns."""

    title: str
    description: str
    width: int = 12
    height: int = 9


def _filled(panel: P, words: Words, queries: Sequence[Query]) -> P:
    source = CLICKHOUSE if isinstance(queries[0], Sql) else PROMETHEUS
    panel.title(words.title).description(words.description).datasource(source)
    panel.span(words.width).height(words.height)
    for place, query in enumerate(queries):
        panel.with_target(query.built(chr(ord("A") + place)))
    return panel


def lines(words: Words, unit: str, *queries: Query) -> timeseries.Panel:
    """Lines over time. Gaps stay gaps: what is not measurable is not drawn."""
    panel = _filled(timeseries.Panel(), words, queries).unit(unit).line_width(1).span_nulls(False)
    panel.show_points(common.VisibilityMode.AUTO).tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    return panel.legend(
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def ratio_lines(words: Words, *queries: Query) -> timeseries.Panel:
    """Lines of ratios, on an axis that starts at 0: a small wobble should look small."""
    return lines(words, RATIO, *queries).min(0).axis_soft_max(0.1)


def bars(words: Words, unit: str, *queries: Query) -> timeseries.Panel:
    """Counts per step, stacked."""
    return (
        lines(words, unit, *queries)
        .draw_style(common.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .line_width(0)
        .stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    )


def band(panel: timeseries.Panel, lower: str, upper: str) -> timeseries.Panel:
    """Fills the space between two lines, which are not drawn themselves."""
    bare = [DynamicConfigValue("custom.lineWidth", 0), DynamicConfigValue("custom.showPoints", "never")]
    grey = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "text"})
    fill = [DynamicConfigValue("custom.fillBelowTo", lower), DynamicConfigValue("custom.fillOpacity", 12)]
    return panel.override_by_name(lower, [*bare, grey]).override_by_name(upper, [*bare, grey, *fill])


def dashed(panel: timeseries.Panel, name: str) -> timeseries.Panel:
    """Draws one line dashed: a limit, or what another line is set against."""
    style = {"fill": "dash", "dash": [6, 6]}
    return panel.override_by_name(name, [DynamicConfigValue("custom.lineStyle", style)])


def number(words: Words, unit: str, *queries: Query, bad_from: float | None = None) -> stat.Panel:
    """The newest value, large; red from `bad_from` on."""
    panel = _filled(stat.Panel(), words, queries).unit(unit)
    steps = [Threshold(value=None, color="text")]
    if bad_from is not None:
        steps = [Threshold(value=None, color="green"), Threshold(value=bad_from, color="red")]
    panel.thresholds(dashboard.ThresholdsConfig().steps(steps)).graph_mode(common.BigValueGraphMode.NONE)
    return panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"])).no_value("–")


def rows(words: Words, *queries: Query, links: Mapping[str, str] | None = None) -> table.Panel:
    """A table. `links`: column to the address that its cells lead to."""
    panel = _filled(table.Panel(), words, queries).no_value("–")
    for column, url in (links or {}).items():
        panel.override_by_name(column, [DynamicConfigValue("links", [{"title": "Open", "url": url}])])
    return panel


def units(panel: table.Panel, **of: str) -> table.Panel:
    """Sets the units of columns; a name is written with `_` for each space."""
    for column, unit in of.items():
        panel.override_by_name(column.replace("_", " "), [DynamicConfigValue("unit", unit)])
    return panel


def merged(panel: table.Panel, *names: str) -> table.Panel:
    """One row per label set out of several instant queries; `names`: their columns, in the order of the queries."""
    values = {f"Value #{chr(ord('A') + place)}": name for place, name in enumerate(names)}
    values |= {"Value": names[0]}  # the name where there is one query only
    return panel.with_transformation(DataTransformerConfig(id_val="merge", options={})).with_transformation(
        DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": values})
    )


def heat(words: Words, y_unit: str, *queries: Query, raw: bool = False) -> heatmap.Panel:
    """A heat map. `raw`: one row per value, counted by the panel; else one column per bin, named by its lower edge."""
    panel = _filled(heatmap.Panel(), words, queries).calculate(raw).y_axis(heatmap.YAxisConfig().unit(y_unit))
    if not raw:
        panel.rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.GE).value("traces"))
    colour = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    return panel.color(colour).show_legend()


def columns(words: Words, unit: str, x_field: str, *queries: Query) -> barchart.Panel:
    """One bar per row, in the order of the rows. A column `n` is shown in the tooltip alone."""
    hidden = DynamicConfigValue("custom.hideFrom", {"viz": True, "legend": True, "tooltip": False})
    panel = _filled(barchart.Panel(), words, queries).unit(unit).x_field(x_field).min(0)
    return panel.override_by_name("n", [hidden, DynamicConfigValue("unit", NUMBER)])


def note(markdown: str, height: int = 3) -> text.Panel:
    """Words across the board."""
    return text.Panel().title("").content(markdown).span(24).height(height).transparent(True)


# --------------------------------------------------------------------------------------------------- variables


def _chosen(variable: dashboard.QueryVariable, source: common.DataSourceRef, *, many: bool) -> dashboard.QueryVariable:
    variable.datasource(source).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    variable.multi(many).include_all(many)
    return variable.current(VariableOption(text=["All"], value=["$__all"], selected=True)) if many else variable


def label_variable(name: str, label: str, series: str, *, many: bool = False) -> Builder[VariableModel]:
    """The values that a label has in Prometheus. `many`: several may be chosen, and all are at first."""
    query = f"label_values({series}, {name})"
    variable = dashboard.QueryVariable(name).label(label).definition(query)
    variable.query({"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
    return (
        _chosen(variable, PROMETHEUS, many=many).all_value(".*") if many else _chosen(variable, PROMETHEUS, many=many)
    )


def sql_variable(name: str, label: str, sql: str, *, many: bool = False) -> Builder[VariableModel]:
    """The values that a query finds in ClickHouse; for queries with `$__conditionalAll` where `many`."""
    variable = dashboard.QueryVariable(name).label(label).definition(sql).query({"editorType": "sql", "rawSql": sql})
    return _chosen(variable, CLICKHOUSE, many=many)


def choice(name: str, label: str, *values: str) -> Builder[VariableModel]:
    """One of fixed values, the first at first."""
    first = VariableOption(text=values[0], value=values[0], selected=True)
    return dashboard.CustomVariable(name).label(label).values(",".join(values)).current(first).allow_custom_value(False)


# ------------------------------------------------------------------------------------------------------ boards


def link(uid: str, **variables: str) -> str:
    """The address of a board with variables set and the time range kept."""
    given = "".join(f"&var-{name}={value.replace(' ', '%20')}" for name, value in variables.items())
    return f"/d/{uid}?${{__url_time_range}}{given}"


def leads(title: str, url: str) -> list[Builder[DashboardLink]]:
    """What a panel's corner leads to."""
    return [dashboard.DashboardLink(title).type(DashboardLinkType.LINK).url(url)]


def marks(name: str, colour: str, query: Query) -> Builder[AnnotationQuery]:
    """Vertical marks: from Prometheus where a series exists, from ClickHouse at each row's time."""
    annotation = dashboard.AnnotationQuery().name(name).enable(True).icon_color(colour)
    if isinstance(query, Promql):
        annotation.datasource(PROMETHEUS).expr(query.expr).title_format(query.legend).step("60s")
        return annotation
    return annotation.datasource(CLICKHOUSE).target(query.built("Anno"))


def board(uid: str, title: str, description: str, *, since: str) -> dashboard.Dashboard:
    """An empty board that looks like the others and leads to them."""
    others = (
        dashboard.DashboardLink("citegauge")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
        .placement("")
    )
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time(since, "now")
        .refresh("1m")
        .readonly()
        .link(others)
    )
