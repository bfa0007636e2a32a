"""``watch_run``: what leaves the block when a run was aborted (DESIGN 5.1)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

import otel_loopwatch as lw
from otel_loopwatch.calls import Trip
from otel_loopwatch.errors import Unwind
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.run import Run
from otel_loopwatch.testing import FakeClock

ONE_CALL = Policy(budgets=Budgets(max_tool_calls=1))


@lw.watch_tool
def ping(x: int = 0) -> str:
    return f"pong {x}"


@lw.watch_tool
async def aping(x: int = 0) -> str:
    return f"pong {x}"


def exhaust(run: Run) -> None:
    """Use the run's one call up, and be refused once, quietly."""
    ping()
    with pytest.raises(lw.BudgetExceeded):
        ping(1)


# --- polite -----------------------------------------------------------------------------------------------------------


def test_the_refusal_leaves_the_block_with_the_final_outcome() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        ping()
        run.partial = "draft"
        ping(1)
    assert caught.value.outcome is run.outcome
    assert caught.value.partial == "draft"
    assert run.is_closed
    assert run.outcome.cause is None
    assert caught.value.__cause__ is None


def test_each_refusal_is_a_fresh_error() -> None:
    errors = []
    with contextlib.suppress(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
        for ask in (lambda: ping(2), run.check):
            with pytest.raises(lw.BudgetExceeded) as caught:
                ask()
            errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert [error.tool_name for error in errors] == ["ping", None]


def test_swallowed_inside_it_is_raised_at_the_end() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
    assert caught.value.outcome is run.outcome
    assert caught.value.outcome.stop_reason == "tool_call_budget"


def test_wrapped_by_raise_from() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL):
        ping()
        try:
            ping(1)
        except lw.RunAborted as refusal:
            raise RuntimeError("tool failed") from refusal
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_wrapped_by_raise_inside_except() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL):
        ping()
        try:
            ping(1)
        except lw.RunAborted:
            raise RuntimeError("tool failed")  # noqa: B904 - as frameworks do
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_another_exception_after_a_swallowed_refusal_becomes_the_cause() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
        raise KeyError("unrelated")
    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(run.outcome.cause, KeyError)


def test_packed_into_an_exception_group() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL):
        ping()
        try:
            ping(1)
        except lw.RunAborted as refusal:
            raise ExceptionGroup("tools", [ValueError("other"), ExceptionGroup("inner", [refusal])])  # noqa: B904
    cause = caught.value.__cause__
    assert isinstance(cause, ExceptionGroup)
    assert [type(inner) for inner in cause.exceptions] == [ValueError]


async def test_packed_by_a_task_group() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught:
        async with lw.watch_run("a", policy=ONE_CALL), asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(aping(number))
    assert caught.value.__cause__ is None, "nothing but our own was in the group"


async def test_hidden_by_gather() -> None:
    with pytest.raises(lw.BudgetExceeded):
        async with lw.watch_run("a", policy=ONE_CALL):
            results = await asyncio.gather(*(aping(number) for number in range(3)), return_exceptions=True)
            assert sum(isinstance(result, lw.BudgetExceeded) for result in results) == 2


async def test_an_outer_task_group_hands_the_caller_a_group() -> None:
    async def agent() -> None:
        async with lw.watch_run("a", policy=ONE_CALL):
            await aping()
            await aping(1)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(agent())
    assert caught.group_contains(lw.BudgetExceeded)


def test_a_good_run_is_left_as_it_is() -> None:
    with lw.watch_run("a", policy=ONE_CALL) as run:
        ping()
    assert run.outcome.stop_reason == "completed"
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, lw.watch_run("a") as failed:
        raise error
    assert caught.value is error
    assert (failed.outcome.stop_reason, failed.outcome.cause) == ("error", error)


