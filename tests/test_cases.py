"""Field cases that no test of one module shows: each is a story of a whole run. Named after the case that it is."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Tracer

import otel_loopwatch as lw
from otel_loopwatch import metrics, semconv
from otel_loopwatch.testing import Captured, FakeClock, capture


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@pytest.fixture
def tracer(seen: Captured) -> Tracer:
    """Of another library, whose spans the processor is shown."""
    seen.tracer_provider.add_span_processor(lw.LoopwatchSpanProcessor())
    return seen.tracer_provider.get_tracer("another library")


def chat(tracer: Tracer, **attributes: Any) -> None:
    said = {key.replace("__", "."): value for key, value in attributes.items()}
    with tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat", **said}):
        pass


# --- A: loops ---------------------------------------------------------------------------------------------------------


def test_a5_a_window_for_duplicates_bounds_no_count() -> None:
    """40 identical calls 16 s apart, and a dedupe window of 60 s: the count is that of the run."""
    tool = lw.watch_tool(lambda: "same")
    policy = lw.Policy(
        loops=lw.LoopRules(max_repeats=4, max_rereads=4, action="abort"),
        default_tool=lw.ToolRules(dedupe_window_s=60),
    )
    bodies = 0
    with FakeClock() as clock, pytest.raises(lw.ToolLoopError) as caught, lw.watch_run("agent", policy=policy):
        for _ in range(40):
            tool()
            bodies += 1
            clock.advance(16)
    assert (bodies, caught.value.repeats) == (4, 5)


def test_a7_calls_that_never_reach_their_tool_are_stopped_by_the_turns() -> None:
    """Arguments that a framework rejects never come to the decorator: only turns and tokens see them."""
    bodies = []

    @lw.watch_tool
    def lookup(query: str) -> str:
        bodies.append(query)
        return "found"

    turns = 0
    policy = lw.Policy(budgets=lw.Budgets(max_steps=5))
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("agent", policy=policy) as run:
        while True:
            run.step()
            turns += 1
            with pytest.raises(TypeError):
                lookup()  # type: ignore[call-arg]  # what the model asked for
    assert caught.value.stop_reason == "step_budget"
    assert (turns, bodies) == (5, [])


def test_a7_turns_are_counted_from_model_calls_and_not_from_tools(tracer: Tracer) -> None:
    with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_steps=5))) as run:
        for _ in range(5):
            chat(tracer, gen_ai__request__model="m")
        assert run.outcome.steps == 5
        assert run.tripped is None
        chat(tracer, gen_ai__request__model="m")
    assert run.outcome.stop_reason == "step_budget"


def test_a8_two_agents_that_talk_for_ever_are_stopped_by_the_budget_of_their_root() -> None:
    """No call is ever repeated, and each of the two is within its own limits."""
    ask_peer = lw.watch_tool(lambda text: f"what do you mean by {text}?", name="ask_peer")
    own = lw.Policy(budgets=lw.Budgets(max_tool_calls=100))
    asked = 0
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("root", policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=21))) as root,
    ):
        while True:
            for agent in ("one", "other"):
                with lw.watch_run(agent, policy=own):
                    for _ in range(2):
                        ask_peer(f"q{asked}")
                        asked += 1
    assert asked == 21
    assert caught.value.outcome is not None
    assert caught.value.outcome.run_id == root.run_id


def test_a8_an_open_run_is_seen_before_it_ends(seen: Captured) -> None:
    """What reports at the end of a run only never shows the one that does not end."""
    tool = lw.watch_tool(lambda number: number)
    with FakeClock() as clock, lw.watch_run("agent") as run:
        for number in range(7):
            tool(number)
        run.record_usage(model="of our own", cost_usd=Decimal(50))
        clock.advance(11 * 86_400)
        assert seen.value("loopwatch.run.age.max", agent="agent") == 11 * 86_400
        assert seen.value("loopwatch.run.tool_calls.max", agent="agent") == 7
        assert seen.value("loopwatch.run.spend_usd.max", agent="agent") == 50


# --- D: money ---------------------------------------------------------------------------------------------------------


def test_d1_without_an_estimate_the_overshoot_is_what_was_in_flight() -> None:
    """Sixteen model calls are begun before the first of them is charged: none can be refused any more, the next is."""
    in_flight, price = 16, Decimal("0.0125")
    begun = threading.Barrier(in_flight)
    policy = lw.Policy(budgets=lw.Budgets(max_spend_usd=Decimal("0.10")))
    with lw.watch_run("agent", policy=policy, on_abort="return") as run:

        def model_call() -> None:
            run.check()
            begun.wait(20)
            try:
                run.record_usage(model="of our own", cost_usd=price)
            except lw.BudgetExceeded:
                return

        threads = [threading.Thread(target=lw.bind(model_call)) for _ in range(in_flight)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        with pytest.raises(lw.BudgetExceeded):
            run.check()
    assert run.outcome.spend_usd == in_flight * price, "what was spent is counted, also above the limit"


def test_d2_an_unknown_price_does_not_pass_for_none_under_a_budget(seen: Captured) -> None:
    with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_spend_usd=1)), on_abort="return") as run:
        for _ in range(10):
            run.record_usage(model="claude-opus-4.1x", input_tokens=10_000)
    assert run.outcome.stop_reason == "spend_budget", "by an estimate: a limit that silently does not hold is worse"
    assert not run.outcome.spend_complete
    assert seen.value("loopwatch.usage.unpriced", model="claude-opus-4.1x") == 7


def test_d9_spend_is_there_to_be_alerted_on_without_any_budget(seen: Captured) -> None:
    tool = lw.watch_tool(lambda: 1, name="search")
    with lw.watch_run("agent") as run:
        assert run.policy.budgets == lw.Budgets()
        tool()
        run.record_usage(model="of our own", cost_usd=Decimal(50))
        assert seen.value("loopwatch.spend_usd", agent="agent") == 50
        assert seen.value("loopwatch.tool.calls", agent="agent", outcome="ok") == 1
        assert seen.value("loopwatch.runs.active", agent="agent") == 1


@pytest.mark.parametrize(
    "names, tokens, missing",
    [
        ({"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 10}, 110, 0),
        (
            {
                "gen_ai__usage__input_tokens": 100,
                "gen_ai__usage__output_tokens": 10,
                "gen_ai__usage__prompt_tokens": 100,
                "gen_ai__usage__completion_tokens": 10,
            },
            110,
            0,
        ),
        ({"gen_ai__usage__prompt_tokens": 100, "gen_ai__usage__completion_tokens": 10}, 110, 0),
        ({"llm__token_count__prompt": 100, "llm__token_count__completion": 10}, 110, 0),
        ({"some__tokens": 100}, 0, 1),
    ],
    ids=["new", "both", "old", "OpenInference", "unknown"],
)
def test_d10_old_and_new_names_count_once_and_unknown_ones_as_missing_usage(
    tracer: Tracer, names: dict[str, int], tokens: int, missing: int
) -> None:
    with lw.watch_run("agent") as run:
        chat(tracer, gen_ai__request__model="m", **names)
    assert run.outcome.input_tokens + run.outcome.output_tokens == tokens
    assert run.outcome.steps == 1
    assert sum(value for metric, _, value in metrics.samples() if metric is semconv.USAGE_MISSING) == missing


@pytest.mark.parametrize(
    "budgets",
    [
        lw.Budgets(max_tool_calls=10),
        lw.Budgets(max_steps=10),
        lw.Budgets(max_tokens=10),
        lw.Budgets(max_seconds=10),
        lw.Budgets(max_spend_usd=10),
    ],
    ids=["tool_calls", "steps", "tokens", "seconds", "spend_usd"],
)
def test_the_one_warning_comes_at_exactly_80_percent(caplog: pytest.LogCaptureFixture, budgets: lw.Budgets) -> None:
    tool = lw.watch_tool(lambda number: number)
    with FakeClock() as clock, lw.watch_run("agent", policy=lw.Policy(budgets=budgets)) as run:
        warned = []
        for number in range(9):
            run.step()
            tool(number)
            clock.advance(1)
            run.record_usage(model="of our own", input_tokens=1, cost_usd=Decimal(1))
            run.check()
            warned.append(sum("budget" in record.getMessage() for record in caplog.records))
    assert warned == [0] * 7 + [1, 1]


# --- F: OpenTelemetry -------------------------------------------------------------------------------------------------


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_f4_a_worker_that_flushes_before_it_leaves_loses_no_span() -> None:
    """``os._exit`` runs no exit handler: five spans were lost of five."""
    ran = python(
        """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
