"""The demo agents, through the real guard."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

import otel_loopwatch as lw
from otel_loopwatch.demo import AGENTS, Report, work
from otel_loopwatch.demo.script import Ask, Say
from otel_loopwatch.demo.tools import EXPORT_CHECKS
from otel_loopwatch.testing import capture

EXAMPLES = Path(__file__).parent.parent / "examples"
BY_NAME = {agent.name: agent for agent in AGENTS}


def ran(name: str) -> Report:
    return work(BY_NAME[name])


def test_the_healthy_agent_is_left_alone():
    report = ran("healthy")
    outcome = report.outcome
    assert (outcome.stop_reason, outcome.tool_calls, report.hinted, report.refused) == ("completed", 3, 0, 0)
    assert outcome.findings == ()
    assert outcome.partial == "Your parcel P-5521 left the depot this morning and is due tomorrow."


def test_a_hint_makes_the_retrying_agent_change_its_approach():
    report = ran("identical-retry")
    outcome = report.outcome
    assert (outcome.stop_reason, report.hinted, report.refused) == ("completed", 1, 0)
    assert [(finding.kind, finding.action) for finding in outcome.findings] == [("repeat", "hint")]
    assert "order 1187" in outcome.partial


def test_the_retrying_agent_goes_on_for_ever_where_nobody_hints():
    def stop(agent, step):
        if step == 40:
            raise KeyboardInterrupt

    with capture() as seen, pytest.raises(KeyboardInterrupt):
        work(replace(BY_NAME["identical-retry"], policy=lw.Policy(mode="observe")), turn=stop)
    assert seen.value("loopwatch.tool.calls", agent="identical-retry", tool="find_orders", outcome="ok") == 39


def test_the_ping_pong_agent_is_hinted_and_then_aborted():
    report = ran("ping-pong")
    outcome = report.outcome
    assert outcome.stop_reason == "loop_detected"
    assert report.hinted >= 2
    assert report.refused == 1
    assert {finding.tool for finding in outcome.findings} == {"read_page"}
    assert "[loop-detected]" not in outcome.partial


def test_stuck_the_ping_pong_agent_tries_another_page_at_a_higher_temperature():
    temperatures = []
    ping_pong = BY_NAME["ping-pong"]

    def model(seen, temperature):
        temperatures.append(temperature)
        return ping_pong.model(seen, temperature)

    work(replace(ping_pong, model=model))
    assert temperatures[:2] == [0.1, 0.1]
    assert max(temperatures) > 0.1


def test_the_runaway_agent_is_stopped_by_its_budget_and_nothing_else():
    report = ran("runaway")
    outcome = report.outcome
    limit = BY_NAME["runaway"].policy.budgets.max_spend_usd
    assert outcome.stop_reason == "spend_budget"
    assert outcome.findings == ()
    assert limit is not None
    # The turn that reached the limit is charged, none after it.
    assert limit <= outcome.spend_usd < limit + Decimal("0.02")
    assert outcome.spend_complete
    assert outcome.partial


def test_the_runaway_agent_asks_something_new_each_time():
    asked = []
    runaway = BY_NAME["runaway"]

    def model(seen, temperature):
        asked.append(runaway.model(seen, temperature).arguments["query"])
        return runaway.model(seen, temperature)

    work(replace(runaway, model=model))
    assert len(asked) > 10
    assert len(set(asked)) == len(asked)


def test_a_model_without_a_price_is_stopped_by_what_it_is_taken_to_cost():
    report = work(replace(BY_NAME["runaway"], model_name="no-such-model-1"))
    assert report.outcome.stop_reason == "spend_budget"
    assert not report.outcome.spend_complete


def test_the_poller_is_left_alone():
    report = ran("poller")
    outcome = report.outcome
    assert (outcome.stop_reason, report.hinted, report.refused) == ("completed", 0, 0)
    assert outcome.tool_calls == EXPORT_CHECKS + 1
    assert outcome.findings == ()


def test_each_agent_spends_money_at_the_price_of_its_model():
    for agent in AGENTS:
        report = work(agent)
        assert report.outcome.spend_complete, agent.name
        assert report.outcome.spend_usd > 0, agent.name


def test_the_same_again_in_a_second_round():
    first, second = ([work(agent).as_dict() for agent in AGENTS] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.pop("seconds") >= 0
        assert other.pop("seconds") >= 0
        assert one == other


def test_the_demo_leaves_spans_of_runs_and_calls():
    with capture() as seen:
        ran("identical-retry")
    assert seen.named("invoke_agent identical-retry").attributes["loopwatch.stop.reason"] == "completed"
    assert seen.value("loopwatch.tool.calls", agent="identical-retry", tool="find_orders", outcome="hinted") == 1


def test_a_turn_is_shown_before_its_model_is_charged():
    shown = []
    work(BY_NAME["healthy"], turn=lambda agent, step: shown.append((agent, step)))
    assert shown == [("healthy", step) for step in (1, 2, 3, 4)]


def test_usage_grows_with_what_has_been_said():
    sizes = []

    def model(seen, temperature):
        run = lw.current_run()
        sizes.append(run.outcome.input_tokens)
        return Ask("find_orders", {"customer": f"C-{len(seen)}"}) if len(seen) < 3 else Say("none")

    work(replace(BY_NAME["healthy"], model=model))
    turns = [after - before for before, after in pairwise(sizes)]
    assert turns == sorted(turns)
    assert turns[0] < turns[-1]


@pytest.mark.parametrize(
    "name, last_line",
    [
        ("quickstart.py", r"loop_detected \d+ calls made"),
        ("guarded_loop.py", r"completed: \d+ calls, \$0\.00\d+, result 'The meeting is on Thursday\.'"),
    ],
)
def test_an_example_runs(name, last_line, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(last_line, lines[-1])
    assert any("[loop-detected]" in line for line in lines)
