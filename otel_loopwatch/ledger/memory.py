"""The default ledger: the counts of a run in this process, behind one re-entrant lock a run."""

from __future__ import annotations

import os
import threading
import weakref
from decimal import Decimal

from otel_loopwatch.amounts import EXACT
from otel_loopwatch.calls import Settled, ToolCall, Trip, Usage, Used
from otel_loopwatch.history import History
from otel_loopwatch.ledger import RunLedger
from otel_loopwatch.run_state import RunState

__all__ = ["MemoryLedger", "MemoryRun"]

ZERO = Decimal(0)
_new = tuple.__new__

_runs: weakref.WeakSet[MemoryRun] = weakref.WeakSet()


class MemoryRun:
    """The counts of one run. Implements :class:`~otel_loopwatch.ledger.RunLedger`.

    Locks are taken from child to parent and never the other way, and nothing is called under them but this module and
    :mod:`otel_loopwatch.run_state`. They are re-entrant, because a ``__del__`` or a signal handler may call in the
    middle of another call of the same thread.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "_now",
        "_parent",
        "_state",
        "_trip",
        "run_id",
    )

    is_local = True

    def __init__(self, run_id: str, parent: MemoryRun | None) -> None:
        self.run_id = run_id
        self._parent = parent
        self._lock = threading.RLock()
        self._state = RunState()
        self._trip: Trip | None = None
        self._now = Used()
        _runs.add(self)

    # --- calls ----------------------------------------------------------------------------------------------------

    def reserve(self, call: ToolCall) -> History:
        """See :meth:`otel_loopwatch.ledger.RunLedger.reserve`."""
        with self._lock:
            state = self._state
            if state.knows(call.id):
                return state.look(call, self._read(), self.tripped())
            if self._parent is None and call.cost_usd is None:
                steps, calls, tokens, spend, held = self._now
                self._now = now = _new(Used, (steps, calls + 1, tokens, spend, held))
                return state.reserve(call, (now,), self._trip)
            used = self._add(1, held=call.cost_usd or ZERO)
            return state.reserve(call, used, self.tripped())

    def release(self, call: ToolCall, *, hinted: str | None = None) -> None:
        """See :meth:`otel_loopwatch.ledger.RunLedger.release`."""
        with self._lock:
            if self._state.release(call, hinted):
                self._add(-1, held=(call.cost_usd or ZERO).copy_negate())

    def settle(self, call: ToolCall, settled: Settled) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.settle`."""
        with self._lock:
            if self._state.settle(call, settled) and call.cost_usd is not None:
                return self._add(spend=call.cost_usd, held=call.cost_usd.copy_negate())
            return (self._now,) if self._parent is None else self._read()

    # --- usage ----------------------------------------------------------------------------------------------------

    def charge(self, usage: Usage, *, held: Decimal = ZERO) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.charge`."""
        return self._add(
            tokens=usage.input_tokens + usage.output_tokens, spend=usage.cost_usd or ZERO, held=held.copy_negate()
        )

    def hold(self, usd: Decimal) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.hold`."""
        return self._add(held=usd)

    def step(self) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.step`."""
        return self._add(steps=1)

    def progress(self) -> None:
        """See :meth:`otel_loopwatch.ledger.RunLedger.progress`."""
        with self._lock:
            self._state.progress()

    def used(self) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.used`."""
        # Without ancestors there is one tuple, which is replaced whole: a collection over many runs takes no lock.
        return (self._now,) if self._parent is None else self._read()

    def _add(
        self, tool_calls: int = 0, *, steps: int = 0, tokens: int = 0, spend: Decimal = ZERO, held: Decimal = ZERO
    ) -> tuple[Used, ...]:
        """Add to this run and its ancestors in one atomic step; returns their usage."""
        with self._lock:
            was = self._now
            now = self._now = _new(
                Used,
                (
                    was.steps + steps,
                    was.tool_calls + tool_calls,
                    was.tokens + tokens,
                    # Not +, which rounds to what the application's decimal context says.
                    EXACT.add(was.spend_usd, spend) if spend else was.spend_usd,
                    EXACT.add(was.held_usd, held) if held else was.held_usd,
                ),
            )
            parent = self._parent
            if parent is None:
                return (now,)
            return (now, *parent._add(tool_calls, steps=steps, tokens=tokens, spend=spend, held=held))  # noqa: SLF001

    def _read(self) -> tuple[Used, ...]:
        with self._lock:
            parent = self._parent
            return (self._now,) if parent is None else (self._now, *parent._read())  # noqa: SLF001

    # --- trip -----------------------------------------------------------------------------------------------------

    def trip(self, trip: Trip) -> Trip:
        """See :meth:`otel_loopwatch.ledger.RunLedger.trip`."""
        with self._lock:
            holds = self.tripped()
            if holds is None:
                holds = self._trip = trip
            return holds

    def tripped(self) -> Trip | None:
        """See :meth:`otel_loopwatch.ledger.RunLedger.tripped`."""
        run: MemoryRun | None = self
        while run is not None:
            if run._trip is not None:  # noqa: SLF001
                return run._trip  # noqa: SLF001
            run = run._parent  # noqa: SLF001
        return None

    # --- for an event loop: no I/O, so the same -------------------------------------------------------------------

    async def areserve(self, call: ToolCall) -> History:
        """See :meth:`otel_loopwatch.ledger.RunLedger.areserve`."""
        return self.reserve(call)

    async def arelease(self, call: ToolCall, *, hinted: str | None = None) -> None:
        """See :meth:`otel_loopwatch.ledger.RunLedger.arelease`."""
        self.release(call, hinted=hinted)

    async def asettle(self, call: ToolCall, settled: Settled) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.asettle`."""
        return self.settle(call, settled)

    async def acharge(self, usage: Usage, *, held: Decimal = ZERO) -> tuple[Used, ...]:
        """See :meth:`otel_loopwatch.ledger.RunLedger.acharge`."""
        return self.charge(usage, held=held)

    async def atrip(self, trip: Trip) -> Trip:
        """See :meth:`otel_loopwatch.ledger.RunLedger.atrip`."""
        return self.trip(trip)


class MemoryLedger:
    """A store of runs in this process. Implements :class:`~otel_loopwatch.ledger.Ledger`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: weakref.WeakValueDictionary[str, MemoryRun] = weakref.WeakValueDictionary()

    def open(self, run_id: str, parent: RunLedger | None) -> MemoryRun:
        """Begin the run *run_id*, or join it where this ledger has it open.

        Raises:
            TypeError: Where the parent lives in another kind of ledger: no atomic step could span the two.
        """
        if parent is not None and not isinstance(parent, MemoryRun):
            raise TypeError(f"a run in memory cannot be the child of one in {type(parent).__name__}")
        with self._lock:
            run = self._open.get(run_id)
            if run is None:
                run = self._open[run_id] = MemoryRun(run_id, parent)
            return run


def _after_fork() -> None:
    """A lock that another thread held at the fork would stay locked for ever in the child."""
    for run in list(_runs):
        run._lock = threading.RLock()  # noqa: SLF001


if hasattr(os, "register_at_fork"):  # pragma: no branch - there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork)
