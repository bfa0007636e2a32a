"""The span processor: runs without ``watch_run`` at any sampling rate, and what other libraries' spans say."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

import otel_loopwatch as lw
from otel_loopwatch import ambient, metrics, open_spans, semconv, telemetry, testing
from otel_loopwatch.calls import RunOutcome
from otel_loopwatch.processor import LoopwatchSpanProcessor, attach
from otel_loopwatch.testing import FakeClock

POLICY = lw.Policy(loops=lw.LoopRules(max_repeats=2, hints_before_abort=1))
HINT = "[loop-detected]"


@pytest.fixture
def ended(monkeypatch) -> list[RunOutcome]:
    """How the runs of the test ended, in order."""
    outcomes: list[RunOutcome] = []
    closed = metrics.run_closed
    monkeypatch.setattr(metrics, "run_closed", lambda run, out: (outcomes.append(out), closed(run, out)))
    return outcomes


def provide(*processors: SpanProcessor, sampler: Sampler = ALWAYS_ON) -> trace.Tracer:
    """A tracer of somebody else's, on a provider with *processors*; our own spans go there as well."""
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    telemetry.use_tracer_provider(provider)
    tracer = provider.get_tracer("framework")
    tracer.provider = provider  # keeps the provider, and with it the processors, alive
    return tracer


def guarded(policy: lw.Policy = POLICY, *, sampler: Sampler = ALWAYS_ON, **options) -> trace.Tracer:
    return provide(LoopwatchSpanProcessor(policy=policy, **options), sampler=sampler)


@contextmanager
def foreign_tool(tracer: trace.Tracer, tool: str, *, result: str | None = None, **attributes) -> Iterator[trace.Span]:
    shown = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
    if "arguments" in attributes:
        shown["gen_ai.tool.call.arguments"] = json.dumps(attributes.pop("arguments"))
    with tracer.start_as_current_span(f"execute_tool {tool}", attributes={**shown, **attributes}) as span:
        yield span
        if result is not None:
            span.set_attribute("gen_ai.tool.call.result", result)


@contextmanager
def chat(tracer: trace.Tracer, read: int | None = None, written: int | None = None, model: str = "m") -> Iterator[None]:
    shown = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
    with tracer.start_as_current_span(f"chat {model}", attributes=shown) as span:
        yield
        if read is not None:
            span.set_attribute("gen_ai.usage.input_tokens", read)
            span.set_attribute("gen_ai.usage.output_tokens", written)


def invoke_agent(tracer: trace.Tracer, name: str):
    shown = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    return tracer.start_as_current_span(f"invoke_agent {name}", attributes=shown)


def search_tool(bodies: list | None = None, name: str = "search") -> Callable[[str], str]:
    @lw.watch_tool(name=name)
    def search(query: str) -> str:
        if bodies is not None:
            bodies.append(query)
        return "nothing found"

    return search


def attempt(call: Callable[[], str]) -> str:
    try:
        answer = call()
    except lw.ToolLoopError as error:
        return f"loop {error.repeats}"
    except lw.BudgetExceeded as error:
        return f"budget {error.budget}"
    return "hint" if lw.is_hint(answer) else "ran"


def value(metric: semconv.Metric, **labels: str) -> float:
    found = [v for m, has, v in metrics.samples() if m is metric and labels.items() <= has.items()]
    return sum(found)


# --- runs without watch_run ---


def not_sampled_above() -> otel_context.Context:
    remote = SpanContext(1 << 100 | 7, 9, is_remote=True, trace_flags=TraceFlags(TraceFlags.DEFAULT))
    return trace.set_span_in_context(NonRecordingSpan(remote))


@pytest.mark.parametrize(
    "sampler, above",
    [
        (ALWAYS_ON, None),
        (TraceIdRatioBased(0.1), None),
        (ParentBased(ALWAYS_OFF), None),
        (ParentBased(ALWAYS_ON), not_sampled_above()),
    ],
    ids=["on", "ratio", "off", "parent"],
)
def test_f3_decorators_and_a_processor_are_a_guard_at_any_sampling_rate(sampler, above):
    tracer = guarded(sampler=sampler)
    bodies: list[str] = []
    search = search_tool(bodies)
    for _ in range(8):
        bodies.clear()
        with tracer.start_as_current_span("request", context=above):
            seen = []
            for _ in range(3):
                # Each call below a span of its own, of which a sampled-out one shows no parent.
                with tracer.start_as_current_span("turn"):
                    seen += [attempt(lambda: search("x")), attempt(lambda: search("x"))]
        if above is None:
            assert seen == ["ran", "ran", "hint", "loop 4", "loop 4", "loop 4"]
            assert bodies == ["x", "x"]
    if above is not None:
        # One trace in all: it is aborted in the first round, and that is not forgotten.
        assert seen == ["loop 4"] * 6
        assert bodies == []


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["on", "off"])
def test_f3_two_traces_at_the_same_time_never_mix(sampler):
    tracer = guarded(sampler=sampler)
    search = search_tool()
    traces = [trace.set_span_in_context(tracer.start_span(f"request {n}")) for n in range(3)]
    seen = []
    for _ in range(3):
        for context in traces:
            seen.append(contextvars.copy_context().run(in_context, context, lambda: attempt(lambda: search("x"))))
    assert seen == ["ran"] * 6 + ["hint"] * 3


