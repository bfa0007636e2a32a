"""Exceptions that are signals of a framework or of Python, not errors of a tool: they pass through untouched."""

from __future__ import annotations

__all__ = ["is_control_flow"]

_NAMES = frozenset(
    {
        # LangGraph: interrupts (human approval) and parent commands
        "GraphBubbleUp",
        # Pydantic AI: deferred and approval-required calls, "try again" signals to the model
        "CallDeferred",
        "ApprovalRequired",
        "ModelRetry",
        "ToolRetryError",
        "SkipToolExecution",
        "SkipToolValidation",
    }
)


def is_control_flow(error: BaseException) -> bool:
    """True for cancellation, exit and a framework's retry, interrupt and approval signals.

    Known by class name anywhere in the class's ancestry, so that no framework is imported to find out.
    """
    if not isinstance(error, Exception):
        return True
    return any(base.__name__ in _NAMES for base in type(error).__mro__)
