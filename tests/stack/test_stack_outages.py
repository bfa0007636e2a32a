"""What is away is no trouble for the agents: collector killed, Prometheus killed."""

from __future__ import annotations

import pytest
from local_stack import wait_until

from otel_loopwatch import semconv

pytestmark = [pytest.mark.project, pytest.mark.timeout(240)]

RUNS = semconv.RUNS.prometheus
CALLS = semconv.TOOL_CALLS.prometheus


def test_a_killed_collector_costs_no_call_and_no_count(stack, start_agents):
    agents = start_agents("outage")
    agents("run", agent="outlived", calls=3)
    wait_until("the first run", lambda: stack.value(f'sum({RUNS}{{agent="outlived"}})') == 1)
    stack.collector.kill()
    try:
        wait_until("Prometheus sees it", lambda: stack.value('up{job="collector"}') == 0)
        outcomes = [agents("run", agent="outlived", calls=3) for _ in range(5)]
        looping = agents("run", agent="outlived", calls=50, same=True)
    finally:
        stack.collector.start()
        stack.collector.wait_ready()
    assert [each["stop_reason"] for each in outcomes] == ["completed"] * 5
    # Nothing waited for a network: a run of three calls takes milliseconds.
    assert max(each["took_s"] for each in outcomes) < 1
    assert looping["stop_reason"] == "loop_detected"
    assert looping["tool_calls"] < 50
    # The counters are those of the process: what it counted meanwhile is in the next report.
    counted = agents("counts")
    assert counted["runs"] == {"outlived": 7}
    wait_until("all runs", lambda: stack.value(f'sum({RUNS}{{agent="outlived"}})') == 7)
    # Those that ran; the hinted and the refused have series of their own.
    ran = f'sum({CALLS}{{agent="outlived",outcome="ok"}})'
    wait_until("all calls", lambda: stack.value(ran) == counted["calls"]["outlived"])
    assert stack.value(f'{RUNS}{{agent="outlived",stop_reason="loop_detected"}}') == 1


def test_a_run_is_stopped_while_its_collector_is_away(stack, start_agents):
    agents = start_agents("midway")
    agents("begin", agent="midway", calls=2)
    active = f'sum({semconv.RUNS_ACTIVE.prometheus}{{agent="midway"}})'
    wait_until("the open run", lambda: stack.value(active) == 1)
    stack.collector.kill()
    try:
        ended = agents("finish", calls=50, same=True)
    finally:
        stack.collector.start()
        stack.collector.wait_ready()
    assert ended["stop_reason"] == "loop_detected"
    assert ended["tool_calls"] < 50
    assert ended["took_s"] < 1
    stopped = f'sum({RUNS}{{agent="midway",stop_reason="loop_detected"}})'
    wait_until("its end", lambda: stack.value(stopped) == 1)
    wait_until("no open run", lambda: stack.value(active) == 0)


def test_spans_of_a_short_outage_come_later(stack, start_agents, span_store):
    agents = start_agents("gap")
    stack.collector.kill()
    try:
        agents("run", agent="gap", calls=2)
    finally:
        stack.collector.start()
        stack.collector.wait_ready()
    spans = span_store.wait_for(lambda service, span, _: service == "gap", 3, timeout_s=60)
    assert len({span.span_id for span in spans}) == 3


def test_a_killed_prometheus_has_its_history_and_no_page_of_it(stack, start_agents):
    agents = start_agents("history")
    agents("run", agent="remembered", calls=4)
    calls = f'sum({CALLS}{{agent="remembered"}})'
    wait_until("its calls", lambda: stack.value(calls) == 4)
    stack.prometheus.kill()
    stack.prometheus.start()
    stack.prometheus.wait_ready()
    before = f'max(max_over_time({CALLS}{{agent="remembered",outcome="ok"}}[5m] offset 1s))'
    wait_until("what it had", lambda: stack.value(before) == 4)
    agents("run", agent="remembered", calls=1)
    wait_until("what came since", lambda: stack.value(calls) == 5)
    assert not stack.pages.those(agent="remembered")
