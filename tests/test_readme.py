"""What the README shows is true: its examples run, its commands are there, its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from otel_loopwatch import dialects, semconv
from otel_loopwatch.policy import PRESETS, Budgets, LoopRules, Policy
from otel_loopwatch.policy_file import loads

pytestmark = pytest.mark.project

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"(<!-- python: not run -->\n)?^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [code for not_run, language, code in BLOCKS if language == "python" and not not_run]


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_an_example_runs(code, tmp_path):
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    # Findings are logged, and Python prints a warning that nobody handles.
    assert [line for line in ran.stderr.splitlines() if not line.startswith("otel-loopwatch: ")] == []


def test_the_first_example_does_what_is_said_below_it(tmp_path):
    ran = subprocess.run([sys.executable, "-c", PYTHON[0]], capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("nothing", "[loop", "loop_"))]
    assert [line.split()[0] for line in lines] == ["nothing"] * 2 + ["[loop-detected]"] * 2 + ["loop_detected"]


def test_the_policy_files_load():
    files = [code for _, language, code in BLOCKS if language == "yaml"]
    assert files
    for code in files:
        assert isinstance(loads(code), Policy)


def test_the_first_screen_shows_both_commands():
    first_screen = "\n".join(TEXT.splitlines()[:25])
    for command in ("make demo", "make test", "pip install otel-loopwatch"):
        assert command in first_screen


def test_the_commands_are_there():
    shown = TEXT + (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)(?=`|\s+#|$)", shown, re.MULTILINE)) <= targets
    for command in set(re.findall(r"^loopwatch ([a-z]+)", shown, re.MULTILINE)):
        ran = subprocess.run([sys.executable, "-m", "otel_loopwatch", command, "--help"], capture_output=True)
        assert ran.returncode == 0, command


def test_links_to_files_are_not_broken():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("rule, default", re.findall(r"`(\w+)` \((\d+)(?: %)?\)", TEXT))
def test_the_defaults_are_those_of_the_code(rule, default):
    owner = LoopRules() if hasattr(LoopRules(), rule) else Budgets()
    value = getattr(owner, rule)
    assert (round(value * 100) if rule == "warn_at" else value) == int(default)


def presets_table() -> list[str]:
    rows = ["| preset | repeats | action | budgets |", "|---|---|---|---|"]
    for name, policy in PRESETS.items():
        limits = [
            f"{item.name} {value:g}" if isinstance(value, float) else f"{item.name} {value}"
            for item in fields(Budgets)
            if (value := getattr(policy.budgets, item.name)) is not None and item.name not in ("warn_at", "on_unpriced")
        ]
        rows.append(
            f"| `{name}` | {policy.loops.max_repeats} | {policy.loops.action} | {', '.join(limits) or 'none'} |"
        )
    return rows


def attributes_table() -> list[str]:
    rows = ["| name | |", "|---|---|"]
    for constant, name in vars(semconv).items():
        if isinstance(name, str) and constant.isupper() and name.startswith("loopwatch."):
            rows.append(f"| `{name}` | {'event' if constant.startswith('EVENT_') else 'attribute'} |")
    return rows


def metrics_table() -> list[str]:
    rows = ["| metric | in Prometheus | kind | labels | |", "|---|---|---|---|---|"]
    for metric in semconv.METRICS:
        labels = ", ".join(metric.labels) or "none"
        rows.append(f"| `{metric.name}` | `{metric.prometheus}` | {metric.kind} | {labels} | {metric.description} |")
    return rows


def test_the_tables_are_those_of_the_code():
    text = README.read_text()
    for name, table in (("presets", presets_table()), ("attributes", attributes_table()), ("metrics", metrics_table())):
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        head, found, rest = text.partition(begin)
        written, ended, tail = rest.partition(end)
        assert found
        assert ended
        if os.environ.get("LOOPWATCH_WRITE_README"):
            written = "\n".join(table)
            text = head + begin + written + end + tail
            README.write_text(text)
        assert written.splitlines() == table


def names_table() -> list[str]:
    """The names by which other libraries' spans are read."""
    facts = {
        "kind of the span": tuple(dialects.KINDS),
        "tool": dialects.TOOL_NAME,
        "arguments": dialects.ARGUMENTS,
        "result": dialects.RESULT,
        "id of the call": dialects.CALL_ID,
        "agent": dialects.AGENT_NAME,
        "conversation": dialects.CONVERSATION,
        "model": dialects.MODEL,
        "provider": dialects.PROVIDER,
        "cost in USD": dialects.COST,
    }
    for fact, field in (
        ("input tokens", "input"),
        ("output tokens", "output"),
        ("tokens read from a cache", "cache_read"),
        ("tokens written to a cache", "cache_write"),
        ("reasoning tokens", "reasoning"),
    ):
        facts[fact] = tuple(name for family in dialects.TOKENS for name in getattr(family, field))
    return ["| fact | attributes |", "|---|---|"] + [
        f"| {fact} | {', '.join(f'`{name}`' for name in names)} |" for fact, names in facts.items()
    ]


def test_d10_the_documented_names_are_those_that_are_read():
    page = ROOT / "docs" / "spans.md"
    begin, end = "<!-- names -->\n", "\n<!-- /names -->"
    head, found, rest = page.read_text().partition(begin)
    written, ended, tail = rest.partition(end)
    assert found
    assert ended
    if os.environ.get("LOOPWATCH_WRITE_README"):
        written = "\n".join(names_table())
        page.write_text(head + begin + written + end + tail)
    assert written.splitlines() == names_table()
