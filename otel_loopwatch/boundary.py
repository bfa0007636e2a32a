"""``watch_run``: where a run begins and ends, and where an abort that was swallowed inside comes out.

A refused call raises an ordinary exception, which agent loops and frameworks catch. So the boundary looks again when
the block ends: a run that was aborted and refused a call raises its error here, whatever became of the first one.
"""

# ruff: noqa: SLF001 - one class in two halves

from __future__ import annotations

import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_loopwatch import ambient, telemetry
from otel_loopwatch.calls import StopReason, Trip, Verdict
from otel_loopwatch.context import Attached, attach, current_run, detach
from otel_loopwatch.errors import PolicyError, RunAborted, Unwind, is_disabled, telemetry_guard
from otel_loopwatch.flow import is_control_flow
from otel_loopwatch.generators import Steps, async_generator, generator
from otel_loopwatch.policy import Policy, operators_policy, policy_of
from otel_loopwatch.refusal import error_for, here
from otel_loopwatch.run import Run

if TYPE_CHECKING:
    from otel_loopwatch.ledger import Ledger

__all__ = ["watch_run"]

MAX_CHAIN = 16
"""Exceptions looked at along a chain: chains are short, and a cycle must end."""

P = ParamSpec("P")
T = TypeVar("T")

_OFF = Policy(mode="observe")