def in_context(context: otel_context.Context, call: Callable[[], str]) -> str:
    token = otel_context.attach(context)
    try:
        return call()
    finally:
        otel_context.detach(token)


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["on", "off"])
async def test_f3_two_traces_of_two_tasks_never_mix(sampler):
    tracer = guarded(sampler=sampler)

    @lw.watch_tool
    async def search(query: str) -> str:
        await asyncio.sleep(0)
        return "nothing"

    async def agent() -> list[bool]:
        with tracer.start_as_current_span("request"):
            return [lw.is_hint(await search("x")) for _ in range(3)]

    assert await asyncio.gather(*(agent() for _ in range(5))) == [[False, False, True]] * 5


def test_a_run_ends_with_its_root_span(ended):
    tracer = guarded()
    search = search_tool()
    for failing in (False, True):
        with tracer.start_as_current_span("request") as root:
            search("a")
            assert value(semconv.RUNS_ACTIVE) == 1
            if failing:
                root.set_status(Status(StatusCode.ERROR))
        assert value(semconv.RUNS_ACTIVE) == 0
    assert [(out.agent, out.stop_reason, out.tool_calls) for out in ended] == [
        ("agent", "completed", 1),
        ("agent", "error", 1),
    ]


def test_an_aborted_run_ends_with_its_stop_reason(ended):
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        assert [attempt(lambda: search("x")) for _ in range(5)][-1] == "loop 4"
    assert [out.stop_reason for out in ended] == ["loop_detected"]


def test_a_trace_in_which_nothing_counts_makes_no_run(ended):
    tracer = guarded()
    with tracer.start_as_current_span("GET /"), tracer.start_as_current_span("SELECT"):
        pass
    assert ended == []
    assert value(semconv.RUNS_ACTIVE) == 0


def test_the_outermost_agent_span_is_the_run(ended):
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        search("before")
        for _ in range(2):
            with invoke_agent(tracer, "planner"), tracer.start_as_current_span("graph"):
                search("a")
                with invoke_agent(tracer, "helper"):
                    search("b")
        search("after")
    assert [(out.agent, out.tool_calls) for out in ended] == [("planner", 2), ("planner", 2), ("agent", 2)]
    assert value(semconv.TOOL_CALLS, agent="planner", outcome="ok") == 4


def test_a_local_root_below_a_remote_parent_is_a_run_of_its_own(ended):
    tracer = guarded(sampler=ALWAYS_ON)
    search = search_tool()
    for _ in range(2):
        with tracer.start_as_current_span("request", context=not_sampled_above()):
            assert [attempt(lambda: search("x")) for _ in range(3)] == ["ran", "ran", "hint"]
    assert [out.tool_calls for out in ended] == [2, 2]


def test_a_run_of_a_trace_that_is_not_recorded_ends_when_idle(ended):
    with FakeClock() as clock:
        tracer = guarded(sampler=ALWAYS_OFF, idle_limit_s=60)
        search = search_tool()
        with tracer.start_as_current_span("request"):
            search("a")
        clock.advance(59)
        assert value(semconv.RUNS_ACTIVE) == 1
        clock.advance(2)
        assert value(semconv.RUNS_ACTIVE) == 0
    assert [out.tool_calls for out in ended] == [1]


def test_a_call_after_the_idle_limit_begins_another_run(ended):
    with FakeClock() as clock:
        tracer = guarded(idle_limit_s=60)
        search = search_tool()
        with tracer.start_as_current_span("request"):
            assert [attempt(lambda: search("x")) for _ in range(3)] == ["ran", "ran", "hint"]
            clock.advance(61)
            ambient.sweep()
            assert [out.tool_calls for out in ended] == [2]
            assert [attempt(lambda: search("x")) for _ in range(3)] == ["ran", "ran", "hint"]
    assert [out.tool_calls for out in ended] == [2, 2]


