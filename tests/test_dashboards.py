"""The dashboards: as their sources make them, valid for Grafana 13, and of one mind with metrics and alerts."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import promql_parser
import pytest
import yaml

from dashboards import build, panels, queries
from dashboards.lint import problems, selectors
from otel_loopwatch import export, semconv

pytestmark = pytest.mark.project

ROOT = Path(__file__).resolve().parent.parent
PATHS = sorted(queries.GENERATED.glob("*.json"))
RULES = yaml.safe_load((ROOT / "alerts" / "loopwatch.rules.yml").read_text())
ENTRIES = [rule for group in RULES["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in ENTRIES if "record" in rule}
ALERTS = {rule["alert"]: rule for rule in ENTRIES if "alert" in rule}

# Grafana's types, and what makes JSON Schema of them; it warns of Node 20, and works there.
SCHEMA_PACKAGES = ("@grafana/schema@13.2.3", "ts-json-schema-generator@2.10.0")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-loopwatch" / "grafana-schema"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def dashboard(request) -> dict:
    return read(request.param)


@pytest.fixture(scope="module")
def schema() -> dict:
    """Of a dashboard, made once from the npm packages and kept outside of the clone."""
    folder = CACHE / "_".join(re.sub(r"\W+", "-", package).strip("-") for package in SCHEMA_PACKAGES)
    made = folder / "dashboard.json"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            if shutil.which("npm") is None:
                pytest.skip("the schema of Grafana needs npm")
            (folder / "package.json").write_text('{"private": true}')
            install = ["npm", "install", "--no-audit", "--no-fund", *SCHEMA_PACKAGES]
            installed = subprocess.run(install, cwd=folder, capture_output=True, text=True)
            if installed.returncode:
                pytest.skip(f"npm cannot fetch the schema of Grafana: {installed.stderr[-300:]}")
            types = "node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen.d.ts"
            generate = ["npx", "ts-json-schema-generator", "--path", types, "--type", "Dashboard", "--no-type-check"]
            text = subprocess.run(generate, cwd=folder, capture_output=True, text=True, check=True).stdout
            made.with_suffix(".new").write_text(text)
            made.with_suffix(".new").rename(made)
    return json.loads(made.read_text())


def complaints(schema: dict, dashboard: dict) -> list[str]:
    # By the schema the target of an annotation is that of Grafana's own, and a note in it says: it should be a query.
    # titleFormat is Prometheus' own.
    known = copy.deepcopy(dashboard)
    for annotation in known["annotations"]["list"]:
        del annotation["target"], annotation["titleFormat"]
    return [
        f"{'/'.join(map(str, error.path))}: {error.message}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(known)
    ]


def test_generated_files_are_what_the_sources_make():
    ran = subprocess.run([sys.executable, "dashboards/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_generated_file_that_was_edited_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "GENERATED", tmp_path)
    assert build.main(["--write"]) == 0
    assert build.main(["--check"]) == 0
    (tmp_path / "loopwatch-spend.json").write_text("{}")
    (tmp_path / "of-old.json").write_text("{}")
    assert build.main(["--check"]) == 1
    assert "loopwatch-spend.json, of-old.json" in capsys.readouterr().err
    assert build.main(["--write"]) == 0
    assert build.main(["--check"]) == 0
    assert build.main([]) == 2


def test_the_uids_are_stable():
    names = ("agent", "guard", "overview", "runs", "spend", "tools")
    assert [read(path)["uid"] for path in PATHS] == [f"loopwatch-{name}" for name in names]


def test_it_is_valid_for_grafana_13(dashboard, schema):
    assert complaints(schema, dashboard) == []


def test_the_schema_finds_what_grafanalib_writes(schema):
    raw = json.loads(json.dumps(build.overview.DASHBOARD.to_json_data(), cls=build.DashboardEncoder))
    assert len(complaints(schema, raw)) >= 3
    wrong = read(PATHS[0])
    wrong["panels"][1]["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] = "null"
    assert complaints(schema, wrong)


def test_it_keeps_the_rules(dashboard):
    assert list(problems(dashboard)) == []


def first(dashboard: dict, kind: str) -> dict:
    return next(panel for panel in dashboard["panels"] if panel["type"] == kind)


def ask(expr: str):
    def change(dashboard: dict) -> None:
        first(dashboard, "timeseries")["targets"][0]["expr"] = expr

    return change


SCOPED = '{job=~"$job"}'
MISTAKES = {
    "is editable": lambda d: d.update(editable=True),
    "has id": lambda d: d.update(id=26),
    "has no description": lambda d: d.update(description=""),
    "data source variables": lambda d: d["templating"]["list"].pop(0),
    "no variable job": lambda d: d["templating"]["list"].pop(2),
    "does not reload": lambda d: d["templating"]["list"][2].update(refresh=1),
    "job has no All": lambda d: d["templating"]["list"][2].update(allValue=None),
    "job asks for": lambda d: d["templating"]["list"][2].update(query="label_values(up, instance)"),
    "two panels have the title": lambda d: d["panels"][1].update(title=d["panels"][2]["title"]),
    "lie on each other": lambda d: d["panels"][1].update(gridPos=d["panels"][2]["gridPos"]),
    "outside of the grid": lambda d: d["panels"][1]["gridPos"].update(w=25),
    "no title or no description": lambda d: d["panels"][1].pop("description"),
    "no unit": lambda d: first(d, "timeseries")["fieldConfig"]["defaults"].pop("unit"),
    "says nothing": lambda d: d["panels"][1]["fieldConfig"]["defaults"].pop("noValue"),
    "another data source": lambda d: d["panels"][1]["datasource"].update(uid="prometheus"),
    "no query": lambda d: d["panels"][1].update(targets=[]),
    "a bare counter": ask("loopwatch_spend_usd_total" + SCOPED),
    "no job": ask("loopwatch_runs_active"),
    "divides by": ask(f"sum(loopwatch_runs_active{SCOPED}) / sum(loopwatch_runs_active{SCOPED})"),
    "a rate of another interval": ask(f"rate(loopwatch_spend_usd_total{SCOPED}[5m])"),
    "a graph of the whole range": ask(f"increase(loopwatch_spend_usd_total{SCOPED}[$__range])"),
    "sum(": ask("sum("),
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_each_rule_finds_its_mistake(problem):
    wrong = read(queries.GENERATED / "loopwatch-overview.json")
    MISTAKES[problem](wrong)
    assert [found for found in problems(wrong) if problem in found]


def names_of(expr: str) -> set[str]:
    return {selector.name for selector in selectors(expr)}


def test_every_metric_and_label_exists():
    histograms = {
        m.prometheus + suffix for m in semconv.METRICS if m.buckets for suffix in ("_bucket", "_sum", "_count")
    }
    exist = histograms | {m.prometheus for m in semconv.METRICS if not m.buckets} | RECORDED | {"ALERTS"}
    labels = {m.prometheus: set(m.labels) for m in semconv.METRICS}
    seen = 0
    for query in queries.queries():
        for selector in selectors(query.expr):
            seen += 1
            assert selector.name in exist, query
            base = re.sub("_(bucket|sum|count)$", "", selector.name)
            if base in labels:
                used = {matcher.name for matcher in selector.matchers.matchers}
                assert used <= labels[base] | {"job"}, query
    assert seen > 150


def test_every_metric_is_on_a_dashboard():
    shown = set().union(*(names_of(query.expr) for query in queries.queries()))
    recorded = {rule["record"]: rule["expr"] for rule in ENTRIES if "record" in rule}
    while more := set().union(*(names_of(recorded[name]) for name in shown & RECORDED)) - shown:
        shown |= more
    bare = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert {m.prometheus for m in semconv.METRICS} - bare == set()


def test_every_alert_has_its_series_on_a_dashboard():
    # What comes with a later release (the ledger), and what no panel of ours can show (that a target is gone).
    elsewhere = {"LoopwatchLedgerDown", "LoopwatchLedgerErrors", "LoopwatchTargetDown", "LoopwatchWatchdog"}
    # The collector's own figures, which a fleet that is scraped has not.
    elsewhere |= {"LoopwatchCollectorDown", "LoopwatchCollectorLosing"}
    shown = set().union(*(names_of(query.expr) for query in queries.queries()))
    for name in ALERTS.keys() - elsewhere:
        assert names_of(ALERTS[name]["expr"]) & shown, name


def test_every_link_of_an_alert_leads_to_a_dashboard_and_its_variables():
    variables = {read(path)["uid"]: {v["name"] for v in read(path)["templating"]["list"]} for path in PATHS}
    linked = {
        alert["annotations"]["dashboard_url"] for alert in ALERTS.values() if "dashboard_url" in alert["annotations"]
    }
    assert len(linked) >= 5
    for url in linked:
        uid = re.search(r"/d/([a-z-]+)", url)[1]
        assert set(re.findall(r"var-(\w+)=", url)) <= variables[uid], url


def limits(panel: dict) -> list[float]:
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def compared() -> dict[float, set[str]]:
    """Every number that an alert compares something with -> the series in the alerts that do."""
    found: dict[float, set[str]] = {}
    for alert in ALERTS.values():
        for number in re.findall(r"[<>]=? ([0-9.]+)\b(?! \*)", alert["expr"]):
            found.setdefault(float(number), set()).update(names_of(alert["expr"]))
    return found


def test_the_lines_of_panels_are_those_of_alerts(dashboard):
    series_at = compared()
    drawn = 0
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        series = set().union(
            *(names_of(queries.substituted(target["expr"], queries.DEFAULTS)) for target in panel["targets"])
        )
        for limit in limits(panel):
            drawn += 1
            assert series & series_at.get(limit, set()), (panel["title"], limit)
    assert drawn >= 5


def test_a_threshold_that_is_changed_moves_its_line(monkeypatch):
    changed = {"spend_per_hour": export.Threshold(7, "USD per hour", "of this test")}
    monkeypatch.setattr(export, "thresholds", lambda: changed)
    panel = panels.stat("t", "d", "vector(1)", limits=("spend_per_hour",))
    assert [(step.color, step.value) for step in panel.thresholds] == [("green", 0.0), ("red", 7.0)]


def test_traces_can_be_reached_from_every_dashboard_of_agents():
    for path in PATHS:
        dashboard = read(path)
        if dashboard["uid"] == "loopwatch-guard":
            continue
        urls = [
            link["url"]
            for panel in dashboard["panels"]
            for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", [])
        ]
        assert urls, path
        for url in urls:
            panes = json.loads(re.search("panes=(.*)", url)[1])
            assert panes["a"]["datasource"] == "${traces}"
        exemplars = [
            target for panel in dashboard["panels"] for target in panel.get("targets", []) if target.get("exemplar")
        ]
        assert all("_bucket" in target["expr"] for target in exemplars)
        assert bool(exemplars) == (dashboard["uid"] not in {"loopwatch-overview", "loopwatch-tools"})


def test_detections_and_deploys_are_marked(dashboard):
    marks = {annotation["name"]: annotation["target"]["expr"] for annotation in dashboard["annotations"]["list"]}
    assert marks.keys() == {"Loops", "Deploys", "Alerts"}
    for expr in marks.values():
        assert promql_parser.parse(queries.substituted(expr, queries.DEFAULTS))


def test_a_variable_that_nobody_fills_in_is_an_error():
    with pytest.raises(KeyError, match="nobody"):
        queries.substituted('up{job="$nobody"}', queries.DEFAULTS)
