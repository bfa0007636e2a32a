"""The parts that the dashboards are made of: variables, annotations, panels, queries, and how panels are laid out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from grafanalib import core

from otel_loopwatch import export, semconv

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
SCOPE: Final = 'job=~"$job", agent=~"$agent"'
"""Which series an ordinary panel shows."""
TOOLS: Final = SCOPE + ', tool=~"$tool"'
MODELS: Final = SCOPE + ', model=~"$model"'
JOBS: Final = 'job=~"$job"'

MIN_INTERVAL: Final = "15s"
"""The scrape interval of stack/prometheus.yml: no graph asks for steps that hold no new sample."""

NO_RUNS: Final = "no runs"
TAG: Final = "loopwatch"
FIRING: Final = 'ALERTS{alertname=~"Loopwatch.+", alertname!="LoopwatchWatchdog", alertstate="firing"}'

_FULL: Final = 24
_PALETTE: Final = ("yellow", "red")


class Query(NamedTuple):
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: What a series is called; ``{{label}}`` is filled in.
    """

    expr: str
    legend: str = "__auto"


class Row(NamedTuple):
    """Panels side by side, of equal width, under a title.

    Attributes:
        title: What question they answer.
        panels: As :func:`stat`, :func:`graph`, :func:`heatmap` and :func:`table` make them.
    """

    title: str
    panels: tuple[Any, ...]


def grown(metric: str, scope: str, window: str) -> str:
    """The increase of a counter over *window*, with what its series were born with.

    Prometheus' ``increase`` leaves out the first value of a series: the first loop of a tool, and everything of a short
    job. As in the alert rules, a series that was seen before the window, or that began with it because Prometheus was
    away, was not born in it.
    """
    series = f"{metric}{{{scope}}}"
    return (
        f"((max_over_time({series}[{window}]) unless last_over_time({series}[1h] offset {window})"
        f" unless resets({series}[{window}]) > 0 and on () loopwatch:rules:evaluated offset {window})"
        f" or increase({series}[{window}]))"
    )


def born(metric: semconv.Metric, scope: str, window: str = "$__range") -> str:
    """:func:`grown` of a metric of ours."""
    return grown(metric.prometheus, scope, window)


def zero(expr: str) -> str:
    """*expr*, and 0 where there is nothing: where none is good news, an empty panel is not."""
    return f"{expr} or on () vector(0)"


def quantile(share: float, metric: semconv.Metric, scope: str, by: str = "agent") -> str:
    """A quantile of a histogram over ``$__rate_interval``, without the NaN of an interval in which no run ended."""
    buckets = f"sum by ({by}, le) (rate({metric.prometheus}_bucket{{{scope}}}[$__rate_interval]))"
    runs = f"sum by ({by}) (rate({metric.prometheus}_count{{{scope}}}[$__rate_interval]))"
    return f"histogram_quantile({share:g}, {buckets}) and {runs} > 0"


def buckets(metric: semconv.Metric, scope: str) -> str:
    """The buckets of a histogram, for a heatmap."""
    return f"sum by (le) (increase({metric.prometheus}_bucket{{{scope}}}[$__rate_interval]))"


def stat(
    title: str, description: str, expr: str, unit: str = "short", *, limits: tuple[str, ...] = (), empty: str = NO_RUNS
) -> core.Stat:
    """One number, as of now.

    Args:
        title: Of the panel.
        description: What it shows, and what to do about it.
        expr: PromQL of one sample.
        unit: As Grafana calls it.
        limits: Names in alerts/thresholds.yml, smaller first; the last is red.
        empty: What is shown where there is no sample.
    """
    return core.Stat(
        title=title,
        description=description,
        dataSource=SOURCE,
        targets=_targets((Query(expr),), instant=True),
        format=unit,
        reduceCalc="lastNotNull",
        colorMode="value",
        graphMode="none",
        noValue=empty,
        thresholds=_limits(limits),
    )