def test_a_span_that_began_before_the_processor_ends_its_run(ended):
    tracer = provide()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        tracer.provider.add_span_processor(LoopwatchSpanProcessor(policy=POLICY))
        with tracer.start_as_current_span("turn"):
            search("a")
        search("b")
    assert [out.tool_calls for out in ended] == [2]


def test_open_spans_and_runs_are_bounded(monkeypatch, ended):
    monkeypatch.setattr(open_spans, "MAX_OPEN", 50)
    tracer = guarded(lw.Policy(mode="observe"))
    search = search_tool()
    long = tracer.start_span("long")
    root = trace.set_span_in_context(long)
    for _ in range(100):
        with trace.use_span(tracer.start_span("leaked")):
            search("a")
        in_context(root, lambda: search("b"))
    assert len(ambient._table.spans) <= 50
    assert len(ambient._table.roots) <= 50
    assert len(ambient._table.of_trace) <= 50
    context = long.get_span_context()
    assert (context.trace_id, context.span_id) in ambient._table.spans
    # The least recently used runs have ended; the one in use all the time has not.
    assert [out.tool_calls for out in ended] == [1] * len(ended)
    assert len(ended) >= 50
    long.end()
    assert ended[-1].tool_calls == 100


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["on", "off"])
def test_first_calls_of_many_threads_make_one_run(sampler):
    for _ in range(20):
        tracer = guarded(lw.Policy(mode="observe"), sampler=sampler)
        search = search_tool()
        with tracer.start_as_current_span("request") as root:
            barrier = threading.Barrier(8)
            context = trace.set_span_in_context(root)

            def call(number: int, search=search, barrier=barrier, context=context) -> None:
                barrier.wait()
                in_context(context, lambda: search(str(number)))

            threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [run.used().tool_calls for run in lw.runs()] == [8]
        testing.reset()


def test_the_first_live_processor_says_which_policy_holds():
    search = search_tool()
    first = LoopwatchSpanProcessor(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=1)))
    tracer = provide(first)
    second = provide(LoopwatchSpanProcessor())
    with tracer.start_as_current_span("request"):
        assert [attempt(lambda: search("a")), attempt(lambda: search("b"))] == ["ran", "budget tool_calls"]
    first.shutdown()
    with second.start_as_current_span("request"):
        assert [attempt(lambda: search("a")), attempt(lambda: search("b"))] == ["ran", "ran"]


def test_a_processor_that_is_gone_guards_no_more(caplog):
    processor = LoopwatchSpanProcessor(policy=POLICY)
    tracer = provide()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        search("x")
        del processor
        gc.collect()
        assert [attempt(lambda: search("x")) for _ in range(5)] == ["ran"] * 5
    assert value(semconv.UNTRACKED_TOOL_CALLS, agent="unknown") == 5


def test_f2_without_a_span_context_a_call_is_counted_as_untracked_and_said_once(caplog):
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        thread = threading.Thread(target=lambda: [search("x") for _ in range(6)])
        thread.start()
        thread.join()
    assert value(semconv.UNTRACKED_TOOL_CALLS, agent="unknown") == 6
    assert value(semconv.TOOL_CALLS, agent="unknown", outcome="ok") == 6
    assert caplog.text.count("was called outside any run") == 1


def test_the_operators_policy_wins_over_the_processors(monkeypatch):
    monkeypatch.setenv("LOOPWATCH_POLICY", "debug")
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        assert [attempt(lambda: search("x")) for _ in range(2)] == ["ran", "loop 2"]


def test_the_policy_of_a_processor_may_be_a_path(tmp_path):
    path = tmp_path / "loopwatch.yaml"
    path.write_text("mode: observe\n")
    assert [LoopwatchSpanProcessor(policy=one).policy.mode for one in (path, str(path))] == ["observe"] * 2
    with pytest.raises(lw.PolicyError, match="not a dict"):
        LoopwatchSpanProcessor(policy={"mode": "observe"})


def test_the_policy_of_a_processor_holds_for_watch_run():
    guarded_by = guarded(lw.Policy(budgets=lw.Budgets(max_tool_calls=1)))
    search = search_tool()
    with lw.watch_run(on_abort="return") as run:
        search("a")
        search("b")
    assert run.outcome.stop_reason == "tool_call_budget"
    assert guarded_by is not None


