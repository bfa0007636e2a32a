"""The records that travel between the parts of the guard.

Everything here is frozen. Records of the hot path (one or more a tool call) are NamedTuples, because building a frozen
slotted dataclass costs about 2 us; the rest are frozen slotted dataclasses.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple

__all__ = [
    "ALLOW",
    "Action",
    "Breach",
    "Finding",
    "LoopKind",
    "RunOutcome",
    "Settled",
    "StopReason",
    "ToolCall",
    "ToolKind",
    "Trip",
    "Usage",
    "Used",
    "Verdict",
]

Action = Literal["allow", "hint", "abort", "observe", "cached"]
"""What is done with one call. ``observe`` runs the body and only reports."""

ToolKind = Literal["read", "write", "poll"]

LoopKind = Literal["repeat", "repeat_changing", "cycle", "error_streak", "no_progress", "poll_stalled", "unknown_tool"]


class StopReason(enum.StrEnum):
    """Why a run ended. One reason a run: the first to trip wins."""

    COMPLETED = "completed"
    LOOP_DETECTED = "loop_detected"
    NO_PROGRESS = "no_progress"
    STEP_BUDGET = "step_budget"
    TOOL_CALL_BUDGET = "tool_call_budget"
    TOOL_BUDGET = "tool_budget"
    TOKEN_BUDGET = "token_budget"  # noqa: S105 - a budget of tokens, not a secret
    SPEND_BUDGET = "spend_budget"
    TIME_BUDGET = "time_budget"
    FLEET_BUDGET = "fleet_budget"
    DEPTH_LIMIT = "depth_limit"
    UNPRICED = "unpriced"
    LEDGER_DOWN = "ledger_down"
    USER_ABORT = "user_abort"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    ERROR = "error"


class ToolCall(NamedTuple):
    """One call of a tool that is about to be made.

    Attributes:
        id: Unique in its run; the model's ``tool_call_id`` where one is known. The same id twice is the same call.
        tool: Name of the tool.
        fingerprint: Keyed hash of (tool, canonical arguments), 32 hex characters.
        at: Monotonic time of the admission, in seconds.
        step: The model turn that asked for the call; 0 where turns are unknown. A negative number stands for calls that
            overlapped in time, where turns are unknown.
        kind: What the author or operator declared the tool to be, if anything.
        writes: True where the call would change something: ``kind == "write"``, or undeclared and it looks like one.
        known: False for a tool that does not exist (the model made the name up).
        cost_usd: The tool's own price of one call, held before the body runs; ``None`` where it has none.
        exempt: True where the tool is left out of loop detection: such a call does not come between two others either.
    """

    id: str
    tool: str
    fingerprint: str
    at: float
    step: int = 0
    kind: ToolKind | None = None
    writes: bool = False
    known: bool = True
    cost_usd: Decimal | None = None
    exempt: bool = False


class Settled(NamedTuple):
    """How a call ended, reduced to what a comparison needs. Holds digests, never content.

    Attributes:
        digest: Digest of the result (or of the error) with times, ids, hex and addresses masked; ``None`` where the
            result cannot be compared (a stream, a lazy object).
        error: Signature of the error, ``None`` where the call succeeded: its type, and its message without what it
            quotes of the call (numbers, names in quotes, paths, URLs). Tells less than the digest.
        error_class: Class name of the error, for the text given to the model.
        infra: True where the error is one of the infrastructure (429, 5xx, timeouts), not of the call.
        trivial: True for a result too short or too scalar to be evidence of "the same answer again".
        at: Monotonic time of the end, in seconds.
    """

    digest: str | None
    error: str | None = None
    error_class: str | None = None
    infra: bool = False
    trivial: bool = False
    at: float = 0.0


class Usage(NamedTuple):
    """What one model call used.

    Attributes:
        model: Name of the model, ``None`` where unknown.
        input_tokens: Tokens of the prompt, those read from a cache and those written to one included.
        output_tokens: Tokens of the answer, reasoning included.
        cached_input_tokens: The part of ``input_tokens`` that was read from a cache.
        cost_usd: Price in USD; ``None`` where it is unknown (which is not 0).
        tool: Set where the money was spent by a tool rather than by a model.
        cache_write_input_tokens: The part of ``input_tokens`` that was written to a cache.
        reasoning_output_tokens: The part of ``output_tokens`` that was reasoning.
    """

    model: str | None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cost_usd: Decimal | None = None
    tool: str | None = None
    cache_write_input_tokens: int = 0
    reasoning_output_tokens: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Input, output, cached input, cache-written input and reasoning tokens."""
        return (
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cache_write_input_tokens,
            self.reasoning_output_tokens,
        )

    @classmethod
    def from_exclusive(
        cls,
        model: str | None,
        *,
        input_tokens: int = 0,
        cached_input_tokens: int = 0,
        cache_write_input_tokens: int = 0,
        output_tokens: int = 0,
        reasoning_output_tokens: int = 0,
        cost_usd: Decimal | None = None,
    ) -> Usage:
        """The usage that a source reports whose ``input_tokens`` leaves out cached and cache-written ones.

        So does the native API of Anthropic. There, as here, ``output_tokens`` includes reasoning.

        Args:
            model: Name of the model.
            input_tokens: Tokens of the prompt that were neither read from a cache nor written to one.
            cached_input_tokens: Those read from a cache, in addition.
            cache_write_input_tokens: Those written to a cache, in addition.
            output_tokens: Tokens of the answer, reasoning included.
            reasoning_output_tokens: The part of ``output_tokens`` that was reasoning.
            cost_usd: Price in USD, where it is known.
        """
        return cls(
            model,
            input_tokens + cached_input_tokens + cache_write_input_tokens,
            output_tokens,
            cached_input_tokens,
            cost_usd,
            cache_write_input_tokens=cache_write_input_tokens,
            reasoning_output_tokens=reasoning_output_tokens,
        )