def test_a_chain_of_exceptions_that_is_too_long_is_left_alone() -> None:
    def deep(error: BaseException, depth: int) -> BaseException:
        for _ in range(depth):
            outer = RuntimeError("wrapped")
            outer.__cause__ = error
            error = outer
        return error

    for depth, raised in ((3, lw.BudgetExceeded), (40, lw.BudgetExceeded)):
        with pytest.raises(raised), lw.watch_run("a", policy=ONE_CALL):
            ping()
            try:
                ping(1)
            except lw.RunAborted as refusal:
                raise deep(refusal, depth) from None


def test_a_cause_that_the_application_gave_is_kept() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL):
        ping()
        try:
            ping(1)
        except lw.RunAborted as refusal:
            raise refusal from KeyError("given")
    assert isinstance(caught.value.__cause__, KeyError)


def test_endless_refusals_in_a_chain_end() -> None:
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL, insist_after=None):
        ping()

        def nest(depth: int) -> None:
            try:
                ping(depth)
            except lw.BudgetExceeded:
                if depth:
                    nest(depth - 1)
                raise

        nest(30)


# --- tripped by the last settle or charge -----------------------------------------------------------------------------


def test_a_run_that_refused_nothing_does_not_raise_but_says_so() -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1))) as run:
        run.charge(lw.Usage("m", 10, cost_usd=Decimal(2)), "spans")
    assert run.outcome.stop_reason == "spend_budget"


def test_a_run_tripped_by_its_last_settle_does_not_raise() -> None:
    @lw.watch_tool(cost_usd=1)
    def dear() -> str:
        return "gold"

    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1))) as run:
        assert dear() == "gold"
    assert run.outcome.stop_reason == "spend_budget"


def test_an_exception_of_the_applications_after_such_a_trip_is_its_own() -> None:
    with (
        pytest.raises(ValueError, match="mine"),
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1))) as run,
    ):
        run.charge(lw.Usage("m", 10, cost_usd=Decimal(2)), "spans")
        raise ValueError("mine")
    assert run.outcome.stop_reason == "spend_budget"
    assert isinstance(run.outcome.cause, ValueError)


# --- what is never replaced -------------------------------------------------------------------------------------------

SIGNALS = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit]


@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_are_never_replaced(signal: type[BaseException]) -> None:
    error = signal()
    with pytest.raises(signal) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
        raise error
    assert caught.value is error
    assert run.outcome.stop_reason == "tool_call_budget"


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_guarded_clean_up_tool_in_finally_replaces_no_signal(signal: type[BaseException]) -> None:
    error = signal()
    with pytest.raises(signal) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
        try:
            raise error
        finally:
            ping(2)
    assert caught.value is error


def test_nor_do_two_of_them() -> None:
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
        try:
            try:
                raise error
            finally:
                ping(2)
        finally:
            ping(3)
    assert caught.value is error


async def test_a_guarded_clean_up_tool_while_a_cancellation_passes() -> None:
    async def agent() -> None:
        async with lw.watch_run("a", policy=ONE_CALL):
            await aping()
            try:
                await asyncio.sleep(60)
            finally:
                await aping(1)

    task = asyncio.create_task(agent())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_an_ordinary_error_that_a_clean_up_tool_displaced_becomes_the_cause() -> None:
    error = ValueError("the real one")
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL):
        ping()
        try:
            raise error
        finally:
            ping(1)
    assert caught.value.__cause__ is error


def test_a_signal_in_a_group_is_not_replaced() -> None:
    with pytest.raises(BaseExceptionGroup) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
        raise BaseExceptionGroup("all", [KeyboardInterrupt(), Unwind(run.run_id)])
    assert [type(inner) for inner in caught.value.exceptions] == [KeyboardInterrupt]


@pytest.mark.parametrize(
    "signal, reason",
    [
        (KeyboardInterrupt, "cancelled"),
        (asyncio.CancelledError, "cancelled"),
        (SystemExit, "cancelled"),
        (GeneratorExit, "completed"),
        (ValueError, "error"),
    ],
)
def test_the_stop_reason_of_a_run_that_was_not_aborted(signal: type[BaseException], reason: str) -> None:
    with pytest.raises(signal), lw.watch_run("a") as run:
        raise signal
    assert run.outcome.stop_reason == reason


