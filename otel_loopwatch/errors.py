"""What this package raises, and the guard that keeps its own faults out of the application."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_loopwatch.calls import RunOutcome, StopReason

__all__ = [
    "BudgetExceeded",
    "LoopwatchError",
    "PolicyError",
    "RunAborted",
    "ToolDenied",
    "ToolHint",
    "ToolLoopError",
    "Unwind",
    "contain",
    "is_disabled",
    "is_strict",
    "on_fault",
    "report_fault",
    "telemetry_guard",
    "warn_once",
]

logger = logging.getLogger("otel_loopwatch")


class LoopwatchError(Exception):
    """Root of everything that this package raises. Every one of them pickles."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, _portable(self.__dict__))


def _rebuild(cls: type[LoopwatchError], args: tuple[Any, ...], facts: dict[str, Any]) -> LoopwatchError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


def _portable(facts: dict[str, Any]) -> dict[str, Any]:
    """*facts* without what cannot travel: a partial result that holds a socket must not cost the error itself."""
    kept = {}
    for name, value in facts.items():
        if _travels(value):
            kept[name] = value
        elif name == "outcome":
            unfit = {part: None for part in ("partial", "cause") if not _travels(getattr(value, part))}
            kept[name] = replace(value, **unfit)
        else:
            kept[name] = None
    return kept


def _travels(value: object) -> bool:
    """True where *value* can be pickled and read again: many an exception can only be pickled."""
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - what was pickled a moment ago
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything here
        return False
    return True


class RunAborted(LoopwatchError):
    """The run was stopped.

    Attributes:
        stop_reason: Why.
        outcome: Where the run stood when this was raised; at the boundary of ``watch_run``, how it ended.
        tool_name: The tool whose call was refused, where it was a call.
        call_id: The refused call's id, where the model gave one.
        result_text: A text to store as that call's result, so that the message history stays valid.
    """

    def __init__(
        self,
        message: str,
        *,
        stop_reason: StopReason,
        outcome: RunOutcome | None = None,
        tool_name: str | None = None,
        call_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.stop_reason = stop_reason
        self.outcome = outcome
        self.tool_name = tool_name
        self.call_id = call_id

    @property
    def partial(self) -> Any:
        """The best result so far, as the agent saved it in ``run.partial``."""
        return None if self.outcome is None else self.outcome.partial

    @property
    def result_text(self) -> str:
        """A text to store as the refused call's result."""
        return f"[run-aborted] {self.args[0]}"


class ToolLoopError(RunAborted):
    """The run was stopped because it loops.

    Attributes:
        tool_name: The tool that loops, also where a later call of another tool was refused.
        repeats: The number of the call that tripped it: with ``max_repeats=3`` it is 4.
        kind: Which detector (:data:`~otel_loopwatch.calls.LoopKind`).
        args_hash: Keyed hash of the call's arguments.
    """

    def __init__(self, message: str, *, repeats: int, kind: str, args_hash: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.repeats = repeats
        self.kind = kind
        self.args_hash = args_hash


class BudgetExceeded(RunAborted):
    """The run was stopped because a limit was reached.

    Attributes:
        budget: Which limit (:attr:`~otel_loopwatch.calls.Breach.budget`).
        limit: Its value, in its own unit.
        used: What was used, what was asked for included.
    """

    def __init__(
        self, message: str, *, budget: str, limit: int | float | Decimal, used: int | float | Decimal, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.budget = budget
        self.limit = limit
        self.used = used


class ToolDenied(LoopwatchError):
    """The policy does not allow this tool. The run goes on.

    Attributes:
        tool_name: The tool.
    """

    def __init__(self, message: str, *, tool_name: str) -> None:
        super().__init__(message)
        self.tool_name = tool_name


class ToolHint(LoopwatchError):
    """A hint for the model, where none can be returned because the tool promises a typed result. The run goes on.

    ``str(error)`` is the hint. To return a value instead, set ``ToolRules.hint``.

    Attributes:
        tool_name: The tool.
        repeats: The number of the call that was answered.
    """

    def __init__(self, message: str, *, tool_name: str, repeats: int) -> None:
        super().__init__(message)
        self.tool_name = tool_name
        self.repeats = repeats


class PolicyError(LoopwatchError, ValueError):
    """A policy that cannot be used. The policy in force stays.

    Attributes:
        key: The key at fault, dotted (``budgets.max_steps``).
        file: The file, where it came from one.
        line: The line in it, from 1.
    """

    def __init__(
        self, message: str, *, key: str | None = None, file: str | None = None, line: int | None = None
    ) -> None:
        where = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(": ".join(part for part in (where, key, message) if part))
        self.reason = message
        self.key = key
        self.file = file
        self.line = line


class Unwind(BaseException):
    """Ends a run that goes on in spite of three refusals. ``watch_run`` turns it into the ordinary error.

    A BaseException, because agent loops and frameworks catch Exception; see "polite, then firm" in the README.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} was aborted and went on")
        self.run_id = run_id

    def __reduce__(self) -> tuple[Any, ...]:
        return Unwind, (self.run_id,)


_disabled: bool | None = None
"""Read once, when the first tool is called: a look into ``os.environ`` costs 1 to 3 us."""


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "no", "off")


def is_disabled() -> bool:
    """True where ``LOOPWATCH_DISABLED`` switches the guard off: decorated tools run untouched and uncounted."""
    global _disabled  # noqa: PLW0603 - one setting of the process
    if _disabled is None:
        _disabled = _is_on("LOOPWATCH_DISABLED")
    return _disabled


def is_strict() -> bool:
    """True where our own faults are to be seen: in our tests."""
    return _is_on("LOOPWATCH_STRICT")


_warned: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Log *message* the first time that *topic* comes up in this process."""
    if topic not in _warned:
        _warned.add(topic)
        logger.warning("otel-loopwatch: %s", message)


_on_fault: list[Callable[[str], None]] = []


def on_fault(callback: Callable[[str], None]) -> None:
    """Have *callback* told the stage of each fault (the metric ``loopwatch.guard.errors`` is fed by it)."""
    _on_fault.append(callback)


def report_fault(stage: str, fault: BaseException) -> None:
    """Count a fault of ours (or of a user's callback), and log it the first time a stage has one."""
    for callback in _on_fault:
        callback(stage)
    if (topic := f"fault:{stage}") not in _warned:
        _warned.add(topic)
        # Class only: the text of an exception may quote arguments.
        logger.warning(
            "otel-loopwatch: %s in %s; the application goes on. Further faults there are counted, not logged.",
            type(fault).__name__,
            stage,
            exc_info=fault if is_strict() else None,
        )


def contain(stage: str, fault: Exception) -> None:
    """What :class:`telemetry_guard` does with a fault, for the way of every call: a bare ``try`` costs nothing."""
    if is_strict():
        raise fault
    report_fault(stage, fault)


class telemetry_guard:  # noqa: N801 - used as a function
    """Keep a fault of our telemetry out of the application (except with ``LOOPWATCH_STRICT=1``).

    Two short methods: the generator of a ``contextmanager`` takes six times as long.

    Args:
        stage: Name of what is done inside, a label of ``loopwatch.guard.errors``.
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, exc_type: type[BaseException] | None, fault: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if fault is None or not isinstance(fault, Exception) or is_strict():
            return False
        report_fault(self._stage, fault)
        return True