def graph(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "short",
    limits: tuple[str, ...] = (),
    empty: str = NO_RUNS,
    stacked: bool = False,
    trace: bool = False,
) -> core.TimeSeries:
    """Values over time; arguments as of :func:`stat`.

    Args:
        title: Of the panel.
        description: What it shows, and what to do about it.
        queries: Each with its legend.
        unit: As Grafana calls it.
        limits: Drawn as dashed lines.
        empty: What is shown where there is no sample.
        stacked: As bars on top of each other, for what adds up.
        trace: A click on a series leads to the traces of its agent.
    """
    defaults: dict[str, Any] = {"noValue": empty}
    if trace:
        defaults["links"] = [TRACES]
    return core.TimeSeries(
        title=title,
        description=description,
        dataSource=SOURCE,
        targets=_targets(queries),
        unit=unit,
        interval=MIN_INTERVAL,
        drawStyle="bars" if stacked else "line",
        fillOpacity=60 if stacked else 10,
        stacking={"mode": "normal", "group": "A"} if stacked else {},
        showPoints="never",
        tooltipMode="multi",
        legendDisplayMode="list",
        thresholds=_limits(limits),
        thresholdsStyleMode="dashed" if limits else "off",
        extraJson={"loopwatchDefaults": defaults},
    )


def heatmap(title: str, description: str, expr: str, unit: str) -> core.Heatmap:
    """How a histogram is spread over time, with its exemplars; arguments as of :func:`stat`."""
    return core.Heatmap(
        title=title,
        description=description,
        dataSource=SOURCE,
        targets=[core.Target(expr=expr, legendFormat="{{le}}", format="heatmap", refId="A", datasource=SOURCE)],
        interval=MIN_INTERVAL,
        extraJson={"loopwatchDefaults": {"unit": unit, "noValue": NO_RUNS}},
    )


def table(
    title: str, description: str, expr: str, value: str, unit: str = "short", *, empty: str = NO_RUNS
) -> core.Table:
    """Samples as rows, the largest first.

    Args:
        title: Of the panel.
        description: What it shows, and what to do about it.
        expr: PromQL.
        value: Name of the column of values.
        unit: Of the values, as Grafana calls it.
        empty: What is shown where there is no sample.
    """
    return core.Table(
        title=title,
        description=description,
        dataSource=SOURCE,
        targets=[core.Target(expr=expr, format="table", instant=True, refId="A", datasource=SOURCE)],
        unit=unit,
        sortBy=[core.TableSortByField(displayName=value, desc=True)],
        transformations=[
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {"Value": value}}}
        ],
        extraJson={"loopwatchDefaults": {"noValue": empty}},
    )


def dashboard(
    name: str, title: str, description: str, rows: tuple[Row, ...], variables: tuple[str, ...]
) -> core.Dashboard:
    """A dashboard.

    Args:
        name: Its uid behind ``loopwatch-``, which links and alerts rely on.
        title: Its title behind "Loopwatch / ".
        description: What it is for.
        rows: From above.
        variables: Which of :data:`VARIABLES` it has beside data sources and job.
    """
    return core.Dashboard(
        title=f"Loopwatch / {title}",
        uid=f"loopwatch-{name}",
        description=description,
        tags=[TAG],
        editable=False,
        timezone="browser",
        refresh="30s",
        time=core.Time("now-6h", "now"),
        templating=core.Templating([*_sources(), *(VARIABLES[variable] for variable in ("job", *variables))]),
        annotations=core.Annotations(_annotations(agents="agent" in variables)),
        links=[
            core.DashboardLink(
                title="Loopwatch", type="dashboards", tags=[TAG], asDropdown=True, includeVars=True, keepTime=True
            )
        ],
        panels=_laid_out(rows),
    ).auto_panel_ids()


def _variable(name: str, label: str, query: str) -> core.Template:
    return core.Template(
        name=name,
        label=label,
        query=query,
        dataSource=SOURCE,
        type="query",
        multi=True,
        includeAll=True,
        allValue=".+",
        sort=1,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )


