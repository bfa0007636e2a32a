"""What a run looks like in OpenTelemetry: whole spans, and the same verdicts whatever becomes of them (F-3, E-10)."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

import otel_loopwatch as lw
from otel_loopwatch import telemetry
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.testing import Captured, FakeClock, capture
from otel_loopwatch.version import __version__


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@lw.watch_tool
def search(q: str) -> str:
    if q == "boom":
        raise KeyError(q)
    return f"about {q[:3]}"


def whole(span: ReadableSpan) -> dict[str, Any]:
    """Everything of a span that is not an id or a time."""
    return {
        "name": span.name,
        "kind": span.kind,
        "attributes": dict(span.attributes or {}),
        "events": [(event.name, dict(event.attributes or {})) for event in span.events],
        "status": (span.status.status_code, span.status.description),
        "links": list(span.links),
    }


OK = (StatusCode.UNSET, None)
FAILED = (StatusCode.ERROR, None)


def tool_span(run: lw.Run, span: ReadableSpan, **differs: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": run.agent,
        "loopwatch.run.id": run.run_id,
        "loopwatch.tool.call.arguments.hash": span.attributes["loopwatch.tool.call.arguments.hash"],
        "loopwatch.tool.call.repeat.count": 1,
        "loopwatch.verdict.action": "allow",
    }
    events, status = differs.pop("events", []), differs.pop("status", OK)
    attributes |= differs.pop("attributes", {})
    assert not differs
    return {
        "name": "execute_tool search",
        "kind": SpanKind.INTERNAL,
        "attributes": attributes,
        "events": events,
        "status": status,
        "links": [],
    }


def test_a_good_run(seen: Captured) -> None:
    policy = Policy(budgets=Budgets(max_tool_calls=5, max_spend_usd=0.5))
    with lw.watch_run("support", policy=policy, run_id="r1", attributes={"tenant": "acme"}) as run:
        search("python")
        run.record_usage("m", cost_usd=0.125)
    call, root = seen.spans
    assert whole(root) == {
        "name": "invoke_agent support",
        "kind": SpanKind.INTERNAL,
        "attributes": {
            "tenant": "acme",
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "support",
            "loopwatch.run.id": "r1",
            "loopwatch.stop.reason": "completed",
            "loopwatch.budget.tool_calls.limit": 5,
            "loopwatch.budget.tool_calls.used": 1,
            "loopwatch.budget.spend_usd.limit": 0.5,
            "loopwatch.budget.spend_usd.used": 0.125,
        },
        "events": [],
        "status": OK,
        "links": [],
    }
    assert whole(call) == tool_span(run, call)
    assert call.parent.span_id == root.context.span_id
    assert call.context.trace_id == root.context.trace_id
    assert root.instrumentation_scope.name == "otel_loopwatch"
    assert root.instrumentation_scope.version == __version__


def test_the_types_of_the_attributes_are_those_of_the_contract(seen: Captured) -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=9, max_tokens=10))):
        search("python")
    call, root = seen.spans
    assert len(call.attributes["loopwatch.tool.call.arguments.hash"]) == 32
    assert int(call.attributes["loopwatch.tool.call.arguments.hash"], 16) >= 0
    assert type(call.attributes["loopwatch.tool.call.repeat.count"]) is int
    assert type(root.attributes["loopwatch.budget.tokens.limit"]) is int
    assert type(root.attributes["loopwatch.budget.seconds.used"]) is float


def test_a_hint_and_an_abort(seen: Captured) -> None:
    policy = Policy(loops=LoopRules(max_repeats=1, hints_before_abort=1))
    with lw.watch_run("a", policy=policy, on_abort="return") as run:
        for _ in range(3):
            search("python")
    first, hinted, refused, root = seen.spans
    hash_ = first.attributes["loopwatch.tool.call.arguments.hash"]
    loop = {
        "gen_ai.tool.name": "search",
        "loopwatch.loop.kind": "repeat",
        "loopwatch.loop.repeats": 2,
        "loopwatch.loop.members": ("search",),
        "loopwatch.verdict.action": "hint",
        "loopwatch.tool.call.arguments.hash": hash_,
    }
    assert whole(hinted) == tool_span(
        run,
        hinted,
        attributes={
            "loopwatch.tool.call.repeat.count": 2,
            "loopwatch.verdict.action": "hint",
            "loopwatch.loop.kind": "repeat",
            "loopwatch.tool.call.arguments.hash": hash_,
        },
        events=[("loopwatch.loop.detected", loop)],
    )
    assert whole(refused) == tool_span(
        run,
        refused,
        attributes={
            "loopwatch.tool.call.repeat.count": 3,
            "loopwatch.verdict.action": "abort",
            "loopwatch.loop.kind": "repeat",
            "error.type": "aborted",
        },
        status=FAILED,
    )
    aborted = {
        **loop,
        "loopwatch.loop.repeats": 3,
        "loopwatch.verdict.action": "abort",
        "loopwatch.stop.reason": "loop_detected",
    }
    assert whole(root) == {
        "name": "invoke_agent a",
        "kind": SpanKind.INTERNAL,
        "attributes": {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "a",
            "loopwatch.run.id": run.run_id,
            "loopwatch.stop.reason": "loop_detected",
            "error.type": "loop_detected",
        },
        "events": [("loopwatch.loop.detected", loop), ("loopwatch.run.aborted", aborted)],
        "status": FAILED,
        "links": [],
    }


def test_a_budget(seen: Captured) -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=1)), on_abort="return"):
        for q in "ab":
            search(q)
    root = seen.named("invoke_agent a")
    warning, aborted = [(event.name, dict(event.attributes)) for event in root.events]
    budget = {"loopwatch.budget.name": "tool_calls", "loopwatch.budget.tool_calls.limit": 1}
    assert warning == ("loopwatch.budget.warning", {**budget, "loopwatch.budget.tool_calls.used": 1})
    assert aborted == (
        "loopwatch.run.aborted",
        {**budget, "loopwatch.budget.tool_calls.used": 2, "loopwatch.stop.reason": "tool_call_budget"},
    )
    assert root.attributes["error.type"] == "tool_call_budget"


def test_a_tool_that_fails(seen: Captured) -> None:
    with pytest.raises(KeyError), lw.watch_run("a") as run:
        search("boom")
    call, root = seen.spans
    assert whole(call) == tool_span(run, call, attributes={"error.type": "KeyError"}, status=FAILED)
    assert root.attributes["error.type"] == "KeyError"
    assert root.attributes["loopwatch.stop.reason"] == "error"
    assert (root.status.status_code, root.status.description) == FAILED


def test_a_call_outside_any_run(seen: Captured) -> None:
    search("python")
    (call,) = seen.spans
    assert call.attributes["gen_ai.agent.name"] == "unknown"
    assert "loopwatch.run.id" not in call.attributes
    assert call.parent is None


def test_the_number_of_the_call_is_not_the_length_of_the_streak(seen: Captured) -> None:
    policy = Policy(loops=LoopRules(max_error_streak=3, action="observe"))

    @lw.watch_tool
    def broken(q: int) -> str:
        raise KeyError("x")

    with lw.watch_run("a", policy=policy):
        for q in range(5):
            with pytest.raises(KeyError):
                broken(q)
    calls = [span for span in seen.spans if span.name == "execute_tool broken"]
    assert [span.attributes["loopwatch.tool.call.repeat.count"] for span in calls] == [1] * 5
    assert [span.attributes["loopwatch.verdict.action"] for span in calls] == ["allow"] * 3 + ["observe"] * 2
    assert seen.value("loopwatch.tool.repeats", tool="broken") == 0


def test_spans_inside_a_tool_are_below_its_span(seen: Captured) -> None:
    tracer = seen.tracer_provider.get_tracer("app")

    @lw.watch_tool
    def outer() -> str:
        with tracer.start_as_current_span("query"):
            return search("python")

    with lw.watch_run("a"):
        outer()
    by_name = {span.name: span for span in seen.spans}
    assert by_name["query"].parent.span_id == by_name["execute_tool outer"].context.span_id
    assert by_name["execute_tool search"].parent.span_id == by_name["query"].context.span_id


def test_a_run_goes_on_with_the_callers_trace(seen: Captured) -> None:
    with seen.tracer_provider.get_tracer("app").start_as_current_span("request") as request, lw.watch_run("a"):
        search("python")
    root = seen.named("invoke_agent a")
    assert root.parent.span_id == request.get_span_context().span_id


# --- a framework's own span -------------------------------------------------------------------------------------------


def test_a_frameworks_span_of_the_call_is_annotated_and_not_doubled(seen: Captured) -> None:
    tracer = seen.tracer_provider.get_tracer("framework")
    said = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "extension",
        "gen_ai.agent.name": "theirs",
        "gen_ai.tool.call.id": "call_1",
    }
    with lw.watch_run("a") as run, tracer.start_as_current_span("execute_tool search", attributes=said):
        search("python")
        search("again")
    theirs = [span for span in seen.spans if span.instrumentation_scope.name == "framework"]
    ours = [span for span in seen.spans if span.instrumentation_scope.name == "otel_loopwatch"]
    (annotated,) = theirs
    assert {key: annotated.attributes[key] for key in said} == said, "what the framework says of itself stays"
    assert annotated.attributes["loopwatch.run.id"] == run.run_id
    assert annotated.attributes["loopwatch.verdict.action"] == "allow"
    assert [span.name for span in ours] == ["execute_tool search", "invoke_agent a"], (
        "a second call has a span of its own"
    )


def test_an_error_inside_a_frameworks_span_marks_it_and_leaves_its_end_alone(seen: Captured) -> None:
    tracer = seen.tracer_provider.get_tracer("framework")
    said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    with lw.watch_run("a"), tracer.start_as_current_span("their name", attributes=said) as span:
        with pytest.raises(KeyError):
            search("boom")
        assert span.is_recording()
        span.set_attribute("after", 1)
    theirs = seen.named("their name")
    assert theirs.attributes["error.type"] == "KeyError"
    assert theirs.attributes["after"] == 1


@pytest.mark.parametrize(
    "said",
    [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "other"},
        {"gen_ai.operation.name": "chat", "gen_ai.tool.name": "search"},
        {},
    ],
)
def test_any_other_span_is_only_a_parent(seen: Captured, said: dict[str, str]) -> None:
    with seen.tracer_provider.get_tracer("app").start_as_current_span("theirs", attributes=said):
        search("python")
    assert dict(seen.named("theirs").attributes) == said
    assert seen.named("execute_tool search").parent.span_id == seen.named("theirs").context.span_id


# --- E-10 -------------------------------------------------------------------------------------------------------------


def test_e10_hostile_values_make_no_attribute_warnings(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    @lw.watch_tool
    def anything(value: Any) -> Any:
        return value

    hostile = {
        "none": None,
        "map": {"a": 1},
        "mock": MagicMock(),
        "mixed": [1, "a", None],
        "big": 2**80,
        "set": {1},
        "nan": float("nan"),
    }
    with lw.watch_run("a", attributes=hostile, policy=Policy(loops=LoopRules(action="observe"))) as run:
        for value in (*hostile.values(), "\ud800", b"\xff", object()):
            anything(value)
        run.record_usage(None, input_tokens=3)
        run.record_usage("", cost_usd=0)
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []
    for span in seen.spans:
        for value in span.attributes.values():
            assert isinstance(value, str | bool | int | float | tuple), value


# --- F-3 --------------------------------------------------------------------------------------------------------------

SCENARIO = """
import json, sys
import otel_loopwatch as lw
from otel_loopwatch import metrics