# --- firm -------------------------------------------------------------------------------------------------------------


def stubborn(ask: Callable[[], object], turns: int = 50) -> list[str]:
    """What an agent loop sees that catches every Exception and goes on."""
    caught = []
    for _ in range(turns):
        try:
            ask()
        except Exception as error:  # noqa: BLE001
            caught.append(type(error).__name__)
    return caught


def test_three_polite_refusals_then_the_run_is_unwound() -> None:
    polite: list[str] = []

    def loop() -> None:
        for number in range(50):
            try:
                ping(number)
            except Exception as error:  # noqa: BLE001
                polite.append(type(error).__name__)

    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=ONE_CALL) as run:
        loop()
    assert polite == ["BudgetExceeded"] * 3
    assert caught.value.outcome is run.outcome
    assert caught.value.__cause__ is None
    assert not isinstance(caught.value, Unwind)


@pytest.mark.parametrize("ask", ["check", "step", "record_usage", "reserve"])
def test_the_loop_may_ask_in_any_way(ask: str) -> None:
    polite = 0
    with pytest.raises(lw.RunAborted), lw.watch_run("a") as run:
        run.step()
        run.abort()
        question = {
            "check": run.check,
            "step": run.step,
            "record_usage": lambda: run.record_usage("m", cost_usd=0),
            "reserve": lambda: run.reserve(1),
        }[ask]
        for _ in range(50):
            try:
                question()
            except Exception:  # noqa: BLE001
                polite += 1
    # Refusals within one turn are one demand, until there are more than eight of them.
    assert polite == (3 if ask == "step" else 24)


def test_refusals_of_one_turn_count_once() -> None:
    polite = 0
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL) as run:
        ping()
        for _ in range(50):
            with contextlib.suppress(Exception):
                run.step()
            for number in range(4):
                try:
                    ping(number)
                except Exception:  # noqa: BLE001
                    polite += 1
    assert polite == 12, "three turns of four calls each"


def test_derived_turns_count_as_well() -> None:
    turns = 0
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL) as run:
        for _ in range(50):
            turns += 1
            run.derived_step()
            with contextlib.suppress(Exception):
                ping()
    assert turns == 1 + 3 + 1


def test_never_without_insist_after() -> None:
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL, insist_after=None):
        assert stubborn(ping) == ["BudgetExceeded"] * 49


@pytest.mark.parametrize("after", [1, 2, 5])
def test_patience_is_the_users_to_choose(after: int) -> None:
    polite = 0
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL, insist_after=after):
        for _ in range(50):
            try:
                ping()
            except Exception:  # noqa: BLE001
                polite += 1
    assert polite == after


def test_even_a_bare_except_base_exception_ends_at_the_boundary() -> None:
    firm = 0
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL):
        for _ in range(20):
            try:
                ping()
            except Unwind:
                firm += 1
            except BaseException:  # noqa: BLE001
                pass
    assert firm == 16, "once firm it stays firm"


def test_the_firm_signal_is_not_for_another_thread() -> None:
    seen: list[str] = []

    @lw.watch_run("a", policy=ONE_CALL)
    def agent() -> None:
        ping()
        thread = threading.Thread(target=lw.bind(lambda: seen.extend(stubborn(ping))))
        thread.start()
        thread.join()

    with pytest.raises(lw.BudgetExceeded):
        agent()
    assert seen == ["BudgetExceeded"] * 50


async def test_the_firm_signal_is_not_for_another_task() -> None:
    seen: list[str] = []

    async def other() -> None:
        seen.extend(stubborn(ping))

    with pytest.raises(lw.BudgetExceeded):
        async with lw.watch_run("a", policy=ONE_CALL):
            ping()
            await asyncio.create_task(other())
    assert seen == ["BudgetExceeded"] * 50


