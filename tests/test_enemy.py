"""What an application, a model or the machine does to the guard on a bad day. Each test says why it is here."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, generate_latest

import otel_loopwatch as lw
from otel_loopwatch.fingerprint import looks_like_write
from otel_loopwatch.metrics import prometheus_collector
from otel_loopwatch.testing import Captured, capture

SURROGATE = "evil\ud800"
"""What ``json.loads`` makes of a model's ``"evil\\ud800"``: a str that no UTF-8 encoder takes."""


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an application: faults of the guard are counted, and not raised."""
    monkeypatch.setenv("LOOPWATCH_STRICT", "0")


def page() -> bytes:
    registry = CollectorRegistry()
    registry.register(prometheus_collector())
    return generate_latest(registry)


# --- values that lie --------------------------------------------------------------------------------------------------


class Liar:
    """Raises wherever it is looked at: lazy proxies and half-loaded ORM objects do."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("looked at")

    __len__ = __eq__ = __bool__ = __repr__ = __str__ = __iter__ = __getattr__ = _raise
    __hash__ = None  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:
        raise RuntimeError("looked at")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...


class Endless(list[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1

    def __len__(self) -> int:
        return 10**9


class LyingText(str):
    __slots__ = ()

    def __len__(self) -> int:
        return 10**18

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        raise RuntimeError("looked at")


class LyingNumber(int):
    def __repr__(self) -> str:
        raise RuntimeError("looked at")


@pytest.mark.parametrize(
    "make",
    [Liar, Endless, lambda: LyingText("abc"), lambda: LyingNumber(4)],
    ids=["object", "list", "text", "number"],
)
def test_a_result_that_lies_reaches_the_caller(make: Callable[[], Any]) -> None:
    value = make()
    tool = lw.watch_tool(lambda: value)
    with lw.watch_run("agent"):
        assert tool() is value


@pytest.mark.parametrize(
    "make",
    [
        Liar,
        Endless,
        lambda: LyingText("abc"),
        lambda: LyingNumber(4),
    ],
    ids=["object", "list", "text", "number"],
)
def test_an_argument_that_lies_reaches_the_tool(make: Callable[[], Any]) -> None:
    """The body has run by then: an error of ours would make the model pay twice for it."""
    value = make()
    tool = lw.watch_tool(lambda x: x is value)
    with lw.watch_run("agent") as run:
        assert tool(value) is True
        assert run.tried()


class BrokenCause(Exception):
    @property
    def __cause__(self) -> Any:
        raise RuntimeError("looked at")

    @__cause__.setter
    def __cause__(self, _: Any) -> None: ...


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("looked at")

    __repr__ = __str__


class BrokenStatus(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("looked at")


class TextThatIsNone(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - what is tested


@pytest.mark.parametrize("error", [BrokenCause, BrokenText, BrokenStatus, TextThatIsNone])
def test_an_exception_that_lies_is_raised_on_and_counted(error: type[Exception]) -> None:
    """A digest that raises would replace the application's exception, and leave its call unsettled: a blind guard."""
    bodies = []

    @lw.watch_tool
    def broken() -> None:
        bodies.append(1)
        raise error

    with lw.watch_run("agent", on_abort="return") as run:
        for _ in range(2):
            try:
                broken()
            except Exception as raised:  # noqa: BLE001 - the class is what is looked at
                assert type(raised) is error
        assert lw.is_hint(broken())
    assert bodies == [1, 1]
    assert run.outcome.tool_calls == 2


# --- names that a model makes up --------------------------------------------------------------------------------------


def test_a_name_that_cannot_be_encoded_does_not_take_the_metrics_page_down(seen: Captured) -> None:
    """Tool and model names of other libraries' spans come from a model. One bad one made every later scrape fail."""
    seen.tracer_provider.add_span_processor(lw.LoopwatchSpanProcessor())
    tracer = seen.tracer_provider.get_tracer("another library")
    with lw.watch_run("agent"):
        for attributes in (
            {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": SURROGATE},
            {"gen_ai.operation.name": "chat", "gen_ai.request.model": SURROGATE, "gen_ai.usage.input_tokens": 5},
        ):
            with tracer.start_as_current_span("span", attributes=attributes):
                pass
    assert b"loopwatch_tool_calls_total" in page()


def test_a_long_name_does_not_fill_the_metrics_page(seen: Captured) -> None:
    """A name is as long as a model cares to make it, and stands in about twenty series."""
    seen.tracer_provider.add_span_processor(lw.LoopwatchSpanProcessor())
    tracer = seen.tracer_provider.get_tracer("another library")
    before = len(page())
    with lw.watch_run("agent"):
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "x" * 100_000}
        with tracer.start_as_current_span("span", attributes=attributes):
            pass
    assert len(page()) - before < 100_000


def test_ten_thousand_kinds_of_agents_leave_a_bounded_page(seen: Captured) -> None:
    """A user id as agent name is a mistake that must not cost a Prometheus."""
    tool = lw.watch_tool(lambda: 1)
    for number in range(300):
        with lw.watch_run(f"agent-{number}"):
            tool()
    few = len(page())
    for number in range(300, 2000):
        with lw.watch_run(f"agent-{number}"):
            tool()
    assert len(page()) < few * 1.05
    assert lw.runs() == ()


def test_a_model_that_writes_blank_lines_without_end_costs_no_quadratic_time() -> None:
    """Run-away white space is a known way for a model to fail: half a second of CPU a call, before this test."""

    def seconds(code: str) -> float:
        begun = time.process_time()
        looks_like_write("python", {"code": code})
        return time.process_time() - begun

    usual = min(seconds("a = 1\n" * 10_000) for _ in range(5))
    for blank in ("\n", "\r\n", " \n", "\t"):
        assert min(seconds(blank * (60_000 // len(blank))) for _ in range(5)) < 20 * usual, repr(blank)


# --- calls in odd places ----------------------------------------------------------------------------------------------


def test_a_tool_that_calls_itself_with_the_same_arguments_comes_to_an_end() -> None:
    """Nested calls overlap in time and are one repeat, but at most eight of them."""
    bodies = []

    @lw.watch_tool
    def again(x: int) -> Any:
        bodies.append(x)
        return again(x)

    with lw.watch_run("agent", on_abort="return"):
        assert lw.is_hint(again(1))
    assert len(bodies) == 9


def test_the_stack_may_end_inside_of_the_guard() -> None:
    """RecursionError comes from whichever line is the last: no run stays current, no call in flight."""
    tool = lw.watch_tool(lambda number: number)

    def dive(number: int) -> None:
        tool(number)
        dive(number + 1)

    with lw.watch_run("agent") as run:
        with pytest.raises(RecursionError):
            dive(0)
        assert lw.current_run() is run
        assert tool("after") == "after"
    assert lw.current_run() is None
    assert run.outcome.stop_reason == "completed"


def test_a_callback_that_calls_tools_does_not_call_itself_without_end() -> None:
    """It is told of a new finding only, and its own calls make none that is new."""
    told = []
    tool = lw.watch_tool(lambda x: "same")

    def on_verdict(_: lw.Verdict) -> None:
        told.append(1)
        tool(1)

    with lw.watch_run("agent", on_abort="return", on_verdict=on_verdict) as run:
        for _ in range(6):
            tool(1)
    assert run.outcome.stop_reason == "loop_detected"
    assert len(told) == 2


def test_a_callback_that_hangs_holds_up_no_other_thread() -> None:
    """No lock is held over user code (DESIGN 5.15)."""
    inside, go_on = threading.Event(), threading.Event()
    same, other = lw.watch_tool(lambda: "same"), lw.watch_tool(lambda number: number)

    def on_verdict(_: lw.Verdict) -> None:
        inside.set()
        go_on.wait(10)

    with lw.watch_run("agent", on_verdict=on_verdict):

        def loop() -> None:
            for _ in range(3):
                same()

        thread = threading.Thread(target=lw.bind(loop))
        thread.start()
        assert inside.wait(10)
        assert [other(number) for number in range(5)] == [0, 1, 2, 3, 4]
        assert thread.is_alive()
        go_on.set()
        thread.join(10)


def test_a_finaliser_that_calls_a_tool_in_the_middle_of_a_call_does_not_deadlock() -> None:
    """The collector runs ``__del__`` anywhere, also while a lock of ours is held."""
    tool = lw.watch_tool(lambda number: (number, gc.collect())[0])
    numbers = iter(range(1000, 2000))
    failed = []

    class Cyclic:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                tool(next(numbers))
            except Exception as error:  # noqa: BLE001 - Python would only print it
                failed.append(error)

    with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=500))) as run:
        for number in range(30):
            Cyclic()
            tool(number)
    assert failed == []
    assert run.outcome.tool_calls == 60


def test_a_signal_handler_may_abort_the_run_that_is_busy() -> None:
    """It runs between any two byte codes of the same thread."""

    @lw.watch_tool
    def slow() -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        return "done"

    with lw.watch_run("agent", on_abort="return") as run:
        before = signal.signal(signal.SIGUSR1, lambda *_: run.abort("operator"))
        try:
            assert slow() == "done"
            slow()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert run.outcome.stop_reason == "user_abort"


def test_a_context_copied_by_hand_outlives_its_run_and_only_sees_the_polite_error() -> None:
    """A task that outlives the boundary (DESIGN 9.5)."""
    tool = lw.watch_tool(lambda number: number)
    with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_tool_calls=2))) as run:
        context = contextvars.copy_context()
        tool(0)
    assert context.run(tool, 1) == 1
    for number in range(2, 9):
        with pytest.raises(lw.BudgetExceeded):
            context.run(tool, number)
    assert run.outcome.stop_reason == "completed"


def test_two_event_loops_draw_on_one_budget() -> None:
    """A run carried into a second thread's loop: nothing in it belongs to the first."""

    @lw.watch_tool
    async def tool(where: int, number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def agent(where: int) -> int:
        done = 0
        for number in range(20):
            try:
                done += await tool(where, number) == number
            except lw.RunAborted:
                break
        return done

    done = []
    limits = lw.Budgets(max_tool_calls=15, max_seconds=1000)
    with lw.watch_run("agent", policy=lw.Policy(budgets=limits), on_abort="return"):
        threads = [
            threading.Thread(target=lw.bind(lambda where: done.append(asyncio.run(agent(where)))), args=(where,))
            for where in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sum(done) == 15


def test_a_generator_abandoned_in_a_thread_settles_when_it_is_collected(seen: Captured) -> None:
    kept = []

    @lw.watch_tool(name="stream")
    def stream() -> Iterator[int]:
        yield 1
        yield 2

    def take_one() -> None:
        items = stream()
        next(items)
        kept.append(items)

    with lw.watch_run("agent") as run:
        thread = threading.Thread(target=lw.bind(take_one))
        thread.start()
        thread.join(10)
    kept.clear()
    gc.collect()
    assert seen.named("execute_tool stream").attributes["loopwatch.tool.call.abandoned"] is True
    assert run.outcome.tool_calls == 1


def test_a_frozen_clock_of_the_tests_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """freezegun and its like replace functions of ``time``."""
    monkeypatch.setattr("time.monotonic", lambda: 1 / 0)
    monkeypatch.setattr("time.time", lambda: 1 / 0)
    with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_seconds=100))) as run:
        assert lw.watch_tool(lambda: 1)() == 1
    assert run.outcome.duration_s >= 0


