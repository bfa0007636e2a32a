"""The way of one call: rules, ids, denied tools, interrupts, errors of the infrastructure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import otel_loopwatch as lw
from otel_loopwatch.fingerprint.digest import result_digest
from otel_loopwatch.flow import is_control_flow
from otel_loopwatch.pipeline import Call, Tool
from otel_loopwatch.policy import Budgets, LoopRules, Policy, ToolRules
from otel_loopwatch.testing import Captured, capture


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@lw.watch_tool
def search(q: str) -> str:
    return f"about {q}"


# --- whose rule wins --------------------------------------------------------------------------------------------------


def repeats_allowed(policy: Policy, **author: Any) -> int:
    bodies = []

    @lw.watch_tool(**author)
    def look(q: str) -> str:
        bodies.append(q)
        return "same"

    with lw.watch_run("a", policy=policy, on_abort="return"):
        for _ in range(9):
            if lw.is_hint(look("x")):
                break
    return len(bodies)


@pytest.mark.parametrize(
    "policy, author, bodies",
    [
        (Policy(loops=LoopRules(max_repeats=4, max_rereads=4)), {}, 4),
        (Policy(loops=LoopRules(max_repeats=4, max_rereads=4), default_tool=ToolRules(max_repeats=5)), {}, 5),
        (Policy(default_tool=ToolRules(max_repeats=5)), {"max_repeats": 1}, 1),
        (Policy(tools={"look": ToolRules(max_repeats=3)}), {"max_repeats": 1}, 3),
        (Policy(tools={"look": ToolRules(max_calls=99)}), {"max_repeats": 1}, 1),
        (Policy(tools={"other": ToolRules(max_repeats=3)}), {"max_repeats": 1}, 1),
        (Policy(mode="observe"), {"max_repeats": 1, "action": "abort"}, 9),
        (Policy(tools={"look": ToolRules(action="abort")}), {"max_repeats": 2, "action": "observe"}, 2),
    ],
)
def test_the_operators_rules_win_over_the_authors_field_by_field(
    policy: Policy, author: dict[str, Any], bodies: int
) -> None:
    assert repeats_allowed(policy, **author) == bodies


def test_the_rules_follow_the_policy_of_the_run() -> None:
    bodies = []

    @lw.watch_tool
    def look() -> str:
        bodies.append(1)
        return "same"

    for limit in (1, 3, 1):
        bodies.clear()
        with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=limit, action="abort")), on_abort="return"):
            for _ in range(5):
                look()
        assert len(bodies) == limit


def test_ignored_arguments_and_loop_keys_make_calls_identical() -> None:
    @lw.watch_tool(ignore_args=("request_id",))
    def run_command(cmd: str, request_id: int) -> str:
        return "files"

    @lw.watch_tool(loop_key=("cmd",))
    def run_other(cmd: str, request_id: int) -> str:
        return "files"

    for tool in (run_command, run_other):
        with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=2))):
            assert [lw.is_hint(tool("ls", number)) for number in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    "name, kind, bodies",
    [("touch_up", "write", 6), ("touch_up", "read", 2), ("save_file", None, 6), ("save_file", "read", 2)],
)
def test_b3_what_the_author_declares_wins_over_the_name(name: str, kind: Any, bodies: int) -> None:
    """An effective write in between makes a repeated look something new."""
    looks = []

    @lw.watch_tool(kind="read")
    def look() -> str:
        looks.append(1)
        return "same"

    @lw.watch_tool(name=name, kind=kind)
    def change(number: int) -> str:
        return f"done {number}"

    rules = LoopRules(max_repeats=2, max_rereads=2, max_no_progress=99, action="abort")
    with lw.watch_run("a", policy=Policy(loops=rules), on_abort="return"):
        for number in range(6):
            look()
            change(number)
    assert len(looks) == bodies


# --- allow and deny ---------------------------------------------------------------------------------------------------


def test_a_denied_tool_raises_and_the_run_goes_on(seen: Captured) -> None:
    bodies = []

    @lw.watch_tool
    def delete_all() -> str:
        bodies.append(1)
        return "gone"

    with lw.watch_run("a", policy=Policy(deny=("delete_*",))) as run:
        with pytest.raises(lw.ToolDenied, match=r'^\[tool-denied\] Tool "delete_all" is not allowed') as caught:
            delete_all()
        assert search("x") == "about x"
    assert caught.value.tool_name == "delete_all"
    assert bodies == []
    assert run.outcome.stop_reason == "completed"
    span = seen.named("execute_tool delete_all")
    assert (span.attributes["error.type"], span.attributes["loopwatch.verdict.action"]) == ("denied", "abort")
    assert seen.value("loopwatch.tool.calls", tool="delete_all", outcome="refused") == 1


def test_only_what_is_allowed_runs() -> None:
    with lw.watch_run("a", policy=Policy(allow=("read_*",))), pytest.raises(lw.ToolDenied):
        search("x")


def test_a_denied_tool_may_answer_the_model_instead() -> None:
    with lw.watch_run("a", policy=Policy(deny=("search",), on_denied="hint")):
        answer = search("x")
    assert answer.startswith('[tool-denied] Tool "search"')
    assert (answer.error, answer.tool_name) == ("tool-denied", "search")
    assert lw.is_hint(answer), "DESIGN 4: is this a synthetic result"


def test_a_denied_tool_asked_for_again_and_again_is_a_loop() -> None:
    policy = Policy(deny=("search",), on_denied="hint", loops=LoopRules(max_repeats=2, hints_before_abort=1))
    with pytest.raises(lw.ToolLoopError) as caught, lw.watch_run("a", policy=policy):
        answers = [search(str(number)) for number in range(3)]
        assert [answer.error for answer in answers] == ["tool-denied", "tool-denied", "loop-detected"]
        search("again")
    assert caught.value.kind == "unknown_tool"


# --- infrastructure, control flow -------------------------------------------------------------------------------------


class RateLimited(Exception):
    status_code = 429


def test_b5_throttled_calls_are_no_repeats() -> None:
    tries = []

    @lw.watch_tool
    def fetch(q: str) -> str:
        tries.append(q)
        if len(tries) <= 4:
            raise RateLimited
        return "at last"

    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=3, action="abort"))) as run:
        for _ in range(4):
            with pytest.raises(RateLimited):
                fetch("x")
        assert fetch("x") == "at last"
    assert run.outcome.findings == ()
    assert run.outcome.tool_calls == 5


def test_b5_but_have_a_limit_of_their_own() -> None:
    @lw.watch_tool
    def fetch(q: str) -> str:
        raise RateLimited

    with (
        pytest.raises(lw.ToolLoopError) as caught,
        lw.watch_run("a", policy=Policy(loops=LoopRules(max_infra_errors=5, action="abort"))),
    ):
        for _ in range(9):
            with contextlib.suppress(RateLimited):
                fetch("x")
    assert caught.value.repeats == 6


def test_b5_a_permanent_error_still_trips() -> None:
    @lw.watch_tool
    def fetch(q: str) -> str:
        raise ValueError("404")

    with (
        pytest.raises(lw.ToolLoopError) as caught,
        lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=3, action="abort"))),
    ):
        for _ in range(9):
            with contextlib.suppress(ValueError):
                fetch("x")
    assert caught.value.repeats == 4


def named(name: str, base: type[BaseException] = Exception) -> type[BaseException]:
    return type(name, (base,), {})


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError,
        GeneratorExit,
        KeyboardInterrupt,
        SystemExit,
        named("GraphBubbleUp"),
        named("GraphInterrupt", named("GraphBubbleUp")),
        named("ModelRetry"),
        named("CallDeferred"),
        named("ApprovalRequired"),
    ],
)
def test_c6_signals_are_known_by_class_name_anywhere_in_the_ancestry(error: type[BaseException]) -> None:
    assert is_control_flow(error())


@pytest.mark.parametrize(
    "error", [ValueError, TimeoutError, StopIteration, named("GraphRecursionError"), named("Retry")]
)
def test_c6_errors_are_not(error: type[BaseException]) -> None:
    assert not is_control_flow(error())


def test_c6_an_interrupt_gives_held_money_back() -> None:
    approval = named("ApprovalRequired")

    @lw.watch_tool(cost_usd=0.6)
    def pay(approved: bool) -> str:
        if not approved:
            raise approval
        return "paid"

    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_spend_usd=1))) as run:
        for _ in range(3):
            with pytest.raises(approval):
                pay(approved=False)
        assert run.used().held_usd == 0
        assert pay(approved=True) == "paid"
    assert str(run.outcome.spend_usd) == "0.6"


def test_c5_a_write_refused_and_made_again_after_a_read_is_no_loop() -> None:
    read = []

    @lw.watch_tool
    def write_file(path: str) -> str:
        if not read:
            raise PermissionError("read first")
        return "written"

    @lw.watch_tool
    def read_file(path: str) -> str:
        read.append(path)
        return "content of the file"

    with lw.watch_run("a", policy=Policy(loops=LoopRules(action="abort"))):
        with pytest.raises(PermissionError):
            write_file("a")
        read_file("a")
        assert write_file("a") == "written"


# --- a call by hand, as an adapter makes one --------------------------------------------------------------------------


def test_c6_the_models_own_call_id_makes_a_replayed_call_one_call(seen: Captured) -> None:
    tool = Tool(lambda q: None, "search", ToolRules())
    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=1))) as run:
        for _ in range(2):
            call = Call(tool, {"q": "x"}, "call_1")
            assert call.admit()
            call.enter()
            call.leave()
            call.succeed("found")
        call = Call(tool, {"q": "x"}, "call_2")
        with pytest.raises(lw.BudgetExceeded) as caught:
            call.admit()
        assert caught.value.call_id == "call_2"
        run.patience._turns = 0  # the boundary is not under test
    ids = [span.attributes["gen_ai.tool.call.id"] for span in seen.spans if span.name == "execute_tool search"]
    assert ids == ["call_1", "call_1", "call_2"]
    assert run.outcome.tool_calls == 1


def test_leaving_twice_is_leaving_once() -> None:
    with lw.watch_run("a") as run:
        call = Call(Tool(lambda: None, "t", ToolRules()), {})
        call.admit()
        call.enter()
        call.leave()
        call.leave()
        call.succeed_with(result_digest("x"))
        assert lw.current_run() is run


async def test_a_ledger_elsewhere_is_asked_with_its_async_methods() -> None:
    from otel_loopwatch.ledger.memory import MemoryLedger, MemoryRun

    asked = []

    class Remote(MemoryRun):
        __slots__ = ()
        is_local = False

        async def areserve(self, call: Any) -> Any:
            asked.append("areserve")
            await asyncio.sleep(0)
            return self.reserve(call)

        async def arelease(self, call: Any, *, hinted: str | None = None) -> None:
            asked.append(f"arelease {hinted is not None}")
            await asyncio.sleep(0)
            self.release(call, hinted=hinted)

    class Ledger(MemoryLedger):
        def open(self, run_id: str, parent: Any) -> Any:
            return Remote(run_id, parent)

    @lw.watch_tool
    async def look(q: str) -> str:
        return "same"

    policy = Policy(loops=LoopRules(max_repeats=1, hints_before_abort=1))
    with lw.watch_run("a", policy=policy, ledger=Ledger(), on_abort="return") as run:
        assert not run.is_local
        await look("x")
        assert lw.is_hint(await look("x"))
        for _ in range(2):
            with pytest.raises(lw.ToolLoopError):
                await look("x")
    assert asked == ["areserve", "areserve", "arelease True", "areserve", "arelease False"]