async def test_a_batch_in_flight_counts_once() -> None:
    with pytest.raises(lw.BudgetExceeded):
        async with lw.watch_run("a", policy=ONE_CALL) as run:
            await aping()
            for _ in range(3):
                results = await asyncio.gather(*(aping(number) for number in range(2)), return_exceptions=True)
                assert [type(result).__name__ for result in results] == ["BudgetExceeded"] * 2
            with pytest.raises(lw.BudgetExceeded):
                run.check()


async def test_under_a_task_group_the_signal_is_turned_round_too() -> None:
    with pytest.raises(lw.BudgetExceeded):
        async with lw.watch_run("a", policy=ONE_CALL), asyncio.TaskGroup():
            for number in range(50):
                with contextlib.suppress(Exception):
                    ping(number)


async def test_a_task_that_outlives_the_boundary_sees_only_the_polite_error() -> None:
    seen: list[str] = []
    released = asyncio.Event()

    async def outlives() -> None:
        await released.wait()
        seen.extend(stubborn(ping))

    with pytest.raises(lw.BudgetExceeded):
        async with lw.watch_run("a", policy=ONE_CALL) as run:
            task = asyncio.create_task(outlives())
            exhaust(run)
    released.set()
    await task
    assert seen == ["BudgetExceeded"] * 50


def test_after_the_boundary_its_own_task_is_polite_as_well() -> None:
    with contextlib.suppress(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL) as run:
        exhaust(run)
    assert stubborn(run.check, turns=6) == ["BudgetExceeded"] * 6


def test_each_child_that_is_refused_is_a_demand() -> None:
    """Every child is in its first turn when it is refused; they are as many turns of the parent."""
    children = 0
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=ONE_CALL):
        ping()
        for _ in range(50):
            children += 1
            with contextlib.suppress(Exception), lw.watch_run("child") as child:
                child.derived_step()
                ping(1)
    assert children == 4


# --- on_abort="return" ------------------------------------------------------------------------------------------------


def test_return_ends_the_block_quietly() -> None:
    with lw.watch_run("a", policy=ONE_CALL, on_abort="return") as run:
        ping()
        ping(1)
        raise AssertionError("not reached")
    assert run.outcome.stop_reason == "tool_call_budget"


def test_return_ends_the_block_quietly_when_unwound_wrapped_or_packed() -> None:
    with lw.watch_run("a", policy=ONE_CALL, on_abort="return") as unwound:
        stubborn(ping)
    with lw.watch_run("a", policy=ONE_CALL, on_abort="return") as wrapped:
        try:
            [ping(number) for number in range(2)]
        except lw.RunAborted as refusal:
            raise RuntimeError from refusal
    with lw.watch_run("a", policy=ONE_CALL, on_abort="return") as packed:
        try:
            [ping(number) for number in range(2)]
        except lw.RunAborted as refusal:
            raise ExceptionGroup("g", [refusal])  # noqa: B904
    assert [run.outcome.stop_reason for run in (unwound, wrapped, packed)] == ["tool_call_budget"] * 3


def test_return_swallows_no_exception_of_the_applications() -> None:
    with pytest.raises(KeyError), lw.watch_run("a", policy=ONE_CALL, on_abort="return") as run:
        exhaust(run)
        raise KeyError("mine")
    with pytest.raises(KeyboardInterrupt), lw.watch_run("a", policy=ONE_CALL, on_abort="return") as run:
        exhaust(run)
        raise KeyboardInterrupt


def test_return_a_function_returns_the_partial_result() -> None:
    @lw.watch_run("a", policy=ONE_CALL, on_abort="return")
    def agent(save: bool) -> str | None:
        run = lw.current_run()
        assert run is not None
        run.partial = "draft" if save else None
        ping()
        ping(1)
        return "never"

    assert agent(save=True) == "draft"
    assert agent(save=False) is None


