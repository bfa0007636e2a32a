"""``@watch_tool``: what it wraps stays what it was (G-1 to G-4); generators and threads hold no context (F-1, F-2)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import multiprocessing
import pickle
import threading
import typing
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
import sample_tools
from opentelemetry import context as otel_context
from opentelemetry import trace

import otel_loopwatch as lw
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.testing import Captured, FakeClock, capture


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


# --- G-1, G-2: signature ----------------------------------------------------------------------------------------------


def plain(q: str, /, limit: int = 10, *rest: int, flag: bool = False, **more: str) -> dict[str, int]:
    """Find *q*."""
    return {q: limit}


async def coroutine(q: str, limit: int = 10) -> str:
    """Find *q*, later."""
    await asyncio.sleep(0)
    return f"{q} {limit}"


def generator(q: str) -> Iterator[str]:
    """Find *q*, bit by bit."""
    yield q
    yield q


async def async_generator(q: str) -> AsyncIterator[str]:
    """Find *q*, bit by bit, later."""
    yield q
    await asyncio.sleep(0)
    yield q


KINDS = [plain, coroutine, generator, async_generator]


@pytest.mark.parametrize("fn", KINDS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("decorate", [lw.watch_tool, lw.watch_tool(name="other", kind="read")], ids=["bare", "called"])
def test_g1_everything_that_describes_it_is_kept(fn: Any, decorate: Any) -> None:
    tool = decorate(fn)
    assert inspect.signature(tool) == inspect.signature(fn)
    assert tool.__annotations__ == fn.__annotations__
    assert typing.get_type_hints(tool) == typing.get_type_hints(fn)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(tool, name) == getattr(fn, name)
    assert tool.__wrapped__ is fn
    for question in (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        inspect.isfunction,
    ):
        assert question(tool) == question(fn), question.__name__


def test_g1_attributes_of_a_function_are_kept() -> None:
    def fn() -> None: ...

    fn.tags = ["a"]
    assert lw.watch_tool(fn).tags == ["a"]


def test_g2_postponed_annotations_point_at_the_users_module() -> None:
    tool = sample_tools.postponed
    assert tool.__annotations__ == {"x": "OnlyForCheckers", "y": "int", "return": "str"}
    assert tool.__module__ == "sample_tools"
    assert str(inspect.signature(tool)) == "(x: 'OnlyForCheckers', y: 'int' = 2) -> 'str'"
    assert typing.get_type_hints(sample_tools.called) == {"x": int, "y": int, "return": int}
    policy = Policy(loops=LoopRules(max_repeats=1))
    with lw.watch_run("a", policy=policy):
        assert tool(1) == "1 2"
        assert lw.is_hint(tool(1)), "a parameter that only type checkers know does not hide that text is allowed"


class Client:
    def __init__(self, key: str) -> None:
        self.key = key

    @lw.watch_tool
    def method(self, q: str) -> str:
        return f"{self.key} {q}"

    @lw.watch_tool
    async def amethod(self, q: str) -> str:
        return f"{self.key} {q}"

    @lw.watch_tool
    @classmethod
    def class_outside(cls, q: str) -> str:
        return f"{cls.__name__} {q}"

    @classmethod
    @lw.watch_tool
    def class_inside(cls, q: str) -> str:
        return f"{cls.__name__} {q}"

    @lw.watch_tool
    @staticmethod
    def static_outside(q: str) -> str:
        return f"static {q}"

    @staticmethod
    @lw.watch_tool
    def static_inside(q: str) -> str:
        return f"static {q}"

    @lw.watch_tool
    @staticmethod
    async def astatic(q: str) -> str:
        return f"static {q}"


async def test_methods_class_methods_and_static_methods_in_both_orders(seen: Captured) -> None:
    client = Client("k")
    with lw.watch_run("a"):
        assert client.method("q") == "k q"
        assert await client.amethod("q") == "k q"
        for owner in (client, Client):
            assert owner.class_outside("q") == owner.class_inside("q") == "Client q"
            assert owner.static_outside("q") == owner.static_inside("q") == "static q"
            assert await owner.astatic("q") == "static q"
    names = {span.name for span in seen.spans}
    assert names == {
        "invoke_agent a",
        *(
            f"execute_tool {name}"
            for name in (
                "method",
                "amethod",
                "class_outside",
                "class_inside",
                "static_outside",
                "static_inside",
                "astatic",
            )
        ),
    }
    assert inspect.iscoroutinefunction(Client.astatic)


def test_e7_self_and_cls_are_no_arguments() -> None:
    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2))) as run:
        assert [lw.is_hint(Client("k").method("q")) for _ in range(3)] == [False, False, True]
        assert "Client" not in run.tried()


class Callable_:  # noqa: N801
    def __call__(self, q: str) -> str:
        return f"called {q}"


class AsyncCallable:
    async def __call__(self, q: str) -> str:
        await asyncio.sleep(0)
        return f"called {q}"


async def test_g3_partials_and_callables_keep_their_kind(seen: Captured) -> None:
    part = lw.watch_tool(functools.partial(coroutine, limit=3))
    nested = lw.watch_tool(functools.partial(functools.partial(coroutine), "x"))
    sync_call = lw.watch_tool(Callable_())
    async_call = lw.watch_tool(AsyncCallable())
    bound = lw.watch_tool(Client("k").key.upper)
    assert [inspect.iscoroutinefunction(tool) for tool in (part, nested, sync_call, async_call, bound)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert str(inspect.signature(part)) == "(q: 'str', *, limit: 'int' = 3) -> 'str'"
    assert typing.get_type_hints(part)["return"] is str
    with lw.watch_run("a"):
        assert await part("q") == "q 3"
        assert await nested() == "x 10"
        assert sync_call("q") == "called q"
        assert await async_call("q") == "called q"
        assert bound() == "K"
    assert [span.name for span in seen.spans] == [
        "execute_tool coroutine",
        "execute_tool coroutine",
        "execute_tool Callable_",
        "execute_tool AsyncCallable",
        "execute_tool upper",
        "invoke_agent a",
    ]


def test_a_class_and_a_cached_function_may_be_tools() -> None:
    calls = []

    @lw.watch_tool
    @functools.lru_cache
    def cached(x: int) -> int:
        calls.append(x)
        return x

    tool = lw.watch_tool(Client)
    with lw.watch_run("a") as run:
        assert tool("k").key == "k"
        assert cached(1) == cached(1) == 1
    assert calls == [1]
    assert run.outcome.tool_calls == 3


def test_what_cannot_be_called_is_named() -> None:
    for thing in (3, "search", None):
        with pytest.raises(TypeError, match="cannot be called"):
            lw.watch_tool(name="x")(thing)
    with pytest.raises(TypeError, match="cannot be called"):
        lw.watch_tool("search")


def test_a_rule_out_of_range_is_refused_when_decorating() -> None:
    with pytest.raises(lw.PolicyError, match="max_calls"):
        lw.watch_tool(max_calls=0)
    with pytest.raises(TypeError):
        lw.watch_tool(max_reps=3)


async def test_g3_the_span_covers_the_await() -> None:
    with capture() as seen, lw.watch_run("a"):

        @lw.watch_tool
        async def waits() -> str:
            assert trace.get_current_span().is_recording()
            await asyncio.sleep(0.01)
            return "x"

        await waits()
        span = seen.named("execute_tool waits")
    assert span.end_time - span.start_time >= 9_000_000


def test_e4_a_call_that_cannot_be_bound_raises_the_tools_own_error(seen: Captured) -> None:
    with pytest.raises(TypeError) as expected:
        plain()
    tool = lw.watch_tool(plain)
    with lw.watch_run("a") as run, pytest.raises(TypeError) as caught:
        tool()
    assert str(caught.value) == str(expected.value)
    assert run.outcome.tool_calls == 0


# --- G-4: pickling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", [sample_tools.bare, sample_tools.called, sample_tools.coroutine, sample_tools.lines])
def test_g4_tools_of_a_module_pickle(tool: Callable[..., Any]) -> None:
    assert pickle.loads(pickle.dumps(tool)) is tool


def test_g4_tools_run_in_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool, lw.watch_run("parent") as run:
        assert pool.submit(sample_tools.bare, 2).result() == 4
        assert pool.submit(sample_tools.called, 2, y=5).result() == 7
        assert pool.submit(sample_tools.twice_in_a_run, 2).result() == (4, 1)
    assert run.outcome.tool_calls == 0


# --- generators -------------------------------------------------------------------------------------------------------


def test_a_generator_settles_at_its_end_and_is_compared_by_what_it_yields(seen: Captured) -> None:
    tool = lw.watch_tool(generator)
    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2))) as run:
        stream = tool("q")
        assert run.outcome.tool_calls == 0, "nothing has been asked for"
        assert list(stream) == ["q", "q"]
        assert list(tool("q")) == ["q", "q"]
        (hint,) = tool("q")
        assert lw.is_hint(hint)
        assert list(tool("other")) == ["other", "other"]
    assert run.outcome.tool_calls == 3
    assert seen.value("loopwatch.tool.calls", tool="generator", outcome="ok") == 3


def test_a_generator_with_changing_items_is_no_repeat() -> None:
    numbers = iter("abcdefgh")

    @lw.watch_tool
    def poll() -> Iterator[str]:
        yield next(numbers) * 5

    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2, action="abort"))) as run:
        assert [list(poll()) for _ in range(6)][5] == ["fffff"]
    assert run.outcome.findings == ()


def test_a_generator_hands_on_send_throw_return_and_close(seen: Captured) -> None:
    closed = []

    @lw.watch_tool
    def talk() -> Generator[Any, Any, str]:
        try:
            got = yield "first"
            try:
                yield got
            except KeyError:
                yield "caught"
        finally:
            closed.append(True)
        return "end"

    def outer() -> Generator[Any, Any, str]:
        return (yield from talk())

    with lw.watch_run("a"):
        stream = outer()
        assert [next(stream), stream.send("hello"), stream.throw(KeyError)] == ["first", "hello", "caught"]
        with pytest.raises(StopIteration) as stop:
            next(stream)
        assert stop.value.value == "end"
        early = talk()
        next(early)
        early.close()
    assert closed == [True, True]
    abandoned = [span.attributes.get("loopwatch.tool.call.abandoned") for span in seen.spans[:2]]
    assert abandoned == [None, True]


def test_an_error_inside_a_generator_is_that_calls_error(seen: Captured) -> None:
    @lw.watch_tool
    def breaks() -> Iterator[str]:
        yield "x"
        raise ValueError("no")

    with lw.watch_run("a"), pytest.raises(ValueError, match="no"):
        list(breaks())
    assert seen.named("execute_tool breaks").attributes["error.type"] == "ValueError"
    assert seen.value("loopwatch.tool.calls", outcome="error") == 1


def test_an_error_while_a_generator_is_closed_is_that_calls_error(seen: Captured) -> None:
    @lw.watch_tool
    def breaks() -> Iterator[str]:
        try:
            yield "x"
        finally:
            raise ValueError("no")

    with lw.watch_run("a"):
        stream = breaks()
        next(stream)
        with pytest.raises(ValueError, match="no"):
            stream.close()
    assert seen.named("execute_tool breaks").attributes["error.type"] == "ValueError"


async def test_an_error_while_an_async_generator_is_closed_is_that_calls_error(seen: Captured) -> None:
    @lw.watch_tool
    async def breaks() -> AsyncIterator[str]:
        try:
            yield "x"
        finally:
            raise ValueError("no")

    with lw.watch_run("a"):
        stream = breaks()
        await anext(stream)
        with pytest.raises(ValueError, match="no"):
            await stream.aclose()
    assert seen.named("execute_tool breaks").attributes["error.type"] == "ValueError"


def test_an_abandoned_call_is_settled() -> None:
    tool = lw.watch_tool(generator)
    with lw.watch_run("a") as run:
        stream = tool("q")
        next(stream)
        assert run.tried() == ""
        stream.close()
        assert run.tried().endswith("generator(q='q') -> abandoned")


def test_f1_no_context_is_held_across_a_yield() -> None:
    inside = []

    @lw.watch_tool
    def stream() -> Iterator[str]:
        for item in "ab":
            inside.append(trace.get_current_span().get_span_context().is_valid)
            yield item

    with capture(), lw.watch_run("a"):
        before = otel_context.get_current()
        items = stream()
        for _ in items:
            assert otel_context.get_current() is before
    assert inside == [True, True]
    assert not trace.get_current_span().get_span_context().is_valid


def test_f1_a_generator_may_go_on_in_another_thread(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    tool = lw.watch_tool(generator)
    with lw.watch_run("a") as run, ThreadPoolExecutor(1) as pool:
        stream = tool("q")
        assert next(stream) == "q"
        assert pool.submit(next, stream).result() == "q"
        assert pool.submit(list, stream).result() == []
    assert run.outcome.tool_calls == 1
    assert len([span for span in seen.spans if span.name == "execute_tool generator"]) == 1
    assert "Failed to detach" not in caplog.text


async def test_f1_break_leaves_one_span_with_a_mark(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    tool = lw.watch_tool(async_generator)
    with lw.watch_run("a"):
        async for _ in tool("q"):
            break
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
    span = seen.named("execute_tool async_generator")
    assert span.attributes["loopwatch.tool.call.abandoned"] is True
    assert "Failed to detach" not in caplog.text


async def test_f1_aclose_in_another_task(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    tool = lw.watch_tool(async_generator)
    with lw.watch_run("a") as run:
        stream = tool("q")
        assert await anext(stream) == "q"
        await asyncio.create_task(stream.aclose())
        assert run.used().tool_calls == 1
        assert lw.current_run() is run
    span = seen.named("execute_tool async_generator")
    assert span.attributes["loopwatch.tool.call.abandoned"] is True
    assert span.status.status_code.name == "UNSET"
    assert "Failed to detach" not in caplog.text


def test_f1_collected_after_its_loop(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    tool = lw.watch_tool(async_generator)

    async def main() -> None:
        with lw.watch_run("a"):
            stream = tool("q")
            await anext(stream)
            kept.append(stream)

    kept: list[Any] = []
    asyncio.run(main())
    kept.clear()
    gc.collect()
    assert seen.named("execute_tool async_generator").attributes["loopwatch.tool.call.abandoned"] is True
    assert "Failed to detach" not in caplog.text


async def test_an_async_generator_hands_on_send_and_throw() -> None:
    @lw.watch_tool
    async def talk() -> AsyncIterator[Any]:
        got = yield "first"
        try:
            yield got
        except KeyError:
            yield "caught"

    with lw.watch_run("a"):
        stream = talk()
        assert await anext(stream) == "first"
        assert await stream.asend("hello") == "hello"
        assert await stream.athrow(KeyError) == "caught"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


# --- F-2: threads -----------------------------------------------------------------------------------------------------


def test_f2_a_plain_thread_is_untracked_and_warned_of_once(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    @lw.watch_tool
    def search(q: int) -> str:
        return f"r{q}"

    with lw.watch_run("a") as run, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(search, range(3))) == ["r0", "r1", "r2"]
    assert run.outcome.tool_calls == 0, "not merged into somebody's run"
    assert seen.value("loopwatch.untracked.tool_calls", agent="unknown") == 3
    assert seen.value("loopwatch.tool.calls", agent="unknown", outcome="ok") == 3
    assert len([record for record in caplog.records if "outside any run" in record.getMessage()]) == 1


def test_an_untracked_call_is_never_blocked() -> None:
    @lw.watch_tool
    def same() -> str:
        return "same"

    assert [same() for _ in range(30)] == ["same"] * 30


async def test_an_untracked_coroutine_runs_and_is_counted(seen: Captured) -> None:
    assert await lw.watch_tool(coroutine)("q") == "q 10"
    assert [item async for item in lw.watch_tool(async_generator)("q")] == ["q", "q"]
    assert seen.value("loopwatch.untracked.tool_calls", agent="unknown") == 2


@pytest.mark.parametrize("way", ["pool", "thread", "executor", "to_thread"])
async def test_f2_bind_carries_the_run(seen: Captured, way: str) -> None:
    @lw.watch_tool
    def search(q: int) -> str:
        return f"r{q}"

    with lw.watch_run("a") as run:
        if way == "pool":
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lw.bind(search), range(3)))
        elif way == "thread":
            for number in range(3):
                thread = threading.Thread(target=lw.bind(search), args=(number,))
                thread.start()
                thread.join()
        elif way == "executor":
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(None, lw.bind(search), number) for number in range(3)))
        else:
            await asyncio.gather(
                *(asyncio.to_thread(search, number) for number in range(3))
            )  # copies the context itself
    assert run.outcome.tool_calls == 3
    root = seen.named("invoke_agent a")
    assert {span.parent.span_id for span in seen.spans if span is not root} == {root.context.span_id}


def test_bind_leaves_nothing_behind_in_the_worker() -> None:
    with ThreadPoolExecutor(1) as pool:
        with lw.watch_run("a") as run:
            assert pool.submit(lw.bind(lw.current_run)).result() is run
        assert pool.submit(lw.current_run).result() is None
        assert pool.submit(lambda: trace.get_current_span().get_span_context().is_valid).result() is False


def test_bind_outside_any_run_is_the_function_itself() -> None:
    assert lw.bind(plain) is plain


def test_bind_carries_the_span_of_an_ambient_run() -> None:
    @lw.watch_tool
    def search(q: int) -> str:
        return f"r{q}"

    with capture() as seen:
        processor = lw.LoopwatchSpanProcessor(policy=Policy(budgets=Budgets(max_tool_calls=1)))
        seen.tracer_provider.add_span_processor(processor)
        with (
            seen.tracer_provider.get_tracer("app").start_as_current_span("job"),
            ThreadPoolExecutor(1) as pool,
            pytest.raises(lw.BudgetExceeded),
        ):
            for number in range(2):
                pool.submit(lw.bind(search), number).result()


# --- time -------------------------------------------------------------------------------------------------------------

SOON = Policy(budgets=Budgets(max_seconds=0.02))


async def test_max_seconds_ends_a_hanging_coroutine(seen: Captured) -> None:
    cleaned = []

    @lw.watch_tool
    async def hangs() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return "never"

    with pytest.raises(lw.BudgetExceeded) as caught:
        async with lw.watch_run("a", policy=SOON) as run:
            await hangs()
    assert cleaned == [True]
    assert (caught.value.budget, caught.value.limit, caught.value.stop_reason) == ("seconds", 0.02, "time_budget")
    assert caught.value.used >= 0.02
    assert caught.value.tool_name == "hangs"
    assert run.outcome.tool_calls == 1
    assert seen.named("execute_tool hangs").attributes["error.type"] == "TimeoutError"
    assert seen.value("loopwatch.tool.calls", tool="hangs", outcome="error") == 1


async def test_max_seconds_ends_a_hanging_async_generator(seen: Captured) -> None:
    @lw.watch_tool
    async def hangs() -> AsyncIterator[str]:
        yield "first"
        await asyncio.Event().wait()

    items = []
    with pytest.raises(lw.BudgetExceeded, match="seconds"):
        async with lw.watch_run("a", policy=SOON):
            async for item in hangs():
                items.append(item)
    assert items == ["first"]
    assert seen.named("execute_tool hangs").attributes["error.type"] == "TimeoutError"


async def test_the_parents_time_ends_the_childs_tool() -> None:
    @lw.watch_tool
    async def hangs() -> None:
        await asyncio.Event().wait()

    with pytest.raises(lw.BudgetExceeded) as caught:
        async with lw.watch_run("outer", policy=SOON) as outer, lw.watch_run("inner"):
            await hangs()
    assert caught.value.outcome is outer.outcome


async def test_one_tool_inside_another_is_ended_once() -> None:
    @lw.watch_tool
    async def inner() -> None:
        await asyncio.Event().wait()

    @lw.watch_tool
    async def outer() -> None:
        await inner()

    with pytest.raises(lw.BudgetExceeded) as caught:
        async with lw.watch_run("a", policy=SOON):
            await outer()
    assert caught.value.stop_reason == "time_budget"
    await asyncio.sleep(0)  # no cancellation is left behind


async def test_a_timeout_of_the_tools_own_is_its_own() -> None:
    @lw.watch_tool
    async def impatient() -> str:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
        return "never"

    with pytest.raises(TimeoutError):
        async with lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=60))) as run:
            await impatient()
    assert run.outcome.stop_reason == "error"


async def test_a_cancellation_from_outside_is_no_timeout() -> None:
    @lw.watch_tool
    async def waits() -> None:
        await asyncio.Event().wait()

    async def agent() -> None:
        async with lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=60))):
            await waits()

    task = asyncio.create_task(agent())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_observe_mode_ends_no_hanging_tool() -> None:
    @lw.watch_tool
    async def slow() -> str:
        await asyncio.sleep(0.01)
        return "done"

    policy = Policy(mode="observe", budgets=Budgets(max_seconds=0.001))
    with lw.watch_run("a", policy=policy):
        assert await slow() == "done"


def test_a_synchronous_tool_is_refused_at_the_next_call() -> None:
    with FakeClock() as clock, pytest.raises(lw.BudgetExceeded):  # noqa: SIM117 - the clock first
        with lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=1))) as run:

            @lw.watch_tool
            def slow(q: int) -> str:
                clock.advance(5)
                return "done"

            assert slow(1) == "done"
            slow(2)
    assert run.outcome.tool_calls == 1


def test_under_trio_everything_but_the_timeout_works() -> None:
    trio = pytest.importorskip("trio")

    @lw.watch_tool
    async def search(q: int) -> str:
        await trio.sleep(0)
        return f"r{q}"

    @lw.watch_tool
    async def pages(q: int) -> AsyncIterator[str]:
        yield "one"
        await trio.sleep(0)
        yield "two"

    async def main() -> None:
        policy = Policy(budgets=Budgets(max_tool_calls=4, max_seconds=60))
        async with lw.watch_run("a", policy=policy) as run:
            assert await search(1) == "r1"
            async with contextlib.aclosing(pages(1)) as stream:
                assert [page async for page in stream] == ["one", "two"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(search, 2)
                nursery.start_soon(search, 3)
            assert run.outcome.tool_calls == 4
            polite = 0
            for number in range(50):
                try:
                    await search(number)
                except Exception:  # noqa: BLE001
                    polite += 1
        raise AssertionError("not reached")

    with pytest.raises(lw.BudgetExceeded):
        trio.run(main)

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            async with lw.watch_run("b", policy=Policy(budgets=Budgets(max_tool_calls=1))) as run:
                await search(1)
                with contextlib.suppress(lw.BudgetExceeded):
                    await search(2)
                scope.cancel()
                try:
                    await trio.sleep_forever()
                finally:
                    await search(3)
        assert scope.cancelled_caught
        assert run.outcome.stop_reason == "tool_call_budget"

    trio.run(cancelled)


# --- disabled ---------------------------------------------------------------------------------------------------------


async def test_disabled_tools_run_untouched(monkeypatch: pytest.MonkeyPatch, seen: Captured) -> None:
    monkeypatch.setenv("LOOPWATCH_DISABLED", "1")
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=1))) as run:
        for _ in range(3):
            assert lw.watch_tool(plain)("q") == {"q": 10}
            assert await lw.watch_tool(coroutine)("q") == "q 10"
            assert list(lw.watch_tool(generator)("q")) == ["q", "q"]
            assert [item async for item in lw.watch_tool(async_generator)("q")] == ["q", "q"]
    assert run.outcome.tool_calls == 0
    assert seen.spans == ()


async def test_disabled_generators_raise_what_their_body_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    @lw.watch_tool
    def breaks() -> Iterator[str]:
        yield "x"
        raise ValueError("no")

    @lw.watch_tool
    async def abreaks() -> AsyncIterator[str]:
        yield "x"
        raise ValueError("no")

    monkeypatch.setenv("LOOPWATCH_DISABLED", "1")
    with pytest.raises(ValueError, match="no"):
        list(breaks())
    with pytest.raises(ValueError, match="no"):
        [item async for item in abreaks()]
