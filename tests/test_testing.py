"""What users are given for their own tests."""

from __future__ import annotations

import pytest
from opentelemetry import trace

import otel_loopwatch as lw
from otel_loopwatch import clock, errors, metrics, semconv
from otel_loopwatch.testing import FakeClock, capture, reset


@lw.watch_tool
def search(query: str) -> str:
    return "nothing"


def test_a_fake_clock_stands_still_until_it_is_told_to_move():
    with FakeClock(5) as fake:
        assert clock.get_clock() is fake
        assert (fake(), fake()) == (5, 5)
        fake.advance(2.5)
        assert fake() == 7.5
        with pytest.raises(ValueError, match="cannot go back"):
            fake.advance(-1)
    assert clock.get_clock() is not fake


def test_fake_clocks_nest():
    with FakeClock() as outer:
        with FakeClock() as inner:
            assert clock.get_clock() is inner
        assert clock.get_clock() is outer


def test_a_fake_clock_is_the_clock_of_the_runs_begun_inside():
    policy = lw.Policy(budgets=lw.Budgets(max_seconds=60))
    with FakeClock() as fake, lw.watch_run(policy=policy, on_abort="return") as run:
        fake.advance(60)
        search("a")
    assert run.outcome.stop_reason == "time_budget"
    assert run.outcome.duration_s == 60


def test_capture_sees_spans_verdicts_and_numbers_and_leaves_global_providers_alone():
    before = trace.get_tracer_provider()
    policy = lw.Policy(loops=lw.LoopRules(max_repeats=1))
    with capture() as seen:
        with lw.watch_run("mine", policy=policy, on_verdict=seen.verdicts.append):
            search("x")
            search("x")
        assert seen.value("loopwatch.tool.calls", tool="search") == 2
        assert seen.value("loopwatch.tool.calls", tool="search", outcome="hinted") == 1
        assert seen.value("loopwatch.run.tool_calls", agent="mine") == 1
        assert [span.name for span in seen.spans] == ["execute_tool search"] * 2 + ["invoke_agent mine"]
        assert seen.named("invoke_agent mine").attributes[semconv.STOP_REASON] == "completed"
        assert [judged.action for judged in seen.verdicts] == ["hint"]
    assert trace.get_tracer_provider() is before


def test_capture_says_what_there_is_where_something_is_missing():
    with capture() as seen:
        search("x")
        search("x")
        with pytest.raises(LookupError, match="2 spans are named 'execute_tool search'"):
            seen.named("execute_tool search")
        with pytest.raises(LookupError, match=r"0 spans .* there are \['execute_tool search'"):
            seen.named("invoke_agent a")
        with pytest.raises(LookupError, match=r"no series of 'loopwatch\.tool\.calls'"):
            seen.value("loopwatch.tool.calls", tool="fetch")


def test_capture_begins_with_nothing_and_ends_when_the_test_fails():
    search("before")
    with pytest.raises(KeyError), capture() as seen:
        search("x")
        assert seen.value("loopwatch.tool.calls", tool="search", outcome="ok") == 1
        raise KeyError
    search("after")
    assert len(seen.spans) == 1


def test_reset_forgets_numbers_and_warnings_given_once():
    search("x")
    errors.warn_once("topic", "said")
    reset()
    assert "topic" not in errors._warned
    assert not [value for metric, _, value in metrics.samples() if metric is semconv.TOOL_CALLS]