def test_a_switched_off_guard_has_no_processor(monkeypatch, ended):
    monkeypatch.setenv("LOOPWATCH_DISABLED", "1")
    tracer = guarded(lw.Policy(budgets=lw.Budgets(max_tokens=1)), raise_on_start=True)
    with tracer.start_as_current_span("request"):
        for _ in range(3):
            with chat(tracer, 100, 100):
                pass
    assert ended == []


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan")])
def test_an_idle_limit_is_a_positive_number_of_seconds(limit):
    with pytest.raises(lw.PolicyError, match="idle_limit_s"):
        LoopwatchSpanProcessor(idle_limit_s=limit)


def test_a_call_below_the_span_of_a_watched_run_counts_for_that_run(ended):
    tracer = guarded()
    search = search_tool()
    with lw.watch_run("mine") as run:
        span = run.span
        contextvars.Context().run(
            in_context, trace.set_span_in_context(span, otel_context.Context()), lambda: search("a")
        )
    assert [(out.agent, out.tool_calls) for out in ended] == [("mine", 1)]
    assert tracer is not None


def test_an_ambient_run_is_current_inside_of_its_tools():
    tracer = guarded()

    @lw.watch_tool
    def outer() -> str:
        run = lw.current_run()
        return "none" if run is None else run.agent

    with tracer.start_as_current_span("request"):
        assert outer() == "agent"


# --- tool calls that nobody decorated ---


def test_a_foreign_call_is_counted_and_trips_the_run_for_the_next_one(ended):
    tracer = guarded(lw.Policy(budgets=lw.Budgets(max_tool_calls=3)))
    search = search_tool()
    with tracer.start_as_current_span("request"):
        for _ in range(3):
            with foreign_tool(tracer, "fetch"):
                pass
        assert attempt(lambda: search("a")) == "budget tool_calls"
    assert [(out.tool_calls, out.stop_reason) for out in ended] == [(3, "tool_call_budget")]
    assert value(semconv.TOOL_CALLS, tool="fetch", outcome="ok") == 3


def test_a_foreign_loop_with_the_same_arguments_and_result_trips_the_run():
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_repeats=2, action="abort")))
    search = search_tool()
    with lw.watch_run(on_abort="return") as run:
        for calls in range(1, 4):
            assert run.tripped is None
            with foreign_tool(tracer, "fetch", arguments={"url": "u", "n": calls // 9}, result="not found"):
                pass
        assert attempt(lambda: search("a")) == "loop 3"
    assert (run.outcome.stop_reason, run.outcome.tool_calls) == ("loop_detected", 3)
    assert value(semconv.LOOPS_DETECTED, tool="fetch", kind="repeat") == 1


def test_hints_that_nobody_hears_use_up_the_patience_of_the_policy():
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_repeats=2, hints_before_abort=2)))
    with lw.watch_run(on_abort="return") as run:
        trips = []
        for _ in range(5):
            with foreign_tool(tracer, "fetch", arguments={"url": "u"}, result="not found"):
                pass
            trips.append(run.tripped is not None)
    assert trips == [False, False, False, False, True]
    assert run.outcome.tool_calls == 5


def test_foreign_calls_of_one_turn_use_up_the_patience_once():
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_repeats=2, hints_before_abort=2)))
    with lw.watch_run(on_abort="return") as run:
        trips = []
        for _ in range(5):
            if run.tripped is None:
                run.step()
            for _ in range(3):
                with foreign_tool(tracer, "fetch", arguments={"url": "u"}, result="not found"):
                    pass
            trips.append(run.tripped is not None)
    assert trips == [False, False, False, False, True]


def test_foreign_calls_of_an_exempt_tool_come_between_no_others():
    policy = lw.Policy(loops=lw.LoopRules(max_repeats=2, max_rereads=9), tools={"think": lw.ToolRules(exempt=True)})
    tracer = guarded(policy)
    with lw.watch_run(on_abort="return") as run:
        for number in range(3):
            with foreign_tool(tracer, "fetch", arguments={"url": "u"}, result="not found"):
                pass
            with foreign_tool(tracer, "think", arguments={"n": number}, result=f"about {'x' * number}"):
                pass
    assert [(finding.kind, finding.tool) for finding in run.outcome.findings] == [("repeat", "fetch")]


def test_observed_foreign_loops_trip_nothing():
    tracer = guarded(lw.Policy(mode="observe", loops=lw.LoopRules(max_repeats=1, action="abort")))
    with lw.watch_run() as run:
        for _ in range(20):
            with foreign_tool(tracer, "fetch", arguments={"url": "u"}, result="not found"):
                pass
    assert run.outcome.stop_reason == "completed"
    assert [finding.kind for finding in run.outcome.findings] == ["repeat"]