VARIABLES: Final = {
    # Of gauges where there is one: they are there before the first run has ended.
    "job": _variable("job", "Job", f"label_values({semconv.BUILD_INFO.prometheus}, job)"),
    "agent": _variable("agent", "Agent", f"label_values({semconv.RUNS_ACTIVE.prometheus}{{{JOBS}}}, agent)"),
    "tool": _variable("tool", "Tool", f"label_values({semconv.TOOL_CALLS.prometheus}{{{SCOPE}}}, tool)"),
    "model": _variable("model", "Model", f"label_values({semconv.TOKENS.prometheus}{{{SCOPE}}}, model)"),
}

_PANES: Final = (
    '{"a":{"datasource":"${traces}","queries":[{"refId":"A","datasource":{"type":"jaeger","uid":"${traces}"},'
    '"queryType":"search","service":"${__field.labels.job}","tags":"'
    + semconv.GEN_AI_AGENT_NAME
    + '=${__field.labels.agent}"}],'
    '"range":{"from":"${__from}","to":"${__to}"}}}'
)
TRACES: Final = {
    "title": "Traces of ${__field.labels.agent}",
    "url": f"/explore?schemaVersion=1&panes={_PANES}",
    "targetBlank": True,
}


def _sources() -> list[core.Template]:
    sources = (("datasource", "Data source", "prometheus"), ("traces", "Traces", "jaeger"))
    return [core.Template(name=name, label=label, type="datasource", query=kind) for name, label, kind in sources]


def _annotations(*, agents: bool) -> list[dict[str, Any]]:
    """Detections (on dashboards that know agents), deploys, and alerts."""
    build = f"{semconv.BUILD_INFO.prometheus}{{{JOBS}}}"
    loops = f"{semconv.LOOPS_DETECTED.prometheus}{{{SCOPE if agents else JOBS}}}"
    wanted = (
        ("Loops", "red", f"sum by (agent, tool, kind) (increase({loops}[1m])) > 0", "{{agent}}: {{kind}} of {{tool}}"),
        (
            # An instance that was not there a minute before: a deploy, a restart, or a replica more.
            "Deploys",
            "blue",
            f"sum by (job, version, mode) ({build} unless {build} offset 1m)",
            "{{job}} starts with otel-loopwatch {{version}}, {{mode}}",
        ),
        ("Alerts", "orange", f"sum by (alertname, agent) ({FIRING})", "{{alertname}} {{agent}}"),
    )
    return [
        {
            "name": name,
            "datasource": SOURCE,
            "enable": True,
            "iconColor": color,
            "target": {"expr": expr, "refId": "Anno", "interval": "60s"},
            "titleFormat": text,
        }
        for name, color, expr, text in wanted
    ]


def _targets(queries: tuple[Query, ...], *, instant: bool = False) -> list[core.Target]:
    return [
        core.Target(
            expr=query.expr, legendFormat=query.legend, instant=instant, refId=chr(ord("A") + index), datasource=SOURCE
        )
        for index, query in enumerate(queries)
    ]


def _limits(names: tuple[str, ...]) -> list[core.Threshold]:
    thresholds = export.thresholds()
    colors = _PALETTE[-len(names) :] if names else ()
    limits = [core.Threshold("green", 0, 0.0)]
    for index, (name, color) in enumerate(zip(names, colors, strict=True), 1):
        value = float(thresholds[name].value)
        limits.append(core.Threshold(color, index, value))
    return limits


def _laid_out(rows: tuple[Row, ...]) -> list[Any]:
    placed: list[Any] = []
    y = 0
    for row in rows:
        placed.append(core.RowPanel(title=row.title, gridPos=core.GridPos(h=1, w=_FULL, x=0, y=y)))
        y += 1
        width = _FULL // len(row.panels)
        height = 4 if isinstance(row.panels[0], core.Stat) else 8
        for index, panel in enumerate(row.panels):
            panel.gridPos = core.GridPos(h=height, w=width, x=index * width, y=y)
            placed.append(panel)
        y += height
    return placed
