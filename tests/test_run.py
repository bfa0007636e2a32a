"""A run through decorated tools: counting, hinting, aborting, and who is told (A-1, A-9, B, C)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import otel_loopwatch as lw
from otel_loopwatch.calls import Settled, ToolCall
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.run import Run
from otel_loopwatch.testing import Captured, FakeClock, capture

ABORT_AT_3 = Policy(loops=LoopRules(max_repeats=3, action="abort"))
HINT_AT_3 = Policy(loops=LoopRules(max_repeats=3, action="hint", hints_before_abort=2))


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


class Lister:
    """A tool that finds nothing, and counts how often it was really asked."""

    def __init__(self) -> None:
        self.bodies = 0

        @lw.watch_tool(name="list_resources")
        def list_resources(kind: str = "x") -> list[str] | str:
            self.bodies += 1
            return []

        self.call = list_resources


@pytest.fixture
def lister() -> Lister:
    return Lister()


def loop_events(seen: Captured, span: str) -> list[dict[str, object]]:
    return [dict(event.attributes) for event in seen.named(span).events if event.name == "loopwatch.loop.detected"]


# --- A-1, A-9 ---------------------------------------------------------------------------------------------------------


def test_a1_three_bodies_then_the_fourth_call_aborts(seen: Captured, lister: Lister) -> None:
    with pytest.raises(lw.ToolLoopError) as caught, lw.watch_run("a", policy=ABORT_AT_3):
        for _ in range(6):
            try:
                lister.call(kind="x")
            except lw.ToolLoopError:
                continue
    error = caught.value
    assert lister.bodies == 3
    assert (error.tool_name, error.repeats, error.kind) == ("list_resources", 4, "repeat")
    assert len(error.args_hash) == 32
    assert seen.value("loopwatch.loops.detected", tool="list_resources") == 1, "once a loop, not once a later call"
    (event,) = loop_events(seen, "invoke_agent a")
    assert event["loopwatch.loop.repeats"] == 4
    assert event["gen_ai.tool.name"] == "list_resources"
    assert event["loopwatch.tool.call.arguments.hash"] == error.args_hash
    assert seen.value("loopwatch.tool.calls", outcome="refused") == 3


def test_a9_hints_are_bounded_over_200_turns(seen: Captured, lister: Lister) -> None:
    hints = refused = 0
    with pytest.raises(lw.ToolLoopError) as caught, lw.watch_run("a", policy=HINT_AT_3, insist_after=None) as run:
        for _ in range(200):
            try:
                run.step()
                hints += lw.is_hint(lister.call())
            except lw.RunAborted:
                refused += 1
    assert lister.bodies == 3
    assert hints == 2
    assert refused == 195
    assert caught.value.repeats == 6
    assert seen.value("loopwatch.loops.detected") == 1
    assert seen.value("loopwatch.hints.ignored", tool="list_resources") == 2


def test_a9_a_run_that_will_not_stop_is_unwound(lister: Lister) -> None:
    turns = 0
    with pytest.raises(lw.ToolLoopError), lw.watch_run("a", policy=HINT_AT_3) as run:
        for _ in range(200):
            turns += 1
            try:
                run.step()
                lister.call()
            except Exception:  # noqa: BLE001 - as agent loops do
                continue
    assert lister.bodies == 3
    assert turns < 12


def test_hints_have_a_ceiling_in_a_run() -> None:
    bodies = []

    @lw.watch_tool
    def read(path: int) -> str:
        bodies.append(path)
        return "same"

    policy = Policy(
        loops=LoopRules(max_repeats=1, max_rereads=1, max_hints=3, hints_before_abort=50, max_no_progress=99)
    )
    with pytest.raises(lw.ToolLoopError), lw.watch_run("a", policy=policy):
        for path in range(10):
            read(path)
            read(path)
    assert bodies == [0, 1, 2, 3]


# --- B ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("action", ["abort", "hint"])
def test_b8_exactly_n_bodies_run_and_repeats_is_n_plus_one(lister: Lister, limit: int, action: str) -> None:
    policy = Policy(loops=LoopRules(max_repeats=limit, action=action))
    verdicts: list[lw.Verdict] = []
    with lw.watch_run("a", policy=policy, on_abort="return", on_verdict=verdicts.append):
        for _ in range(limit + 1):
            lister.call()
    assert lister.bodies == limit
    assert [(verdict.action, verdict.finding.repeats, verdict.repeats) for verdict in verdicts if verdict.finding] == [
        (action, limit + 1, limit + 1)
    ]


def test_b8_zero_is_refused_at_construction() -> None:
    for build in (
        lambda: LoopRules(max_repeats=0),
        lambda: lw.ToolRules(max_repeats=0),
        lambda: lw.watch_tool(max_repeats=0),
    ):
        with pytest.raises(lw.PolicyError, match="max_repeats"):
            build()


def test_b7_two_runs_of_one_thread_each_begin_at_zero(lister: Lister) -> None:
    for _ in range(2):
        with lw.watch_run("a", policy=ABORT_AT_3) as run:
            lister.call()
            lister.call()
        assert run.outcome.findings == ()
        assert run.outcome.tool_calls == 2
    assert lister.bodies == 4


async def test_b7_two_runs_of_one_task_each_begin_at_zero(lister: Lister) -> None:
    async def serve() -> None:
        async with lw.watch_run("a", policy=ABORT_AT_3):
            lister.call()
            await asyncio.sleep(0)
            lister.call()

    async def worker() -> None:
        for _ in range(3):
            await serve()

    await asyncio.create_task(worker())
    assert lister.bodies == 6


def test_b7_two_runs_of_one_pool_worker_each_begin_at_zero(lister: Lister) -> None:
    def serve() -> None:
        with lw.watch_run("a", policy=ABORT_AT_3):
            lister.call()
            lister.call()

    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(serve).result()
    assert lister.bodies == 6


async def test_b7_a_worker_started_in_a_run_begins_runs_of_its_own(lister: Lister) -> None:
    """A task copies the context it is created in. Runs that it begins later are not children of a run that is over."""
    jobs: asyncio.Queue[int] = asyncio.Queue()
    parents = []

    async def worker() -> None:
        for _ in range(3):
            await jobs.get()
            with lw.watch_run("job", policy=ABORT_AT_3) as run:
                parents.append(run.parent)
                lister.call()
            jobs.task_done()

    with lw.watch_run("first", policy=Policy(budgets=Budgets(max_tool_calls=1))) as first:
        task = asyncio.create_task(worker())
        jobs.put_nowait(1)
        await jobs.join()
    for job in (2, 3):
        jobs.put_nowait(job)
    await task
    assert parents == [first, None, None]
    assert lister.bodies == 3


async def test_b2_eight_identical_calls_of_one_turn_are_one_repeat_and_eight_calls() -> None:
    @lw.watch_tool
    async def same() -> str:
        await asyncio.sleep(0)
        return "same"

    policy = Policy(loops=LoopRules(max_repeats=2, action="abort"))
    with pytest.raises(lw.ToolLoopError) as caught, lw.watch_run("a", policy=policy) as run:
        for _ in range(2):
            run.step()
            await asyncio.gather(*(same() for _ in range(8)))
        assert run.outcome.tool_calls == 16
        assert run.outcome.findings == ()
        run.step()
        await same()
    assert caught.value.repeats == 3


def test_b9_a_hint_is_result_event_metric_and_log_each_once(
    seen: Captured, lister: Lister, caplog: pytest.LogCaptureFixture
) -> None:
    verdicts: list[lw.Verdict] = []
    with lw.watch_run("a", policy=HINT_AT_3, on_verdict=verdicts.append):
        results = [lister.call() for _ in range(5)]
    assert [lw.is_hint(result) for result in results] == [False, False, False, True, True]
    assert len(loop_events(seen, "invoke_agent a")) == 1
    tool_events = [event for span in seen.spans if span.name == "execute_tool list_resources" for event in span.events]
    assert [event.name for event in tool_events] == ["loopwatch.loop.detected"]
    assert seen.value("loopwatch.loops.detected", tool="list_resources", kind="repeat", action="hint") == 1
    assert seen.value("loopwatch.loops.detected") == 1
    assert seen.value("loopwatch.tool.calls", outcome="hinted") == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].loopwatch["loopwatch.loop.kind"] == "repeat"
    assert [verdict.new for verdict in verdicts] == [True]


def test_b9_observe_is_event_metric_and_log_each_once_and_the_body_runs(
    seen: Captured, lister: Lister, caplog: pytest.LogCaptureFixture
) -> None:
    with lw.watch_run("a", policy=Policy(loops=LoopRules(max_repeats=3, action="observe"))) as run:
        results = [lister.call() for _ in range(8)]
    assert results == [[]] * 8
    assert lister.bodies == 8
    assert len(loop_events(seen, "invoke_agent a")) == 1
    assert seen.value("loopwatch.loops.detected", kind="repeat", action="observe") == 1
    assert seen.value("loopwatch.loops.detected") == 1
    assert len(caplog.records) == 1
    (finding,) = run.outcome.findings
    assert (finding.repeats, finding.action) == (8, "observe"), "later calls only raise the count"
    assert run.outcome.stop_reason == "completed"


def test_b6_a_hint_says_what_was_equal(lister: Lister) -> None:
    with lw.watch_run("a", policy=HINT_AT_3):
        hint = [lister.call(kind="secret-kind") for _ in range(4)][-1]
    assert str(hint).startswith(
        '[loop-detected] Tool "list_resources" has now been called 4 times with identical arguments.'
    )
    assert "secret-kind" not in str(hint)


# --- C ----------------------------------------------------------------------------------------------------------------


def test_c1_after_the_trip_no_further_body_runs(lister: Lister) -> None:
    other = []

    @lw.watch_tool
    def fetch(x: int) -> str:
        other.append(x)
        return f"page {x}"

    with pytest.raises(lw.ToolLoopError), lw.watch_run("a", policy=ABORT_AT_3, insist_after=None) as run:
        fetch(-1)
        for number in range(20):
            try:
                lister.call()
                fetch(number)
            except lw.ToolLoopError:
                with pytest.raises(lw.ToolLoopError):
                    fetch(number)
                with pytest.raises(lw.ToolLoopError):
                    run.step()
                with pytest.raises(lw.ToolLoopError):
                    run.check()
                with pytest.raises(lw.ToolLoopError):
                    run.reserve(0)
                with pytest.raises(lw.ToolLoopError):
                    run.record_usage("m", input_tokens=7, cost_usd=0)
                break
    assert lister.bodies == 3
    assert len(other) == 4
    assert run.outcome.input_tokens == 7, "record_usage charges first"


def test_c3_the_error_has_tool_call_id_and_a_ready_result() -> None:
    run = Run(policy=ABORT_AT_3, silent=True)
    rules = run.policy.rules_for("search")
    for number in range(4):
        call = ToolCall(f"call_{number}", "search", "f" * 32, 0.0)
        verdict = run.admit(call, rules)
        run.settle(call, Settled("same"))
    assert verdict.trip is not None
    error = run.refusal(verdict.trip, call)
    assert isinstance(error, lw.ToolLoopError)
    assert (error.tool_name, error.call_id) == ("search", "call_3")
    assert error.result_text.startswith("[run-aborted] ")
    assert "search" in error.result_text
    run.close()


def test_c3_a_call_without_an_id_of_the_models_has_none() -> None:
    with (
        pytest.raises(lw.BudgetExceeded) as caught,
        lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=1))),
    ):
        Lister().call()
        Lister().call()
    assert caught.value.call_id is None
    assert caught.value.tool_name == "list_resources"


class GraphBubbleUp(Exception):
    pass


class GraphInterrupt(GraphBubbleUp):
    pass


def test_c6_an_interrupt_passes_and_the_approved_call_counts_once(seen: Captured) -> None:
    approved: set[int] = set()

    @lw.watch_tool
    def pay(amount: int) -> str:
        if amount not in approved:
            raise GraphInterrupt
        return "paid"

    with lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=3), loops=LoopRules(max_repeats=1))) as run:
        for amount in (1, 2, 3):
            for _ in range(4):
                with pytest.raises(GraphInterrupt):
                    pay(amount)
            approved.add(amount)
            assert pay(amount) == "paid"
    assert run.outcome.tool_calls == 3
    assert run.outcome.findings == ()
    assert seen.value("loopwatch.tool.calls", tool="pay", outcome="ok") == 3
    assert seen.value("loopwatch.tool.calls", tool="pay", outcome="error") == 0
    assert seen.value("loopwatch.tool.repeats", tool="pay") == 0
    assert {span.status.status_code.name for span in seen.spans} == {"UNSET"}


def test_c6_a_run_left_by_an_interrupt_is_paused(seen: Captured) -> None:
    with pytest.raises(GraphInterrupt), lw.watch_run("a") as run:
        raise GraphInterrupt
    assert run.outcome.stop_reason == "paused"
    assert seen.named("invoke_agent a").status.status_code.name == "UNSET"


async def test_c6_a_cancelled_call_is_no_error_and_costs_its_budget(seen: Captured) -> None:
    @lw.watch_tool
    async def slow() -> str:
        await asyncio.sleep(60)
        return "never"

    with lw.watch_run("a") as run:
        task = asyncio.create_task(slow())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert run.outcome.tool_calls == 1
    assert seen.value("loopwatch.tool.calls", outcome="error") == 0
    assert len([span for span in seen.spans if span.name == "execute_tool slow"]) == 1


# --- duplicate ids, exempt tools --------------------------------------------------------------------------------------


def test_the_same_call_id_is_the_same_call() -> None:
    run = Run(policy=Policy(budgets=Budgets(max_tool_calls=1), loops=LoopRules(max_repeats=1)), silent=True)
    rules = run.policy.rules_for("t")
    call = ToolCall("call_1", "t", "f" * 32, 0.0)
    assert [run.admit(call, rules).action for _ in range(3)] == ["allow"] * 3
    run.settle(call, Settled("x"))
    run.settle(call, Settled("x"))
    assert run.used().tool_calls == 1
    run.close()


def test_an_exempt_tool_is_never_a_loop_and_still_costs() -> None:
    @lw.watch_tool(exempt=True)
    def now() -> str:
        return "noon"

    with pytest.raises(lw.BudgetExceeded), lw.watch_run("a", policy=Policy(budgets=Budgets(max_tool_calls=12))) as run:
        for _ in range(13):
            now()
    assert run.outcome.findings == ()


def test_an_exempt_tool_does_not_come_between_two_others(lister: Lister) -> None:
    @lw.watch_tool(exempt=True)
    def log(x: int) -> str:
        return "logged"

    policy = Policy(loops=LoopRules(max_repeats=2, max_rereads=9, action="abort"))
    with pytest.raises(lw.ToolLoopError), lw.watch_run("a", policy=policy):
        for number in range(3):
            lister.call()
            log(number)
    assert lister.bodies == 2


# --- callbacks and the log --------------------------------------------------------------------------------------------


def test_on_verdict_is_given_each_new_finding_and_the_first_refusal(lister: Lister) -> None:
    verdicts: list[lw.Verdict] = []
    with lw.watch_run("a", policy=HINT_AT_3, on_verdict=verdicts.append, on_abort="return", insist_after=None):
        for _ in range(12):
            with contextlib.suppress(lw.ToolLoopError):
                lister.call()
    assert [(verdict.action, verdict.new, verdict.trip is not None) for verdict in verdicts] == [
        ("hint", True, False),
        ("abort", False, True),
    ]
    assert verdicts[0].text is not None
    assert lw.is_hint(verdicts[0].text)


def test_a_child_is_told_once_of_its_parents_abort(lister: Lister) -> None:
    verdicts: list[lw.Verdict] = []
    policy = Policy(budgets=Budgets(max_tool_calls=1))
    with lw.watch_run("a", policy=policy, on_abort="return"), lw.watch_run("b", on_verdict=verdicts.append):
        for _ in range(3):
            with contextlib.suppress(lw.BudgetExceeded):
                lister.call()
    assert [verdict.action for verdict in verdicts] == ["abort"]


def test_a_callback_that_raises_is_counted_and_goes_no_further(seen: Captured, lister: Lister) -> None:
    def broken(verdict: lw.Verdict) -> None:
        raise ValueError("the user's")

    with lw.watch_run("a", policy=HINT_AT_3, on_verdict=broken):
        assert lw.is_hint([lister.call() for _ in range(4)][-1])
    assert seen.value("loopwatch.guard.errors", stage="on_verdict") == 1


def test_f6_a_callback_may_call_another_tool(lister: Lister) -> None:
    inner = Lister()
    with lw.watch_run("a", policy=HINT_AT_3, on_verdict=lambda verdict: inner.call(kind=verdict.action)):
        for _ in range(4):
            lister.call()
    assert inner.bodies == 1


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_at_most_100_findings_are_kept_and_each_is_reported_once(seen: Captured) -> None:
    @lw.watch_tool
    def read(path: int) -> str:
        return f"content of {path}"

    policy = Policy(loops=LoopRules(max_repeats=1, max_rereads=1, action="observe"))
    with lw.watch_run("a", policy=policy) as run:
        for path in range(120):
            for _ in range(3):
                read(path)
    assert len(run.outcome.findings) == 100
    assert {finding.repeats for finding in run.outcome.findings} == {3}
    assert seen.value("loopwatch.loops.detected") == 100
    assert run.outcome.tool_calls == 360


def test_a9_the_demands_of_one_turn_are_answered_alike_and_counted_once(lister: Lister) -> None:
    policy = Policy(loops=LoopRules(max_repeats=1, hints_before_abort=1))
    with pytest.raises(lw.ToolLoopError), lw.watch_run("a", policy=policy) as run:
        run.step()
        lister.call()
        run.step()
        hints = [lw.is_hint(lister.call()) for _ in range(3)]
        run.step()
        lister.call()
    assert hints == [True] * 3
    assert run.outcome.steps == 3, "stopped in the next turn, not within the one that was hinted"
    assert lister.bodies == 1


def test_hints_are_remembered_for_many_subjects_of_one_turn() -> None:
    @lw.watch_tool
    def read(path: int) -> str:
        return f"content of {path}"

    policy = Policy(loops=LoopRules(max_repeats=1, max_rereads=1, max_hints=999, hints_before_abort=1))
    with lw.watch_run("a", policy=policy) as run:
        for _ in range(2):
            run.step()
            hints = [lw.is_hint(read(path)) for path in range(120)]
    assert hints == [True] * 120


# --- abort, outcome, open runs ----------------------------------------------------------------------------------------


def test_abort_stops_the_run(seen: Captured, lister: Lister, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(lw.RunAborted, match="operator said so") as caught, lw.watch_run("a") as run:
        lister.call()
        run.abort("operator said so")
        run.abort("a second word changes nothing")
        lister.call()
    assert lister.bodies == 1
    assert caught.value.stop_reason == "user_abort"
    assert type(caught.value) is lw.RunAborted
    assert [event.name for event in seen.named("invoke_agent a").events] == ["loopwatch.run.aborted"]
    assert len(caplog.records) == 1


def test_an_abort_that_nothing_notices_is_said_at_the_end(seen: Captured) -> None:
    with lw.watch_run("a") as run:
        run.abort()
    assert run.outcome.stop_reason == "user_abort"
    assert [event.name for event in seen.named("invoke_agent a").events] == ["loopwatch.run.aborted"]
    assert seen.value("loopwatch.runs", stop_reason="user_abort") == 1


def test_an_abort_after_another_trip_says_nothing(seen: Captured, lister: Lister) -> None:
    with lw.watch_run("a", policy=ABORT_AT_3, on_abort="return") as run:
        with pytest.raises(lw.ToolLoopError):
            [lister.call() for _ in range(4)]
        run.abort("too late")
        with pytest.raises(lw.ToolLoopError):
            run.check()
    assert run.outcome.stop_reason == "loop_detected"
    events = [event for event in seen.named("invoke_agent a").events if event.name == "loopwatch.run.aborted"]
    assert [event.attributes["loopwatch.stop.reason"] for event in events] == ["loop_detected"]


def test_the_outcome_of_a_good_run(seen: Captured) -> None:
    with FakeClock() as clock, lw.watch_run("support", run_id="r1") as run:
        run.step()
        clock.advance(2.5)
        run.record_usage("m", input_tokens=10, output_tokens=4, cached_input_tokens=3, cost_usd=0.25)
        Lister().call()
        run.partial = "draft"
        assert run.outcome.stop_reason == "completed"
        assert not run.is_closed
    outcome = run.outcome
    assert (outcome.run_id, outcome.agent, outcome.stop_reason) == ("r1", "support", "completed")
    assert (outcome.tool_calls, outcome.steps, outcome.duration_s) == (1, 1, 2.5)
    assert (outcome.input_tokens, outcome.output_tokens, outcome.cached_input_tokens) == (10, 4, 3)
    assert str(outcome.spend_usd) == "0.25"
    assert (outcome.partial, outcome.cause, outcome.findings) == ("draft", None, ())
    assert run.is_closed
    assert seen.value("loopwatch.runs", agent="support", stop_reason="completed") == 1
    assert seen.value("loopwatch.run.tool_calls", agent="support") == 1
    assert seen.value("loopwatch.tokens", agent="support", model="m", type="input") == 10


def test_closing_twice_counts_once(seen: Captured) -> None:
    run = Run("a")
    first = run.close()
    assert run.close(lw.StopReason.ERROR, ValueError()) is first
    assert seen.value("loopwatch.runs", agent="a") == 1


def test_open_runs_oldest_first() -> None:
    assert lw.runs() == ()
    with lw.watch_run("a") as outer, lw.watch_run("b") as inner:
        assert lw.runs() == (outer, inner)
        assert lw.current_run() is inner
    assert lw.runs() == ()
    assert lw.current_run() is None


def test_a_silent_run_leaves_no_telemetry(seen: Captured, caplog: pytest.LogCaptureFixture) -> None:
    run = Run("ghost", policy=ABORT_AT_3, silent=True)
    rules = run.policy.rules_for("t")
    for number in range(5):
        call = ToolCall(f"#{number}", "t", "f" * 32, 0.0, cost_usd=None)
        run.admit(call, rules)
        run.settle(call, Settled("x"))
    run.usage_missing("m")
    run.close()
    assert seen.spans == ()
    assert caplog.records == []
    with pytest.raises(LookupError):
        seen.value("loopwatch.runs", agent="ghost")
    assert run.outcome.stop_reason == "loop_detected"


def test_derived_turns_end_where_explicit_ones_begin() -> None:
    run = Run(silent=True)
    run.derived_step()
    assert run.current_step == 1
    assert run.step() == 2
    run.derived_step()
    assert run.current_step == 2
    assert run.used().steps == 2
    run.close()


def test_missing_usage_makes_spend_a_lower_bound_up_the_tree(seen: Captured) -> None:
    with lw.watch_run("a") as outer, lw.watch_run("b") as inner:
        inner.usage_missing("m")
    assert (outer.outcome.spend_complete, inner.outcome.spend_complete) == (False, False)
    assert seen.value("loopwatch.usage.missing", model="m") == 1


def test_a_run_says_what_it_is() -> None:
    run = Run("support", run_id="r1", silent=True)
    assert repr(run) == "<Run r1 of 'support'>"
    run.close()


def test_progress_is_a_sign_of_life():
    with FakeClock() as clock, lw.watch_run() as run:
        clock.advance(100)
        run.progress("a new page")
        assert run.last_active_at == clock()