def test_the_rules_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("otel_loopwatch.processor.MAX_RULES", 3)
    processor = LoopwatchSpanProcessor(policy=POLICY)
    tracer = provide(processor)
    with lw.watch_run(policy=lw.Policy(mode="observe")) as run:
        for number in range(8):
            with foreign_tool(tracer, f"tool{number}"):
                pass
    assert len(processor._rules) <= 3
    assert run.outcome.tool_calls == 8


def test_the_build_info_says_the_mode_of_the_first_processor():
    first = LoopwatchSpanProcessor(policy=lw.Policy(mode="observe"))
    second = LoopwatchSpanProcessor()
    assert value(semconv.BUILD_INFO, mode="observe") == 1
    assert (first.is_active, second.is_active) == (True, True)


def test_foreign_calls_that_show_no_arguments_are_not_repeats():
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_repeats=1, action="abort")))
    with lw.watch_run() as run:
        for _ in range(4):
            with foreign_tool(tracer, "fetch"):
                pass
    assert (run.outcome.stop_reason, run.outcome.tool_calls) == ("completed", 4)


def test_a_foreign_streak_of_errors_is_seen_without_arguments():
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_error_streak=3, action="abort")))
    with lw.watch_run(on_abort="return") as run:
        for _ in range(6):
            with foreign_tool(tracer, "fetch", **{"error.type": "NotFound"}):
                pass
    assert run.outcome.stop_reason == "no_progress"
    assert run.outcome.findings[0].error_class == "NotFound"
    assert value(semconv.TOOL_CALLS, tool="fetch", outcome="error") == 6


@pytest.mark.parametrize("error_type", ["429", "503", "rate_limit_error", "ReadTimeout"])
def test_foreign_errors_of_the_infrastructure_are_no_streak(error_type):
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_error_streak=2, max_repeats=2, action="abort")))
    with lw.watch_run() as run:
        for _ in range(6):
            with foreign_tool(tracer, "fetch", arguments={"u": 1}, **{"error.type": error_type}):
                pass
    assert run.outcome.stop_reason == "completed"


@pytest.mark.parametrize("arguments", ['{"q": "x"}', "{broken}", "[1, 2]", '"text"', ["a", "b"]])
def test_arguments_of_any_form_are_hashed(arguments):
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_repeats=1, action="abort")))
    with lw.watch_run(on_abort="return") as run:
        for _ in range(2):
            with foreign_tool(tracer, "fetch", result="same answer") as span:
                span.set_attribute("gen_ai.tool.call.arguments", arguments)
    assert run.outcome.stop_reason == "loop_detected"


def test_a_decorated_call_is_counted_once_below_the_framework_span_of_another_name(ended):
    tracer = guarded()
    search = search_tool(name="search_impl")
    with tracer.start_as_current_span("request"), foreign_tool(tracer, "search"):
        search("a")
    assert [out.tool_calls for out in ended] == [1]
    assert value(semconv.TOOL_CALLS, tool="search_impl") == 1
    assert value(semconv.TOOL_CALLS, tool="search") == 0


def test_a_decorated_call_is_counted_once_on_the_framework_span_that_it_annotates(ended):
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"), foreign_tool(tracer, "search"):
        search("a")
    assert [out.tool_calls for out in ended] == [1]
    assert value(semconv.TOOL_CALLS, tool="search") == 1


def test_a_decorated_call_is_counted_once_where_the_framework_lost_the_context(ended):
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"):
        shown = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
        spans = [tracer.start_span("execute_tool search", attributes=shown) for _ in range(3)]
        search("a")
        search("b")
        for span in spans:
            span.end()
    assert [out.tool_calls for out in ended] == [3]


def test_an_agent_called_as_a_tool_is_a_call_beside_those_that_it_makes(ended):
    tracer = guarded()
    search = search_tool()
    with tracer.start_as_current_span("request"), invoke_agent(tracer, "planner"):
        with foreign_tool(tracer, "ask_helper"), invoke_agent(tracer, "helper"):
            search("a")
        with foreign_tool(tracer, "ask_model"), chat(tracer, 1, 1):
            search("b")
    assert [out.tool_calls for out in ended] == [4]


def test_two_libraries_that_show_one_call_are_one_call(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"):
        with foreign_tool(tracer, "search"), tracer.start_as_current_span("tools/call"), foreign_tool(tracer, "search"):
            pass
        with foreign_tool(tracer, "outer"), foreign_tool(tracer, "inner"):
            pass
        with foreign_tool(tracer, "ask"), invoke_agent(tracer, "helper"), foreign_tool(tracer, "ask"):
            pass
    assert sum(out.tool_calls for out in ended) == 1 + 2 + 2


def test_a_library_that_names_its_spans_at_the_end_is_read_at_the_end(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"):
        with tracer.start_as_current_span("tool") as span:
            span.set_attributes({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "late"})
        with tracer.start_as_current_span("llm") as span:
            span.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5})
    assert [(out.tool_calls, out.input_tokens) for out in ended] == [(1, 5)]


