"""One run of one agent: what it has used, what it has been told, and whether it has been stopped.

:class:`Run` is the one mutable object of the core. Sources (decorators, adapters, the span processor, replay) call
``admit`` before a tool body, ``settle`` after it and ``charge`` for model calls; detectors, budgets and verdict are
pure functions that it asks; spans, metrics, log and callback are told by it. Counts live in its ledger.
"""

# ruff: noqa: SLF001 - a run looks at its ancestors

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_loopwatch import budgets, context, metrics, telemetry, verdict
from otel_loopwatch.calls import (
    ALLOW,
    Breach,
    RunOutcome,
    Settled,
    StopReason,
    ToolCall,
    Trip,
    Usage,
    Used,
    Verdict,
)
from otel_loopwatch.charging import Charging
from otel_loopwatch.clock import Clock, get_clock
from otel_loopwatch.detectors import inspect
from otel_loopwatch.errors import Unwind, report_fault, telemetry_guard
from otel_loopwatch.findings import Findings
from otel_loopwatch.ledger.memory import MemoryLedger
from otel_loopwatch.limits import Limits
from otel_loopwatch.policy import PRESETS, Budgets, Policy, Rules
from otel_loopwatch.refusal import Patience, error_for
from otel_loopwatch.scratchpad import OK, Scratchpad
from otel_loopwatch.spending import Spending

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_loopwatch.history import History
    from otel_loopwatch.ledger import Ledger, RunLedger

__all__ = ["Run", "on_run_closed", "open_runs"]

_NO_BUDGETS = Budgets()
_open: dict[int, Run] = {}
_on_closed: list[Callable[[Run, RunOutcome], object]] = []


def open_runs() -> tuple[Run, ...]:
    """The runs that are open in this process, oldest first."""
    return tuple(run for run in _open.copy().values() if run.pid == context.pid)


def on_run_closed(callback: Callable[[Run, RunOutcome], object]) -> None:
    """Have *callback* told of every run of this process that ends, in the thread that ends it (``loopwatch run``)."""
    _on_closed.append(callback)