def scenario():
    bodies = []

    @lw.watch_tool
    def search(q):
        bodies.append(q)
        return "same"

    actions = []
    policy = lw.Policy(loops=lw.LoopRules(max_repeats=2, hints_before_abort=1), budgets=lw.Budgets(max_tool_calls=50))
    with lw.watch_run("a", policy=policy, on_abort="return", on_verdict=lambda v: actions.append(v.action)) as run:
        for q in ("x", "y", "x", "z", "z", "z", "z", "z"):
            search(q)
    outcome = run.outcome
    numbers = {
        f"{metric.name}{sorted(labels.items())}": value
        for metric, labels, value in metrics.samples()
        if metric.kind == "counter" and "guard" not in metric.name
    }
    return [bodies, actions, outcome.stop_reason.value, outcome.tool_calls, numbers]
"""


def scenario() -> list[Any]:
    namespace: dict[str, Any] = {}
    exec(compile(SCENARIO, "scenario", "exec"), namespace)
    result: list[Any] = json.loads(json.dumps(namespace["scenario"]()))
    return result


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    with capture():
        return scenario()


def test_the_scenario_says_something(expected: list[Any]) -> None:
    bodies, actions, reason, calls, numbers = expected
    assert bodies == ["x", "y", "x", "z", "z"]
    assert actions == ["hint", "abort"]
    assert (reason, calls) == ("loop_detected", 5)
    assert sum(value for name, value in numbers.items() if name.startswith("loopwatch.loops.detected")) == 1


@pytest.mark.parametrize(
    "sampler", [ALWAYS_OFF, TraceIdRatioBased(0.1), TraceIdRatioBased(0.0)], ids=["off", "0.1", "0.0"]
)
def test_f3_verdicts_and_metrics_are_the_same_at_any_sampling_rate(expected: list[Any], sampler: Any) -> None:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with capture():
        telemetry.use_tracer_provider(provider)
        assert scenario() == expected
    if sampler is ALWAYS_OFF:
        assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    "environment",
    [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_SAMPLER": "always_off"}],
    ids=["no provider", "sdk disabled", "sampler off"],
)
def test_f3_and_without_a_provider_or_with_the_sdk_disabled(expected: list[Any], environment: dict[str, str]) -> None:
    script = SCENARIO + (
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "if len(sys.argv) > 1: trace.set_tracer_provider(TracerProvider())\n"
        "print(json.dumps(scenario()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *(["provider"] if environment else [])],
        env={**os.environ, **environment, "LOOPWATCH_STRICT": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_f3_an_unsampled_parent_changes_nothing(expected: list[Any]) -> None:
    from opentelemetry import context, trace

    parent = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0)))
    with capture() as seen:
        token = context.attach(trace.set_span_in_context(parent))
        try:
            assert scenario() == expected
        finally:
            context.detach(token)
        assert seen.spans == ()


# --- faults of ours ---------------------------------------------------------------------------------------------------


def test_a_broken_tracer_costs_the_span_and_not_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOOPWATCH_STRICT", "0")
    with capture() as seen:
        broken = MagicMock()
        broken.start_span.side_effect = RuntimeError("canary")
        monkeypatch.setattr(telemetry, "_tracer", broken)
        with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=1))) as run:
            assert search("x") == "about x"
            assert lw.is_hint(search("x"))
        assert run.outcome.tool_calls == 1
        assert seen.value("loopwatch.guard.errors", stage="telemetry") >= 3
    assert "canary" not in caplog.text


def test_flush_asks_the_global_providers() -> None:
    assert lw.flush(1) is True


def test_the_log_has_structured_fields(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    with (
        lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=1, action="abort")), on_abort="return") as run,
        FakeClock(),
    ):
        for _ in range(2):
            search("x")
    found, aborted = caplog.records
    assert (found.name, found.levelno) == ("otel_loopwatch", logging.WARNING)
    assert found.loopwatch["loopwatch.run.id"] == run.run_id
    assert found.loopwatch["gen_ai.agent.name"] == "a"
    assert found.loopwatch["loopwatch.loop.kind"] == "repeat"
    assert aborted.loopwatch["loopwatch.stop.reason"] == "loop_detected"
