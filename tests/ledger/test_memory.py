"""The contract on the memory ledger, and what is its own: locks, forks, memory."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc

import pytest
from contract import OK, Contract, call

from otel_loopwatch.calls import StopReason, ToolCall, Trip
from otel_loopwatch.detectors import inspect
from otel_loopwatch.ledger.memory import MemoryLedger
from otel_loopwatch.policy import Policy


class TestMemory(Contract):
    @pytest.fixture
    def ledger(self):
        return MemoryLedger()


def test_it_is_local():
    assert MemoryLedger().open("run", None).is_local


def test_a_parent_in_another_ledger_is_refused():
    with pytest.raises(TypeError, match="in memory cannot be the child of one in object"):
        MemoryLedger().open("run", object())


def test_a_run_that_nobody_holds_is_gone():
    ledger = MemoryLedger()
    ledger.open("run", None).reserve(call(1))
    gc.collect()
    assert ledger.open("run", None).used()[0].tool_calls == 0


def test_the_lock_is_re_entrant():
    run = MemoryLedger().open("run", None)
    with run._lock:
        assert run.trip(Trip(StopReason.USER_ABORT, "from a signal handler")).message == "from a signal handler"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_f4_a_lock_held_at_the_fork_is_made_anew_in_the_child():
    run = MemoryLedger().open("run", None)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with run._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        # Not to be caught by anything of pytest's: the answer is the exit code.
        os._exit(0 if run._lock.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def grown(calls: int) -> int:
    """Bytes of one open run after so many different calls."""
    rules = Policy().rules_for("t")
    MemoryLedger().open("warm", None).reserve(call(1))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run = MemoryLedger().open("run", None)
        for number in range(calls):
            one = ToolCall(f"#{number}", "t", f"{number:032x}", float(number))
            inspect(run.reserve(one), one, rules)
            run.settle(one, OK._replace(digest=f"{number:032d}"))
        del one
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert run.used()[0].tool_calls == calls
    return size


@pytest.mark.measure
def test_an_open_run_of_20_calls_is_small():
    assert grown(20) <= 10_000


@pytest.mark.measure
def test_a_run_of_any_length_is_bounded():
    assert grown(6000) <= 300_000