class Run(Spending):
    """One execution of one agent. Made by :func:`otel_loopwatch.watch_run`; safe to use from any thread or task.

    Attributes:
        agent: Name of the agent.
        run_id: Id of the run; on spans only, never a metric label.
        policy: The rules that hold.
        budgets: The limits of this run itself; those of its ancestors hold as well.
        parent: The run in which this one was opened.
        attributes: What the caller said about the run (a tenant, a user): never a metric label.
        partial: The best result so far; ``on_abort="return"`` returns it.
        span: The run's own span, where it has one.
        host_span: The span of another library that stands for a run without one of its own.
        clock: Monotonic seconds.
        started_at: When it began, by its clock.
        last_active_at: Its last call, turn, charge or progress, by its clock.
        current_step: The model turn, from 1; 0 where turns are unknown.
        silent: True for a run that leaves no telemetry (replay).
        limits: The limits that hold for it, and its trip.
        patience: How often it was refused.
        pid: The process that opened it.
    """

    def __init__(
        self,
        agent: str = "agent",
        *,
        policy: Policy | None = None,
        parent: Run | None = None,
        run_id: str | None = None,
        ledger: Ledger | None = None,
        clock: Clock | None = None,
        attributes: Mapping[str, Any] | None = None,
        on_verdict: Callable[[Verdict], object] | None = None,
        insist_after: int | None = None,
        silent: bool = False,
    ) -> None:
        """Begin a run. Applications call :func:`otel_loopwatch.watch_run` instead.

        Args:
            agent: Name of the agent, a metric label: one of few.
            policy: The rules; a child without any takes its parent's (whose budgets hold for it anyway).
            parent: The run in which this one is opened.
            run_id: An id of the caller's.
            ledger: Where counts live; memory by default.
            clock: Monotonic seconds.
            attributes: What the caller says about the run.
            on_verdict: Called with each new finding's verdict, and with the first refusal.
            insist_after: Refused turns after which the owner is unwound; ``None`` never.
            silent: True keeps the run out of metrics, spans and log.

        Raises:
            BudgetExceeded: Where an ancestor's depth or fan-out limit forbids another run.
        """
        forbidden = None if parent is None else parent.limits.adopt()
        if parent is not None and forbidden is not None:
            raise error_for(forbidden, parent.outcome)
        self.agent = agent
        self.run_id: str = run_id or uuid.uuid4().hex
        self.parent = parent
        self.policy: Policy = policy or (parent.policy if parent is not None else PRESETS["default"])
        self.budgets: Budgets = _NO_BUDGETS if policy is None and parent is not None else self.policy.budgets
        self.attributes = dict(attributes or {})
        self.partial: Any = None
        self.span: Span | None = None
        self.host_span: Span | None = None
        self.clock: Clock = clock or (parent.clock if parent is not None else get_clock())
        self.started_at = self.last_active_at = self.clock()
        self.current_step = 0
        self.silent: bool = silent or (parent is not None and parent.silent)
        self.patience = Patience(insist_after)
        self.pid = context.pid
        self._on_verdict = on_verdict
        # Re-entrant: a finaliser or a signal handler may come in while this thread holds it.
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._closed: RunOutcome | None = None
        self._findings = Findings()
        self._scratchpad = Scratchpad()
        # A part of its own also because an object of more than 29 attributes shares no keys with the others of its
        # class in CPython 3.11, and takes a kilobyte more.
        self._charging = Charging(self, None if parent is None else parent._charging)
        self._settled = 0
        self._explicit_steps = False
        self._unsaid: Trip | None = None
        self._ledger: RunLedger = (ledger or MemoryLedger()).open(
            self.run_id, None if parent is None else parent._ledger
        )
        self.limits: Limits = Limits(
            self.run_id,
            self.budgets,
            enforced=self.policy.mode == "enforce",
            parent=None if parent is None else parent.limits,
            ledger=self._ledger,
            clock=self.clock,
            reporter=self,
        )
        if not self.silent:
            _open[id(self)] = self
            with telemetry_guard("metrics"):
                metrics.run_opened(self)

    # --- what a source asks ---------------------------------------------------------------------------------------

    @property
    def is_local(self) -> bool:
        """True where admission does no I/O."""
        return self._ledger.is_local

    @property
    def has_explicit_steps(self) -> bool:
        """True once somebody has called :meth:`step`: model spans begin no turns then."""
        return self._explicit_steps

    def next_call_id(self) -> str:
        """An id for a call that the model gave none."""
        return f"#{next(self._ids)}"

    def admit(self, call: ToolCall, rules: Rules) -> Verdict:
        """Judge *call* before its body runs, and take its budget.

        Args:
            call: The call.
            rules: The tool's rules (:meth:`Policy.rules_for`).

        Returns:
            ``allow`` or ``observe``: run the body, then :meth:`settle`. ``hint``: answer the model with ``text``.
            ``abort``: do not run it; raise :meth:`refusal`.

        Emits:
            For a new finding: a span event, ``loopwatch.loops.detected``, a log record, ``on_verdict``.
        """
        trip = self.limits.tripped
        if trip is not None:
            return self._refused(Verdict("abort", trip=trip))
        judged = self._judge(self._ledger.reserve(call), call, rules)
        if judged.finding is None and judged.trip is None:
            # Nearly every call: nothing to say, and nothing to take back.
            return judged
        if judged.action == "hint":
            self._ledger.release(call, hinted=_subject(judged))
            self._hinted()
        elif judged.action == "abort":
            self._ledger.release(call)
            return self._refused(judged)
        return self._told(judged)

    async def aadmit(self, call: ToolCall, rules: Rules) -> Verdict:
        """:meth:`admit` for an event loop and a remote ledger."""
        trip = self.tripped
        if trip is not None:
            return self._refused(Verdict("abort", trip=trip))
        judged = self._judge(await self._ledger.areserve(call), call, rules)
        if judged.action == "hint":
            await self._ledger.arelease(call, hinted=_subject(judged))
            self._hinted()
        elif judged.action == "abort":
            await self._ledger.arelease(call)
            return self._refused(judged)
        return self._told(judged)

    def settle(self, call: ToolCall, settled: Settled, arguments: Mapping[str, Any] | None = None) -> None:
        """Record how an admitted call ended. Never raises for a limit that it reaches: the next call is refused.

        Args:
            call: The call.
            settled: How it ended.
            arguments: What :meth:`tried` may show of it; ``None`` leaves it out there.
        """
        self._after(call, settled, self._ledger.settle(call, settled), arguments)

    async def asettle(self, call: ToolCall, settled: Settled) -> None:
        """:meth:`settle` for an event loop and a remote ledger."""
        self._after(call, settled, await self._ledger.asettle(call, settled))

    def observe(self, call: ToolCall, settled: Settled, rules: Rules) -> int | None:
        """Count a call that has run already, about which nobody was asked: a span of another library shows it.

        Nothing can be refused any more, so what it shows (a limit that it passes, a loop) trips the run for the next
        call. The model is not answered either: a hint is one that nobody hears, and only uses up the patience.

        Args:
            call: The call.
            settled: How it ended.
            rules: The tool's rules (:meth:`Policy.rules_for`).

        Returns:
            How often the run has made this call, this one included; ``None`` where it was counted before, by its id.

        Emits:
            As :meth:`admit`.
        """
        history = self._ledger.reserve(call)
        if history.duplicate:
            return None
        judged = ALLOW if self.tripped is not None else self._judge(history, call, rules, heard=False)
        self.settle(call, settled)
        if judged.trip is not None:
            judged = replace(judged, trip=self.limits.trip(judged.trip))
        if judged.finding is not None or judged.trip is not None:
            self._told(judged)
        return history.entry.calls + 1

    def withdraw(self, call: ToolCall) -> None:
        """Give back an admitted call that was put off (an interrupt for approval): no call now, no repeat later."""
        self._ledger.release(call)

    def derived_step(self) -> None:
        """A model turn begins, seen in somebody else's span. Nothing where turns are told explicitly. Never raises."""
        if not self._explicit_steps:
            self._begin_step(refusable=False)

    def note_attempt(self, fingerprint: str, tool: str, arguments: Mapping[str, Any], outcome: str) -> None:
        """Remember a call and how it ended, for :meth:`tried`."""
        with self._lock:
            self._scratchpad.attempted(fingerprint, tool, arguments, outcome)

    # --- what the agent's author asks -----------------------------------------------------------------------------

    @property
    def tripped(self) -> Trip | None:
        """Why the run is aborted, itself or through an ancestor; ``None`` while it is not."""
        return self.limits.tripped

    @property
    def is_closed(self) -> bool:
        """True once the run has ended."""
        return self._closed is not None

    @property
    def outcome(self) -> RunOutcome:
        """How the run ended, or where it stands while it is open."""
        if self._closed is not None:
            return self._closed
        trip = self.tripped
        return self._outcome(StopReason.COMPLETED if trip is None else trip.stop_reason, None)

    def used(self) -> Used:
        """What the run has used so far, its descendants included."""
        return self._ledger.used()[0]

    def step(self) -> int:
        """A model turn begins. Call it once a turn: parallel calls of one turn are then one repeat.

        Returns:
            The number of the turn, from 1.

        Raises:
            RunAborted: Where the run is aborted, or this turn is one too many.
        """
        self._explicit_steps = True
        trip = self._begin_step()
        if trip is not None:
            raise self.refusal(trip)
        return self.current_step

    def check(self) -> None:
        """Raise now if the run was aborted, or its time is up.

        Raises:
            RunAborted: With stop reason and partial result.
        """
        if self.limits.are_set and self.tripped is None:
            self.limits.settle(self._ledger.used())
        self._raise_if_aborted()

    def progress(self, note: str = "") -> None:
        """Something new happened that no tool call shows: every repetition is counted anew.

        Args:
            note: For :meth:`tried`; goes to the model, not to telemetry.
        """
        self._ledger.progress()
        self.last_active_at = self.clock()
        with self._lock:
            self._scratchpad.progress(note)

    def tried(self) -> str:
        """What was already tried, as text for the prompt: the last 20 different calls and how each ended.

        At most 200 characters of arguments a call, and error classes; no results. Tools declared ``sensitive`` appear
        by name alone. Kept in this process's memory only, never given to telemetry.
        """
        with self._lock:
            return self._scratchpad.text()

    def sampling(self, temperature: float = 0.1) -> float:
        """The temperature for the next model turn: *temperature*, but 0.6 for one turn after two without progress.

        The same answer for every call within one turn. Turns must be known (``run.step()``, an adapter, model spans).

        Args:
            temperature: What the agent uses when it is not stuck.
        """
        with self._lock:
            return self._scratchpad.temperature(temperature, self.current_step)

    def abort(self, reason: str = "The run was stopped by the application.") -> None:
        """Stop the run: every later guarded call, ``check``, ``step`` and ``record_usage`` raises.

        May be called from any thread, and from a signal handler.

        Args:
            reason: One sentence, without secrets: it becomes the error's message.
        """
        self.limits.trip(Trip(StopReason.USER_ABORT, reason, run_id=self.run_id))

    # --- refusing -------------------------------------------------------------------------------------------------

    def refusal(self, trip: Trip, call: ToolCall | None = None) -> BaseException:
        """A fresh exception for a call of an aborted run: polite first, then firm (DESIGN 5.1).

        Args:
            trip: Why it is aborted.
            call: The refused call, where it is one.
        """
        owner = next((run for run in self._with_ancestors() if run.run_id == trip.run_id), self)
        owner._say_abort()
        insist = owner.patience.refuse(self.run_id, self.current_step, owner._settled)
        if insist and not owner.is_closed:
            return Unwind(owner.run_id)
        return error_for(trip, self.outcome, call)

    def _raise_if_aborted(self) -> None:
        trip = self.tripped
        if trip is not None:
            raise self.refusal(trip)

    def _refused(self, judged: Verdict) -> Verdict:
        if judged.trip is not None:
            # The first trip wins, whoever was refused for what in the same moment.
            judged = replace(judged, trip=self.limits.trip(judged.trip))
        return self._told(judged)

    def _told(self, judged: Verdict) -> Verdict:
        """Give the user's callback a new finding and the first refusal; its faults are counted and go no further."""
        callback = self._on_verdict
        first_refusal = judged.trip is not None and not self.patience.told
        if first_refusal:
            self.patience.told = True
        if callback is not None and (judged.new or first_refusal):
            try:
                callback(judged)
            except Exception as fault:  # noqa: BLE001 - a user's callback may raise anything
                report_fault("on_verdict", fault)
        return judged

    def on_trip(self, trip: Trip) -> None:
        """Say that the run is aborted (called by its limits)."""
        if trip.stop_reason is StopReason.USER_ABORT:
            # A signal handler may have come in while this thread holds the lock of a span or of a log handler, so it is
            # said at the next refusal, or at the end.
            self._unsaid = trip
        else:
            self._report_trip(trip)

    def _say_abort(self) -> None:
        with self._lock:
            trip, self._unsaid = self._unsaid, None
        if trip is not None:
            self._report_trip(trip)

    def _report_trip(self, trip: Trip) -> None:
        if not self.silent:
            with telemetry_guard("telemetry"):
                telemetry.report_trip(self, trip)

    def on_budget_warning(self, breach: Breach, share: float) -> None:
        """Say that a budget is nearly used up, in observe mode also that it is (called by its limits)."""
        if not self.silent:
            with telemetry_guard("telemetry"):
                telemetry.report_warning(self, breach, share)

    # --- judging --------------------------------------------------------------------------------------------------

    def _judge(self, history: History, call: ToolCall, rules: Rules, *, heard: bool = True) -> Verdict:
        if history.tripped is not None:
            return Verdict("abort", trip=history.tripped)
        if history.duplicate:
            return ALLOW
        if self.limits.are_set or rules.tool.max_calls is not None:
            trip = self._over_limit(history, call, rules)
            if trip is not None:
                return Verdict("abort", trip=trip)
        finding = None if rules.exempt else inspect(history, call, rules)
        if finding is None:
            calls = history.entry.calls
            return ALLOW if calls == 0 else Verdict("allow", repeats=calls + 1)
        with self._lock:
            judged = self._findings.judge(
                finding, call, rules, history.hints, self.run_id, calls=history.entry.calls + 1, heard=heard
            )
        if not self.silent and judged.finding is not None:
            self._report(judged)
        return judged

    def _report(self, judged: Verdict) -> None:
        finding = judged.finding
        if finding is None:  # pragma: no cover - the caller looked; this tells mypy
            return
        if judged.new:
            with telemetry_guard("metrics"):
                metrics.loop_detected(self.agent, finding.tool, finding.kind, judged.action)
            with telemetry_guard("telemetry"):
                telemetry.report_finding(self, finding)
        if finding.ignored_hints:
            with telemetry_guard("metrics"):
                metrics.hint_ignored(self.agent, finding.tool)

    def _hinted(self) -> None:
        with self._lock:
            self._scratchpad.hinted()

    def _over_limit(self, history: History, call: ToolCall, rules: Rules) -> Trip | None:
        trip = self.limits.breach(history.used, budgets.call_breach)
        if trip is not None:
            return trip
        limit = rules.tool.max_calls
        if limit is not None and history.tool_calls > limit:
            over = Breach(f"tool:{call.tool}", limit, history.tool_calls, StopReason.TOOL_BUDGET)
            if self.limits.enforced:
                return verdict.breach_trip(over, self.run_id)
            self.limits.observe(over)
        return None

    # --- counting -------------------------------------------------------------------------------------------------

    def _after(
        self,
        call: ToolCall,
        settled: Settled,
        used: tuple[Used, ...],
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.last_active_at = settled.at
        with self._lock:
            self._settled += 1
            scratchpad = self._scratchpad
            scratchpad.settled(call.fingerprint, settled.digest, settled.error)
            if arguments is not None:
                scratchpad.attempted(call.fingerprint, call.tool, arguments, settled.error_class or OK)
        if call.cost_usd is not None and not self.silent:
            with telemetry_guard("metrics"):
                metrics.charged(self.agent, Usage(None, cost_usd=call.cost_usd, tool=call.tool))
        if self.limits.are_set:
            self.limits.settle(used)

    def _begin_step(self, *, refusable: bool = True) -> Trip | None:
        """Count a model turn; returns the trip that forbids it, if one does.

        Args:
            refusable: False for a turn that is taken whatever is said here.
        """
        trip = self.tripped
        # A turn that is refused has a number all the same: patience counts them.
        used = self._ledger.step() if trip is None or not refusable else ()
        with self._lock:
            self._scratchpad.step_began()
            self.current_step += 1
        if trip is not None:
            return trip
        self.last_active_at = self.clock()
        trip = self.limits.breach(used, budgets.step_breach)
        return None if trip is None else self.limits.trip(trip)

    def _with_ancestors(self) -> Iterator[Run]:
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent

    def budget_shares(self) -> Iterator[tuple[Breach, float]]:
        """Each limit of this run itself with the share of it that is used (1.0 = all)."""
        return self.limits.shares(self.used())

    # --- ending ---------------------------------------------------------------------------------------------------

    def close(self, stop_reason: StopReason = StopReason.COMPLETED, cause: BaseException | None = None) -> RunOutcome:
        """End the run; a second time changes nothing.

        Args:
            stop_reason: Why, unless the run was aborted: then the trip says why.
            cause: The exception that ended it.

        Emits:
            The ``loopwatch.run.*`` histograms, ``loopwatch.runs``, the end of the run's span.
        """
        if self.pid != context.pid:
            # In a forked child, on its way out of the parent's block: the parent ends its run, whose locks may here be
            # held by a thread that the fork has left behind.
            return RunOutcome(self.run_id, self.agent, stop_reason, partial=self.partial, cause=cause)
        self._say_abort()
        trip = self.tripped
        outcome = self._outcome(stop_reason if trip is None else trip.stop_reason, cause)
        with self._lock:
            if self._closed is not None:
                return self._closed
            self._closed = outcome
        _open.pop(id(self), None)
        if not self.silent:
            with telemetry_guard("metrics"):
                metrics.run_closed(self, outcome)
            for callback in _on_closed:
                with telemetry_guard("launch"):
                    callback(self, outcome)
            if self.span is not None:
                with telemetry_guard("telemetry"):
                    telemetry.end_run_span(self.span, self, outcome)
        return outcome

    def _outcome(self, stop_reason: StopReason, cause: BaseException | None) -> RunOutcome:
        used = self.used()
        with self._lock:
            input_tokens, output_tokens, cached_input_tokens = self._charging.tokens
            return RunOutcome(
                run_id=self.run_id,
                agent=self.agent,
                stop_reason=stop_reason,
                tool_calls=used.tool_calls,
                steps=used.steps,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cached_input_tokens=cached_input_tokens,
                spend_usd=used.spend_usd,
                spend_complete=self._charging.complete,
                duration_s=self.clock() - self.started_at,
                findings=self._findings.all(),
                partial=self.partial,
                cause=cause,
            )

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.agent!r}>"


def _subject(judged: Verdict) -> str | None:
    return None if judged.finding is None else judged.finding.subject
