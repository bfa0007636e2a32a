"""From a decorated agent to the page: collector, Prometheus with the shipped rules, Alertmanager, webhook. All real."""

from __future__ import annotations

import re
import sys
import time

import pytest
import yaml
from local_stack import LocalStack, shorter_rules, wait_until
from stack_parts import FACTOR, Agents, plain

from otel_loopwatch import export, semconv

pytestmark = [pytest.mark.project, pytest.mark.timeout(240)]

JUMP = "LoopwatchToolCallsPerRunJump"
CONTROL = "ControlToolCallsPerRunJump"
MEAN = "agent:loopwatch_run_tool_calls:mean5m"
BASELINE = "agent:loopwatch_run_tool_calls:median1d_mean5m"


def test_the_morning_of_the_seed_pages_and_resolves(morning):
    """3 calls a run became 28: no page before it, the one page with its labels and text, and it resolves."""
    stack, agents, agent = morning
    assert not stack.pages.those()
    began = time.monotonic()
    agents("steady", agent=agent, calls=28)
    page = stack.pages.wait_for(JUMP, agent=agent)
    took_s = time.monotonic() - began
    assert page.receiver == "pager"
    assert page.labels == {
        "alertname": JUMP,
        "agent": agent,
        "job": "morning",
        "severity": "critical",
        "component": "agent",
    }
    assert re.search(rf"Agent {agent} makes [\d.]+ tool calls per run", page.annotations["summary"])
    assert page.annotations["runbook_url"].endswith(JUMP)
    assert page.annotations["dashboard_url"].endswith(f"/d/loopwatch-agent?var-agent={agent}")
    # 10 minutes, as everything here is shortened, and what the machine takes.
    assert took_s < 10 * 60 / 120 + 10
    recovered = time.monotonic()
    agents("steady", agent=agent, calls=3)
    resolved = stack.pages.wait_for(JUMP, "resolved", agent=agent)
    assert resolved.labels == page.labels
    resolved_s = resolved.at - recovered
    sys.stderr.write(f"incident -> page {took_s:.1f} s, recovery -> resolved {resolved_s:.1f} s\n")
    # The same incident against a threshold a hundred times as high: it is the threshold that pages.
    assert not stack.pages.those(CONTROL)
    assert {each.labels["agent"] for each in stack.pages.those() if "agent" in each.labels} == {agent}
    assert stack.pages.those("LoopwatchWatchdog")


@pytest.fixture
def morning(has_programs, span_store, tmp_path):
    """A stack of its own, where an agent has long made 3 calls a run, and no alert fires."""
    control = next(
        rule
        for group in shorter_rules(yaml.safe_load(export.render({"tool_calls_jump_factor": 300})), FACTOR)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == JUMP
    )

    def with_control(rules: dict) -> dict:
        rules["groups"].append({"name": "control", "interval": "500ms", "rules": [control | {"alert": CONTROL}]})
        return rules

    with LocalStack(tmp_path, factor=FACTOR, traces=span_store.address, edit_rules=with_control) as stack:
        agents = Agents(OTEL_SERVICE_NAME="morning", OTEL_EXPORTER_OTLP_ENDPOINT=stack.otlp_grpc)
        try:
            agents("steady", agent="support", calls=3)
            wait_until(
                "3 calls a run, and so before", lambda: _about(stack, MEAN, 3) and _about(stack, BASELINE, 3), 60
            )
            yield stack, agents, "support"
        finally:
            agents.end()


def _about(stack: LocalStack, record: str, value: float) -> bool:
    found = stack.value(f'{record}{{agent="support"}}')
    return found is not None and abs(found - value) < 0.5


def test_spans_come_through_the_collector_without_content(stack, start_agents, span_store):
    agents = start_agents("traced")
    agents("run", agent="traced", calls=2)
    tools = span_store.wait_for(
        lambda service, span, attributes: service == "traced" and semconv.GEN_AI_TOOL_NAME in attributes, 2
    )
    (run, *more) = span_store.wait_for(
        lambda service, span, attributes: service == "traced" and semconv.STOP_REASON in attributes
    )
    assert not more
    for span in tools:
        attributes = plain(span.attributes)
        assert span.parent_span_id == run.span_id
        assert attributes[semconv.GEN_AI_TOOL_NAME] == "search"
        assert attributes[semconv.VERDICT_ACTION] == "allow"
        assert re.fullmatch("[0-9a-f]{32}", attributes[semconv.TOOL_CALL_ARGUMENTS_HASH])
        assert attributes[semconv.GEN_AI_TOOL_CALL_ARGUMENTS] == "****"


def test_h2_a_job_that_ends_before_it_is_scraped_is_counted(stack, start_agents):
    # The first report would come in a minute: what is seen was sent at the end.
    agents = start_agents("batch", OTEL_METRIC_EXPORT_INTERVAL="60000")
    agents("run", agent="nightly", calls=3)
    assert agents.end() == 0
    calls = f'sum({semconv.TOOL_CALLS.prometheus}{{agent="nightly"}})'
    wait_until("its calls", lambda: stack.value(calls) == 3)
    wait_until("its run, in the rules", lambda: stack.value('agent:loopwatch_runs:increase5m{agent="nightly"}') == 1)


def test_h3_two_replicas_do_not_inflate(stack, start_agents):
    replicas = [start_agents("replicated") for _ in range(2)]
    for agents in replicas:
        agents("steady", agent="twin", calls=2)
    selector = f'{semconv.RUNS.prometheus}{{agent="twin",stop_reason="completed"}}'
    wait_until("both", lambda: len(stack.query(selector)) == 2)
    for agents in replicas:
        agents("steady", agent="twin", calls=0)
    made = sum(agents("counts")["runs"]["twin"] for agents in replicas)
    wait_until("all runs", lambda: stack.value(f"sum({selector})") == made)
    assert stack.value(f"sum(resets({selector}[5m]))") == 0
    assert {labels["job"] for labels, _ in stack.query(selector)} == {"replicated"}
    most = 'max_over_time(agent:loopwatch_runs:increase5m{agent="twin"}[1m])'
    recorded = wait_until("the rules", lambda: stack.value(most))
    # Prometheus extrapolates to the ends of a window; in the reports of H-3 it was 15 and 53 times as much.
    assert recorded < 2 * made
