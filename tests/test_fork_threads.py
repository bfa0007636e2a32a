"""Forked workers and threads: nothing inherited, nothing deadlocked, nothing silently merged into another run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from otel_loopwatch import ambient, metrics, semconv, telemetry


@lw.watch_tool
def search(query: str) -> str:
    return f"nothing about {query}"


def value(metric: semconv.Metric, **labels: str) -> float:
    return sum(v for m, has, v in metrics.samples() if m is metric and labels.items() <= has.items())


def in_child(call: Callable[[], Any], seconds: int = 20) -> Any:
    """What *call* returns in a forked child, as JSON; a child that hangs is killed and fails the test."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; what then goes wrong is under test.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        answer: dict[str, Any] = {}
        try:
            answer["returned"] = call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is told
            answer["raised"] = repr(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child hung"
    answer = json.loads(text)
    assert "raised" not in answer, answer
    return answer["returned"]


class Heard(logging.Handler):
    """Log records of the guard, in whichever process."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    heard = Heard()
    logging.getLogger("otel_loopwatch").addHandler(heard)
    try:
        yield heard.messages
    finally:
        logging.getLogger("otel_loopwatch").removeHandler(heard)


# --- F-4: fork ---


def test_f4_a_child_begins_at_zero_and_the_parent_loses_nothing():
    with lw.watch_run("parent"):
        for number in range(3):
            search(f"a{number}")

        def child() -> list[float]:
            zero = [value(semconv.TOOL_CALLS), value(semconv.RUNS_ACTIVE), value(semconv.TOOL_REPEATS)]
            with lw.watch_run("child"):
                search("b")
                return [*zero, value(semconv.TOOL_CALLS), value(semconv.RUNS_ACTIVE)]

        assert in_child(child) == [0, 0, 0, 1, 1]
        assert value(semconv.TOOL_CALLS) == 3
    assert value(semconv.TOOL_CALLS, agent="child") == 0


def test_f4_series_that_the_parent_knew_are_there_at_zero_in_the_child():
    with lw.watch_run("parent"):
        search("a")
    child = in_child(lambda: [v for m, _, v in metrics.samples() if m is semconv.TOOL_CALLS])
    assert child == [0] * len(semconv.OUTCOMES)


def test_f4_a_run_of_the_parent_is_detached_in_the_child():
    with lw.watch_run("parent", policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=5))) as run:
        search("a")

        def child() -> list[Any]:
            with listening() as messages:
                for _ in range(9):
                    search("x")
                detached = lw.current_run() is None
            said = [message for message in messages if "before a fork" in message]
            return [detached, value(semconv.UNTRACKED_TOOL_CALLS, agent="unknown"), len(said), len(lw.runs())]

        assert in_child(child) == [True, 9, 1, 0]
        search("b")
    assert (run.outcome.stop_reason, run.outcome.tool_calls) == ("completed", 2)


def test_f4_a_child_that_leaves_the_parents_block_ends_no_run():
    def child() -> float:
        block.__exit__(None, None, None)
        return value(semconv.RUNS)

    block = lw.watch_run("parent")
    with block:
        search("a")
        assert in_child(child) == 0
    assert value(semconv.RUNS, agent="parent", stop_reason="completed") == 1


def test_f4_a_child_guards_its_own_runs():
    with lw.watch_run("parent"):
        search("x")
        search("x")

        def child() -> str:
            with lw.watch_run("child", policy=lw.Policy(loops=lw.LoopRules(max_repeats=3))):
                return " ".join("hint" if lw.is_hint(search("x")) else "ran" for _ in range(4))

        assert in_child(child) == "ran ran ran hint"


def test_f4_a_lock_that_is_held_at_the_fork_blocks_no_child():
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(lw.LoopwatchSpanProcessor())
    telemetry.use_tracer_provider(provider)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with metrics._registry.lock, metrics._instrument_lock, ambient._table.lock, ambient._making, run._lock:
            held.set()
            done.wait(30)

    def child() -> list[float]:
        block.__exit__(None, None, None)
        metrics.instrument(MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False))
        with lw.watch_run("child"):
            search("a")
        with provider.get_tracer("framework").start_as_current_span("request"):
            search("b")
        return [value(semconv.TOOL_CALLS), value(semconv.RUNS)]

    block = lw.watch_run("parent")
    with block as run:
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(30)
        try:
            assert in_child(child) == [2, 2]
        finally:
            done.set()
            thread.join()


def test_f4_without_watch_run_a_child_counts_for_a_run_of_its_own():
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(lw.LoopwatchSpanProcessor(policy=lw.Policy(loops=lw.LoopRules(max_repeats=2))))
    with provider.get_tracer("framework").start_as_current_span("request"):
        search("x")
        search("x")
        assert in_child(lambda: [lw.is_hint(search("x")) for _ in range(3)]) == [False, False, True]
        assert in_child(lambda: value(semconv.RUNS_ACTIVE)) == 0
        assert lw.is_hint(search("x"))


def test_f4_observable_instruments_of_a_child_begin_at_zero():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.instrument(provider)

    def calls() -> list[int]:
        data = reader.get_metrics_data()
        return [
            point.value
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == semconv.TOOL_CALLS.name
            for point in metric.data.data_points
            if point.attributes["outcome"] == "ok"
        ]

    with lw.watch_run("a"):
        search("a")
        search("b")
    assert calls() == [2]

    def child() -> list[int]:
        with lw.watch_run("a"):
            search("c")
        return calls()

    assert in_child(child) == [1]
    provider.shutdown()


# --- F-2: threads ---


def test_f2_calls_in_plain_threads_are_untracked_said_once_and_merged_into_no_run():
    @lw.watch_tool
    def fan_out() -> int:
        with ThreadPoolExecutor(3) as pool:
            return len(list(pool.map(search, ["a", "b", "c"])))

    with listening() as messages, lw.watch_run("parent") as run:
        assert fan_out() == 3
    assert run.outcome.tool_calls == 1
    assert value(semconv.UNTRACKED_TOOL_CALLS) == 3
    assert len([message for message in messages if "outside any run" in message]) == 1


def test_f2_bind_carries_the_run_into_threads_also_at_the_same_time():
    barrier = threading.Barrier(4)

    def together(query: str) -> str:
        barrier.wait(30)
        return search(query)

    with lw.watch_run("parent") as run, ThreadPoolExecutor(4) as pool:
        bound = lw.bind(together)
        list(pool.map(bound, "abcd"))
        thread = threading.Thread(target=lw.bind(search), args=("e",))
        thread.start()
        thread.join()
        # The pool's threads have not kept the run.
        assert pool.submit(lw.current_run).result() is None
    assert run.outcome.tool_calls == 5
    assert value(semconv.UNTRACKED_TOOL_CALLS) == 0


async def test_f2_tasks_and_to_thread_keep_the_run_and_run_in_executor_loses_it():
    with lw.watch_run("parent") as run:
        await asyncio.to_thread(search, "a")
        await asyncio.gather(*(asyncio.create_task(asyncio.to_thread(search, query)) for query in "bc"))
        assert run.outcome.tool_calls == 3
        await asyncio.get_running_loop().run_in_executor(None, search, "d")
        await asyncio.get_running_loop().run_in_executor(None, lw.bind(search), "e")
    assert run.outcome.tool_calls == 4
    assert value(semconv.UNTRACKED_TOOL_CALLS) == 1


def test_f2_a_thread_that_is_given_the_opentelemetry_context_alone_has_the_run():
    # As ThreadingInstrumentor does it: nothing but this context is carried.
    with lw.watch_run("parent") as run:
        context = otel_context.get_current()

        def carried() -> None:
            token = otel_context.attach(context)
            search("a")
            otel_context.detach(token)

        thread = threading.Thread(target=carried)
        thread.start()
        thread.join()
    assert run.outcome.tool_calls == 1


def test_f6_a_callback_that_waits_for_another_call_of_the_same_run_does_not_deadlock():
    answers = []

    def callback(judged: lw.Verdict) -> None:
        thread = threading.Thread(target=lambda: answers.append(inner("y")))
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "a lock of ours is held while the callback runs"

    with lw.watch_run("a", on_verdict=callback, policy=lw.Policy(loops=lw.LoopRules(max_repeats=1))):
        inner = lw.bind(search)
        search("x")
        assert lw.is_hint(search("x"))
    assert answers == ["nothing about y"]
    assert value(semconv.GUARD_ERRORS) == 0
