"""The alert rules: what Prometheus says of them, and what holds between rules, thresholds, tests and runbooks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from otel_loopwatch import export, semconv
from otel_loopwatch.commands import app
from otel_loopwatch.errors import LoopwatchError
from otel_loopwatch.export import export_alerts, parse_settings, render, thresholds

pytestmark = pytest.mark.project

ROOT = Path(__file__).parent.parent
ALERTS = ROOT / "alerts"
SOURCE = (ALERTS / "rules.in.yml").read_text()
RULES = [rule for group in yaml.safe_load(render())["groups"] for rule in group["rules"]]
RECORDED = {rule["record"]: rule for rule in RULES if "record" in rule}
ALERT = {rule["alert"]: rule for rule in RULES if "alert" in rule}
UNIT_TESTS = sorted((ALERTS / "tests").glob("*.yml"))
RUNBOOKS = {path.stem: path.read_text() for path in sorted((ALERTS / "runbooks").glob("*.md"))}
DASHBOARDS = {f"loopwatch-{name}" for name in ("overview", "agent", "tools", "spend", "runs", "guard")}

LATER = {"loopwatch_ledger_up": {"backend"}, "loopwatch_ledger_errors_total": {"backend"}}
"""Metrics of the design that a later part feeds. One that is in semconv must go from here."""


@cache
def promtool() -> str:
    """That of `make stack`, else that of the system."""
    made = ROOT / ".stack" / "bin" / "promtool"
    found = str(made) if made.exists() else shutil.which("promtool")
    if not found:
        pytest.skip("promtool is not here: make stack, or apt-get install prometheus")
    return found


def run_promtool(*arguments: object, cwd: Path = ALERTS) -> subprocess.CompletedProcess[str]:
    command = [promtool(), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def source_of(alert: str) -> str:
    return re.search(rf"- alert: {alert}\n.*?(?=\n      (?:#|- alert)|\n  - name|\Z)", SOURCE, re.DOTALL)[0]


# --- what Prometheus says -------------------------------------------------------------------------------------------


def test_the_committed_rules_are_what_their_sources_make():
    assert (ALERTS / "loopwatch.rules.yml").read_text() == render(), "run: python alerts/build.py --write"


def test_promtool_has_no_complaint():
    ran = run_promtool("check", "rules", "--lint=all", "--lint-fatal", "loopwatch.rules.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(RULES)} rules found" in ran.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_the_unit_tests_of_the_rules(path):
    ran = run_promtool("test", "rules", path.name, cwd=path.parent)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["calls", "guard", "loops", "runs", "spend"])
def test_the_unit_tests_notice_thresholds_that_are_never_reached(name, tmp_path):
    never = {key: (it.value or 1) * 100 for key, it in thresholds().items() if it.unit != "URL"}
    (tmp_path / "loopwatch.rules.yml").write_text(render(never))
    (tmp_path / "tests").mkdir()
    path = shutil.copy(ALERTS / "tests" / f"{name}.yml", tmp_path / "tests")
    ran = run_promtool("test", "rules", Path(path).name, cwd=tmp_path / "tests")
    assert ran.returncode != 0
    unnoticed = {
        alert
        for alert in fired(Path(path))
        if "<<" in source_of(alert).partition("annotations:")[0].replace("<<increase", "")
        and f"alertname: {alert}, " not in ran.stdout + ran.stderr
    }
    assert unnoticed == set()


def unit_tests(path: Path) -> list[dict]:
    return yaml.safe_load(path.read_text())["tests"]


def fired(path: Path) -> set[str]:
    return {
        check["alertname"]
        for test in unit_tests(path)
        for check in test.get("alert_rule_test", [])
        if check["exp_alerts"]
    }


@pytest.mark.parametrize("alert", ALERT)
def test_every_alert_is_shown_quiet_pending_firing_and_resolved(alert):
    checks = [
        (test, check)
        for path in UNIT_TESTS
        for test in unit_tests(path)
        for check in test.get("alert_rule_test", [])
        if check["alertname"] == alert
    ]
    firing = [(test, check) for test, check in checks if check["exp_alerts"]]
    assert firing, "no unit test in which it fires"
    for _, check in firing:
        for expected in check["exp_alerts"]:
            assert set(expected["exp_annotations"]) == set(ALERT[alert]["annotations"])
    if alert == "LoopwatchWatchdog":
        return
    assert [check for _, check in checks if not check["exp_alerts"]], "no unit test in which it is quiet"
    # Of a baseline or a day, the end of an incident is a day away.
    if alert not in RESOLVES_LATE:
        assert any(
            minutes(quiet["eval_time"]) > minutes(check["eval_time"])
            for test, check in firing
            for quiet in test["alert_rule_test"]
            if quiet["alertname"] == alert and not quiet["exp_alerts"]
        ), "no unit test in which it is over"
    if minutes(ALERT[alert].get("for", "0m")) >= 5 and alert not in RESOLVES_LATE:
        pending = f'alertname="{alert}", alertstate="pending"'
        assert any(pending in expr["expr"] for test, _ in firing for expr in test.get("promql_expr_test", []))


RESOLVES_LATE = {
    "LoopwatchSpendDayHigh",
    "LoopwatchSpendDayJump",
    "LoopwatchToolCallsPerRunJumpSlow",
}


def minutes(duration: str) -> float:
    unit = {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}
    return sum(int(number) * unit[suffix] for number, suffix in re.findall(r"(\d+)([smhd])", str(duration)))


# --- names and labels -----------------------------------------------------------------------------------------------


def series() -> dict[str, set[str]]:
    """Every name that Prometheus may have of ours, with its labels."""
    known: dict[str, set[str]] = {}
    for metric in semconv.METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for suffix in suffixes:
            known[metric.prometheus + suffix] = {*metric.labels, *(["le"] if suffix == "_bucket" else [])}
    assert not LATER.keys() & known, "it is in semconv now: take it from LATER"
    return known | LATER


def queries() -> list[tuple[str, str]]:
    rules = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]
    return rules + [(name, query) for name, text in RUNBOOKS.items() for query in promql(text)]


def promql(text: str) -> list[str]:
    return re.findall(r"```promql\n(.*?)\n```", text, re.DOTALL)


def test_every_metric_is_one_of_ours_and_has_the_labels_that_are_asked_for():
    known = series()
    for name, query in queries():
        plain = re.sub(r'"[^"]*"', '""', query)
        for used in re.findall(r"[a-z_]*:?loopwatch[a-z0-9_:]*", plain):
            assert used in known or used in RECORDED, f"{name}: {used}"
        for used, matchers in re.findall(r"(loopwatch_\w+)\{([^}]*)\}", plain):
            if used in known:
                labels = set(re.findall(r"(\w+)[=!]", matchers))
                assert labels <= known[used] | {"job", "instance"}, f"{name}: {used}"
                assert "le" not in labels, f"{name}: the text of le differs between the roads that a metric comes by"


def test_no_rule_compares_a_raw_counter():
    for metric in semconv.METRICS:
        for suffix in {"counter": ("",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ()}[metric.kind]:
            for rule in RULES:
                for use in re.finditer(rf"(?<![\w:]){metric.prometheus}{suffix}(?![\w:])", rule["expr"]):
                    before = rule["expr"][: use.start()]
                    assert before.endswith(("increase(", "max_over_time(", "last_over_time(", "resets(")), rule


def test_no_label_is_of_a_single_run():
    assert not re.search(r"\b(run_id|trace_id|args_hash|user_id)\b", render())


@pytest.mark.parametrize("alert", ALERT)
def test_an_alert_says_what_is_wrong_and_where_to_look(alert):
    rule = ALERT[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info", "none")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert rule["annotations"]["runbook_url"].endswith(f"/{alert}")
    assert re.search(r"/d/([a-z-]+)", rule["annotations"]["dashboard_url"])[1] in DASHBOARDS
    assert "$value" not in str(rule["labels"])


# --- runbooks -------------------------------------------------------------------------------------------------------


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    assert set(RUNBOOKS) == set(ALERT)


@pytest.mark.parametrize("alert", RUNBOOKS)
def test_a_runbook_answers_the_five_questions_and_names_the_thresholds(alert):
    text = RUNBOOKS[alert]
    assert re.findall(r"^#+ (.*)$", text, re.MULTILINE) == [
        *[alert, "Meaning", "Impact", "Diagnosis", "Mitigation", "False positives"]
    ]
    assert promql(text)
    expression = re.search(r"expr:.*?(?=\n        (?:for|keep_firing_for|labels):)", source_of(alert), re.DOTALL)[0]
    for name in re.findall(r"<<(\w+)>>", expression):
        # A threshold of 0 means "any", and needs no name.
        if thresholds()[name].value:
            assert f"`{name}`" in text, name
    for linked in re.findall(r"\]\((\w+)\.md\)", text):
        assert linked in RUNBOOKS
    for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text):
        assert name in thresholds() or name in OTHER_WORDS, name


OTHER_WORDS = {
    *["max_tool_calls", "max_spend_usd", "max_seconds", "max_tokens", "ignore_args", "on_verdict", "watch_run"],
    *["error_streak", "no_progress", "poll_stalled", "unknown_tool", "loop_detected", "ledger_down", "loop_key"],
    *["infra_error", "on_unpriced", "cached_input", "prometheus_port", "otel_loopwatch", "loopwatch_build_info"],
}


def test_every_query_of_the_runbooks_is_promql(tmp_path):
    rules = [
        {"record": f"q{number}:{name}:x", "expr": query}
        for number, (name, query) in enumerate((n, q) for n, text in RUNBOOKS.items() for q in promql(text))
    ]
    assert len(rules) > 2 * len(RUNBOOKS)
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    ran = run_promtool("check", "rules", path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- thresholds and export ------------------------------------------------------------------------------------------


def test_every_threshold_is_used_and_says_where_it_comes_from():
    marks = set(re.findall(r"<<(\w+)>>", re.sub("^#.*$", "", SOURCE, flags=re.MULTILINE)))
    assert marks == set(thresholds())
    assert all(threshold.unit and threshold.why for threshold in thresholds().values())


def test_the_documentation_lists_every_threshold_and_alert():
    text = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*?) \|$", text, re.MULTILINE)
    assert rows == [(name, f"{it.value}", it.unit) for name, it in thresholds().items()]
    assert re.findall(r"^\| \[(\w+)\]", text, re.MULTILINE) == list(ALERT)


def test_a_threshold_of_ones_own_is_in_the_expression_and_in_the_text():
    changed = {
        rule["alert"]: rule
        for group in yaml.safe_load(render(parse_settings(["spend_per_hour=12.5"])))["groups"]
        for rule in group["rules"]
        if "alert" in rule and rule != ALERT[rule["alert"]]
    }
    assert list(changed) == ["LoopwatchSpendRateHigh"]
    assert changed["LoopwatchSpendRateHigh"]["expr"].endswith("> 12.5")
    assert "alerts above 12.5 USD" in changed["LoopwatchSpendRateHigh"]["annotations"]["description"]


@pytest.mark.parametrize("name", [name for name, it in thresholds().items() if it.unit != "URL"])
def test_every_threshold_can_be_set(name):
    assert render(parse_settings([f"{name}=1234.5"])).count("1234.5") >= 1


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("spend_per_hour", "write it as name=value"),
        ("spend_per_hou=3", "there is spend_per_hour"),
        ("nothing=3", "there is no threshold 'nothing'"),
        ("spend_per_hour=much", "a number, 0 or more"),
        ("spend_per_hour=-1", "a number, 0 or more"),
        ("spend_per_hour=nan", "a number, 0 or more"),
        ("spend_per_hour=inf", "a number, 0 or more"),
        ("spend_per_hour=", "a number, 0 or more"),
        ("grafana_url=ftp://x", "an address"),
        ("grafana_url=http://x/'}} {{", "an address"),
        ("grafana_url=http://x\n  - alert: y", "an address"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(setting, says):
    with pytest.raises(LoopwatchError, match=re.escape(says)):
        parse_settings([setting])


def test_export_for_prometheus(tmp_path):
    ran = CliRunner().invoke(
        app, ["export", "alerts", str(tmp_path / "new"), "--set", "grafana_url=https://g.example/"]
    )
    assert ran.exit_code == 0, ran.output
    written = [Path(line) for line in ran.stdout.splitlines()]
    assert written[0] == tmp_path / "new" / "loopwatch.rules.yml"
    assert {path.stem for path in written[1:]} == set(ALERT)
    assert all(path.is_file() for path in written)
    text = written[0].read_text()
    assert "dashboard_url: https://g.example/d/loopwatch-guard" in text
    assert "localhost" not in text
    checked = run_promtool("check", "rules", "--lint=all", "--lint-fatal", written[0])
    assert checked.returncode == 0, checked.stderr


def test_export_for_the_operator(tmp_path):
    arguments = [str(tmp_path), "--format", "operator", "--label", "release=prometheus", "--label", "a.b/c=d"]
    ran = CliRunner().invoke(app, ["export", "alerts", *arguments])
    assert ran.exit_code == 0, ran.output
    rule = yaml.safe_load((tmp_path / "loopwatch.prometheusrule.yml").read_text())
    assert rule == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "loopwatch", "labels": {"release": "prometheus", "a.b/c": "d"}},
        "spec": yaml.safe_load(render()),
    }


def test_export_of_the_dashboards(tmp_path):
    ran = CliRunner().invoke(app, ["export", "dashboards", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert {Path(line).stem for line in ran.stdout.splitlines()} == DASHBOARDS
    for name in DASHBOARDS:
        committed = ROOT / "dashboards" / "generated" / f"{name}.json"
        assert (tmp_path / f"{name}.json").read_text() == committed.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--label", "a=b"], "labels are for the format operator"),
        (["--format", "operator", "--label", "a"], "write it as name=value"),
        (["--format", "operator", "--label", 'a="'], "is no label of Kubernetes"),
        (["--set", "x=1"], "there is no threshold"),
    ],
)
def test_an_export_that_cannot_be_writes_nothing(arguments, says, tmp_path):
    ran = CliRunner().invoke(app, ["export", "alerts", str(tmp_path / "out"), *arguments])
    assert isinstance(ran.exception, LoopwatchError)
    assert says in str(ran.exception)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LoopwatchError, match="nothing can be written to"):
        export_alerts(tmp_path / "file")


def test_a_format_that_is_none_is_refused(tmp_path):
    with pytest.raises(LoopwatchError, match="there is prometheus, operator"):
        export_alerts(tmp_path, form="nagios")


def test_export_works_from_an_installed_wheel(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    subprocess.run([*build, ROOT], check=True, stdin=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
from pathlib import Path
from otel_loopwatch.export import bundled, export_alerts, export_dashboards
assert bundled("alerts").is_relative_to({str(tmp_path)!r}), bundled("alerts")
print(len(export_alerts(Path({str(tmp_path / "out")!r}))), len(export_dashboards(Path({str(tmp_path / "out")!r}))))
"""
    ran = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == f"{1 + len(ALERT)} {len(DASHBOARDS)}\n", ran.stderr
    assert (tmp_path / "out" / "loopwatch.rules.yml").read_text() == render()


def test_an_installation_without_the_files_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(export, "__file__", str(tmp_path / "otel_loopwatch" / "export.py"))
    with pytest.raises(LoopwatchError, match="no folder 'alerts'"):
        thresholds()