class watch_run:  # noqa: N801 - used as a function, as a context manager and as a decorator
    """Watch one run of an agent: ``with``, ``async with``, or a decorator for functions, coroutines and generators.

    Inside it every decorated tool, adapter and model span counts for this run. Opened inside another run it is a child:
    its calls and its spend also draw on the parent's budgets.

    Args:
        agent: Name of the agent, one of few: it is a metric label.
        policy: A :class:`Policy`, or the path of a policy file. Without one: the parent run's, else
            ``LOOPWATCH_POLICY``, else that of a live :class:`LoopwatchSpanProcessor`, else the default.
        on_abort: ``raise`` raises the error at the end of the block. ``return`` ends the block quietly; a decorated
            function then returns ``run.partial``.
        insist_after: Refused turns after which a run that goes on is unwound by a BaseException, in the thread and task
            that entered only; ``None`` never.
        on_verdict: Called with the :class:`Verdict` of each new finding and of the first refusal.
        run_id: An id of your own.
        ledger: Where counts live.
        attributes: Facts about the run (a tenant); never metric labels.

    Raises:
        ToolLoopError: At the end of the block, where the run was stopped for a loop and a call was refused.
        BudgetExceeded: The same for a budget; also at the start, where a depth or fan-out limit forbids the run.
        RunAborted: The same for ``run.abort()``.
        PolicyError: For a policy that cannot be used.
        TypeError: For an agent's name that is none.

    Emits:
        A span ``invoke_agent {agent}``; at the end the ``loopwatch.run.*`` histograms and ``loopwatch.runs``.
    """

    def __init__(
        self,
        agent: str = "agent",
        *,
        policy: Policy | str | os.PathLike[str] | None = None,
        on_abort: Literal["raise", "return"] = "raise",
        insist_after: int | None = 3,
        on_verdict: Callable[[Verdict], object] | None = None,
        run_id: str | None = None,
        ledger: Ledger | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(agent, str):
            raise TypeError(f"watch_run: agent must be a name, not {agent!r}; as a decorator it is @watch_run(...)")
        if on_abort not in ("raise", "return"):
            raise PolicyError(f"must be 'raise' or 'return', not {on_abort!r}", key="on_abort")
        if insist_after is not None and insist_after < 1:
            raise PolicyError(f"must be at least 1, or None for never, not {insist_after!r}", key="insist_after")
        self.agent = agent
        self.on_abort = on_abort
        self.insist_after = insist_after
        self.on_verdict = on_verdict
        self.run_id = run_id
        self.ledger = ledger
        self.attributes = attributes
        self.policy = policy_of(policy)
        # One object may be entered again and again, also by several threads and tasks at once.
        self._open: list[tuple[Run, Attached]] = []
        self._lock = threading.RLock()

    def _begin(self) -> Run:
        parent = current_run()
        if parent is not None and parent.is_closed:
            # A task that was started in a run and outlives it (a worker that serves other runs) begins runs of its own.
            parent = None
        # Switched off, the run is there for the code that uses it; it judges nothing and leaves no telemetry.
        off = is_disabled()
        policy = _OFF if off else self.policy
        if policy is None and parent is None:
            policy = operators_policy() or ambient.default_policy()
        run = Run(
            self.agent,
            policy=policy,
            parent=parent,
            run_id=self.run_id,
            ledger=self.ledger,
            attributes=self.attributes,
            on_verdict=self.on_verdict,
            insist_after=self.insist_after,
            silent=off,
        )
        if not off:
            with telemetry_guard("telemetry"):
                run.span = telemetry.start_run_span(run)
        return run

    def __enter__(self) -> Run:
        run = self._begin()
        run.patience.owner = here()
        entry = run, attach(run, _context_of(run))
        with self._lock:
            self._open.append(entry)
        return run

    # "bool | None" and not "bool": type checkers would take it that code after the block is always reached.
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        place = here()
        with self._lock:
            entry = next((one for one in reversed(self._open) if one[0].patience.owner == place), self._open[-1])
            self._open.remove(entry)
        run, attached = entry
        detach(attached)
        return self._end(run, exc)

    async def __aenter__(self) -> Run:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return self.__exit__(exc_type, exc, tb)

    def _end(self, run: Run, exc: BaseException | None) -> bool:
        """Close *run* and decide what leaves the block: see DESIGN 5.1.

        Returns:
            True to end the block quietly.

        Raises:
            RunAborted: Where the run was aborted and refused a call.
        """
        trip = run.tripped
        outcome = run.close(_stop_reason(exc), _cause(exc, trip))
        signal = _signal(exc)
        if trip is None or (signal is not None and signal is exc):
            return False
        if signal is not None:
            raise signal
        # An ancestor's trip or signal: its own boundary has the last word.
        if trip.run_id != run.run_id or (isinstance(exc, Unwind) and exc.run_id != run.run_id):
            return False
        # Tripped by its last settle or charge: the outcome says so.
        if not run.patience.tried and not _carries_abort(exc):
            return False
        if self.on_abort == "return":
            return exc is None or _carries_abort(exc)
        if isinstance(exc, RunAborted) and exc.args[:1] == (trip.message,):
            exc.outcome = outcome
            if exc.__cause__ is None:
                exc.__cause__ = _displaced(exc)
            return False
        raise error_for(trip, outcome) from _other(exc)

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Decorate: each call of *fn* is a run."""
        if inspect.isasyncgenfunction(fn):
            return cast("Callable[P, T]", self._async_generator(fn))
        if inspect.isgeneratorfunction(fn):
            return cast("Callable[P, T]", self._generator(fn))
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                result: Any = None
                async with self._again() as run:
                    result = await fn(*args, **kwargs)
                return _answer(run, result)

            return cast("Callable[P, T]", run_async)

        @functools.wraps(fn)
        def run_sync(*args: P.args, **kwargs: P.kwargs) -> Any:
            result: Any = None
            with self._again() as run:
                result = fn(*args, **kwargs)
            return _answer(run, result)

        return run_sync

    def _again(self) -> watch_run:
        """A fresh context manager for one call: calls of a decorated function may overlap."""
        fresh = copy.copy(self)
        fresh._open = []
        return fresh

    def _generator(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Steps]:
            body = fn(*args, **kwargs)
            return body, _RunSteps(self, self._begin())

        return functools.wraps(fn)(generator(begin))

    def _async_generator(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        async def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Steps]:
            body = fn(*args, **kwargs)
            return body, _RunSteps(self, self._begin())

        return functools.wraps(fn)(async_generator(begin))


class _RunSteps(Steps):
    """A run whose agent is a generator: current only while its body executes, in whichever thread and task that is."""

    __slots__ = ("_attached", "_run", "_watch")

    def __init__(self, watch: watch_run, run: Run) -> None:
        self._watch = watch
        self._run = run
        self._attached: Attached | None = None

    def enter(self) -> None:
        self._run.patience.owner = here()
        self._attached = attach(self._run, _context_of(self._run))

    def leave(self) -> None:
        attached, self._attached = self._attached, None
        if attached is not None:
            detach(attached)

    def returned(self, value: Any) -> Any:
        if not self._run.is_closed:
            self._watch._end(self._run, None)
        return _answer(self._run, value)

    def failed(self, error: BaseException) -> bool:
        return self._watch._end(self._run, error)

    def closed(self, leaving: GeneratorExit) -> None:
        self._watch._end(self._run, leaving)


def _context_of(run: Run) -> otel_context.Context:
    """The OpenTelemetry context of the caller, with the run's span in it."""
    return otel_context.get_current() if run.span is None else trace.set_span_in_context(run.span)


def _answer(run: Run, result: Any) -> Any:
    """What a decorated function returns: its own result or, where the run was stopped, the best it saved, if any."""
    return run.partial if run.patience.tried and run.partial is not None else result


def _stop_reason(exc: BaseException | None) -> StopReason:
    """The stop reason of a run that was not aborted."""
    if exc is None or isinstance(exc, GeneratorExit):
        return StopReason.COMPLETED
    if _is_signal(exc):
        return StopReason.CANCELLED
    return StopReason.PAUSED if isinstance(exc, Exception) and is_control_flow(exc) else StopReason.ERROR


def _cause(exc: BaseException | None, trip: Trip | None) -> BaseException | None:
    """The exception that ended the run, other than its own abort."""
    own = GeneratorExit | Unwind if trip is None else GeneratorExit | Unwind | RunAborted
    return None if isinstance(exc, own) else exc


def _is_signal(exc: BaseException) -> bool:
    """True for what is never replaced: CancelledError (trio's too), KeyboardInterrupt, SystemExit, GeneratorExit."""
    return not isinstance(exc, Exception | Unwind | BaseExceptionGroup)


def _signal(exc: BaseException | None) -> BaseException | None:
    """The signal that *exc* is or carries: in a group, or displaced by the refusal of a guarded clean-up tool."""
    if isinstance(exc, BaseExceptionGroup):
        _, rest = exc.split((RunAborted, Unwind))
        return rest if rest is not None and rest.subgroup(_is_signal) is not None else None
    exc = _displaced(exc)
    return exc if exc is not None and _is_signal(exc) else None


def _displaced(exc: BaseException | None) -> BaseException | None:
    """*exc*, or what was on its way when a refusal in a ``finally`` or ``except`` took its place."""
    for _ in range(MAX_CHAIN):
        if not isinstance(exc, RunAborted | Unwind):
            return exc
        exc = exc.__cause__ if exc.__suppress_context__ else exc.__context__
    return None


def _carries_abort(exc: BaseException | None, depth: int = 0) -> bool:
    """True where *exc* is an abort of ours, or wraps one as cause, context or member of a group."""
    if exc is None or depth > MAX_CHAIN:
        return False
    if isinstance(exc, RunAborted | Unwind):
        return True
    if isinstance(exc, BaseExceptionGroup) and any(_carries_abort(inner, depth + 1) for inner in exc.exceptions):
        return True
    return _carries_abort(exc.__cause__, depth + 1) or _carries_abort(exc.__context__, depth + 1)


def _other(exc: BaseException | None) -> BaseException | None:
    """What of *exc* is the application's own, to become the cause of our error."""
    if isinstance(exc, BaseExceptionGroup):
        _, rest = exc.split((RunAborted, Unwind))
        return rest
    return None if isinstance(exc, Unwind) else exc
