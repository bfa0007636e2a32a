"""Refusing a call of an aborted run: an ordinary error first, and a firm signal for a run that goes on all the same."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from otel_loopwatch.calls import RunOutcome, ToolCall, Trip
from otel_loopwatch.errors import BudgetExceeded, RunAborted, ToolLoopError

__all__ = ["Patience", "error_for", "here"]

Place = tuple[int, Any]
"""A thread and, in an event loop, a task."""

MAX_ALIKE = 8
"""Refusals that count as one demand. A loop that never begins a new turn must come to an end as well."""


def here() -> Place:
    """This thread and task."""
    task: Any = None
    if "trio" in sys.modules:
        import trio  # noqa: PLC0415 - only where the application runs under it

        # in_trio_task() is younger than many a trio that is installed.
        with contextlib.suppress(RuntimeError):
            return threading.get_ident(), trio.lowlevel.current_task()
    # A program that runs no event loop is not made to import one: it takes as long as all of this package.
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
    return threading.get_ident(), task


class Patience:
    """How often an aborted run has been refused, and whether that was often enough.

    Args:
        insist_after: Refused turns after which the owner is unwound; ``None`` never.

    Attributes:
        owner: Where ``watch_run`` was entered: only there may the firm signal be raised, for only there does it reach
            the boundary. ``None`` for a run without one.
        told: True once the user's callback was given the first refusal.
    """

    __slots__ = ("_alike", "_insist_after", "_insisted", "_last", "_lock", "_turns", "owner", "told")

    def __init__(self, insist_after: int | None) -> None:
        self.owner: Place | None = None
        self.told = False
        self._insist_after = insist_after
        self._turns = 0
        self._alike = 0
        self._insisted = False
        self._last: object = None
        self._lock = threading.RLock()

    @property
    def tried(self) -> bool:
        """True once a guarded call was refused."""
        return self._turns > 0

    def refuse(self, run_id: str, step: int, settled: int) -> bool:
        """Count a refusal; True where the owner is to be unwound.

        Refusals of one model turn are one demand, and so are those outside the owner's task between two settled calls:
        a batch that was in flight. Of more than eight, each further eight are another demand. Once the owner has been
        unwound it is unwound at every refusal.

        Args:
            run_id: The run that was refused: this one or a descendant, whose turns are its own.
            step: The model turn of that run, 0 where turns are unknown.
            settled: Calls settled so far.
        """
        owned = self.owner is not None and self.owner == here()
        demand: object = (run_id, step) if step else object() if owned else ("batch", settled)
        with self._lock:
            if owned and self._insisted:
                return True
            if demand == self._last and self._alike < MAX_ALIKE:
                self._alike += 1
                return False
            self._insisted = owned and self._insist_after is not None and self._turns >= self._insist_after
            self._turns += 1
            self._alike = 1
            self._last = demand
            return self._insisted


def error_for(trip: Trip, outcome: RunOutcome, call: ToolCall | None = None) -> RunAborted:
    """A fresh ordinary error for *trip*.

    Args:
        trip: Why the run is aborted.
        outcome: Where it stands, or how it ended.
        call: The refused call, where it was one.
    """
    facts: dict[str, Any] = {
        "stop_reason": trip.stop_reason,
        "outcome": outcome,
        "tool_name": call.tool if call is not None else None,
        "call_id": call.id if call is not None and not call.id.startswith("#") else None,
    }
    finding, breach = trip.finding, trip.breach
    if finding is not None:
        facts["tool_name"] = finding.tool
        return ToolLoopError(
            trip.message, repeats=finding.repeats, kind=finding.kind, args_hash=finding.args_hash, **facts
        )
    if breach is not None:
        return BudgetExceeded(trip.message, budget=breach.budget, limit=breach.limit, used=breach.used, **facts)
    return RunAborted(trip.message, **facts)
