"""Budgets: the pure checks at their exact boundary, and what a run makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_loopwatch as lw
from otel_loopwatch import budgets
from otel_loopwatch.calls import Breach, Settled, StopReason, ToolCall, Usage, Used
from otel_loopwatch.policy import Budgets, LoopRules, Policy, ToolRules
from otel_loopwatch.run import Run
from otel_loopwatch.testing import Captured, FakeClock, capture

QUIET = LoopRules(action="observe")


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


def events(seen: Captured, span: str, name: str) -> list[dict[str, object]]:
    return [dict(event.attributes) for event in seen.named(span).events if event.name == name]


# --- the pure checks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits, used, elapsed, allowed",
    [
        (Budgets(max_tool_calls=3), Used(tool_calls=3), 0.0, True),
        (Budgets(max_tool_calls=3), Used(tool_calls=4), 0.0, False),
        (Budgets(max_spend_usd=Decimal("0.10")), Used(held_usd=Decimal("0.10")), 0.0, True),
        (Budgets(max_spend_usd=Decimal("0.10")), Used(held_usd=Decimal("0.1001")), 0.0, False),
        (Budgets(max_spend_usd=Decimal("0.10")), Used(spend_usd=Decimal("0.09"), held_usd=Decimal("0.01")), 0.0, True),
        (Budgets(max_spend_usd=Decimal("0.10")), Used(spend_usd=Decimal("0.09"), held_usd=Decimal("0.02")), 0.0, False),
        (Budgets(max_spend_usd=Decimal("0.10")), Used(spend_usd=Decimal("0.10")), 0.0, False),
        (Budgets(max_tokens=100), Used(tokens=99), 0.0, True),
        (Budgets(max_tokens=100), Used(tokens=100), 0.0, False),
        (Budgets(max_seconds=5), Used(), 4.999, True),
        (Budgets(max_seconds=5), Used(), 5.0, False),
        (Budgets(max_steps=1), Used(steps=7), 0.0, True),  # steps are for step_breach
        (Budgets(), Used(9, 9, 9, Decimal(9), Decimal(9)), 9.0, True),
    ],
)
def test_call_breach_at_the_boundary(limits: Budgets, used: Used, elapsed: float, allowed: bool) -> None:
    assert (budgets.call_breach(used, limits, elapsed) is None) is allowed


def test_step_breach_at_the_boundary() -> None:
    assert budgets.step_breach(Used(steps=2), Budgets(max_steps=2), 0.0) is None
    found = budgets.step_breach(Used(steps=3), Budgets(max_steps=2), 0.0)
    assert found is not None
    assert (found.budget, found.limit, found.used, found.stop_reason) == ("steps", 2, 3, StopReason.STEP_BUDGET)


def test_each_breach_names_its_budget_limit_use_and_reason() -> None:
    everything = Budgets(max_tool_calls=1, max_tokens=1, max_spend_usd=Decimal(1), max_seconds=1)
    used = Used(tool_calls=2, tokens=3, spend_usd=Decimal(4), held_usd=Decimal(5))
    assert budgets.call_breach(used, everything, 6.0) == lw_breach("tool_calls", 1, 2, StopReason.TOOL_CALL_BUDGET)
    rest = Budgets(max_tokens=1, max_spend_usd=Decimal(1), max_seconds=1)
    assert budgets.call_breach(used, rest, 6.0) == lw_breach("spend_usd", Decimal(1), 9, StopReason.SPEND_BUDGET)
    assert budgets.breached(used, rest, 6.0) == lw_breach("tokens", 1, 3, StopReason.TOKEN_BUDGET)
    time_only = Budgets(max_seconds=1)
    assert budgets.breached(used, time_only, 6.0) == lw_breach("seconds", 1, 6.0, StopReason.TIME_BUDGET)


def lw_breach(budget: str, limit: object, used: object, reason: StopReason) -> object:
    return Breach(budget, limit, used, reason)


def test_shares_are_exact_fractions_of_the_limits_that_are_set() -> None:
    limits = Budgets(max_steps=10, max_tool_calls=5, max_spend_usd=Decimal("0.10"))
    used = Used(steps=8, tool_calls=2, tokens=99, spend_usd=Decimal("0.08"))
    assert {breach.budget: share for breach, share in budgets.shares(used, limits, 0.0)} == {
        "steps": 0.8,
        "tool_calls": 0.4,
        "spend_usd": 0.8,
    }


def test_a_run_without_limits_pays_for_no_check() -> None:
    assert not budgets.is_limited(Budgets(max_depth=1, max_children=1))
    for name in ("max_steps", "max_tool_calls", "max_seconds", "max_tokens", "max_spend_usd"):
        assert budgets.is_limited(Budgets(**{name: 1}))


# --- properties -------------------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from([None, 1, 3])),
        st.tuples(st.just("fail"), st.sampled_from([None, 2])),
        st.tuples(st.just("charge"), st.integers(0, 40)),
        st.tuples(st.just("step"), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(
    OPERATIONS,
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 200),
    st.integers(1, 20),
)
def test_no_sequence_of_operations_passes_a_limit(
    operations: list[tuple[str, int | None]], calls: int, steps: int, tokens: int, cents: int
) -> None:
    """Counted things and held money never pass their limit; tokens pass it by the one charge that reached it."""
    limits = Budgets(max_tool_calls=calls, max_steps=steps, max_tokens=tokens, max_spend_usd=Decimal(cents) / 100)
    run = Run(policy=Policy(budgets=limits, loops=QUIET), silent=True, clock=FakeClock())
    rules = run.policy.rules_for("t")
    bodies = turns = charged = 0
    spent = Decimal(0)
    for number, (kind, size) in enumerate(operations):
        if kind in ("call", "fail"):
            cost = None if size is None else Decimal(size) / 100
            one = ToolCall(f"#{number}", "t", f"{number:032x}", 0.0, cost_usd=cost)
            if run.admit(one, rules).action in ("allow", "observe"):
                bodies += 1
                spent += cost or 0
                run.settle(one, Settled(None, error="E" if kind == "fail" else None))
        elif kind == "charge":
            run.charge(Usage("m", input_tokens=size or 0, cost_usd=Decimal(0)), "test")
            charged += size or 0
        elif run.tripped is None:
            try:
                run.step()
            except lw.BudgetExceeded as error:
                assert error.budget != "steps" or turns == steps
            else:
                turns += 1
    assert bodies <= calls
    assert turns <= steps
    assert spent <= limits.max_spend_usd
    assert run.used().tool_calls == bodies
    assert run.used().spend_usd == spent
    assert run.used().held_usd == 0
    tripped = run.tripped
    assert (tripped is not None) or (charged < tokens and spent < limits.max_spend_usd)
    if tripped is not None and tripped.stop_reason is StopReason.TOKEN_BUDGET:
        assert charged >= tokens
    run.close()


@settings(max_examples=100)
@given(st.integers(1, 30), st.integers(0, 60))
def test_the_first_refused_call_is_number_limit_plus_one(limit: int, attempts: int) -> None:
    run = Run(policy=Policy(budgets=Budgets(max_tool_calls=limit), loops=QUIET), silent=True)
    rules = run.policy.rules_for("t")
    verdicts = []
    for number in range(attempts):
        one = ToolCall(f"#{number}", "t", f"{number:032x}", 0.0)
        verdicts.append(run.admit(one, rules).action)
        run.settle(one, Settled(None))
    assert verdicts == ["allow"] * min(limit, attempts) + ["abort"] * max(0, attempts - limit)
    run.close()


@given(st.integers(1, 50), st.sampled_from([0.1, 0.5, 0.8, 1.0]))
@settings(max_examples=60)
def test_the_warning_comes_once_and_at_its_share(limit: int, warn_at: float) -> None:
    run = Run(policy=Policy(budgets=Budgets(max_tool_calls=limit, warn_at=warn_at), loops=QUIET), silent=True)
    warned: list[tuple[int, float]] = []
    run.on_budget_warning = lambda breach, share: warned.append((breach.used, share))
    rules = run.policy.rules_for("t")
    for number in range(limit):
        run.admit(ToolCall(f"#{number}", "t", f"{number:032x}", 0.0), rules)
    first = next(used for used in range(1, limit + 1) if Decimal(used) / limit >= Decimal(str(warn_at)))
    assert [used for used, _ in warned] == [first]
    run.close()


# --- through decorated tools ------------------------------------------------------------------------------------------


def distinct() -> tuple[list[int], object]:
    bodies: list[int] = []

    @lw.watch_tool
    def search(q: int) -> str:
        bodies.append(q)
        return f"result {q}"

    return bodies, search


def test_tool_calls_exactly_the_limit_runs(seen: Captured) -> None:
    bodies, search = distinct()
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=5))),
    ):
        for number in range(9):
            search(number)
    assert bodies == [0, 1, 2, 3, 4]
    assert (caught.value.budget, caught.value.limit, caught.value.used) == ("tool_calls", 5, 6)
    assert caught.value.stop_reason == "tool_call_budget"
    assert caught.value.outcome.tool_calls == 5
    assert seen.value("loopwatch.tool.calls", tool="search", outcome="ok") == 5
    assert seen.value("loopwatch.tool.calls", tool="search", outcome="refused") == 1
    assert seen.value("loopwatch.runs", agent="a", stop_reason="tool_call_budget") == 1


def test_steps_exactly_the_limit_begin() -> None:
    turns = []
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_steps=3))) as run,
    ):
        for _ in range(9):
            turns.append(run.step())
    assert turns == [1, 2, 3]
    assert (caught.value.budget, caught.value.used, caught.value.stop_reason) == ("steps", 4, "step_budget")


def test_tokens_trip_at_the_limit_and_refuse_the_next_call() -> None:
    bodies, search = distinct()
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_tokens=100))) as run,
    ):
        run.record_usage("m", input_tokens=90, output_tokens=9, cost_usd=0)
        search(1)
        with pytest.raises(lw.BudgetExceeded):  # charges first, then raises
            run.record_usage("m", input_tokens=1, cost_usd=0)
        search(2)
    assert bodies == [1]
    assert caught.value.stop_reason == "token_budget"
    assert (caught.value.outcome.input_tokens, caught.value.outcome.output_tokens) == (91, 9)


def test_spend_trips_at_the_limit() -> None:
    bodies, search = distinct()
    policy = Policy(budgets=Budgets(max_spend_usd=0.1))
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=policy) as run:
        run.record_usage("m", cost_usd=0.09)
        search(1)
        with pytest.raises(lw.BudgetExceeded):
            run.record_usage("m", cost_usd=0.01)
        search(2)
    assert bodies == [1]
    assert caught.value.outcome.spend_usd == Decimal("0.10")
    assert (caught.value.budget, caught.value.limit) == ("spend_usd", Decimal("0.1"))


def test_seconds_refuse_the_next_guarded_call_of_a_synchronous_agent() -> None:
    bodies, search = distinct()
    with FakeClock() as clock, pytest.raises(lw.BudgetExceeded) as caught:  # noqa: SIM117 - the clock first
        with lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=10))) as run:
            clock.advance(9.5)
            search(1)
            run.check()
            clock.advance(0.5)
            search(2)
    assert bodies == [1]
    assert (caught.value.budget, caught.value.limit, caught.value.used) == ("seconds", 10, 10.0)
    assert caught.value.outcome.duration_s == 10.0


@pytest.mark.parametrize("ask", ["check", "step", "record_usage", "reserve"])
def test_time_is_seen_by_every_question_to_the_run(ask: str) -> None:
    with (
        FakeClock() as clock,
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_seconds=1)), on_abort="return") as run,
    ):
        clock.advance(1)
        with pytest.raises(lw.BudgetExceeded, match="seconds"):
            {
                "check": run.check,
                "step": run.step,
                "record_usage": lambda: run.record_usage("m", cost_usd=0),
                "reserve": lambda: run.reserve(0),
            }[ask]()
    assert run.outcome.stop_reason == "time_budget"


def test_calls_of_one_tool_have_a_budget_of_their_own() -> None:
    bodies, search = distinct()
    policy = Policy(tools={"search": ToolRules(max_calls=2)})
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=policy):
        for number in range(5):
            search(number)
    assert bodies == [0, 1]
    assert (caught.value.budget, caught.value.limit, caught.value.used) == ("tool:search", 2, 3)
    assert caught.value.stop_reason == "tool_budget"


def test_b4_twenty_distinct_actions_of_one_tool_are_no_loop() -> None:
    bodies = []

    @lw.watch_tool
    def call_action(name: str) -> str:
        bodies.append(name)
        return f"done {name}"

    with lw.watch_run("a", policy=Policy(loops=LoopRules(action="abort"))) as run:
        for number in range(20):
            call_action(f"action-{number}")
    assert len(bodies) == 20
    assert run.outcome.stop_reason == "completed"
    assert run.outcome.findings == ()


def test_warns_once_at_eighty_percent(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    _, search = distinct()
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=10))):
        for number in range(10):
            search(number)
    assert events(seen, "invoke_agent a", "loopwatch.budget.warning") == [
        {
            "loopwatch.budget.name": "tool_calls",
            "loopwatch.budget.tool_calls.limit": 10,
            "loopwatch.budget.tool_calls.used": 8,
        }
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "otel-loopwatch: agent 'a': budget 'tool_calls': 80% used"
    ]


def test_warns_once_from_many_threads(seen: Captured) -> None:
    _, search = distinct()
    with (
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=64, warn_at=0.1))),
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lw.bind(search), range(64)))
    assert len(events(seen, "invoke_agent a", "loopwatch.budget.warning")) == 1


def test_observe_mode_reports_and_stops_nothing(seen: Captured) -> None:
    bodies, search = distinct()
    policy = Policy(
        mode="observe",
        budgets=Budgets(max_tool_calls=2, max_steps=1, max_spend_usd=0.01, max_tokens=5, max_seconds=1),
        tools={"search": ToolRules(max_calls=3)},
    )
    with FakeClock() as clock, lw.watch_run("a", policy=policy) as run:
        clock.advance(5)
        for number in range(6):
            run.step()
            run.record_usage("m", input_tokens=10, cost_usd=1)
            search(number % 2)
        run.check()
    assert len(bodies) == 6
    assert run.outcome.stop_reason == "completed"
    warned = [event["loopwatch.budget.name"] for event in events(seen, "invoke_agent a", "loopwatch.budget.warning")]
    assert max(map(warned.count, warned)) <= 2, "nearly, and quite used up: each once, though passed again and again"
    assert set(warned) == {"tool_calls", "tool:search", "seconds", "steps", "tokens", "spend_usd"}
    assert events(seen, "invoke_agent a", "loopwatch.run.aborted") == []
    assert seen.value("loopwatch.runs", stop_reason="completed") == 1


def test_observe_mode_reports_the_warning_and_then_that_it_is_used_up(seen: Captured) -> None:
    _, search = distinct()
    with lw.watch_run("a", policy=Policy(mode="observe", budgets=Budgets(max_tool_calls=5))):
        for number in range(9):
            search(number)
    used = [
        event["loopwatch.budget.tool_calls.used"]
        for event in events(seen, "invoke_agent a", "loopwatch.budget.warning")
    ]
    assert used == [4, 6]


# --- D-1 --------------------------------------------------------------------------------------------------------------


def test_d1_sixteen_threads_through_reserve() -> None:
    admitted = []
    barrier = threading.Barrier(16)
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=0.10)), on_abort="return") as run:

        def call_model(number: int) -> None:
            barrier.wait()
            try:
                with run.reserve(0.0125):
                    admitted.append(number)
                    run.record_usage("m", cost_usd=0.0125)
            except lw.BudgetExceeded:
                pass

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(call_model, range(16)))
    assert len(admitted) == 8
    assert run.outcome.spend_usd == Decimal("0.1000")
    assert run.outcome.stop_reason == "spend_budget"
    assert run.used().held_usd == 0


async def test_d1_sixteen_tasks_through_reserve() -> None:
    admitted = []
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=0.10)), on_abort="return") as run:

        async def call_model(number: int) -> None:
            with run.reserve(0.0125):
                admitted.append(number)
                await asyncio.sleep(0)
                run.record_usage("m", cost_usd=0.0125)

        await asyncio.gather(*(call_model(number) for number in range(16)), return_exceptions=True)
    assert len(admitted) == 8
    assert run.outcome.spend_usd == Decimal("0.1000")
    assert run.used().held_usd == 0


def test_d1_sixteen_threads_through_cost_usd() -> None:
    bodies = []
    barrier = threading.Barrier(16)

    @lw.watch_tool(cost_usd=0.0125)
    def look_up(q: int) -> str:
        bodies.append(q)
        return f"r{q}"

    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=0.10)), on_abort="return") as run:

        @lw.bind
        def one(number: int) -> None:
            barrier.wait()
            with contextlib.suppress(lw.BudgetExceeded):
                look_up(number)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(16)))
    assert len(bodies) == 8
    assert run.outcome.spend_usd == Decimal("0.1000")
    assert run.outcome.tool_calls == 8


async def test_d1_sixteen_tasks_through_cost_usd() -> None:
    bodies = []

    @lw.watch_tool(cost_usd=Decimal("0.0125"))
    async def look_up(q: int) -> str:
        bodies.append(q)
        await asyncio.sleep(0)
        return f"r{q}"

    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=0.10)), on_abort="return") as run:
        results = await asyncio.gather(*(look_up(number) for number in range(16)), return_exceptions=True)
    assert len(bodies) == 8
    assert sum(isinstance(result, lw.BudgetExceeded) for result in results) == 8
    assert run.outcome.spend_usd == Decimal("0.1000")


def test_without_an_estimate_the_next_call_is_refused() -> None:
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=0.10)), on_abort="return") as run:
        with pytest.raises(lw.BudgetExceeded):
            run.record_usage("m", cost_usd=0.35)
        with pytest.raises(lw.BudgetExceeded):
            run.record_usage("m", cost_usd=0.01)
    assert run.outcome.spend_usd == Decimal("0.36"), "what was spent is charged, also after the limit"


# --- D-8 --------------------------------------------------------------------------------------------------------------


def test_d8_a_raising_tool_costs_its_budget_too(seen: Captured) -> None:
    bodies = []

    @lw.watch_tool
    def broken(q: int) -> str:
        bodies.append(q)
        raise ValueError(f"no {q}")

    refused = 0
    policy = Policy(budgets=Budgets(max_tool_calls=5), loops=QUIET)
    with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("a", policy=policy, insist_after=None):
        for number in range(50):
            try:
                broken(number)
            except lw.BudgetExceeded:
                refused += 1
            except ValueError:
                pass
    assert len(bodies) == 5
    assert refused == 45
    assert caught.value.outcome.tool_calls == 5
    assert len(events(seen, "invoke_agent a", "loopwatch.run.aborted")) == 1
    assert seen.value("loopwatch.tool.calls", outcome="error") == 5
    assert seen.value("loopwatch.tool.calls", outcome="refused") == 45


def test_a_hinted_call_costs_no_budget() -> None:
    @lw.watch_tool
    def same() -> str:
        return "the same"

    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=9), loops=LoopRules(max_repeats=2))) as run:
        same()
        same()
        assert lw.is_hint(same())
    assert run.outcome.tool_calls == 2


def test_an_unknown_argument_costs_nothing() -> None:
    _, search = distinct()
    with (
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=1))) as run,
        pytest.raises(TypeError, match="nonsense"),
    ):
        search(nonsense=1)
    assert run.outcome.tool_calls == 0
