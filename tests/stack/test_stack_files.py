"""docker-compose.yml and the files that it mounts: no engine runs here, so that this is what can be said of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import local_stack
import pytest
import yaml
from local_stack import LocalStack, shorter, shorter_expression, shorter_rules
from stack_parts import ROOT

from otel_loopwatch import semconv

pytestmark = pytest.mark.project

COMPOSE_FILE = ROOT / "docker-compose.yml"
COMPOSE = yaml.safe_load(COMPOSE_FILE.read_text())
SERVICES = COMPOSE["services"]
STACK = ROOT / "stack"
COLLECTOR = yaml.safe_load((STACK / "collector.yaml").read_text())
DATA_SOURCES = yaml.safe_load((STACK / "grafana/provisioning/datasources/loopwatch.yml").read_text())["datasources"]

UNASKED = {
    "demo": "ends, and is started again, where something is wrong",
    "collector": "its image has no program that could ask",
}
"""Services without a health check, and why."""


@pytest.fixture(scope="module")
def tools():
    """The module .ci/stack."""
    loader = SourceFileLoader("ci_stack", str(ROOT / ".ci" / "stack"))
    spec = spec_from_loader("ci_stack", loader)
    module = module_from_spec(spec)
    # A dataclass looks its module up.
    sys.modules["ci_stack"] = module
    loader.exec_module(module)
    return module


# --- docker-compose.yml ---


def test_compose_is_valid_by_its_schema():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE_FILE)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_private_and_watched(name):
    service = SERVICES[name]
    image = service.get("image") or (ROOT / service["build"]["dockerfile"]).read_text().partition("FROM ")[2].split()[0]
    assert re.search(r":v?\d+\.\d+\.\d+(-[a-z]+)?$", image), image
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for volume in service.get("volumes", ()):
        source, _target, *mode = volume.split(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            # Read only, and readable where SELinux keeps containers from files.
            assert mode == ["ro,z"], volume
        else:
            assert source in COMPOSE["volumes"]
    assert not re.search("password|secret", str(service.get("environment", "")), re.IGNORECASE)
    assert ("healthcheck" in service) != (name in UNASKED)


def test_images_are_of_the_releases_that_the_tests_run(tools):
    images = {name: SERVICES[name]["image"].rpartition(":")[2].removeprefix("v") for name in SERVICES if name != "demo"}
    versions = {part.name: part.version for part in tools.PARTS}
    assert images["collector"] == versions["otelcol"]
    assert images["prometheus"] == versions["prometheus"]
    assert images["alertmanager"] == versions["alertmanager"]


def test_each_address_in_the_files_is_a_service():
    texts = [path.read_text() for path in (STACK / "prometheus.yml", STACK / "alertmanager.yml", COMPOSE_FILE)]
    texts += [
        (STACK / "collector.yaml").read_text(),
        (STACK / "grafana/provisioning/datasources/loopwatch.yml").read_text(),
    ]
    named = {host for text in texts for host in re.findall(r"\b([a-z][a-z.-]+):\d{4,5}\b", text)}
    assert named - {"localhost", "host.docker.internal"} <= set(SERVICES)
    assert {"collector", "prometheus", "alertmanager", "pages", "traces"} <= named


# --- what the programs say of their files ---


def test_prometheus_accepts_its_files(has_programs, tmp_path):
    shutil.copy(STACK / "prometheus.yml", tmp_path)
    shutil.copytree(STACK / "targets", tmp_path / "targets")
    shutil.copy(ROOT / "alerts" / "loopwatch.rules.yml", tmp_path)
    promtool = str(local_stack.programs()["promtool"])
    command = [promtool, "check", "config", "--lint=all", "--lint-fatal", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alertmanager_accepts_its_file(has_programs):
    amtool = str(local_stack.programs()["amtool"])
    command = [amtool, "check-config", str(STACK / "alertmanager.yml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=LoopwatchToolCallsPerRunJump", "severity=critical"], "pager"),
        (["alertname=LoopwatchToolLooping", "severity=warning"], "chat"),
        (["alertname=LoopwatchWatchdog", "severity=none"], "dead-man"),
    ],
    ids=["critical", "warning", "watchdog"],
)
def test_who_is_told(has_programs, labels, receiver):
    amtool = str(local_stack.programs()["amtool"])
    command = [amtool, "config", "routes", "test", f"--config.file={STACK / 'alertmanager.yml'}", *labels]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == receiver


def test_each_inhibition_silences_an_alert_that_there_is():
    groups = yaml.safe_load((ROOT / "alerts" / "loopwatch.rules.yml").read_text())["groups"]
    labels = [
        rule["labels"] | {"alertname": rule["alert"]} for group in groups for rule in group["rules"] if "alert" in rule
    ]

    def matched(matchers: list[str]) -> list[dict[str, str]]:
        asked = [re.fullmatch(r'(\w+)=~?"(.*)"', matcher).groups() for matcher in matchers]
        return [each for each in labels if all(re.fullmatch(value, each[name]) for name, value in asked)]

    for rule in yaml.safe_load((STACK / "alertmanager.yml").read_text())["inhibit_rules"]:
        # Job and agent are those of the series; the others an alert has from its rule.
        equal = [name for name in rule["equal"] if name not in {"job", "agent"}]
        sources = {tuple(each[name] for name in equal) for each in matched(rule["source_matchers"])}
        targets = {tuple(each[name] for name in equal) for each in matched(rule["target_matchers"])}
        assert sources
        assert sources <= targets


def test_the_collector_accepts_its_file(has_programs):
    otelcol = str(local_stack.programs()["otelcol"])
    command = [otelcol, "validate", f"--config={STACK / 'collector.yaml'}"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_collector_keeps_what_is_ours_and_no_content():
    redaction = COLLECTOR["processors"]["redaction"]
    blocked = [re.compile(pattern) for pattern in redaction["blocked_key_patterns"]]

    def is_blocked(key: str) -> bool:
        return key not in redaction["ignored_keys"] and any(pattern.search(key) for pattern in blocked)

    content = {
        semconv.GEN_AI_TOOL_CALL_ARGUMENTS,
        semconv.GEN_AI_TOOL_CALL_RESULT,
        semconv.ADK_TOOL_CALL_ARGS,
        semconv.ADK_TOOL_RESPONSE,
        semconv.OPENINFERENCE_INPUT,
        semconv.OPENINFERENCE_OUTPUT,
        semconv.TRACELOOP_INPUT,
        semconv.TRACELOOP_OUTPUT,
        semconv.EVENT_CONTENT,
        semconv.EVENT_MESSAGE,
        semconv.EXCEPTION_MESSAGE,
    }
    # Every other attribute that we know of is a name, a number or a hash.
    known = {
        value
        for name, value in vars(semconv).items()
        if name.isupper() and isinstance(value, str) and "." in value and "{" not in value
    } | {semconv.EVENT_CONTENT, semconv.EVENT_MESSAGE}
    assert {key for key in known if is_blocked(key)} == content
    for key in ("llm.input_messages.0.message.content", "gen_ai.prompt.0.content", "gen_ai.input.messages"):
        assert is_blocked(key), key


def test_a_link_of_grafana_leads_to_a_data_source():
    uids = {source["uid"] for source in DATA_SOURCES}
    links = [
        link["datasourceUid"]
        for source in DATA_SOURCES
        for link in source.get("jsonData", {}).get("exemplarTraceIdDestinations", ())
    ]
    assert links
    assert set(links) <= uids


# --- the shorter files of the tests ---


def test_durations_are_divided():
    assert shorter("5m", 120) == "2500ms"
    assert shorter("1h30m", 60) == "90000ms"
    assert shorter("10s", 120) == "500ms"
    expression = "sum_over_time(a[23h59m59s:5m]) > max_over_time(a[1m] offset 10m) and b offset 1h"
    assert shorter_expression(expression, 120) == (
        "sum_over_time(a[719992ms:2500ms]) > max_over_time(a[2000ms] offset 5000ms) and b offset 30000ms"
    )


def test_no_duration_of_the_rules_is_left_and_no_threshold_is_changed():
    shipped = yaml.safe_load((ROOT / "alerts" / "loopwatch.rules.yml").read_text())
    rules = shorter_rules(yaml.safe_load((ROOT / "alerts" / "loopwatch.rules.yml").read_text()), 120)
    durations = re.compile(r"\[[^\]]*\]|offset \S+")
    for group, before in zip(rules["groups"], shipped["groups"], strict=True):
        for rule, old in zip(group["rules"], before["rules"], strict=True):
            assert durations.sub("", rule["expr"]) == durations.sub("", old["expr"])
            assert not re.search(r"\[[^\]]*\d(s|m|h|d)\b", rule["expr"].replace("ms", ""))


def test_an_address_that_is_not_known_is_a_fault(has_programs, tmp_path):
    """A target that somebody adds to prometheus.yml must not be scraped from a test."""
    stack = LocalStack(tmp_path, factor=120)
    stack.pages.close()
    for name in ("prometheus.yml", "alertmanager.yml"):
        written = (tmp_path / name).read_text()
        hosts = set(re.findall(r"\b([a-z0-9.-]+):\d{4,5}\b", written))
        assert hosts == {"127.0.0.1"}, name