import otel_loopwatch as lw
provider = TracerProvider()
exporter = ConsoleSpanExporter(formatter=lambda span: span.name + chr(10))
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
tool = lw.watch_tool(lambda number: number, name="job")
child = os.fork()
if child == 0:
    with lw.watch_run("worker"):
        for number in range(5):
            tool(number)
    lw.flush(10)
    os._exit(0)
os.waitpid(child, 0)
"""
    )
    assert sorted(ran.stdout.split("\n")) == ["", *["execute_tool job"] * 5, "invoke_agent worker"]


def test_f6_a_collector_that_is_down_costs_the_calls_nothing_and_ends_in_time() -> None:
    """Against a port that refuses; the numbers are a hundred times what is measured."""
    ran = python(
        """
import time
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
import otel_loopwatch as lw
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter("http://127.0.0.1:9/v1/traces", timeout=1)))
trace.set_tracer_provider(provider)
tool = lw.watch_tool(lambda number: number)
with lw.watch_run("agent"):
    begun = time.monotonic()
    for number in range(100):
        tool(number)
    print(time.monotonic() - begun < 1)
begun = time.monotonic()
lw.flush(1)
provider.shutdown()
print(time.monotonic() - begun < 10)
"""
    )
    assert ran.stdout.split() == ["True", "True"]
    assert ran.returncode == 0


# --- what is documented instead (A-7, C-3, D-1, F-4, DESIGN 9.5) ------------------------------------------------------


@pytest.mark.project
def test_the_recipes_of_the_docs_run() -> None:
    """The worker with its queue, the task group, the history that stays valid."""
    text = (Path(__file__).parent.parent / "docs" / "how-it-works.md").read_text()
    recipes = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(recipes) == 3
    for recipe in recipes:
        ran = python(recipe)
        assert ran.returncode == 0, ran.stderr