# --- model calls ---


def test_usage_is_charged_and_each_model_call_is_a_step(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"):
        for _ in range(2):
            with chat(tracer, 100, 10):
                pass
    assert [(out.steps, out.input_tokens, out.output_tokens) for out in ended] == [(2, 200, 20)]
    assert value(semconv.TOKENS, model="m", type="input") == 200


def test_a_token_budget_filled_by_spans_refuses_the_next_call():
    tracer = guarded(lw.Policy(budgets=lw.Budgets(max_tokens=100)))
    search = search_tool()
    with tracer.start_as_current_span("request"):
        assert attempt(lambda: search("a")) == "ran"
        with chat(tracer, 90, 10):
            pass
        assert attempt(lambda: search("b")) == "budget tokens"


def test_a_known_model_has_its_price(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"), chat(tracer, 1_000_000, 0, model="gpt-4o"):
        pass
    (out,) = ended
    assert out.spend_complete
    assert out.spend_usd > Decimal("0.5")
    assert value(semconv.SPEND_USD, model="gpt-4o") == float(out.spend_usd)


def test_d5_the_sums_of_an_agent_span_are_not_added(ended):
    tracer = guarded()
    with invoke_agent(tracer, "a") as agent:
        for read, written in ((56, 5), (57, 6)):
            with chat(tracer, read, written):
                pass
        agent.set_attributes({"gen_ai.usage.input_tokens": 113, "gen_ai.usage.output_tokens": 11})
    assert [(out.input_tokens, out.output_tokens) for out in ended] == [(113, 11)]


def test_d5_two_libraries_that_show_one_model_call_are_charged_once(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"):
        with chat(tracer, 56, 5), chat(tracer, 56, 5):
            pass
        with chat(tracer, 7, 1), chat(tracer):
            pass
    assert [(out.steps, out.input_tokens, out.output_tokens) for out in ended] == [(2, 63, 6)]
    assert value(semconv.USAGE_MISSING) == 0


def test_d6_a_model_call_without_usage_is_counted_as_blind_and_as_a_step(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"), chat(tracer):
        pass
    assert [(out.steps, out.spend_complete) for out in ended] == [(1, False)]
    assert value(semconv.USAGE_MISSING, model="m") == 1


def test_a_model_call_that_failed_is_not_blind_spend(ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"), pytest.raises(TimeoutError), chat(tracer):
        raise TimeoutError
    assert value(semconv.USAGE_MISSING) == 0
    assert [out.steps for out in ended] == [1]


@pytest.mark.parametrize("tokens", [-1, "many", True, float("nan")])
def test_d3_numbers_that_are_none_are_not_charged(tokens, ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"), chat(tracer, tokens, tokens):
        pass
    assert [(out.input_tokens, out.spend_complete) for out in ended] == [(0, False)]


@pytest.mark.parametrize("read, written", [("1000", 5), (-1, 5), (float("nan"), 5), (5, "many")])
def test_d3_one_number_that_is_none_makes_the_spend_incomplete(read, written, ended):
    tracer = guarded()
    with tracer.start_as_current_span("request"), chat(tracer, read, written, "gpt-4o"):
        pass
    assert [(out.input_tokens + out.output_tokens, out.spend_complete) for out in ended] == [(5, False)]
    assert value(semconv.USAGE_UNPRICED, model="gpt-4o") == 1


def test_a_model_that_was_recorded_by_hand_is_not_charged_again_by_spans():
    tracer = guarded()
    with lw.watch_run() as run:
        run.record_usage("m", input_tokens=10, output_tokens=1)
        with chat(tracer, 10, 1):
            pass
    assert run.outcome.input_tokens == 10
    assert value(semconv.USAGE_DUPLICATE, source="spans") == 1


def test_a_model_call_below_a_tool_is_charged_and_no_step():
    tracer = guarded()

    @lw.watch_tool
    def summarise(text: str) -> str:
        with chat(tracer, 10, 1):
            return "short"

    with lw.watch_run() as run:
        summarise("long")
        with foreign_tool(tracer, "translate"), chat(tracer, 10, 1):
            pass
    assert (run.outcome.steps, run.outcome.input_tokens) == (0, 20)


def test_a_model_call_of_a_run_below_a_tool_is_a_step_of_that_run():
    tracer = guarded()
    inner = []

    @lw.watch_tool
    def delegate(task: str) -> str:
        with lw.watch_run("helper") as run, chat(tracer, 10, 1):
            inner.append(run)
        return "done"

    with lw.watch_run("planner"):
        delegate("x")
    assert inner[0].outcome.steps == 1


def test_explicit_steps_switch_off_those_of_spans():
    tracer = guarded()
    with lw.watch_run() as run:
        run.step()
        with chat(tracer, 1, 1):
            pass
    assert run.outcome.steps == 1


def test_a_step_budget_holds_for_the_turns_of_spans():
    tracer = guarded(lw.Policy(budgets=lw.Budgets(max_steps=2)))
    search = search_tool()
    with lw.watch_run(on_abort="return") as run:
        for _ in range(3):
            with chat(tracer, 1, 1):
                pass
        search("a")
    assert run.outcome.stop_reason == "step_budget"


# --- once, and never in the way ---


def test_inside_a_watched_run_every_provider_charges_that_run():
    first, second = guarded(), guarded()
    with lw.watch_run() as run:
        for tracer in (first, second):
            with chat(tracer, 10, 1), foreign_tool(tracer, "fetch"):
                pass
    assert (run.outcome.input_tokens, run.outcome.tool_calls) == (20, 2)


@pytest.mark.parametrize("same", [True, False], ids=["one instance twice", "two instances"])
def test_f5_two_registrations_on_one_provider_count_once(same, ended):
    processor = LoopwatchSpanProcessor(policy=POLICY)
    tracer = provide(processor, processor if same else LoopwatchSpanProcessor(policy=POLICY))
    search = search_tool()
    with tracer.start_as_current_span("request"):
        for number in range(3):
            with foreign_tool(tracer, "fetch", arguments={"n": number}), chat(tracer, 10, 1):
                search(str(number))
    assert [(out.tool_calls, out.input_tokens) for out in ended] == [(6, 30)]


def test_f5_attach_takes_the_provider_that_is_there_once():
    provider = TracerProvider(shutdown_on_exit=False)
    first = attach(provider, policy=POLICY)
    assert attach(provider) is first
    first.shutdown()
    assert attach(provider) is not first
    assert len(provider._active_span_processor._span_processors) == 1


def test_f5_attached_again_after_a_shutdown_a_provider_holds_no_dead_processors(ended):
    provider = TracerProvider(shutdown_on_exit=False)
    processors = []
    for _ in range(3):
        processor = attach(provider, policy=POLICY)
        processors.append(processor)
        with provider.get_tracer("x").start_as_current_span("execute_tool search"):
            pass
        processor.shutdown()
        with provider.get_tracer("x").start_as_current_span("execute_tool search"):
            pass
    assert len(set(map(id, processors))) == 3
    assert [outcome.tool_calls for outcome in ended] == [1, 1, 1]
    gone = weakref.ref(processors.pop(0))
    del processor
    gc.collect()
    assert gone() is None


def test_f5_attach_says_what_is_missing_where_there_is_no_provider(monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with pytest.raises(lw.LoopwatchError, match="cannot attach to a ProxyTracerProvider"):
        attach()


def test_after_shutdown_nothing_is_counted_any_more(ended):
    processor = LoopwatchSpanProcessor(policy=POLICY)
    tracer = provide(processor)
    search = search_tool()
    with tracer.start_as_current_span("request"):
        search("a")
        processor.shutdown()
        processor.shutdown()
        assert [out.stop_reason for out in ended] == ["cancelled"]
        assert processor.force_flush()
        with chat(tracer, 10, 1):
            search("b")
    assert len(ended) == 1
    assert value(semconv.UNTRACKED_TOOL_CALLS) == 1
    assert value(semconv.TOKENS) == 0


class Later(SpanProcessor):
    """Stands behind ours, where a fault of ours would leave it out."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_start(self, span, parent_context=None) -> None:
        self.seen.append(f"start {span.name}")

    def on_end(self, span) -> None:
        self.seen.append(f"end {span.name}")


def test_c2_a_fault_of_ours_changes_no_exception_and_hides_no_span(monkeypatch, caplog):
    monkeypatch.delenv("LOOPWATCH_STRICT")
    monkeypatch.setattr(ambient, "open_span", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(ambient, "close_span", lambda *_: 1 / 0)
    monkeypatch.setattr(ambient, "unregister", lambda *_: 1 / 0)
    processor, later = LoopwatchSpanProcessor(), Later()
    tracer = provide(processor, later)
    with pytest.raises(KeyError, match="own") as caught, tracer.start_as_current_span("tool"):
        raise KeyError("own")
    assert caught.value.__context__ is None
    processor.shutdown()
    assert later.seen == ["start tool", "end tool"]
    assert value(semconv.GUARD_ERRORS, stage="processor") == 3
    assert caplog.text.count("in processor") == 1


def test_c2_a_run_that_a_span_trips_raises_nothing_there():
    later = Later()
    tracer = provide(LoopwatchSpanProcessor(policy=lw.Policy(budgets=lw.Budgets(max_tokens=1))), later)
    with lw.watch_run() as run:
        for _ in range(3):
            with chat(tracer, 5, 5), foreign_tool(tracer, "fetch"):
                pass
    assert run.outcome.stop_reason == "token_budget"
    assert later.seen.count("end chat m") == 3


def test_a_callback_of_the_user_that_fails_is_counted_and_stops_nothing(monkeypatch):
    monkeypatch.delenv("LOOPWATCH_STRICT")
    tracer = guarded(lw.Policy(loops=lw.LoopRules(max_repeats=1, action="abort")))

    def broken(judged: lw.Verdict) -> None:
        raise RuntimeError

    with lw.watch_run(on_verdict=broken, on_abort="return") as run:
        for _ in range(2):
            with foreign_tool(tracer, "fetch", arguments={"u": 1}, result="same answer"):
                pass
    assert run.outcome.stop_reason == "loop_detected"
    assert value(semconv.GUARD_ERRORS, stage="on_verdict") == 1


# --- raise_on_start ---


def test_raise_on_start_refuses_the_tool_call_that_the_budget_forbids():
    tracer = guarded(lw.Policy(budgets=lw.Budgets(max_tool_calls=2)), raise_on_start=True)
    bodies = 0
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a") as run:
        for _ in range(5):
            with foreign_tool(tracer, "fetch"):
                bodies += 1
    assert bodies == 2
    assert caught.value.budget == "tool_calls"
    assert run.outcome.tool_calls == 2
    assert value(semconv.TOOL_CALLS, tool="fetch", outcome="refused") == 1
    # Not even the span that was refused is still open, for the SDK never ends it.
    assert len(ambient._table.spans) == 0


def test_raise_on_start_refuses_model_calls_of_an_aborted_run_and_the_boundary_remembers():
    tracer = guarded(raise_on_start=True)
    refused = 0
    with pytest.raises(lw.RunAborted, match="enough"), lw.watch_run("a") as run:
        run.abort("enough")
        for _ in range(6):
            try:
                with chat(tracer, 1, 1):
                    pytest.fail("the model was called")
            except lw.RunAborted:
                refused += 1
    assert refused == 6


def test_raise_on_start_refuses_a_loop_at_the_next_call():
    policy = lw.Policy(loops=lw.LoopRules(max_repeats=2, action="abort"))
    tracer = guarded(policy, raise_on_start=True)
    bodies = 0
    with pytest.raises(lw.ToolLoopError), tracer.start_as_current_span("request"):
        for _ in range(9):
            with foreign_tool(tracer, "fetch", arguments={"u": 1}, result="same answer"):
                bodies += 1
    assert bodies == 3


def test_raise_on_start_holds_for_the_budget_of_a_parent():
    policy = lw.Policy(budgets=lw.Budgets(max_tool_calls=1))
    tracer = guarded(raise_on_start=True)
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("outer", policy=policy), lw.watch_run("inner"):
        for _ in range(2):
            with foreign_tool(tracer, "fetch"):
                pass


# --- what leaves ---


def test_no_argument_result_or_error_text_leaves(caplog):
    caplog.set_level(logging.DEBUG)
    with testing.capture() as seen:
        seen.tracer_provider.add_span_processor(
            LoopwatchSpanProcessor(policy=lw.Policy(loops=lw.LoopRules(max_repeats=1, action="abort")))
        )
        tracer = seen.tracer_provider.get_tracer("framework")
        search = search_tool()
        with tracer.start_as_current_span("request"):
            for _ in range(3):
                with foreign_tool(tracer, "fetch", arguments={"q": "SECRET"}, result="SECRET") as span:
                    span.set_status(Status(StatusCode.ERROR, "SECRET"))
            with pytest.raises(lw.ToolLoopError) as caught:
                search("SECRET")
        ours = [span for span in seen.spans if span.instrumentation_scope.name == telemetry.SCOPE]
        assert "SECRET" not in " ".join(span.to_json() for span in ours)
        assert len(ours) == 1
        assert "SECRET" not in str(list(metrics.samples()))
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in caplog.text