# --- things that are no tools -----------------------------------------------------------------------------------------


def test_what_can_be_called_can_be_watched() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    with lw.watch_run("agent"):
        assert lw.watch_tool(len)([1, 2]) == 2
        assert lw.watch_tool(max)(1, 2) == 2
        assert lw.watch_tool(dict)(a=1) == {"a": 1}
        assert lw.watch_tool(Point)(4).x == 4


@pytest.mark.parametrize("thing", ["search", 5, property(len), object()], ids=["str", "int", "property", "object"])
def test_what_cannot_be_called_is_refused_where_it_is_decorated(thing: Any) -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        lw.watch_tool(thing)


@pytest.mark.parametrize("name", [5, b"search", ["search"]], ids=["int", "bytes", "list"])
def test_a_name_that_is_none_is_refused_where_the_tool_is_decorated(name: Any) -> None:
    with pytest.raises((TypeError, lw.PolicyError)):
        lw.watch_tool(name=name)(len)


def test_a_tool_that_is_decorated_twice_is_one_tool() -> None:
    """A tool decorated by its author and once more where the agent is put together."""
    tool = lw.watch_tool(lw.watch_tool(lambda: 1))
    with lw.watch_run("agent") as run:
        tool()
    assert run.outcome.tool_calls == 1


# --- bad numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [-5, float("nan"), "5", None, 10**400], ids=lambda value: repr(value)[:8])
def test_a_count_that_is_none_is_not_charged_and_not_raised(tokens: Any) -> None:
    """``usage`` of a response is somebody else's data (D-3)."""
    with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_tokens=100))) as run:
        run.record_usage(model="gpt-4o", input_tokens=tokens)
    assert run.outcome.input_tokens == 0
    assert run.outcome.spend_usd == Decimal(0)
    assert not run.outcome.spend_complete


