"""What the spans of other libraries say, library by library; and two spans that show one thing.

The attribute sets are those that the libraries were measured to emit. The libraries themselves run in tests/libraries.
"""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

import otel_loopwatch as lw
from otel_loopwatch import ambient, foreign, metrics, open_spans, semconv, shown_calls, telemetry
from otel_loopwatch.calls import RunOutcome
from otel_loopwatch.processor import LoopwatchSpanProcessor
from otel_loopwatch.testing import FakeClock

LOOPS = lw.Policy(loops=lw.LoopRules(max_repeats=2, action="abort"))


class Library:
    """A provider with the guard on it, and tracers of any scope."""

    def __init__(self, policy: lw.Policy = LOOPS, **options) -> None:
        self.processor = LoopwatchSpanProcessor(policy=policy, **options)
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self.processor)
        telemetry.use_tracer_provider(self.provider)

    @contextmanager
    def span(self, name, scope="framework", start=None, end=None, events=(), error=None, **options):
        tracer = self.provider.get_tracer(scope)
        with tracer.start_as_current_span(
            name, attributes=start, record_exception=False, set_status_on_exception=False, **options
        ) as span:
            yield span
            span.set_attributes(end or {})
            for event, attributes in events:
                span.add_event(event, attributes)
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, error))


@pytest.fixture
def ended(monkeypatch) -> list[RunOutcome]:
    """How the runs of the test ended, in order."""
    outcomes: list[RunOutcome] = []
    closed = metrics.run_closed
    monkeypatch.setattr(metrics, "run_closed", lambda run, out: (outcomes.append(out), closed(run, out)))
    return outcomes


def value(metric: semconv.Metric, **labels: str) -> float:
    return sum(v for m, has, v in metrics.samples() if m is metric and labels.items() <= has.items())


# --- one tool call, as each library shows it ---

ARGUMENTS = json.dumps({"q": "hi", "k": 1})
TOOLS = {
    "pydantic-ai": {
        "name": "execute_tool search",
        "scope": "pydantic-ai",
        "start": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.arguments": ARGUMENTS,
        },
        "end": {"gen_ai.tool.call.result": "found"},
    },
    "genai-langchain": {
        "name": "execute_tool search",
        "scope": "opentelemetry.instrumentation.genai.langchain",
        "start": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
        "end": {"gen_ai.tool.call.arguments": ARGUMENTS, "gen_ai.tool.call.result": "found"},
    },
    "openinference-langchain": {
        "name": "search",
        "scope": "openinference.instrumentation.langchain",
        "end": {
            "openinference.span.kind": "TOOL",
            "tool.name": "search",
            "input.value": ARGUMENTS,
            "output.value": "found",
        },
    },
    "openinference-decorator": {
        "name": "search",
        "scope": "myapp",
        "start": {"openinference.span.kind": "TOOL", "tool.name": "search", "input.value": ARGUMENTS},
        "end": {"output.value": "found"},
    },
    "traceloop": {
        "name": "search.tool",
        "scope": "traceloop.tracer",
        "end": {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "search",
            "traceloop.entity.input": json.dumps({"args": ["hi"], "kwargs": {"k": 2}}),
            "traceloop.entity.output": "found",
        },
    },
    "google-adk": {
        "name": "execute_tool search",
        "scope": "gcp.vertex.agent",
        "end": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.arguments": ARGUMENTS,
            "gen_ai.tool.call.result": "found",
        },
    },
    "google-adk, older": {
        "name": "execute_tool search",
        "scope": "gcp.vertex.agent",
        "end": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gcp.vertex.agent.tool_call_args": ARGUMENTS,
            "gcp.vertex.agent.tool_response": '{"result": "found"}',
        },
    },
    "agent-framework": {
        "name": "execute_tool search",
        "scope": "agent_framework",
        "start": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.arguments": ARGUMENTS,
        },
        "end": {"gen_ai.tool.call.result": "found"},
    },
    "strands": {
        "name": "execute_tool search",
        "scope": "strands.telemetry.tracer",
        "end": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.status": "success",
        },
        "events": [
            ("gen_ai.tool.message", {"role": "tool", "content": ARGUMENTS}),
            ("gen_ai.choice", {"message": '[{"text": "found"}]'}),
        ],
    },
}


@pytest.mark.parametrize("library", TOOLS)
def test_a_looping_tool_is_seen_as_each_library_shows_it(library, ended):
    spans = Library()
    with spans.span("request"):
        for _ in range(4):
            with spans.span(**TOOLS[library]):
                pass
    (outcome,) = ended
    assert (outcome.tool_calls, outcome.stop_reason) == (4, "loop_detected")
    assert [(finding.kind, finding.tool, finding.repeats) for finding in outcome.findings] == [("repeat", "search", 3)]
    assert value(semconv.TOOL_CALLS, tool="search", outcome="ok") == 4


@pytest.mark.parametrize(
    "name, scope, start, tool",
    [
        ("MCP send tools/call search", "mcp-python-sdk", {}, "search"),
        (
            "tools/call search",
            "mcp-python-sdk",
            {"mcp.method.name": "tools/call", "gen_ai.tool.name": "search"},
            "search",
        ),
        ("execute_tool search", "somebody", {}, "search"),
    ],
)
def test_a_tool_that_shows_no_arguments_is_counted(name, scope, start, tool, ended):
    spans = Library()
    with spans.span("request"):
        for _ in range(4):
            with spans.span(name, scope, start):
                pass
    assert (ended[0].tool_calls, ended[0].findings) == (4, ())
    assert value(semconv.TOOL_CALLS, tool=tool) == 4


@pytest.mark.parametrize(
    "shown",
    [
        {"error": "ValueError: no such page"},
        {"end": {"error.type": "ValueError"}},
        {"end": {"gen_ai.tool.status": "error"}},
        {"error": "", "events": [("exception", {"exception.type": "ValueError", "exception.message": "no such page"})]},
    ],
    ids=["status", "error.type", "tool status", "exception event"],
)
def test_a_failed_call_is_one_however_the_library_says_it(shown):
    spans = Library(lw.Policy(loops=lw.LoopRules(max_error_streak=3, action="abort")))
    with lw.watch_run(on_abort="return") as run:
        for page in range(5):
            start = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read"}
            arguments = {"gen_ai.tool.call.arguments": json.dumps({"page": page})}
            with spans.span("execute_tool read", start={**start, **arguments}, **shown):
                pass
    assert run.outcome.stop_reason == "no_progress"
    assert value(semconv.TOOL_CALLS, tool="read", outcome="error") == 5


