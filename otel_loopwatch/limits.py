"""The limits that hold for a run, its own and its ancestors', and the moment at which one of them trips it.

A budget trip marks the run that owns the budget, and with it every descendant; a loop trip marks its own run and
descendants.
"""

# ruff: noqa: SLF001 - the limits of a tree look at each other

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from otel_loopwatch import budgets, verdict
from otel_loopwatch.calls import Breach, StopReason, Trip, Used
from otel_loopwatch.clock import Clock
from otel_loopwatch.ledger import RunLedger
from otel_loopwatch.policy import Budgets

__all__ = ["Limits", "Reporter"]


class Reporter(Protocol):
    """Who is told. Called without any lock held."""

    def on_trip(self, trip: Trip) -> None:
        """The run has just been aborted."""

    def on_budget_warning(self, breach: Breach, share: float) -> None:
        """A budget has reached its warning share; in observe mode also: it is used up. Once a budget each."""


class Limits:
    """Budgets and trip of one run, linked to those of its ancestors.

    Args:
        run_id: The run.
        own: Its own budgets.
        enforced: False in observe mode: limits are watched, and warned of, but trip nothing.
        parent: The limits of the run in which it is opened.
        ledger: Where its counts live.
        clock: Monotonic seconds.
        reporter: Who is told of a trip and of a warning.
    """

    def __init__(
        self,
        run_id: str,
        own: Budgets,
        *,
        enforced: bool,
        parent: Limits | None,
        ledger: RunLedger,
        clock: Clock,
        reporter: Reporter,
    ) -> None:
        self.run_id = run_id
        self.own = own
        self.enforced = enforced
        self.started_at = clock()
        self._clock = clock
        self._ledger = ledger
        self._reporter = reporter
        self._lineage: tuple[Limits, ...] = (self, *(() if parent is None else parent._lineage))
        self.are_set = any(budgets.is_limited(limits.own) for limits in self._lineage)
        # Re-entrant: a signal handler may abort the run whose lock its own thread holds.
        self._lock = threading.RLock()
        self._trip: Trip | None = None
        self._warned: set[str] = set()
        self._warn_from = budgets.warning_shares(own)
        self._children = 0

    @property
    def tripped(self) -> Trip | None:
        """Why the run is aborted, itself or through an ancestor; ``None`` while it is not."""
        for limits in self._lineage:
            if limits._trip is not None:
                return limits._trip
        return None

    def trip(self, trip: Trip) -> Trip:
        """Mark the run that *trip* is about (this one or an ancestor) as aborted.

        Returns:
            The trip that holds: the first one wins.
        """
        owner = next((limits for limits in self._lineage if limits.run_id == trip.run_id), self)
        if owner._trip is not None:
            return owner._trip
        holds = owner._ledger.trip(trip)
        with owner._lock:
            first = owner._trip is None
            if first:
                owner._trip = holds
        if first:
            owner._reporter.on_trip(holds)
        return holds

    def breach(self, used: tuple[Used, ...], check: Callable[[Used, Budgets, float], Breach | None]) -> Trip | None:
        """The first limit that *used* breaks, as a trip of the run that owns it; and warn of those that nearly are.

        Args:
            used: Usage of this run, then of its ancestors.
            check: One of the functions of :mod:`otel_loopwatch.budgets`.
        """
        if not self.are_set:
            return None
        now = self._clock()
        for limits, of_run in zip(self._lineage, used, strict=False):
            found = check(of_run, limits.own, now - limits.started_at)
            if found is not None:
                if limits.enforced:
                    return verdict.breach_trip(found, limits.run_id)
                limits.observe(found)
        for limits, of_run in zip(self._lineage, used, strict=False):
            limits._warn(of_run, now)
        return None

    def settle(self, used: tuple[Used, ...]) -> None:
        """Trip the run whose limit is used up."""
        trip = self.breach(used, budgets.breached)
        if trip is not None:
            self.trip(trip)

    def _warn(self, used: Used, now: float) -> None:
        if not budgets.any_reached(used, now - self.started_at, self._warn_from):
            return
        for breach, share in budgets.shares(used, self.own, now - self.started_at):
            if share >= self.own.warn_at:
                self._warn_from = self._warn_from._replace(**{breach.budget: math.inf})
                if self._is_first(breach.budget):
                    self._reporter.on_budget_warning(breach, share)

    def observe(self, breach: Breach) -> None:
        """Report, once, a limit that would have tripped the run, were it enforced."""
        if self._is_first(f"{breach.budget} used up"):
            # The warning share was passed on the way: it would only say less.
            self._is_first(breach.budget)
            self._reporter.on_budget_warning(breach, float(breach.used) / float(breach.limit))

    def _is_first(self, topic: str) -> bool:
        with self._lock:
            first = topic not in self._warned
            self._warned.add(topic)
        return first

    def shares(self, used: Used) -> Iterator[tuple[Breach, float]]:
        """Each limit of this run itself, with the share of it that is used."""
        return budgets.shares(used, self.own, self._clock() - self.started_at)

    def adopt(self) -> Trip | None:
        """Count a child; or, where depth or fan-out forbid one, the reason. Nothing is tripped by that."""
        for depth, limits in enumerate(self._lineage, start=1):
            limit = limits.own.max_depth
            if limit is not None and depth > limit and limits.enforced:
                return verdict.breach_trip(Breach("depth", limit, depth, StopReason.DEPTH_LIMIT), limits.run_id)
        limit = self.own.max_children
        with self._lock:
            children = self._children + 1
            if limit is not None and children > limit and self.enforced:
                return verdict.breach_trip(Breach("children", limit, children, StopReason.DEPTH_LIMIT), self.run_id)
            self._children = children
        return None

    def _timed(self) -> Iterator[tuple[float, Limits, float]]:
        """Each time limit that holds: when it ends, whose it is, and its seconds."""
        for limits in self._lineage:
            seconds = limits.own.max_seconds
            if seconds is not None and limits.enforced:
                yield limits.started_at + seconds, limits, seconds

    def remaining_s(self) -> float | None:
        """Seconds left until the first time limit; ``None`` without one."""
        if not self.are_set:
            return None
        ends = [end for end, _, _ in self._timed()]
        return max(0.0, min(ends) - self._clock()) if ends else None

    def time_is_up(self) -> Trip:
        """Trip the run whose time limit ends first (a hanging tool has reached it); returns the trip that holds."""
        _, owner, seconds = min(self._timed(), key=lambda timed: timed[0])
        used = max(seconds, self._clock() - owner.started_at)
        breach = Breach("seconds", seconds, used, StopReason.TIME_BUDGET)
        return self.trip(verdict.breach_trip(breach, owner.run_id))
