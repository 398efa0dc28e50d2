"""The panel types of the dashboards in one style, and the assembly of a dashboard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.monitoring.build.promql import quantile

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "dragoman"
HEIGHT, THIRD, HALF, SIXTH = 8, 8, 12, 4
PERCENTILES = (0.5, 0.95, 0.99)

Panel = Builder[models.Panel]
Variable = Builder[models.VariableModel]


@dataclass(frozen=True)
class Query:
    """A query of a panel.

    Attributes:
        expr: PromQL expression.
        legend: Name of each series; "{{code}}" is replaced by the value of that label.
    """

    expr: str
    legend: str = ""


def graph(title: str, text: str, unit: str, *queries: Query, stacked: bool = False, span: int = THIRD) -> Panel:
    """Builds a panel of lines over time, starting at zero.

    Args:
        text: Description of the panel, shown behind its "i".
        unit: Grafana's id of the unit, such as "s" or "percentunit"; shares are from 0 to 1.
        stacked: Whether the lines are stacked; for values whose sum has a meaning.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(span)
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common_models.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if unit == "percentunit":
        panel.axis_soft_max(1)
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    for target in _targets(queries):
        panel.with_target(target)
    return panel


def percentiles(title: str, text: str, histogram: str, span: int = THIRD) -> Panel:
    """Builds a panel of p50, p95 and p99 of a histogram in seconds."""
    return graph(
        title, text, "s", *(Query(quantile(p, histogram), f"p{round(100 * p)}") for p in PERCENTILES), span=span
    )


def figure(
    title: str, text: str, unit: str, expr: str, *, amber: float | None = None, red: float | None = None
) -> Panel:
    """Builds a panel of one current number, with its history in the background.

    Args:
        amber, red: Values from which on the number has that colour.
    """
    steps = [models.Threshold(None, "green")]
    steps += [
        models.Threshold(value, colour) for value, colour in ((amber, "orange"), (red, "red")) if value is not None
    ]
    return (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .height(SIXTH)
        .span(SIXTH)
        .unit(unit)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_targets([Query(expr)])[0])
    )


def cells(title: str, text: str, unit: str, expr: str, span: int = HALF) -> Panel:
    """Builds a heat map of a histogram.

    Args:
        expr: Rate of its buckets, by `le`.
    """
    query = _query(Query(expr, "{{le}}")).format(PromQueryFormat.HEATMAP)
    return (
        heatmap.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(span)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .with_target(query.ref_id("A"))
    )


def bars(title: str, text: str, unit: str, *queries: Query, span: int = THIRD) -> Panel:
    """Builds a panel with a bar for the current value of each series."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(span)
        .unit(unit)
        .min(0)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(
            builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps([models.Threshold(None, "blue")])
        )
    )
    for target in _targets(queries):
        panel.with_target(target)
    return panel


def labels(title: str, text: str, expr: str, names: Sequence[str], span: int = HALF) -> Panel:
    """Builds a table of the labels of an info metric.

    Args:
        names: Columns in their order.
    """
    query = _query(Query(expr)).format(PromQueryFormat.TABLE).instant().ref_id("A")
    order = {name: place for place, name in enumerate(names)}
    return (
        table.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(span)
        .with_target(query)
        .with_transformation(
            models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(names)}})
        )
        .with_transformation(models.DataTransformerConfig(id_val="organize", options={"indexByName": order}))
    )


def chosen(name: str, label: str, query: str, all_value: str | None = ".*") -> Variable:
    """Builds a variable that selects one or more values, by default all of them.

    Args:
        query: Grafana query, such as "label_values(up, job)".
        all_value: Regular expression for "all"; None for the list of existing values.
    """
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .definition(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )
    return variable if all_value is None else variable.all_value(all_value)


def servers() -> list[Variable]:
    return [
        # Not ".*": `up` and `process_...` exist for everything that Prometheus scrapes.
        chosen("job", "Job", "label_values(dragoman_build_info, job)", all_value=None),
        chosen("instance", "Server", 'label_values(dragoman_build_info{job=~"$job"}, instance)'),
    ]


def models_served() -> Variable:
    return chosen("model", "Model", 'label_values(dragoman_rows{job=~"$job", instance=~"$instance"}, model)')


def assemble(
    title: str, uid: str, text: str, variables: Sequence[Variable], rows: Mapping[str, Sequence[Panel]]
) -> models.Dashboard:
    """Builds a dashboard of titled rows of panels, with links to the other dashboards."""
    board = (
        builders.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("Dragoman")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in variables:
        board.with_variable(variable)
    for row, panels in rows.items():
        board.with_row(builders.Row(row))
        for panel in panels:
            board.with_panel(panel)
    built = board.build()
    for number, placed in enumerate(built.panels or [], 1):
        placed.id_val = number
    return built


def _targets(queries: Sequence[Query]) -> list[Dataquery]:
    return [_query(query).ref_id(chr(ord("A") + index)) for index, query in enumerate(queries)]


def _query(query: Query) -> Dataquery:
    return Dataquery().datasource(SOURCE).expr(query.expr).legend_format(query.legend or "__auto")