def test_return_also_where_the_agent_swallowed_the_refusal() -> None:
    @lw.watch_run("a", policy=ONE_CALL, on_abort="return")
    def agent(save: bool) -> str:
        run = lw.current_run()
        assert run is not None
        run.partial = "draft" if save else None
        exhaust(run)
        return "Sorry, a tool failed."

    assert agent(save=True) == "draft"
    assert agent(save=False) == "Sorry, a tool failed."


async def test_return_a_coroutine_returns_the_partial_result() -> None:
    @lw.watch_run("a", policy=ONE_CALL, on_abort="return")
    async def agent() -> str:
        run = lw.current_run()
        assert run is not None
        run.partial = "draft"
        await aping()
        await aping(1)
        return "never"

    assert asyncio.iscoroutinefunction(agent)
    assert await agent() == "draft"


def test_return_a_generator_ends_with_the_partial_result() -> None:
    @lw.watch_run("a", policy=ONE_CALL, on_abort="return")
    def agent() -> Iterator[str]:
        run = lw.current_run()
        assert run is not None
        run.partial = "draft"
        yield ping()
        yield ping(1)

    result: list[Any] = []

    def outer() -> Iterator[str]:
        result.append((yield from agent()))

    assert list(outer()) == ["pong 0"]
    assert result == ["draft"]


async def test_return_an_async_generator_just_ends() -> None:
    @lw.watch_run("a", policy=ONE_CALL, on_abort="return")
    async def agent() -> AsyncIterator[str]:
        yield await aping()
        yield await aping(1)

    assert [item async for item in agent()] == ["pong 0"]


def test_a_good_function_returns_its_own_result() -> None:
    @lw.watch_run("a", on_abort="return")
    def agent() -> str:
        run = lw.current_run()
        assert run is not None
        run.partial = "draft"
        return ping()

    assert agent() == "pong 0"


# --- decorated functions ----------------------------------------------------------------------------------------------


def test_each_call_of_a_decorated_function_is_a_run() -> None:
    ids = []

    @lw.watch_run("a", policy=ONE_CALL)
    def agent(depth: int = 0) -> str:
        """Doc."""
        run = lw.current_run()
        assert run is not None
        ids.append(run.run_id)
        return ping()

    assert agent() == agent() == "pong 0"
    assert len(set(ids)) == 2
    assert (agent.__name__, agent.__doc__) == ("agent", "Doc.")


def test_a_decorated_function_may_call_itself() -> None:
    depths = []

    @lw.watch_run("a", policy=Policy(budgets=Budgets(max_depth=5)))
    def agent(depth: int) -> int:
        run = lw.current_run()
        assert run is not None
        depths.append((depth, None if run.parent is None else run.parent.agent))
        return 0 if depth == 0 else 1 + agent(depth - 1)

    assert agent(3) == 3
    assert depths == [(3, None), (2, "a"), (1, "a"), (0, "a")]
    assert lw.runs() == ()


async def test_calls_of_a_decorated_coroutine_overlap() -> None:
    @lw.watch_run("a", policy=ONE_CALL)
    async def agent(number: int) -> tuple[int, str]:
        run = lw.current_run()
        await asyncio.sleep(0)
        assert lw.current_run() is run
        return number, await aping(number)

    assert await asyncio.gather(*(agent(number) for number in range(5))) == [(n, f"pong {n}") for n in range(5)]


def test_a_generator_is_a_run_that_is_current_only_while_its_body_runs() -> None:
    @lw.watch_run("gen")
    def agent() -> Iterator[str]:
        run = lw.current_run()
        assert run is not None
        assert run.agent == "gen"
        sent = yield ping()
        yield f"{ping(1)} {sent}"

    stream = agent()
    assert lw.runs() == (), "nothing has begun"
    with lw.watch_run("outer") as outer:
        assert next(stream) == "pong 0"
        assert lw.current_run() is outer
        (gen,) = [run for run in lw.runs() if run.agent == "gen"]
        assert stream.send("hello") == "pong 1 hello"
        assert lw.current_run() is outer
        with pytest.raises(StopIteration):
            next(stream)
    assert gen.parent is outer
    assert gen.outcome.stop_reason == "completed"
    assert gen.outcome.tool_calls == 2


