"""Makes what grafanalib writes valid for the Grafana of today.

grafanalib 0.7.1 writes the JSON of 2019: the first threshold is the string "null", variables have no current value, a
heatmap has the keys of a panel that is gone, and Grafana's own migration would wipe thresholds below schema version 13.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

SCHEMA_VERSION: Final = 42
"""Of Grafana 12 and 13."""

_ROOT: Final = frozenset({"__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style"})
_ROW: Final = frozenset({"collapsed", "gridPos", "id", "panels", "title", "type"})
_PANEL: Final = frozenset({
    "datasource", "description", "fieldConfig", "gridPos", "id", "interval", "options", "targets", "title",
    "transformations", "type",
})  # fmt: skip
_TARGET: Final = frozenset({"datasource", "expr", "format", "instant", "legendFormat", "refId"})
_VARIABLE: Final = frozenset({
    "allValue", "datasource", "hide", "includeAll", "label", "multi", "name", "query", "refresh", "regex", "sort",
    "type",
})  # fmt: skip

_HEATMAP_OPTIONS: Final[Json] = {
    "calculate": False,
    "cellGap": 1,
    "color": {
        "mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64, "reverse": False,
    },
    "exemplars": {"color": "rgba(255,0,255,0.7)"},
    "filterValues": {"le": 1e-9},
    "legend": {"show": True},
    "rowsFrame": {"layout": "auto"},
    "showValue": "never",
    "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
    "yAxis": {"axisPlacement": "left", "reverse": False},
}  # fmt: skip
_HEATMAP_FIELDS: Final[Json] = {
    "hideFrom": {"legend": False, "tooltip": False, "viz": False},
    "scaleDistribution": {"type": "linear"},
}


def modernize(dashboard: Json) -> Json:
    """The same dashboard, as Grafana's schema has it.

    Args:
        dashboard: What grafanalib's encoder made, read back from JSON. It is left as it is.
    """
    new = {key: value for key, value in dashboard.items() if key not in _ROOT and value is not None}
    new["schemaVersion"] = SCHEMA_VERSION
    new["graphTooltip"] = 1
    new["timepicker"] = {"refresh_intervals": dashboard["timepicker"]["refresh_intervals"]}
    new["templating"] = {"list": [_variable(variable) for variable in dashboard["templating"]["list"]]}
    new["panels"] = [_panel(panel) for panel in dashboard["panels"]]
    return new


def _variable(variable: Json) -> Json:
    new = {key: value for key, value in variable.items() if key in _VARIABLE and value is not None}
    if new["includeAll"]:
        new["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
    else:
        # Grafana takes the first data source of the type where the default one is of another.
        new["current"] = {"selected": False, "text": "default", "value": "default"}
    return new


def _panel(panel: Json) -> Json:
    if panel["type"] == "row":
        return {key: value for key, value in panel.items() if key in _ROW and value is not None}
    new = {key: value for key, value in panel.items() if key in _PANEL and value is not None}
    fields = new.setdefault("fieldConfig", {})
    fields.setdefault("overrides", [])
    defaults = fields.setdefault("defaults", {})
    options = new.setdefault("options", {})
    steps = defaults.pop("thresholds", {}).get("steps", [])
    defaults["thresholds"] = {"mode": "absolute", "steps": _steps(steps)}
    # What panels.py adds because grafanalib has no argument for it.
    defaults |= panel.get("loopwatchDefaults", {})
    if defaults.get("mappings") == []:
        del defaults["mappings"]
    match new["type"]:
        case "timeseries":
            defaults["custom"]["scaleDistribution"] = {"type": "linear"}
            if not defaults["custom"].get("stacking"):
                defaults["custom"]["stacking"] = {"mode": "none", "group": "A"}
            options["legend"]["showLegend"] = True
        case "stat":
            options |= {"wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard"}
        case "table":
            options["frameIndex"] = 0
            defaults["custom"] = {"inspect": False, "align": "auto", "filterable": False}
        case "heatmap":
            new["options"] = _HEATMAP_OPTIONS
            defaults["custom"] = _HEATMAP_FIELDS
    exemplars = new["type"] in {"timeseries", "heatmap"}
    new["targets"] = [_target(target, exemplars=exemplars) for target in new["targets"]]
    return _pruned(new)


def _steps(steps: list[Json]) -> list[Json]:
    if not steps:
        return [{"color": "green", "value": None}]
    return [
        {"color": step["color"], "value": None if index == 0 else float(step["value"])}
        for index, step in enumerate(steps)
    ]


def _target(target: Json, *, exemplars: bool) -> Json:
    new = {key: value for key, value in target.items() if key in _TARGET and value}
    new["editorMode"] = "code"
    new["instant"] = bool(target.get("instant"))
    new["range"] = not new["instant"]
    if exemplars and "_bucket" in target["expr"]:
        new["exemplar"] = True
    return new


def _pruned(value: Any) -> Any:
    """*value* without what is None; the first threshold is None by rights."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None or key == "value"}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value