class Used(NamedTuple):
    """What one run has used so far, its descendants included.

    Attributes:
        steps: Model turns begun.
        tool_calls: Calls admitted, calls in flight included.
        tokens: Input and output tokens charged.
        spend_usd: USD charged.
        held_usd: USD reserved for calls that have not been charged yet.
    """

    steps: int = 0
    tool_calls: int = 0
    tokens: int = 0
    spend_usd: Decimal = Decimal(0)
    held_usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector saw.

    Attributes:
        kind: Which detector.
        tool: The tool of the call that was judged.
        subject: What repeats: a fingerprint, a set of them, an error signature. Hints are counted per subject.
        repeats: The number of this call in the repetition: with ``max_repeats=3`` the first finding has 4.
        args_hash: Fingerprint of the call that was judged.
        args_equal: True where the arguments were the same each time, False where only the outcome was.
        members: Names of the tools that take part, sorted (more than one for a cycle or a repeated batch).
        error_class: Class of the last error, where the repetition is one of errors.
        action: What was done about it.
        step: The model turn in which it was found; 0 where turns are unknown.
        ignored_hints: How many hints on this subject had been given, and ignored, before.
    """

    kind: LoopKind
    tool: str
    subject: str
    repeats: int
    args_hash: str
    args_equal: bool = True
    members: tuple[str, ...] = ()
    error_class: str | None = None
    action: Action = "observe"
    step: int = 0
    ignored_hints: int = 0

    @property
    def stop_reason(self) -> StopReason:
        """The stop reason of a run that is aborted for this finding."""
        if self.kind in ("no_progress", "error_streak"):
            return StopReason.NO_PROGRESS
        return StopReason.LOOP_DETECTED


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that has been reached, or of which the warning share has.

    Attributes:
        budget: Name of the budget: ``steps``, ``tool_calls``, ``tokens``, ``spend_usd``, ``seconds``, ``depth``,
            ``children``, or ``tool:NAME``.
        limit: The limit, in the budget's own unit.
        used: What was used when it was reached, the call that asked included.
        stop_reason: The stop reason of a run that is aborted for it.
    """

    budget: str
    limit: int | float | Decimal
    used: int | float | Decimal
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class Trip:
    """The moment at which a run becomes aborted. The first one of a run wins.

    Attributes:
        stop_reason: Why.
        message: One sentence for people, without arguments or results.
        finding: The loop, where it was one.
        breach: The budget, where it was one.
        run_id: The run that was tripped; a descendant refuses with its ancestor's trip.
    """

    stop_reason: StopReason
    message: str
    finding: Finding | None = None
    breach: Breach | None = None
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with one call. The one record that spans, metrics, logs and ``on_verdict`` are given.

    Attributes:
        action: See :data:`Action`.
        repeats: How often this run has made this call, this one included; 1 for the first. ``finding.repeats`` may
            differ: that is the length of what was found.
        finding: The loop behind the verdict, if any.
        trip: Set where the run is (or becomes) aborted.
        text: For the model: the hint. ``None`` otherwise.
        new: True the first time that this finding is reported in its run.
    """

    action: Action
    repeats: int = 1
    finding: Finding | None = None
    trip: Trip | None = None
    text: str | None = None
    new: bool = False


ALLOW = Verdict("allow")
"""The verdict on a first call, shared: almost every verdict is this one."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, or where it stands while it is open.

    Attributes:
        run_id: The run's id.
        agent: The agent's name.
        stop_reason: Why it ended; ``completed`` for a run that was not stopped.
        tool_calls: Tool calls admitted, those of descendants included.
        steps: Model turns begun, those of descendants included.
        input_tokens: Tokens of prompts, cached ones included.
        output_tokens: Tokens of answers.
        cached_input_tokens: The part of ``input_tokens`` read from a cache.
        spend_usd: USD spent; ``Decimal(0)`` when nothing was charged.
        spend_complete: False when a price or a usage was unknown, so that ``spend_usd`` is a lower bound, or holds
            estimates (``Budgets.on_unpriced``).
        duration_s: Wall-clock seconds (of a monotonic clock).
        findings: The loops found, oldest first, at most 100.
        partial: The best result so far, as the agent saved it in ``run.partial``.
        cause: The exception that ended the run, where one did.
    """

    run_id: str
    agent: str
    stop_reason: StopReason
    tool_calls: int = 0
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    spend_usd: Decimal = Decimal(0)
    spend_complete: bool = True
    duration_s: float = 0.0
    findings: tuple[Finding, ...] = ()
    # Not in the repr, which ends up in logs: a result, and an exception whose text may quote one.
    partial: Any = field(default=None, repr=False)
    cause: BaseException | None = field(default=None, compare=False, repr=False)