def test_the_class_of_an_error_is_told_and_its_text_is_not():
    spans = Library(lw.Policy(loops=lw.LoopRules(max_error_streak=2, action="abort")))
    with lw.watch_run(on_abort="return") as run:
        for page in range(4):
            start = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read", "input.value": str(page)}
            said = {"exception.type": "ValueError", "exception.message": "password is hunter2"}
            with spans.span("execute_tool read", start=start, events=[("exception", said)], error="hunter2"):
                pass
    (finding,) = run.outcome.findings
    assert finding.error_class == "ValueError"
    assert "hunter2" not in repr(run.outcome)


@pytest.mark.parametrize("where", ["error.type", "exception.type"])
def test_an_error_type_that_is_a_text_is_not_told(where):
    text = "no user alice@corp.com with password hunter2"
    shown = (
        {"end": {"error.type": text}}
        if where == "error.type"
        else {"error": "", "events": [("exception", {"exception.type": text})]}
    )
    spans = Library(lw.Policy(loops=lw.LoopRules(max_error_streak=2, action="abort")))
    with lw.watch_run(on_abort="return") as run:
        for page in range(4):
            start = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read", "input.value": str(page)}
            with spans.span("execute_tool read", start=start, **shown):
                pass
    (finding,) = run.outcome.findings
    assert finding.error_class == "error"
    assert "hunter2" not in repr(run.outcome)


def test_what_a_span_inside_has_shown_is_not_kept_when_the_call_is_over():
    spans = Library()
    shown = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read",
        "gen_ai.tool.call.arguments": "secret",
    }
    with spans.span("request"), spans.span("execute_tool read", "one", shown) as outer:
        opened = ambient.find_span(outer.get_span_context())
        with spans.span("execute_tool read", "other", shown):
            pass
        assert opened.inner is not None
        outer.end()
        assert opened.inner is None


# --- agents and runs ---


@pytest.mark.parametrize(
    "name, scope, start, agent",
    [
        ("invoke_agent researcher", "pydantic-ai", {"gen_ai.operation.name": "invoke_agent"}, "researcher"),
        ("invoke_agent researcher", "gcp.vertex.agent", {}, "researcher"),
        ("invoke_workflow Agent workflow", "x", {"gen_ai.operation.name": "invoke_workflow"}, "Agent workflow"),
        ("agent", "myapp", {"openinference.span.kind": "AGENT", "agent.name": "researcher"}, "researcher"),
        ("agent", "myapp", {"openinference.span.kind": "AGENT"}, "agent"),
        ("researcher.agent", "traceloop.tracer", {}, "researcher"),
        ("wf.workflow", "traceloop.tracer", {}, "wf"),
    ],
)
def test_the_outermost_agent_span_of_each_library_is_the_run(name, scope, start, agent, ended):
    spans = Library()
    with ExitStack() as stack:
        for shown in (("POST /ask",), (name, scope, start), ("invoke_agent helper",), ("execute_tool search",)):
            stack.enter_context(spans.span(*shown))
    assert [(outcome.agent, outcome.tool_calls) for outcome in ended] == [(agent, 1)]


def test_two_user_turns_of_one_conversation_are_two_runs(ended):
    spans = Library()
    talk = {"gen_ai.conversation.id": "t1", "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"}
    for _ in range(2):
        with spans.span("invoke_agent a", start=talk), spans.span("execute_tool search"):
            pass
    assert [outcome.tool_calls for outcome in ended] == [1, 1]
    assert len({outcome.run_id for outcome in ended}) == 2


def test_the_conversation_is_an_attribute_of_the_run():
    spans = Library()
    with spans.span("invoke_agent a", start={"session.id": "s1"}):
        with spans.span("execute_tool search"):
            pass
        assert [run.attributes for run in lw.runs()] == [{"gen_ai.conversation.id": "s1"}]


def test_findings_are_noted_on_the_span_that_stands_for_the_run():
    spans = Library()
    with spans.span("invoke_agent a") as root:
        for _ in range(3):
            with spans.span(**TOOLS["pydantic-ai"]):
                pass
        assert [event.name for event in root.events] == ["loopwatch.loop.detected", "loopwatch.run.aborted"]
        (run,) = lw.runs()
        assert root.attributes["loopwatch.run.id"] == run.run_id
        assert root.attributes["loopwatch.stop.reason"] == "loop_detected"


def test_a_tool_span_that_stands_for_a_run_is_still_annotated_by_the_decorator(ended):
    spans = Library()
    search = lw.watch_tool(lambda query: query, name="search")
    shown = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    with spans.span("execute_tool search", start=shown) as span:
        search("x")
    assert span.attributes["loopwatch.tool.call.repeat.count"] == 1
    assert [outcome.tool_calls for outcome in ended] == [1]