def test_a_generator_that_is_left_early_is_a_completed_run() -> None:
    runs = []

    @lw.watch_run("gen")
    def agent() -> Iterator[int]:
        runs.append(lw.current_run())
        yield from range(10)

    for _ in agent():
        break
    gc.collect()
    stream = agent()
    next(stream)
    stream.close()
    assert [run.outcome.stop_reason for run in runs if run is not None] == ["completed", "completed"]
    assert lw.runs() == ()


def test_a_generator_hands_on_what_is_thrown_in() -> None:
    @lw.watch_run("gen")
    def agent() -> Iterator[str]:
        try:
            yield "first"
        except KeyError:
            yield "caught"
        raise ValueError("mine")

    stream = agent()
    assert next(stream) == "first"
    assert stream.throw(KeyError) == "caught"
    with pytest.raises(ValueError, match="mine"):
        next(stream)
    assert lw.runs() == ()


def test_a_generator_raises_at_its_end_what_its_body_swallowed() -> None:
    @lw.watch_run("gen", policy=ONE_CALL)
    def agent() -> Iterator[str]:
        yield ping()
        try:
            ping(1)
        except lw.BudgetExceeded:
            yield "sorry"

    stream = agent()
    assert [next(stream), next(stream)] == ["pong 0", "sorry"]
    with pytest.raises(lw.BudgetExceeded):
        next(stream)


def test_a_generator_whose_clean_up_is_refused_still_closes() -> None:
    @lw.watch_run("gen", policy=ONE_CALL)
    def agent() -> Iterator[str]:
        try:
            yield ping()
        finally:
            ping(1)

    stream = agent()
    next(stream)
    stream.close()
    assert lw.runs() == ()


def test_wrong_arguments_of_a_generator_open_no_run() -> None:
    @lw.watch_run("gen")
    def agent(x: int) -> Iterator[int]:
        yield x

    with pytest.raises(TypeError):
        list(agent())
    assert lw.runs() == ()


async def test_an_async_generator_is_a_run() -> None:
    runs = []

    @lw.watch_run("gen", policy=Policy(budgets=Budgets(max_tool_calls=2)))
    async def agent() -> AsyncIterator[str]:
        runs.append(lw.current_run())
        for number in range(5):
            await asyncio.sleep(0)
            yield await aping(number)

    stream = agent()
    items = []
    with pytest.raises(lw.BudgetExceeded):
        async for item in stream:
            assert lw.current_run() is None
            items.append(item)
    assert items == ["pong 0", "pong 1"]
    early = agent()
    await anext(early)
    await asyncio.create_task(early.aclose())
    assert [run.outcome.stop_reason for run in runs if run is not None] == ["tool_call_budget", "completed"]


# --- one object, many runs --------------------------------------------------------------------------------------------


def test_one_object_may_be_entered_again_and_inside_itself() -> None:
    watch = lw.watch_run("a")
    with watch as first:
        pass
    with watch as second:
        with watch as third:
            assert lw.current_run() is third
        assert lw.current_run() is second
        assert third.is_closed
        assert not second.is_closed
    assert third.parent is second
    assert second.parent is None
    assert len({first.run_id, second.run_id, third.run_id}) == 3


def test_one_object_entered_by_many_threads_at_once() -> None:
    watch = lw.watch_run("a", policy=ONE_CALL)
    together = threading.Barrier(8)
    right = []

    def one(number: int) -> None:
        with watch as run:
            run.partial = number
            together.wait()
            ping()
            together.wait()
            assert lw.current_run() is run
            if number % 2:
                together.wait()  # half of them leave first
            else:
                right.append(number)
        if not number % 2:
            together.wait()
        right.append((run.outcome.partial, run.is_closed, lw.current_run()))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item for item in right if isinstance(item, tuple)) == [(number, True, None) for number in range(8)]
    assert lw.runs() == ()


