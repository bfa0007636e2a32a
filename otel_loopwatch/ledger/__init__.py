"""Where a run's counts live: the Protocol that every store implements.

A ledger is asked by :class:`otel_loopwatch.run.Run` alone. It decides nothing: it counts, and answers with what a
detector needs to see. The contract (``tests/ledger/contract.py`` runs it on every implementation):

* ``reserve`` takes the call's budget (one tool call, its ``cost_usd``) from the run and each of its ancestors in one
  atomic step *before* anybody has judged it, and is idempotent by call id: reserving an id again changes no count and
  answers with ``History.duplicate``. A judge who refuses gives it back with ``release``.
* ``settle`` and ``release`` of an id that is not reserved (any more) change nothing: a lost reply may be sent again.
* ``trip`` is a compare-and-set: the first one wins, and every caller is told which one that was.
* Nothing waits on a lock while user code runs, and no method calls back.

Allow is one round trip (``reserve``); ``settle`` is sent after the body. The first hint or abort takes two.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from otel_loopwatch.calls import Settled, ToolCall, Trip, Usage, Used
    from otel_loopwatch.history import History

__all__ = ["Ledger", "RunLedger"]


class RunLedger(Protocol):
    """The counts of one run. Every method is safe to call from any thread or task."""

    @property
    def is_local(self) -> bool:
        """True where no method does I/O, so that the synchronous twins may be used on an event loop."""

    def reserve(self, call: ToolCall) -> History:
        """Take the budget of *call* and return what the run has seen, as a copy."""

    def release(self, call: ToolCall, *, hinted: str | None = None) -> None:
        """Give back the reservation of a call whose body is not run.

        Args:
            call: The reserved call.
            hinted: The subject of the finding, where the call was answered with a hint: one hint more is counted for it
                (once a step), and the call stays in the sequence as a marker.
        """

    def settle(self, call: ToolCall, settled: Settled) -> tuple[Used, ...]:
        """Record how *call* ended; returns the usage of the run, then of its ancestors."""

    def charge(self, usage: Usage, *, held: Decimal = Decimal(0)) -> tuple[Used, ...]:
        """Add what a model call used to the run and its ancestors; returns their usage.

        Args:
            usage: What was used.
            held: Money held for this very call, given back in the same step.
        """

    def hold(self, usd: Decimal) -> tuple[Used, ...]:
        """Add to the money held by the run and its ancestors; a negative amount gives back."""

    def step(self) -> tuple[Used, ...]:
        """Count one model turn of the run and its ancestors; returns their usage, this turn included."""

    def progress(self) -> None:
        """Something new happened: open a new epoch and end every streak."""

    def used(self) -> tuple[Used, ...]:
        """The usage of the run, then of its ancestors."""

    def trip(self, trip: Trip) -> Trip:
        """Mark the run as aborted unless it already is; returns the trip that holds."""

    def tripped(self) -> Trip | None:
        """The trip that holds for this run, its own or the nearest ancestor's."""

    async def areserve(self, call: ToolCall) -> History:
        """:meth:`reserve` for an event loop."""

    async def arelease(self, call: ToolCall, *, hinted: str | None = None) -> None:
        """:meth:`release` for an event loop."""

    async def asettle(self, call: ToolCall, settled: Settled) -> tuple[Used, ...]:
        """:meth:`settle` for an event loop."""

    async def acharge(self, usage: Usage, *, held: Decimal = Decimal(0)) -> tuple[Used, ...]:
        """:meth:`charge` for an event loop."""

    async def atrip(self, trip: Trip) -> Trip:
        """:meth:`trip` for an event loop."""


class Ledger(Protocol):
    """A store of runs; ``watch_run(ledger=...)`` takes one."""

    def open(self, run_id: str, parent: RunLedger | None) -> RunLedger:
        """Begin (or join) the run *run_id*, below *parent* where it is a child."""