@pytest.mark.parametrize(
    "usd", [10**5000, Decimal("9e999999"), Decimal("sNaN"), 1e308], ids=lambda usd: type(usd).__name__
)
def test_an_absurd_price_is_an_unknown_one(usd: Any) -> None:
    """Two of them would overflow the sum, and every later charge would raise."""
    with lw.watch_run("agent") as run:
        for _ in range(2):
            run.record_usage(model="of our own", cost_usd=usd)
        run.record_usage(model="of our own", cost_usd=Decimal("0.5"))
    assert run.outcome.spend_usd == Decimal("0.5")
    assert not run.outcome.spend_complete


# --- the process ------------------------------------------------------------------------------------------------------


def python(code: str, *options: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOOPWATCH_", "OTEL_"))}
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, cwd=cwd, env=kept | environment
    )


LOOP = """
import otel_loopwatch as lw
tool = lw.watch_tool(lambda: "same")
with lw.watch_run("agent", on_abort="return") as run:
    for _ in range(9):
        tool()
print(run.outcome.stop_reason, run.outcome.tool_calls)
"""


@pytest.mark.parametrize("options", [("-O", "-W", "error"), ("-OO", "-W", "error")])
def test_it_works_without_assertions_and_docstrings_and_warns_of_nothing(options: tuple[str, ...]) -> None:
    ran = python(LOOP, *options)
    assert (ran.returncode, ran.stdout) == (0, "loop_detected 2\n")


