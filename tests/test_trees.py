"""Runs inside runs: whose budget, whose trip, whose error (D-7, DESIGN 5.10)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

import otel_loopwatch as lw
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.testing import Captured, FakeClock, capture


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@lw.watch_tool
def ping(x: int) -> str:
    return f"pong {x}"


QUIET = LoopRules(action="observe")
TWENTY = Policy(budgets=Budgets(max_tool_calls=20), loops=QUIET)


def test_d7_a_tree_of_threads_draws_on_the_roots_budget() -> None:
    bodies = []

    @lw.watch_tool
    def delegate(depth: int, path: str) -> str:
        bodies.append(path)
        if depth:
            with lw.watch_run(f"agent-{depth}"), ThreadPoolExecutor(3) as pool:
                for branch in pool.map(lw.bind(one), [depth - 1] * 3, [f"{path}.{number}" for number in range(3)]):
                    assert branch in (None, path)
        return path

    def one(depth: int, path: str) -> None:
        with contextlib.suppress(lw.RunAborted):
            delegate(depth, path)

    with lw.watch_run("root", policy=TWENTY, on_abort="return") as root:
        delegate(5, "r")
    assert len(bodies) == 20
    assert root.outcome.tool_calls == 20
    assert root.outcome.stop_reason == "tool_call_budget"


async def test_d7_a_tree_of_tasks_draws_on_the_roots_budget() -> None:
    bodies = []

    @lw.watch_tool
    async def delegate(depth: int, path: str) -> str:
        bodies.append(path)
        await asyncio.sleep(0)
        if depth:
            async with lw.watch_run(f"agent-{depth}"):
                branches = (delegate(depth - 1, f"{path}.{number}") for number in range(3))
                await asyncio.gather(*branches, return_exceptions=True)
        return path

    async with lw.watch_run("root", policy=TWENTY, on_abort="return") as root:
        await delegate(5, "r")
    assert len(bodies) == 20
    assert root.outcome.tool_calls == 20


def test_a_childs_own_policy_does_not_lift_the_parents_budget() -> None:
    generous = Policy(budgets=Budgets(max_tool_calls=100), loops=QUIET)
    with lw.watch_run("root", policy=TWENTY, on_abort="return") as root, lw.watch_run("child", policy=generous):
        for number in range(50):
            ping(number)
    assert root.outcome.tool_calls == 20


def test_a_child_in_observe_mode_does_not_lift_it_either() -> None:
    with (
        lw.watch_run("root", policy=TWENTY, on_abort="return") as root,
        lw.watch_run("child", policy=Policy(mode="observe", budgets=Budgets(max_tool_calls=1))),
    ):
        for number in range(50):
            ping(number)
    assert root.outcome.tool_calls == 20


def test_a_child_without_a_policy_has_its_parents_rules_and_no_budget_of_its_own() -> None:
    with lw.watch_run("root", policy=TWENTY) as root, lw.watch_run("child") as child:
        assert child.policy is root.policy
        assert child.budgets == Budgets()
        assert child.parent is root


def test_a_trip_marks_its_owner_and_the_descendants_and_no_one_else() -> None:
    with lw.watch_run("root", policy=Policy()) as root:
        with (
            contextlib.suppress(lw.RunAborted),
            lw.watch_run("left", policy=Policy(budgets=Budgets(max_tool_calls=1))) as left,
            lw.watch_run("below") as below,
        ):
            for number in range(2):
                ping(number)
        assert below.tripped is left.tripped
        assert left.tripped is not None
        assert left.tripped.run_id == left.run_id
        assert root.tripped is None
        with lw.watch_run("right"):
            assert ping(9) == "pong 9"
    assert [run.outcome.stop_reason for run in (root, left, below)] == [
        "completed",
        "tool_call_budget",
        "tool_call_budget",
    ]


def test_the_roots_trip_stops_every_open_descendant() -> None:
    with (
        lw.watch_run("root", on_abort="return") as root,
        lw.watch_run("child") as child,
        lw.watch_run("grandchild") as grand,
    ):
        root.abort("stop all")
        for run in (grand, child, root):
            with pytest.raises(lw.RunAborted, match="stop all"):
                run.check()
        with pytest.raises(lw.RunAborted):
            ping(1)


def test_loop_counts_are_per_run() -> None:
    policy = Policy(loops=LoopRules(max_repeats=2, max_rereads=2, action="abort"))
    with lw.watch_run("root", policy=policy) as root:
        for _ in range(4):
            with lw.watch_run("child"):
                ping(1)
                ping(1)
    assert root.outcome.tool_calls == 8
    assert root.outcome.findings == ()


def test_a_loop_trip_marks_its_own_run_only() -> None:
    policy = Policy(loops=LoopRules(max_repeats=2, max_rereads=2, action="abort"))
    with lw.watch_run("root", policy=policy) as root:
        with pytest.raises(lw.ToolLoopError), lw.watch_run("child"):
            for _ in range(3):
                ping(1)
        assert ping(1) == "pong 1"
    assert root.outcome.stop_reason == "completed"


def test_spend_and_tokens_add_up_the_tree() -> None:
    with lw.watch_run("root", policy=Policy(budgets=Budgets(max_spend_usd=1))) as root:
        root.record_usage("m", input_tokens=1, cost_usd=0.25)
        with lw.watch_run("child") as child:
            child.record_usage("m", input_tokens=10, output_tokens=5, cost_usd=0.5)
    assert (root.outcome.spend_usd, child.outcome.spend_usd) == (Decimal("0.75"), Decimal("0.5"))
    assert (root.outcome.input_tokens, child.outcome.input_tokens) == (11, 10)


def test_a_childs_spend_trips_the_parent_and_its_record_usage_says_so() -> None:
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("root", policy=Policy(budgets=Budgets(max_spend_usd=1))) as root,
        lw.watch_run("child") as child,
    ):
        child.record_usage("m", cost_usd=1)
    assert caught.value.outcome is root.outcome


def test_the_parents_time_is_the_childs() -> None:
    with FakeClock() as clock, pytest.raises(lw.BudgetExceeded, match="seconds"):  # noqa: SIM117 - the clock first
        with lw.watch_run("root", policy=Policy(budgets=Budgets(max_seconds=5))):
            clock.advance(4)
            with lw.watch_run("child", policy=Policy(budgets=Budgets(max_seconds=60))) as child:
                assert child.limits.remaining_s() == 1
                clock.advance(1)
                child.check()


# --- depth and fan-out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_d7_max_depth(limit: int) -> None:
    deepest = 0

    def nest(depth: int) -> None:
        nonlocal deepest
        deepest = max(deepest, depth)
        with lw.watch_run(f"level-{depth}"):
            nest(depth + 1)

    with (
        lw.watch_run("root", policy=Policy(budgets=Budgets(max_depth=limit))) as root,
        pytest.raises(lw.BudgetExceeded) as caught,
    ):
        nest(1)
    assert deepest == limit + 1, "the one below the limit was asked for, and did not begin"
    assert (caught.value.budget, caught.value.limit, caught.value.used) == ("depth", limit, limit + 1)
    assert caught.value.stop_reason == "depth_limit"
    assert root.outcome.stop_reason == "completed", "it can go on without"
    assert lw.runs() == ()


@pytest.mark.parametrize("limit", [1, 3])
def test_d7_max_children(limit: int) -> None:
    with lw.watch_run("root", policy=Policy(budgets=Budgets(max_children=limit))):
        for _ in range(limit):
            with lw.watch_run("child"), lw.watch_run("grandchild"):
                pass
        for _ in range(3):
            with pytest.raises(lw.BudgetExceeded) as caught, lw.watch_run("child"):
                raise AssertionError("not reached")
    assert (caught.value.budget, caught.value.limit, caught.value.used) == ("children", limit, limit + 1)


def test_d7_children_begun_by_many_threads_at_once() -> None:
    begun = []

    def one(number: int) -> None:
        with contextlib.suppress(lw.BudgetExceeded), lw.watch_run("child"):
            begun.append(number)

    with lw.watch_run("root", policy=Policy(budgets=Budgets(max_children=5))), ThreadPoolExecutor(8) as pool:
        list(pool.map(lw.bind(one), range(40)))
    assert len(begun) == 5


def test_depth_is_not_enforced_in_observe_mode() -> None:
    with lw.watch_run("root", policy=Policy(mode="observe", budgets=Budgets(max_depth=1, max_children=1))):
        for _ in range(2):
            with lw.watch_run("child"), lw.watch_run("grandchild") as grand:
                assert grand.parent is not None


# --- 5.10: a child's abort --------------------------------------------------------------------------------------------


def test_a_childs_abort_is_the_error_of_the_parents_call_and_propagates(seen: Captured) -> None:
    bodies = []

    @lw.watch_tool
    def delegate(task: int) -> str:
        bodies.append(task)
        with lw.watch_run("child", policy=Policy(budgets=Budgets(max_tool_calls=1))):
            for number in range(2):
                ping(number)
        return "done"

    stopped = []
    policy = Policy(loops=LoopRules(max_error_streak=3, action="abort"))
    with pytest.raises(lw.ToolLoopError) as caught, lw.watch_run("root", policy=policy) as root:
        for task in range(10):
            try:
                delegate(task)
            except lw.BudgetExceeded:
                stopped.append(task)
    assert stopped == bodies == [0, 1, 2]
    assert caught.value.outcome is root.outcome
    assert (caught.value.tool_name, caught.value.stop_reason) == ("delegate", "no_progress")
    (finding,) = root.outcome.findings
    assert finding.error_class == "child_aborted"
    spans = [span for span in seen.spans if span.name == "execute_tool delegate"]
    assert [span.attributes.get("error.type") for span in spans] == ["BudgetExceeded"] * 3 + ["aborted"]


def test_the_parents_own_abort_is_no_child_aborted() -> None:
    @lw.watch_tool
    def delegate() -> str:
        with lw.watch_run("child"):
            for number in range(5):
                ping(number)
        return "done"

    with (
        pytest.raises(lw.BudgetExceeded),
        lw.watch_run("root", policy=Policy(budgets=Budgets(max_tool_calls=2))) as root,
    ):
        delegate()
    assert root.outcome.findings == ()


def test_spans_of_a_tree(seen: Captured) -> None:
    with lw.watch_run("root") as root, lw.watch_run("child") as child:
        ping(1)
    root_span, child_span, tool = (
        seen.named(name) for name in ("invoke_agent root", "invoke_agent child", "execute_tool ping")
    )
    assert root_span.parent is None
    assert child_span.parent.span_id == root_span.context.span_id
    assert tool.parent.span_id == child_span.context.span_id
    assert child_span.attributes["loopwatch.run.parent_id"] == root.run_id
    assert tool.attributes["loopwatch.run.id"] == child.run_id
    assert tool.attributes["loopwatch.run.parent_id"] == root.run_id
    assert "loopwatch.run.parent_id" not in root_span.attributes


def test_a_remote_kind_of_parent_is_refused_in_words() -> None:
    class Elsewhere:
        pass

    from otel_loopwatch.ledger.memory import MemoryLedger

    with pytest.raises(TypeError, match="Elsewhere"):
        MemoryLedger().open("r", Elsewhere())
