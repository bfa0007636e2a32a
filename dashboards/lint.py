"""The rules that every generated dashboard keeps: those of Grafana's own dashboard linter, and some of ours.

Left out: its rules on an ``instance`` variable, for all of our sums are over instances; and that there be one data
source only, for links lead to a store of traces.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import promql_parser

from dashboards.queries import DEFAULTS, substituted

Json = dict[str, Any]

SOURCES: Final = {"datasource": "prometheus", "traces": "jaeger"}
COLUMNS: Final = 24
ROOT_FORBIDDEN: Final = ("__inputs", "dashboard", "id", "rows")
OVER_TIME: Final = frozenset({"increase", "irate", "last_over_time", "max_over_time", "rate", "resets"})
"""What may be asked of a counter."""


def problems(dashboard: Json) -> Iterator[str]:
    """What is wrong with a dashboard, in words; nothing where it is right."""
    yield from _root(dashboard)
    yield from _variables(dashboard["templating"]["list"])
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    yield from _layout(dashboard["panels"])
    for panel in panels:
        for problem in _panel(panel):
            yield f"{panel.get('title')}: {problem}"


def selectors(expr: str) -> list[Any]:
    """Every vector selector of *expr*, whose variables are filled in already.

    Raises:
        ValueError: Where it is no PromQL.
    """
    return [node for node, _ in _walk(promql_parser.parse(expr)) if isinstance(node, promql_parser.VectorSelector)]


def _root(dashboard: Json) -> Iterator[str]:
    yield from (f"has {key}" for key in ROOT_FORBIDDEN if key in dashboard)
    if dashboard["editable"]:
        yield "is editable"
    if not dashboard["uid"].startswith("loopwatch-"):
        yield "has no stable uid"
    if not dashboard["description"]:
        yield "has no description"
    if not any(link["asDropdown"] and link["includeVars"] and link["keepTime"] for link in dashboard["links"]):
        yield "does not link to the others with variables and time"


def _variables(variables: list[Json]) -> Iterator[str]:
    if {v["name"]: v["query"] for v in variables if v["type"] == "datasource"} != SOURCES:
        yield "data source variables"
    queried = [variable for variable in variables if variable["type"] == "query"]
    if "job" not in {variable["name"] for variable in queried}:
        yield "no variable job"
    for variable in queried:
        name = variable["name"]
        if variable["refresh"] != 2:
            yield f"{name} does not reload with the time range"
        if not (variable["multi"] and variable["includeAll"] and variable["allValue"] == ".+"):
            yield f"{name} has no All, or takes one value only"
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        if asked is None or asked[2] != name or not selectors(substituted(asked[1], DEFAULTS)):
            yield f"{name} asks for {variable['query']}"


def _layout(panels: list[Json]) -> Iterator[str]:
    for kind in ("id", "title"):
        seen = [panel[kind] for panel in panels]
        yield from (f"two panels have the {kind} {value}" for value in sorted({v for v in seen if seen.count(v) > 1}))
    boxes = [panel["gridPos"] for panel in panels]
    yield from (f"outside of the grid: {box}" for box in boxes if box["x"] + box["w"] > COLUMNS)
    for one, other in itertools.combinations(boxes, 2):
        if all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh")):
            yield f"panels lie on each other: {one}, {other}"


def _panel(panel: Json) -> Iterator[str]:
    if not (panel.get("title") and panel.get("description")):
        yield "no title or no description"
    defaults = panel["fieldConfig"]["defaults"]
    if not defaults.get("unit"):
        yield "no unit"
    if not defaults.get("noValue"):
        yield "says nothing where there is no data"
    if panel["datasource"]["uid"] != "${datasource}":
        yield "another data source"
    if not panel["targets"]:
        yield "no query"
    for target in panel["targets"]:
        if target["datasource"]["uid"] != "${datasource}":
            yield "a query of another data source"
        yield from _query(target["expr"], over_time=target["range"])


def _query(expr: str, *, over_time: bool) -> Iterator[str]:
    try:
        tree = promql_parser.parse(substituted(expr, DEFAULTS))
    except ValueError as error:
        yield f"{error}: {expr}"
        return
    if over_time and "$__range" in expr:
        yield f"a graph of the whole range at each point: {expr}"
    if re.search(r"\brate\([^[]+\[(?!\$__rate_interval)", expr):
        yield f"a rate of another interval than $__rate_interval: {expr}"
    for node, calls in _walk(tree):
        if isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "/" and "> 0" not in str(node.rhs):
            yield f"divides by what may be 0: {expr}"
        if not isinstance(node, promql_parser.VectorSelector) or node.name is None:
            continue
        if node.name.endswith("_total") and not OVER_TIME.intersection(calls):
            yield f"a bare counter: {node.name}"
        ours = node.name not in {"ALERTS", "loopwatch:rules:evaluated"}
        if ours and "job" not in {matcher.name for matcher in node.matchers.matchers}:
            yield f"no job: {node.name}"


def _walk(node: Any, calls: tuple[str, ...] = ()) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every node below *node*, with the functions it is an argument of."""
    yield node, calls
    if isinstance(node, promql_parser.Call):
        calls = (*calls, node.func.name)
        for argument in node.args:
            yield from _walk(argument, calls)
        return
    for part in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        below = getattr(node, part, None)
        if isinstance(below, promql_parser.Expr):
            yield from _walk(below, calls)