def test_the_interpreter_may_end_with_open_runs_and_generators() -> None:
    ran = python(
        """
import otel_loopwatch as lw
@lw.watch_tool
def stream():
    yield 1
    yield 2
lw.watch_run("left").__enter__()
items = stream()
next(items)
""",
        "-W",
        "error",
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", ["broken.yaml", "missing.yaml"])
def test_a_broken_policy_of_the_operators_is_one_clear_error_where_the_run_begins(name: str, tmp_path: Path) -> None:
    """Importing and decorating still work; going on unguarded would not be seen."""
    (tmp_path / "broken.yaml").write_text("budgets: {max_steps: -3}\n")
    ran = python(LOOP, cwd=tmp_path, LOOPWATCH_POLICY=name)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith(f"otel_loopwatch.errors.PolicyError: {name}")


@pytest.mark.parametrize(
    "value, switched_off", [("1", True), ("true", True), ("0", False), ("", False), ("false", False)]
)
def test_the_guard_can_be_switched_off(value: str, switched_off: bool) -> None:
    ran = python(LOOP, LOOPWATCH_DISABLED=value)
    assert ran.stdout == ("completed 0\n" if switched_off else "loop_detected 2\n")


def test_off_is_off_for_turns_and_usage_and_policies_too(tmp_path: Path) -> None:
    """It is the switch for the night in which the guard itself is the problem."""
    ran = python(
        """
import otel_loopwatch as lw
with lw.watch_run("agent", policy=lw.Policy(budgets=lw.Budgets(max_steps=1, max_tokens=5))) as run:
    for _ in range(3):
        run.step()
        run.record_usage(model="gpt-4o", input_tokens=50)
        run.check()
with lw.watch_run("agent"):
    print("went on")
""",
        cwd=tmp_path,
        LOOPWATCH_DISABLED="1",
        LOOPWATCH_POLICY="missing.yaml",
    )
    assert ran.stdout == "went on\n"


def test_a_tool_that_forks_counts_once_in_the_parent_and_nothing_in_the_child() -> None:
    ran = python(
        """
import os
import otel_loopwatch as lw
@lw.watch_tool
def fork():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return child
with lw.watch_run("agent") as run:
    if fork() == 0:
        print("child", lw.current_run(), lw.runs(), flush=True)
        with lw.watch_run("of the child") as own:
            lw.watch_tool(lambda: 1)()
        print("child", own.outcome.tool_calls, flush=True)
        os._exit(0)
print("parent", run.outcome.tool_calls)
"""
    )
    assert ran.stdout.splitlines() == ["child None ()", "child 1", "parent 1"]


def test_a_processor_survives_attributes_of_any_type(seen: Captured, lenient: None) -> None:
    """Attribute values are another library's, and Python's SDK keeps what it is given for numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWATCH_STRICT", "1")
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(lw.LoopwatchSpanProcessor())
        tracer = provider.get_tracer("another library")
        for operation in ("execute_tool", "chat", "invoke_agent"):
            for key in (
                "gen_ai.tool.name",
                "gen_ai.agent.name",
                "gen_ai.request.model",
                "gen_ai.usage.input_tokens",
                "gen_ai.usage.output_tokens",
                "gen_ai.usage.cache_read.input_tokens",
                "gen_ai.tool.call.id",
                "gen_ai.response.id",
                "gen_ai.tool.call.arguments",
                "gen_ai.tool.call.result",
                "error.type",
            ):
                for value in (5, True, -1, float("nan"), "", ["a", "b"], b"bytes", 10**30):
                    attributes: Any = {"gen_ai.operation.name": operation, key: value}
                    with tracer.start_as_current_span("span", attributes=attributes):
                        pass
        provider.shutdown()
    assert seen.value("loopwatch.guard.errors", stage="processor") == 0


class LyingError(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("looked at")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...


def test_an_error_that_lies_about_its_class_arrives_and_is_settled() -> None:
    """Our own look at an error must not take its place."""
    error = LyingError("boom")

    @lw.watch_tool
    def tool() -> None:
        raise error

    with lw.watch_run("agent") as run:
        for _ in range(2):
            try:
                tool()
            except Exception as caught:  # noqa: BLE001 - isinstance() of pytest.raises would look at it
                assert caught is error
        assert run.used().tool_calls == 2
        assert lw.is_hint(tool())