async def test_one_object_entered_by_many_tasks_at_once() -> None:
    watch = lw.watch_run("a", policy=ONE_CALL)

    async def one(number: int) -> bool:
        async with watch as run:
            for _ in range(number + 1):
                await asyncio.sleep(0)
            await aping()
            assert lw.current_run() is run
        return run.is_closed and run.outcome.tool_calls == 1

    assert await asyncio.gather(*(one(3 - number) for number in range(4))) == [True] * 4
    assert lw.runs() == ()


async def test_a_block_may_be_left_in_another_task() -> None:
    watch = lw.watch_run("a")
    run = await asyncio.create_task(watch.__aenter__())
    await asyncio.create_task(watch.__aexit__(None, None, None))
    assert run.is_closed
    assert lw.current_run() is None


# --- nested -----------------------------------------------------------------------------------------------------------


def test_the_inner_run_is_stopped_and_the_outer_goes_on() -> None:
    with lw.watch_run("outer") as outer:
        with pytest.raises(lw.BudgetExceeded), lw.watch_run("inner", policy=ONE_CALL):
            [ping(number) for number in range(2)]
        assert ping(5) == "pong 5"
    assert outer.outcome.stop_reason == "completed"
    assert outer.outcome.tool_calls == 2


def test_the_outer_run_is_stopped_and_its_own_boundary_says_so() -> None:
    after = []
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("outer", policy=ONE_CALL) as outer:
        with lw.watch_run("inner", on_abort="return") as inner:
            ping()
            with contextlib.suppress(lw.BudgetExceeded):
                ping(1)
        after.append("the inner block ended quietly")
    assert after
    assert caught.value.outcome is outer.outcome
    assert inner.outcome.stop_reason == "tool_call_budget"


def test_the_signal_of_an_outer_run_passes_the_inner_boundary() -> None:
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("outer", policy=ONE_CALL) as outer,
        lw.watch_run("inner", on_abort="return"),
    ):
        stubborn(ping)
        raise AssertionError("not reached")
    assert caught.value.outcome is outer.outcome


def test_the_outer_runs_refusal_is_not_quietened_by_the_inner_boundary() -> None:
    with pytest.raises(lw.BudgetExceeded), lw.watch_run("outer", policy=ONE_CALL):
        with lw.watch_run("inner", on_abort="return"):
            ping()
            ping(1)
        raise AssertionError("not reached")


def test_the_outer_runs_signal_passes_an_inner_run_that_is_stopped_itself() -> None:
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("outer", policy=ONE_CALL) as outer:
        exhaust(outer)
        with lw.watch_run("inner", on_abort="return") as inner:
            inner.limits._trip = Trip(lw.StopReason.USER_ABORT, "inner", run_id=inner.run_id)
            with pytest.raises(lw.RunAborted, match="inner"):
                inner.check()
            raise Unwind(outer.run_id)
        raise AssertionError("not reached")
    assert caught.value.outcome is outer.outcome


def test_the_inner_abort_that_leaves_the_outer_run_is_an_error_of_it() -> None:
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("outer") as outer,
        lw.watch_run("inner", policy=ONE_CALL),
    ):
        [ping(number) for number in range(2)]
    assert outer.outcome.stop_reason == "error"
    assert outer.outcome.cause is caught.value