def test_an_in_memory_server_is_in_the_run_of_its_client(ended):
    spans = Library()
    with spans.span("invoke_agent a") as root:
        carried = SpanContext(
            root.get_span_context().trace_id,
            root.get_span_context().span_id,
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        above = trace.set_span_in_context(NonRecordingSpan(carried))
        with spans.span("tools/call search", start={"mcp.method.name": "tools/call"}, context=above):
            pass
    assert [(outcome.agent, outcome.tool_calls) for outcome in ended] == [("a", 1)]


def test_spans_that_never_end_are_bounded_and_counted(monkeypatch, ended):
    monkeypatch.setattr(open_spans, "MAX_OPEN", 50)
    spans = Library()
    tracer = spans.provider.get_tracer("framework")
    kept = []
    for _ in range(300):
        root = tracer.start_span("invoke_agent a")
        kept.append(root)
        with spans.span("execute_tool search", context=trace.set_span_in_context(root)):
            pass
    assert len(ended) == 250
    assert len(lw.runs()) == 50
    # A span and a run for each of those that were forgotten.
    assert value(semconv.SPANS_EVICTED) >= 250
    assert len(ambient._table.spans) <= 50
    for root in kept:
        root.end()
    assert len(lw.runs()) == 0


def test_a_clock_that_jumps_ends_only_what_was_idle(ended):
    with FakeClock() as clock:
        spans = Library(idle_limit_s=60)
        with spans.span("invoke_agent a"):
            with spans.span("execute_tool search"):
                pass
            clock.advance(10_000)
            ambient.sweep()
            assert [outcome.tool_calls for outcome in ended] == [1]
            with spans.span("execute_tool search"):
                pass
        assert [outcome.tool_calls for outcome in ended] == [1, 1]


# --- usage ---

USAGES = {
    "new": {
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 400,
        "gen_ai.usage.reasoning.output_tokens": 7,
    },
    "old": {
        "gen_ai.usage.prompt_tokens": 1000,
        "gen_ai.usage.completion_tokens": 50,
        "gen_ai.usage.cache_read_input_tokens": 400,
        "gen_ai.usage.reasoning_tokens": 7,
    },
    "both": {
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.prompt_tokens": 1000,
        "gen_ai.usage.completion_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 400,
        "gen_ai.usage.cache_read_input_tokens": 400,
        "gen_ai.usage.reasoning.output_tokens": 7,
    },
    "openinference": {
        "llm.token_count.prompt": 1000,
        "llm.token_count.completion": 50,
        "llm.token_count.total": 1050,
        "llm.token_count.prompt_details.cache_read": 400,
        "llm.token_count.completion_details.reasoning": 7,
    },
    "all of them": {
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 400,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "llm.token_count.prompt": 1000,
        "llm.token_count.completion": 50,
    },
    "cached ones apart": {
        "gen_ai.usage.input_tokens": 300,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read_input_tokens": 400,
        "gen_ai.usage.cache_creation.input_tokens": 300,
        "gen_ai.usage.reasoning.output_tokens": 7,
    },
}


@pytest.mark.parametrize("names", USAGES)
def test_d10_usage_is_read_once_by_whichever_names(names):
    usage = foreign.usage({"gen_ai.request.model": "gpt-5", **USAGES[names]})
    assert usage is not None
    assert usage._replace(cache_write_input_tokens=0) == lw.Usage(
        "gpt-5", 1000, 50, 400, None, cache_write_input_tokens=0, reasoning_output_tokens=7
    )


@pytest.mark.parametrize("names", USAGES)
def test_d10_each_span_is_charged_once(names, ended):
    spans = Library()
    with spans.span("request"), spans.span("chat m", start={"gen_ai.operation.name": "chat"}, end=USAGES[names]):
        pass
    assert (ended[0].input_tokens, ended[0].output_tokens, ended[0].steps) == (1000, 50, 1)


def test_d10_an_unknown_family_is_missing_usage(ended):
    spans = Library()
    with spans.span("request"), spans.span("chat m", start={"gen_ai.operation.name": "chat"}, end={"my.tokens": 7}):
        pass
    assert not ended[0].spend_complete
    assert value(semconv.USAGE_MISSING) == 1


@pytest.mark.parametrize(
    "cost, usd",
    [
        ({"operation.cost": 0.25}, "0.25"),
        ({"llm.cost.total": 0.25}, "0.25"),
        ({"gen_ai.usage.cost.amount": 0.25}, "0.25"),
        ({"gen_ai.usage.cost.amount": 0.25, "gen_ai.usage.cost.currency": "USD"}, "0.25"),
        ({"operation.cost": 0.25, "llm.cost.total": 0.25}, "0.25"),
        ({"gen_ai.usage.cost.amount": 0.25, "gen_ai.usage.cost.currency": "EUR"}, "0.00027"),
        ({"operation.cost": float("nan")}, "0.00027"),
        ({"operation.cost": -1}, "0.00027"),
        ({}, "0.00027"),
    ],
)
def test_a_cost_that_the_library_computed_is_used_and_not_computed_twice(cost, usd, ended):
    spans = Library()
    used = {"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 200}
    start = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o-mini", "gen_ai.system": "openai"}
    with spans.span("request"), spans.span("chat gpt-4o-mini", start=start, end={**used, **cost}):
        pass
    assert (ended[0].spend_usd, ended[0].spend_complete) == (Decimal(usd), True)


def test_d5_sums_of_an_agent_are_never_added(ended):
    spans = Library()
    sums = {"gen_ai.usage.input_tokens": 113, "gen_ai.usage.output_tokens": 11}
    with spans.span("invoke_agent a", start={"gen_ai.operation.name": "invoke_agent"}, end=sums):
        for read, written in ((56, 5), (57, 6)):
            used = {"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": written}
            with spans.span("chat m", start={"gen_ai.operation.name": "chat"}, end=used):
                pass
    assert (ended[0].input_tokens + ended[0].output_tokens, ended[0].steps) == (124, 2)


def test_d5_a_span_of_no_known_kind_that_repeats_the_sum_is_not_added(ended):
    spans = Library()
    used = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10}
    with spans.span("agent run", end=used), spans.span("chat m", start={"gen_ai.operation.name": "chat"}, end=used):
        pass
    assert ended[0].input_tokens == 100


def test_usage_on_a_span_of_no_known_kind_is_charged_and_no_turn(ended):
    spans = Library()
    with spans.span("request"):
        used = {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 70}
        with spans.span("embeddings m", end=used):
            pass
        with spans.span("my llm", end={"llm.token_count.prompt": 30}):
            pass
    assert (ended[0].input_tokens, ended[0].steps) == (100, 0)


# --- two libraries, one fact ---


def model_span(spans: Library, scope: str, *, late: bool = False, used: tuple[int, int] | None = (100, 20), **end):
    start = {} if late else {"gen_ai.operation.name": "chat"}
    told = {"openinference.span.kind": "LLM"} if late else {}
    if used is not None:
        names = (
            ("llm.token_count.prompt", "llm.token_count.completion")
            if late
            else ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
        )
        told |= dict(zip(names, used, strict=True))
    return spans.span("ChatModel" if late else "chat m", scope, start, {**told, **end})


@pytest.mark.parametrize("inner_late", [True, False])
@pytest.mark.parametrize("outer_late", [True, False])
@pytest.mark.parametrize("inner_used", [(100, 20), None])
@pytest.mark.parametrize("outer_used", [(100, 20), None])
def test_d5_a_model_span_inside_another_counts_once(inner_late, outer_late, inner_used, outer_used, ended):
    spans = Library()
    with (
        spans.span("request"),
        model_span(spans, "outer", late=outer_late, used=outer_used),
        model_span(spans, "inner", late=inner_late, used=inner_used),
    ):
        pass
    (outcome,) = ended
    assert outcome.steps == 1
    assert (outcome.input_tokens, outcome.output_tokens) == (inner_used or outer_used or (0, 0))
    assert outcome.spend_usd == 0
    assert value(semconv.USAGE_MISSING) == (inner_used is None and outer_used is None)


def side_by_side(spans: Library, first, second, order: str):
    """Begin two spans, each below the current one and not below the other, and end them in *order*."""
    tracer_of = spans.provider.get_tracer
    above = trace.set_span_in_context(trace.get_current_span())
    opened = []
    for shown in (first, second):
        opened.append(tracer_of(shown["scope"]).start_span(shown["name"], context=above, attributes=shown.get("start")))
    for index in order:
        shown, span = (first, second)[int(index)], opened[int(index)]
        span.set_attributes(shown.get("end") or {})
        for event, attributes in shown.get("events", ()):
            span.add_event(event, attributes)
        span.end()


OI_MODEL = {
    "name": "ChatOpenAI",
    "scope": "openinference",
    "end": {"openinference.span.kind": "LLM", "llm.token_count.prompt": 100, "llm.token_count.completion": 20},
}
OTEL_MODEL = {
    "name": "chat m",
    "scope": "official",
    "start": {"gen_ai.operation.name": "chat"},
    "end": {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20},
}


@pytest.mark.parametrize("order", ["01", "10"])
@pytest.mark.parametrize("pair", [(OI_MODEL, OTEL_MODEL), (OTEL_MODEL, OI_MODEL)])
def test_two_libraries_side_by_side_charge_a_model_call_once(pair, order, ended):
    spans = Library()
    with spans.span("request"):
        for _ in range(3):
            side_by_side(spans, *pair, order)
    assert (ended[0].input_tokens, ended[0].output_tokens, ended[0].steps) == (300, 60, 3)


@pytest.mark.parametrize("order", ["01", "10"])
@pytest.mark.parametrize("other", [name for name in TOOLS if name != "openinference-langchain"])
def test_two_libraries_side_by_side_show_a_tool_call_once(other, order, ended):
    spans = Library()
    with spans.span("request"):
        for _ in range(4):
            side_by_side(spans, TOOLS["openinference-langchain"], TOOLS[other], order)
    assert (ended[0].tool_calls, [f.repeats for f in ended[0].findings]) == (4, [3])


def test_one_library_that_does_things_at_the_same_time_is_counted_in_full(ended):
    spans = Library()
    with spans.span("request"):
        side_by_side(spans, OTEL_MODEL, OTEL_MODEL, "01")
        side_by_side(spans, TOOLS["pydantic-ai"], TOOLS["pydantic-ai"], "10")
    assert (ended[0].input_tokens, ended[0].tool_calls) == (200, 2)


@pytest.mark.parametrize("told", ["tokens", "response ids"])
def test_two_libraries_that_show_different_model_calls_are_both_charged(told, ended):
    spans = Library()
    if told == "tokens":
        other = {**OI_MODEL, "end": {**OI_MODEL["end"], "llm.token_count.prompt": 90}}
        mine = OTEL_MODEL
    else:
        mine = {**OTEL_MODEL, "end": {**OTEL_MODEL["end"], "gen_ai.response.id": "r1"}}
        other = {**OI_MODEL, "end": {**OI_MODEL["end"], "gen_ai.response.id": "r2"}}
    with spans.span("request"):
        side_by_side(spans, mine, other, "01")
    assert ended[0].input_tokens == (190 if told == "tokens" else 200)


def test_one_response_id_is_one_model_call_even_of_one_library(ended):
    spans = Library()
    shown = {**OTEL_MODEL, "end": {**OTEL_MODEL["end"], "gen_ai.response.id": "r1"}}
    with spans.span("request"):
        side_by_side(spans, shown, shown, "01")
    assert ended[0].input_tokens == 100


def test_parallel_calls_shown_by_two_libraries_are_counted_once_each(ended):
    spans = Library()
    tools = (TOOLS["openinference-langchain"], TOOLS["genai-langchain"])
    with spans.span("request"):
        above = trace.set_span_in_context(trace.get_current_span())
        opened = [
            (
                shown,
                spans.provider.get_tracer(shown["scope"]).start_span(
                    shown["name"], above, attributes=shown.get("start")
                ),
            )
            for _ in range(3)
            for shown in tools
        ]
        for shown, span in opened:
            span.set_attributes(shown["end"])
            span.end()
    assert ended[0].tool_calls == 3


MCP = {"name": "tools/call search", "scope": "mcp-python-sdk", "start": {"mcp.method.name": "tools/call"}}


@pytest.mark.parametrize("library", TOOLS)
def test_a_transport_span_inside_of_a_tool_span_is_the_same_call(library, ended):
    spans = Library()
    with spans.span("request"):
        for _ in range(3):
            with spans.span(**TOOLS[library]), spans.span(**MCP, end={"gen_ai.tool.name": "search"}):
                pass
    # The outer span is the one that shows the arguments: the loop is seen.
    assert (ended[0].tool_calls, [f.repeats for f in ended[0].findings]) == (3, [3])


def test_what_the_outer_span_does_not_show_the_inner_one_may(ended):
    spans = Library()
    with spans.span("request"):
        for _ in range(3):
            with spans.span("execute_tool search"), spans.span(**TOOLS["pydantic-ai"]):
                pass
    assert (ended[0].tool_calls, [f.repeats for f in ended[0].findings]) == (3, [3])


def test_a_span_that_is_named_like_a_tool_and_is_none_hides_no_call(ended):
    spans = Library()
    with spans.span("request"), spans.span("search"), spans.span(**TOOLS["pydantic-ai"]):
        pass
    assert ended[0].tool_calls == 1


def test_a_tool_that_asks_an_agent_that_calls_the_same_tool_is_two_calls(ended):
    spans = Library()
    with ExitStack() as stack:
        for shown in (
            {"name": "request"},
            TOOLS["pydantic-ai"],
            {"name": "invoke_agent helper"},
            TOOLS["pydantic-ai"],
        ):
            stack.enter_context(spans.span(**shown))
    assert sum(outcome.tool_calls for outcome in ended) == 2


def outcome_of(values, spans=None, **names):
    """A watched run in which one tool is shown once for each of *values*, its arguments or its results."""
    spans = spans or Library()
    with lw.watch_run(on_abort="return") as run:
        for arguments, result in values:
            end = {"openinference.span.kind": "TOOL", "input.value": arguments, "output.value": result}
            with spans.span("search", end={**end, **names}):
                pass
    return run.outcome


@pytest.mark.parametrize(
    "value",
    [
        "__REDACTED__",
        '{"q": "__REDACTED__"}',
        "[Scrubbed due to 'password']",
        """{"password": "[Scrubbed due to 'password']"}""",
    ],
)
def test_values_with_something_taken_out_are_not_compared(value):
    # The arguments may differ in what was taken out, and so may the results.
    assert outcome_of([(value, "found")] * 6).findings == ()
    assert outcome_of([('{"q": 1}', value)] * 4).stop_reason == "completed"


@pytest.mark.parametrize("variable", ["OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"])
def test_values_that_the_sdk_has_cut_off_are_not_compared(monkeypatch, variable):
    monkeypatch.setenv(variable, "20")
    shown_calls._value_limit.cache_clear()
    try:
        assert outcome_of([("the same beginning, and then this", "found")] * 6).findings == ()
        assert len(outcome_of([("short", "found")] * 6).findings) == 1
    finally:
        monkeypatch.undo()
        shown_calls._value_limit.cache_clear()


def test_values_that_lack_their_end_are_not_compared():
    assert outcome_of([('{"query": "the same beginning, and', "found")] * 6).findings == ()
    assert outcome_of([("hi", '[{"text": "the same beginning, and')] * 4).findings == ()
    assert len(outcome_of([("{'query': 'not JSON'}", "found")] * 6).findings) == 1


def test_what_openllmetry_wraps_around_arguments_and_results_makes_no_call_new():
    def shown(number: int) -> tuple[str, str]:
        arguments = {
            "input_str": "{'q': 'hi'}",
            "metadata": {"langgraph_step": number},
            "inputs": {"q": "hi"},
            "kwargs": {"tool_call_id": f"c{number}"},
        }
        message = {"content": "found", "tool_call_id": f"c{number}", "status": "success"}
        return json.dumps(arguments), json.dumps({"output": {"lc": 1, "kwargs": message}, "kwargs": {}})

    (finding,) = outcome_of(map(shown, range(4))).findings
    assert (finding.kind, finding.repeats) == ("repeat", 3)


@pytest.mark.parametrize(
    "arguments", ['{"input_str": 1', '{"input_str": "x"}', '["input_str"]', '{"input_str": 1, "inputs": null}']
)
def test_what_only_looks_wrapped_is_compared_as_it_is(arguments):
    complete = arguments.endswith(("}", "]"))
    assert len(outcome_of([(arguments, "found")] * 4).findings) == complete


@pytest.mark.parametrize("name", ["unknown", ""])
def test_a_word_in_the_place_of_a_model_is_no_model(name):
    known = {"traceloop.association.properties.ls_model_name": "gpt-4o"}
    assert foreign.model({"gen_ai.response.model": name, "gen_ai.request.model": name}) is None
    assert foreign.model({"gen_ai.response.model": name, **known}) == "gpt-4o"


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_id_in_a_message_of_langchain_makes_no_result_new(wrapped):
    def message(number: int) -> str:
        data = {"content": "found", "type": "tool", "tool_call_id": f"call_{number}", "status": "success"}
        return json.dumps({"type": "tool", "data": data} if wrapped else data)

    assert [f.kind for f in outcome_of(("hi", message(number)) for number in range(4)).findings] == ["repeat"]


@pytest.mark.parametrize("result", ['{"tool_call_id": 7}', '"tool_call_id"', '{"data": {"tool_call_id": []}}'])
def test_what_only_looks_like_a_message_of_langchain_is_a_result(result):
    assert [f.kind for f in outcome_of([("hi", result)] * 4).findings] == ["repeat"]


def test_turns_that_are_taken_after_the_trip_are_counted():
    spans = Library(lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
    with lw.watch_run(on_abort="return") as run:
        for _ in range(5):
            with spans.span("chat m", start={"gen_ai.operation.name": "chat"}, end=USAGES["new"]):
                pass
            with spans.span("execute_tool search"):
                pass
    assert (run.outcome.steps, run.outcome.tool_calls, run.outcome.input_tokens) == (5, 5, 5000)


# --- our own spans, and others around and inside of them ---


@pytest.mark.parametrize("library", TOOLS)
@pytest.mark.parametrize("name", ["search", "kb.search"])
def test_a_decorated_tool_inside_of_each_library_is_one_call(library, name, ended):
    spans = Library()

    @lw.watch_tool(name=name)
    def search(q: str, k: int) -> str:
        return "found"

    with spans.span("request"):
        for k in range(2):
            with spans.span(**TOOLS[library]):
                search("hi", k)
    assert ended[0].tool_calls == 2
    assert value(semconv.TOOL_CALLS) == 2


def test_a_library_inside_of_a_decorated_tool_shows_the_same_call(ended):
    spans = Library()

    @lw.watch_tool
    def search(q: str) -> str:
        with spans.span(**TOOLS["pydantic-ai"]), spans.span(**MCP, end={"gen_ai.tool.name": "search"}):
            return "found"

    with spans.span("request"):
        search("hi")
    assert ended[0].tool_calls == 1


def test_usage_recorded_by_hand_and_by_spans_is_charged_once():
    spans = Library()
    with lw.watch_run() as run:
        run.record_usage(model="m", input_tokens=100, output_tokens=20)
        with spans.span(
            "chat m", start={"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, end=USAGES["new"]
        ):
            pass
    assert run.outcome.input_tokens == 100
    assert value(semconv.USAGE_DUPLICATE, source="spans") == 1


# --- limits that only a span could pass ---


def test_calls_past_a_limit_are_counted_for_they_ran():
    spans = Library(lw.Policy(budgets=lw.Budgets(max_tool_calls=2)))
    verdicts: list[lw.Verdict] = []
    with lw.watch_run(on_abort="return", on_verdict=verdicts.append) as run:
        for _ in range(5):
            with spans.span("execute_tool search"):
                pass
    assert (run.outcome.tool_calls, run.outcome.stop_reason) == (5, "tool_call_budget")
    assert [verdict.action for verdict in verdicts] == ["abort"]
    with lw.watch_run(policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2)), on_abort="return") as run:
        for _ in range(2):
            with spans.span("execute_tool search"):
                pass
    assert run.outcome.stop_reason == "completed"


def test_the_finding_of_a_span_says_what_was_done_about_it():
    spans = Library(lw.Policy(loops=lw.LoopRules(max_repeats=1, hints_before_abort=1)))
    verdicts: list[lw.Verdict] = []
    with lw.watch_run(on_abort="return", on_verdict=verdicts.append) as run:
        for _ in range(3):
            with spans.span(**TOOLS["pydantic-ai"]):
                pass
    assert [finding.action for finding in run.outcome.findings] == ["abort"]
    # The hint that nobody hears is an observation, and no hint was ignored.
    assert [verdict.action for verdict in verdicts] == ["observe", "abort"]
    assert value(semconv.HINTS_IGNORED) == 0


@pytest.mark.parametrize("turns, calls", [(1, 1), (3, 3)])
def test_one_tool_call_id_is_one_call_of_one_turn(turns, calls, ended):
    spans = Library()
    shown = {**TOOLS["pydantic-ai"], "end": {"gen_ai.tool.call.id": "call_0"}}
    with spans.span("request"):
        for number in range(3):
            if number < turns:
                with spans.span(**OTEL_MODEL):
                    pass
            with spans.span(**shown):
                pass
    assert ended[0].tool_calls == calls


@pytest.mark.parametrize("ident", ["call_0", "", "<not specified>"])
def test_ids_that_are_numbered_anew_hide_no_call_of_another_tool(ident, ended):
    spans = Library()
    with spans.span("request"), spans.span(**OTEL_MODEL):
        pass
    with spans.span("request"):
        with spans.span(**OTEL_MODEL):
            pass
        for tool in ("search", "read"):
            with spans.span(f"execute_tool {tool}", end={"gen_ai.tool.call.id": ident}):
                pass
    assert ended[1].tool_calls == 2


@pytest.mark.parametrize("watched", [False, True])
def test_calls_inside_of_one_model_span_are_not_all_of_one_turn(watched):
    spans = Library(lw.Policy(loops=lw.LoopRules(max_repeats=2, action="abort")))
    search = lw.watch_tool(lambda q: "found", name="search")
    with lw.watch_run(on_abort="return") as run, spans.span(**OTEL_MODEL):
        for _ in range(4):
            if watched:
                search("hi")
            else:
                with spans.span(**TOOLS["pydantic-ai"]):
                    pass
    assert [finding.repeats for finding in run.outcome.findings] == [3]


def test_identical_calls_at_the_same_time_are_one_demand_where_turns_are_unknown():
    spans = Library(lw.Policy(loops=lw.LoopRules(max_repeats=2, action="abort")))
    tracer = spans.provider.get_tracer("framework")
    with lw.watch_run(on_abort="return") as run:
        for batch, calls in enumerate((5, 5, 1), start=1):
            opened = [
                tracer.start_span("search", attributes=TOOLS["openinference-decorator"]["start"]) for _ in range(calls)
            ]
            for span in opened:
                span.set_attribute("output.value", "found")
                span.end()
            assert len(run.outcome.findings) == (batch == 3)
    (finding,) = run.outcome.findings
    assert (run.outcome.tool_calls, finding.repeats, finding.step) == (11, 3, 0)


# --- a call that travels through servers ---


def chain(spans: Library, *names: tuple[str, str, dict, dict]):
    """The spans of one call, each inside of the one before it."""
    stack = ExitStack()
    for name, scope, start, end in names:
        stack.enter_context(spans.span(name, scope, start, end))
    return stack


CALLS = {"mcp.method.name": "tools/call"}
MOUNTED = (
    ("tools/call kb_search", "fastmcp", {**CALLS, "gen_ai.tool.name": "kb_search"}, {}),
    ("MCP send tools/call kb_search", "mcp-python-sdk", {}, {}),
    ("tools/call", "fastmcp", {}, {**CALLS, "gen_ai.tool.name": "kb_search"}),
    ("delegate search", "fastmcp", CALLS, {}),
    ("tools/call search", "fastmcp", {**CALLS, "gen_ai.tool.name": "search"}, {}),
)


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("length", range(1, len(MOUNTED) + 1))
def test_a_call_is_one_through_clients_servers_and_what_is_mounted_there(length, decorated, ended):
    spans = Library()
    search = lw.watch_tool(lambda q: "found", name="search")
    with spans.span("request"):
        for _ in range(2):
            with chain(spans, *MOUNTED[:length]):
                if decorated:
                    search("hi")
    assert ended[0].tool_calls == 2
    assert value(semconv.TOOL_CALLS, tool="search" if decorated else "kb_search") == 2


def test_the_error_of_a_server_is_that_of_the_call(ended):
    spans = Library()
    server = {"start": {**CALLS, "gen_ai.tool.name": "boom"}, "end": {"error.type": "tool_error"}, "error": ""}
    # The second time, another attempt goes well.
    for attempts in ([server], [server, {"start": server["start"]}]):
        with spans.span("request"), spans.span("MCP send tools/call boom", "mcp-python-sdk"):
            for shown in attempts:
                with spans.span("tools/call boom", "mcp-python-sdk", **shown):
                    pass
    assert (value(semconv.TOOL_CALLS, outcome="error"), value(semconv.TOOL_CALLS, outcome="ok")) == (1, 1)


def test_a_decorated_call_is_one_where_two_libraries_show_it_side_by_side(ended):
    spans = Library()
    search = lw.watch_tool(lambda q: "found", name="search")
    with by_callback(spans, "researcher") as root:
        for number in range(3):
            with by_callback(spans, "search", root, **SHOWN_TOOL), spans.span(**TOOLS["genai-langchain"]):
                search(str(number))
    assert ended[0].tool_calls == 3


def test_a_refusal_of_two_libraries_spans_is_one_refused_call():
    spans = Library(lw.Policy(budgets=lw.Budgets(max_tool_calls=1)), raise_on_start=True)
    with lw.watch_run(on_abort="return"):
        with spans.span("execute_tool search"):
            pass
        for scope in ("one", "other"):
            with pytest.raises(lw.BudgetExceeded):
                spans.provider.get_tracer(scope).start_span("execute_tool search")
    assert value(semconv.TOOL_CALLS, outcome="refused") == 1


def test_a_span_that_lost_its_first_attributes_is_still_what_it_was(ended):
    spans = Library()
    with spans.span("request"):
        start = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
        with spans.span("chat m", start=start, end=USAGES["new"]) as span:
            span.set_attributes({f"llm.input_messages.{number}.role": "user" for number in range(128)})
    assert (ended[0].input_tokens, ended[0].steps) == (1000, 1)


def test_spans_of_servers_and_clients_are_nothing_of_an_agent(ended):
    spans = Library()
    with spans.span("GET /x", kind=SpanKind.SERVER), spans.span("SELECT", start={"db.system": "sqlite"}):
        pass
    assert ended == []


# --- two libraries, one agent ---

OI_AGENT = {"name": "researcher", "scope": "openinference"}
OTEL_AGENT = {
    "name": "invoke_agent researcher",
    "scope": "official",
    "start": {"gen_ai.operation.name": "invoke_agent"},
}


@pytest.mark.parametrize("above", [True, False], ids=["below a request", "two traces"])
@pytest.mark.parametrize("order", ["01", "10"])
@pytest.mark.parametrize("pair", [(OI_AGENT, OTEL_AGENT), (OTEL_AGENT, OI_AGENT)], ids=["oi first", "official first"])
def test_two_trees_of_spans_that_show_one_agent_are_one_run(pair, order, above, ended):
    spans = Library()

    def begin(shown, below=None):
        tracer = spans.provider.get_tracer(shown["scope"])
        context = trace.get_current_span() if below is None else below
        return tracer.start_span(shown["name"], trace.set_span_in_context(context), attributes=shown.get("start"))

    with ExitStack() as stack:
        if above:
            stack.enter_context(spans.span("POST /ask"))
        roots = [begin(shown) for shown in pair]
        oi, official = roots if pair[0] is OI_AGENT else reversed(roots)
        for _ in range(2):
            for one, other in ((OI_MODEL, OTEL_MODEL), (TOOLS["openinference-langchain"], TOOLS["genai-langchain"])):
                pairs = [(one, begin(one, oi)), (other, begin(other, official))]
                for shown, span in pairs:
                    span.set_attributes(shown["end"])
                    span.end()
        for index in order:
            roots[int(index)].end()
    assert [(outcome.agent, outcome.tool_calls, outcome.steps, outcome.input_tokens) for outcome in ended] == [
        ("researcher", 2, 2, 200)
    ]


@pytest.mark.parametrize("fresh", [True, False])
def test_where_callbacks_run_in_contexts_of_their_own_the_only_fresh_root_is_the_twin(fresh, ended):
    spans = Library()
    callback = {**OI_AGENT, "scope": CALLBACK}

    def begin(shown):
        tracer = spans.provider.get_tracer(shown["scope"])
        return contextvars.copy_context().run(tracer.start_span, shown["name"], attributes=shown.get("start"))

    roots = [begin(shown) for shown in ((callback,) if fresh else (callback, callback))]
    roots.append(begin(OTEL_AGENT))
    for root in roots:
        with spans.span("execute_tool search", context=trace.set_span_in_context(root)):
            pass
    for root in roots:
        root.end()
    assert [outcome.tool_calls for outcome in ended] == ([2] if fresh else [1, 1, 1])


def test_two_agents_one_after_the_other_or_of_one_library_are_two_runs(ended):
    spans = Library()
    with spans.span("POST /ask"):
        for shown in (OTEL_AGENT, {**OTEL_AGENT, "scope": "another"}):
            with spans.span(**shown), spans.span("execute_tool search"):
                pass
        above = trace.set_span_in_context(trace.get_current_span())
        opened = [spans.provider.get_tracer("official").start_span("invoke_agent researcher", above) for _ in range(2)]
        for span in opened:
            with spans.span("execute_tool search", context=trace.set_span_in_context(span)):
                pass
            span.end()
    assert [outcome.tool_calls for outcome in ended] == [1, 1, 1, 1]


# --- a library whose spans are never current: OpenInference on LangChain ---

CALLBACK = "openinference.instrumentation.langchain"


@contextmanager
def by_callback(spans: Library, name: str, below: trace.Span | None = None, **end) -> Iterator[trace.Span]:
    """A span as a callback begins and ends it, current nowhere."""
    above = None if below is None else trace.set_span_in_context(below)
    span = spans.provider.get_tracer(CALLBACK).start_span(name, above)
    yield span
    span.set_attributes(end)
    span.end()


SHOWN_TOOL = {"openinference.span.kind": "TOOL", "input.value": "hi", "output.value": "found"}


@pytest.mark.parametrize("thread", [False, True], ids=["in the thread of the callback", "in another thread"])
def test_a_decorated_tool_finds_the_run_of_the_span_that_shows_it(thread, ended):
    spans = Library()

    @lw.watch_tool
    def search(q: str) -> str:
        return "found"

    with by_callback(spans, "researcher") as root:
        for _ in range(2):
            with by_callback(spans, "search", root, **SHOWN_TOOL):
                if thread:
                    worker = threading.Thread(target=search, args=("hi",))
                    worker.start()
                    worker.join()
                else:
                    search("hi")
    assert [(outcome.agent, outcome.tool_calls) for outcome in ended] == [("researcher", 2)]
    assert value(semconv.UNTRACKED_TOOL_CALLS) == 0


def test_f2_a_decorated_tool_that_two_runs_may_have_called_is_untracked(ended):
    spans = Library()

    @lw.watch_tool
    def search(q: str) -> str:
        return "found"

    with (
        by_callback(spans, "one") as one,
        by_callback(spans, "two") as two,
        by_callback(spans, "search", one, **SHOWN_TOOL),
        by_callback(spans, "search", two, **SHOWN_TOOL),
    ):
        worker = threading.Thread(target=search, args=("hi",))
        worker.start()
        worker.join()
    assert value(semconv.UNTRACKED_TOOL_CALLS) == 1
    assert [outcome.tool_calls for outcome in ended] == [1, 1]


def test_inside_a_watched_run_such_a_tool_is_one_call():
    spans = Library()

    @lw.watch_tool
    def search(q: str) -> str:
        return "found"

    with lw.watch_run() as run:
        for _ in range(2):
            with by_callback(spans, "search", trace.get_current_span(), **SHOWN_TOOL):
                contextvars.Context().run(lw.bind(search), "hi")
    assert run.outcome.tool_calls == 2


def test_a_client_below_such_a_model_span_charges_once(ended):
    spans = Library()
    with by_callback(spans, "researcher") as root:
        for _ in range(2):
            used = {"openinference.span.kind": "LLM", "llm.token_count.prompt": 100, "llm.token_count.completion": 20}
            with by_callback(spans, "ChatOpenAI", root, **used), spans.span(**OTEL_MODEL):
                pass
    assert [(out.agent, out.steps, out.input_tokens) for out in ended] == [("researcher", 2, 200)]


def test_f3_a_client_in_another_context_never_joins_a_run_by_a_guess(ended):
    spans = Library()
    with ExitStack() as stack:
        stack.enter_context(by_callback(spans, "researcher"))
        contextvars.Context().run(_shown_in_a_thread, spans, OTEL_MODEL)
    assert [(outcome.agent, outcome.input_tokens) for outcome in ended] == [("agent", 100)]


def _shown_in_a_thread(spans: Library, shown) -> None:
    def show() -> None:
        with spans.span(**shown):
            pass

    worker = threading.Thread(target=show)
    worker.start()
    worker.join()


def test_f3_two_agents_of_two_libraries_and_one_name_at_the_same_time_never_mix(ended):
    spans = Library()
    roots = []

    def begin(scope: str) -> None:
        roots.append(spans.provider.get_tracer(scope).start_span("invoke_agent agent"))

    for scope in ("one", "other"):
        worker = threading.Thread(target=begin, args=(scope,))
        worker.start()
        worker.join()
    for root, calls in zip(roots, (3, 5), strict=True):
        for _ in range(calls):
            with spans.span("execute_tool search", context=trace.set_span_in_context(root)):
                pass
        root.end()
    assert [outcome.tool_calls for outcome in ended] == [3, 5]


def test_a_call_that_ends_after_its_root_begins_no_other_run(ended):
    spans = Library()
    tracer = spans.provider.get_tracer("framework")
    root = tracer.start_span("invoke_agent a")
    below = trace.set_span_in_context(root)
    late = [tracer.start_span("execute_tool search", below) for _ in range(2)]
    late[0].end()
    root.end()
    late[1].end()
    assert [outcome.tool_calls for outcome in ended] == [1]
    assert lw.runs() == ()
    # It ran: the live counter says so.
    assert value(semconv.TOOL_CALLS, tool="search") == 2


@pytest.mark.parametrize("differing", ["model", "arguments"])
def test_two_libraries_that_show_different_things_at_the_same_time_are_counted_in_full(differing, ended):
    spans = Library()
    with spans.span("request"):
        if differing == "model":
            one = {**OTEL_MODEL, "end": {**OTEL_MODEL["end"], "gen_ai.request.model": "gpt-4o"}}
            other = {**OI_MODEL, "end": {**OI_MODEL["end"], "llm.model_name": "gpt-5"}}
            side_by_side(spans, one, other, "01")
        else:
            shown = TOOLS["genai-langchain"]
            changed = {**shown["end"], "gen_ai.tool.call.arguments": json.dumps({"q": "ho"})}
            side_by_side(spans, shown, {**shown, "scope": "another", "end": changed}, "01")
    assert (ended[0].input_tokens, ended[0].tool_calls) == ((200, 0) if differing == "model" else (0, 2))


def test_an_agent_of_another_library_inside_of_such_a_run_belongs_to_it(ended):
    spans = Library()
    with by_callback(spans, "researcher"), spans.span(**OTEL_AGENT), spans.span("execute_tool search"):
        pass
    with spans.span(**OTEL_AGENT), spans.span("execute_tool search"):
        pass
    assert [(outcome.agent, outcome.tool_calls) for outcome in ended] == [("researcher", 1)] * 2


def test_the_sum_of_the_calls_of_a_turn_is_no_call(ended):
    spans = Library()
    with spans.span("invoke_agent a"):
        for tool in ("search", "(merged tools)"):
            with spans.span(f"execute_tool {tool}", "gcp.vertex.agent", end={"gen_ai.tool.name": tool}):
                pass
    assert ended[0].tool_calls == 1


def test_what_adk_was_told_not_to_record_is_not_compared(ended):
    spans = Library()
    with spans.span("invoke_agent a"):
        for _ in range(6):
            end = {"gcp.vertex.agent.tool_call_args": "{}", "gcp.vertex.agent.tool_response": "{}"}
            with spans.span("execute_tool search", "gcp.vertex.agent", end=end):
                pass
    assert (ended[0].tool_calls, ended[0].findings) == (6, ())


def test_the_id_in_a_function_response_makes_no_result_new():
    def response(number: int) -> str:
        return json.dumps({"id": f"adk-{number}", "name": "search", "response": {"result": "found"}})

    assert [f.kind for f in outcome_of(("hi", response(number)) for number in range(4)).findings] == ["repeat"]


def test_an_error_in_a_message_of_langchain_is_a_failed_call():
    said = {"content": "Error: no such page", "tool_call_id": "c", "status": "error"}
    outcome_of([("hi", json.dumps(said))])
    assert value(semconv.TOOL_CALLS, outcome="error") == 1
