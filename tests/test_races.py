"""Races: budgets are exact under threads and tasks, locks re-enter, and nothing deadlocks (DESIGN 5.2, 5.15, 9.1)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import FrameType

import pytest

import otel_loopwatch as lw
from otel_loopwatch.calls import StopReason, Trip, Usage
from otel_loopwatch.policy import Budgets, LoopRules, Policy
from otel_loopwatch.run import Run
from otel_loopwatch.testing import Captured, capture

PARALLEL = 64
LIMIT = 10
ROUNDS = 200
TEN = Policy(budgets=Budgets(max_tool_calls=LIMIT))


@pytest.fixture
def fast_switches() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def seen() -> Iterator[Captured]:
    with capture() as captured:
        yield captured


@pytest.mark.usefixtures("fast_switches")
def test_64_threads_against_a_limit_of_10_run_10_bodies() -> None:
    bodies = []

    @lw.watch_tool
    def search(q: int) -> str:
        bodies.append(q)
        return f"r{q}"

    def one(q: int) -> bool:
        try:
            search(q)
        except lw.BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        for _ in range(ROUNDS):
            bodies.clear()
            with lw.watch_run("a", policy=TEN, on_abort="return") as run:
                passed = list(pool.map(lw.bind(one), range(PARALLEL)))
            assert len(bodies) == sum(passed) == run.outcome.tool_calls == LIMIT


async def test_64_tasks_against_a_limit_of_10_run_10_bodies() -> None:
    bodies = []

    @lw.watch_tool
    async def search(q: int) -> str:
        bodies.append(q)
        await asyncio.sleep(0)
        return f"r{q}"

    for _ in range(ROUNDS):
        bodies.clear()
        async with lw.watch_run("a", policy=TEN, on_abort="return") as run:
            results = await asyncio.gather(*(search(q) for q in range(PARALLEL)), return_exceptions=True)
        assert len(bodies) == run.outcome.tool_calls == LIMIT
        assert sum(isinstance(result, lw.BudgetExceeded) for result in results) == PARALLEL - LIMIT


@pytest.mark.usefixtures("fast_switches")
def test_identical_calls_of_many_threads_are_judged_in_some_order() -> None:
    """Of identical calls at most eight at once are one round, and no more bodies run than rounds allow."""
    bodies = []

    @lw.watch_tool
    def same() -> str:
        bodies.append(1)
        return "same"

    def one(_: int) -> bool:
        return lw.is_hint(same())

    policy = Policy(loops=LoopRules(max_repeats=2, hints_before_abort=99, max_hints=999))
    with ThreadPoolExecutor(16) as pool, lw.watch_run("a", policy=policy) as run:
        hints = sum(pool.map(lw.bind(one), range(PARALLEL)))
    assert 2 <= len(bodies) <= 2 * 8
    assert len(bodies) + hints == PARALLEL
    assert run.outcome.tool_calls == len(bodies)
    assert len(run.outcome.findings) == 1


@pytest.mark.usefixtures("fast_switches")
def test_the_first_trip_wins(seen: Captured) -> None:
    for number in range(50):
        run = Run("a", policy=Policy())
        together = threading.Barrier(8)
        held: list[Trip] = []

        def trip(reason: int, run: Run = run, together: threading.Barrier = together, held: list[Trip] = held) -> None:
            together.wait()
            held.append(run.limits.trip(Trip(StopReason.LOOP_DETECTED, f"reason {reason}", run_id=run.run_id)))

        threads = [threading.Thread(target=trip, args=(reason,)) for reason in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, held))) == 1, number
        assert run.tripped is held[0]
        run.close()


@pytest.mark.usefixtures("fast_switches")
def test_every_refusal_says_the_reason_that_holds() -> None:
    @lw.watch_tool
    def search(q: int) -> str:
        return "same"

    policy = Policy(loops=LoopRules(max_repeats=1, max_rereads=1, action="abort"), budgets=Budgets(max_tool_calls=2))

    def one(q: int) -> str | None:
        try:
            search(q)
        except lw.RunAborted as error:
            return error.stop_reason.value
        return None

    for _ in range(30):
        with ThreadPoolExecutor(8) as pool, lw.watch_run("a", policy=policy, on_abort="return") as run:
            reasons = set(pool.map(lw.bind(one), [1, 2, 3, 1, 2, 3, 1, 2]))
        assert reasons - {None} == {run.outcome.stop_reason.value}


@pytest.mark.usefixtures("fast_switches")
def test_charges_of_many_threads_all_arrive() -> None:
    with lw.watch_run("a") as outer, lw.watch_run("b") as run, ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda _: run.charge(Usage("m", 3, 2, 1, Decimal("0.01")), "test"), range(400)):
            pass
    for one in (outer, run):
        assert one.outcome.spend_usd == Decimal("4.00")
        assert (one.outcome.input_tokens, one.outcome.output_tokens, one.outcome.cached_input_tokens) == (
            1200,
            800,
            400,
        )


@pytest.mark.usefixtures("fast_switches")
def test_one_bound_function_called_from_many_threads_at_once() -> None:
    runs = set()
    together = threading.Barrier(8)

    def work(number: int) -> None:
        together.wait()
        runs.add((number, lw.current_run()))

    with lw.watch_run("a") as run:
        bound = lw.bind(work)
        threads = [threading.Thread(target=bound, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert runs == {(number, run) for number in range(8)}


def test_a_bound_function_may_call_itself_bound() -> None:
    with lw.watch_run("a") as run:

        def work(depth: int) -> int:
            assert lw.current_run() is run
            return 0 if depth == 0 else 1 + bound(depth - 1)

        bound = lw.bind(work)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(bound, 5).result() == 5


def test_one_decorated_function_in_many_runs_of_many_threads() -> None:
    @lw.watch_tool
    def search(q: int) -> str:
        return f"r{q}"

    def serve(number: int) -> int:
        with lw.watch_run("a", policy=TEN) as run:
            for q in range(number % LIMIT):
                search(q)
        return run.outcome.tool_calls

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(serve, range(100))) == [number % LIMIT for number in range(100)]
    assert lw.runs() == ()


# --- signal handlers and finalisers -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs POSIX signals")
def test_abort_from_a_signal_handler_while_the_runs_locks_are_held(seen: Captured) -> None:
    with lw.watch_run("a", on_abort="return") as run:
        before = signal.signal(signal.SIGUSR1, lambda *_: run.abort("stopped by a signal"))
        try:
            with run._lock, run.limits._lock, run._ledger._lock, run.span._lock:
                os.kill(os.getpid(), signal.SIGUSR1)
                for _ in range(100):
                    if run.tripped is not None:
                        break
        finally:
            signal.signal(signal.SIGUSR1, before)
        with pytest.raises(lw.RunAborted, match="stopped by a signal"):
            run.check()
    assert run.outcome.stop_reason == "user_abort"
    assert [event.name for event in seen.named("invoke_agent a").events] == ["loopwatch.run.aborted"]


class Final:
    """An object whose finaliser calls a guarded tool."""

    called: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        self.called.append(tidy_up())


@lw.watch_tool
def tidy_up() -> str:
    return "tidy"


def test_a_finaliser_may_call_a_guarded_tool_while_the_runs_locks_are_held(seen: Captured) -> None:
    Final.called.clear()
    with lw.watch_run("a") as run:
        Final()
        with run._lock, run.limits._lock, run._ledger._lock:
            gc.collect()
    assert Final.called == ["tidy"]
    assert run.outcome.tool_calls == 1


def test_finalisers_in_the_middle_of_everything() -> None:
    """A finaliser that calls a tool runs wherever a function of ours begins, also where a lock of ours is held.

    Not by a low ``gc.set_threshold``: a collection inside of ``ContextVar.set`` meets a fault of CPython 3.11, which
    holds a borrowed reference to the map that the finaliser's own ``set`` replaces, and takes the interpreter down.
    """
    Final.called.clear()

    @lw.watch_tool
    def search(q: int) -> list[int]:
        return [q]

    def meddle(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "otel_loopwatch" in frame.f_code.co_filename:
            Final().me = None  # type: ignore[assignment]

    with lw.watch_run(
        "a", policy=Policy(loops=LoopRules(action="observe"), budgets=Budgets(max_tool_calls=100_000))
    ) as run:
        sys.setprofile(meddle)  # Python calls it for no function that it calls itself
        try:
            for q in range(20):
                run.step()
                search(q % 5)
        finally:
            sys.setprofile(None)
        assert len(Final.called) > 20 * 20
        assert run.used().tool_calls == 20 + len(Final.called)


# --- fork -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_f4_a_forked_child_begins_with_nothing_and_no_lock() -> None:
    @lw.watch_tool
    def search(q: int) -> str:
        return f"r{q}"

    with lw.watch_run("a", policy=TEN) as run:
        search(0)
        run._lock.acquire()
        run._ledger._lock.acquire()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                facts = [lw.current_run() is None, lw.runs() == (), search(1) == "r1"]
                with lw.watch_run("child", policy=TEN) as own:
                    search(2)
                facts += [own.parent is None, own.outcome.tool_calls == 1]
                os.write(write, b"1" if all(facts) else repr(facts).encode())
            except BaseException as error:  # noqa: BLE001
                os.write(write, repr(error).encode())
            finally:
                os._exit(0)
        run._lock.release()
        run._ledger._lock.release()
        os.close(write)
        os.waitpid(child, 0)
        assert os.read(read, 1000) == b"1"
        os.close(read)
        search(3)
    assert run.outcome.tool_calls == 2