def test_an_inner_abort_does_not_pass_for_the_outers() -> None:
    """Both are stopped, each for its own reason: the outer boundary raises the outer's."""
    loops = Policy(loops=LoopRules(max_repeats=1, max_rereads=1, action="abort"))
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("outer", policy=ONE_CALL) as outer:
        with pytest.raises(lw.BudgetExceeded):
            [ping(number) for number in range(2)]
        error = lw.ToolLoopError(
            "inner", repeats=2, kind="repeat", args_hash="f", stop_reason=lw.StopReason.LOOP_DETECTED
        )
        assert loops.mode == "enforce"
        raise error
    assert caught.value.outcome is outer.outcome
    assert caught.value.__cause__ is error


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, key",
    [
        ({"on_abort": "ignore"}, "on_abort"),
        ({"insist_after": 0}, "insist_after"),
        ({"insist_after": -1}, "insist_after"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(lw.PolicyError) as caught:
        lw.watch_run("a", **arguments)
    assert caught.value.key == key


def test_the_decorator_needs_its_parentheses() -> None:
    with pytest.raises(TypeError, match="agent must be a name"):
        lw.watch_run(lambda: None)


def test_a_policy_may_be_a_path(tmp_path: Any) -> None:
    path = tmp_path / "loopwatch.yaml"
    path.write_text("budgets: {max_tool_calls: 1}\n")
    for policy in (path, str(path)):
        with lw.watch_run("a", policy=policy, on_abort="return") as run:
            [ping(number) for number in range(3)]
        assert run.outcome.tool_calls == 1


def test_the_environment_names_a_policy(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "loopwatch.yaml"
    path.write_text("budgets: {max_tool_calls: 1}\n")
    monkeypatch.setenv("LOOPWATCH_POLICY", str(path))
    with lw.watch_run("a", on_abort="return") as run:
        [ping(number) for number in range(3)]
    assert run.outcome.stop_reason == "tool_call_budget"


def test_a_policy_file_of_the_environment_is_read_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "loopwatch.yaml"
    path.write_text("mode: observe\n")
    monkeypatch.setenv("LOOPWATCH_POLICY", str(path))
    with lw.watch_run("a") as first:
        pass
    path.write_text("mode: an edit that went wrong\n")
    with lw.watch_run("a") as second:
        pass
    assert second.policy is first.policy
    assert second.policy.mode == "observe"


@pytest.mark.parametrize("policy", [{"mode": "observe"}, lw.Budgets(), 3], ids=["dict", "Budgets", "int"])
def test_what_is_no_policy_is_refused_at_once(policy: Any) -> None:
    with pytest.raises(lw.PolicyError, match=r"policy: must be a Policy or the path of one, not a "):
        lw.watch_run("a", policy=policy)


def test_no_result_and_no_text_of_an_error_is_in_the_repr_of_an_outcome() -> None:
    with pytest.raises(ValueError, match="card 4711"), lw.watch_run("a") as run:
        run.partial = "a draft about card 4711"
        raise ValueError("card 4711")
    assert run.outcome.partial == "a draft about card 4711"
    assert "card 4711" not in repr(run.outcome)
    assert "stop_reason=<StopReason.ERROR" in repr(run.outcome)


def test_the_live_processor_supplies_the_policy() -> None:
    processor = lw.LoopwatchSpanProcessor(policy=ONE_CALL)
    try:
        with lw.watch_run("a", on_abort="return") as run:
            [ping(number) for number in range(3)]
        assert run.outcome.stop_reason == "tool_call_budget"
    finally:
        processor.shutdown()


def test_attributes_go_on_the_span_cleaned_and_nowhere_else() -> None:
    from otel_loopwatch.testing import capture

    with capture() as seen, FakeClock():
        facts = {"tenant": "acme", "age": 3, "big": 2**70, "none": None, "map": {"a": 1}, "bad": "\ud800", "ok": True}
        with lw.watch_run("a", attributes=facts) as run:
            assert run.attributes == facts
        attributes = dict(seen.named("invoke_agent a").attributes)
    assert {key: attributes[key] for key in ("tenant", "age", "bad", "ok")} == {
        "tenant": "acme",
        "age": 3,
        "bad": "?",
        "ok": True,
    }
    assert not {"big", "none", "map"} & set(attributes)
