"""A finding and the rules -> what is done, and the words for the model. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otel_loopwatch.calls import Action, Breach, Finding, Trip
from otel_loopwatch.policy import Rules

__all__ = ["DENIED_MARKER", "HINT_MARKER", "breach_trip", "decide", "denied_text", "finding_trip", "hint_text"]

HINT_MARKER = "[loop-detected]"
"""How every hint begins, so that code can tell one from a result (the first seed's marker)."""

DENIED_MARKER = "[tool-denied]"
"""How the answer to a demand for a tool that is not allowed begins."""


def decide(finding: Finding, rules: Rules, hints: Mapping[str, int], *, hinted_this_step: bool) -> Action:
    """What is done about *finding*: abort > hint > observe.

    Args:
        finding: What the detector saw.
        rules: The tool's rules.
        hints: Hints given in this run so far, per subject.
        hinted_this_step: True where this subject was hinted at in this model turn already: the calls of one turn are
            one demand, so the second of them is answered alike and counted no further.
    """
    if rules.action != "hint" or hinted_this_step:
        return rules.action
    given = hints.get(finding.subject, 0)
    if given >= rules.loops.hints_before_abort or sum(hints.values()) >= rules.loops.max_hints:
        return "abort"
    return "hint"


def _fact(finding: Finding) -> str:
    """What happened, in one sentence: tool, count, what was equal. No arguments, no results, no guess at the cause."""
    tool = f'Tool "{finding.tool}"'
    called = f"{tool} has now been called {finding.repeats} times"
    match finding.kind:
        case "repeat":
            fact = f"{called} with identical arguments"
        case "repeat_changing":
            fact = f"{called} in a row with identical arguments, each time with another outcome"
        case "cycle":
            members = ", ".join(f'"{name}"' for name in finding.members)
            laps = finding.repeats - 1
            fact = (
                f"The same sequence of calls ({members}) has come {laps} times with the same outcomes, and begins again"
            )
        case "poll_stalled":
            fact = f"{called}, and its answer has not changed"
        case "unknown_tool":
            fact = f"{tool} is not available and has now been asked for {finding.repeats} times"
        case "error_streak":
            fact = f"{finding.repeats - 1} calls have failed or been refused, and {tool} is called again"
        case _ if finding.args_equal:
            fact = f"{called} with identical arguments, and neither time nor other calls have changed the outcome"
        case _:
            fact = f"{called} with different arguments, and the outcome has not changed"
    return f"{fact} (last error: {finding.error_class})." if finding.error_class else f"{fact}."


def hint_text(finding: Finding) -> str:
    """The answer that the model is given instead of a result."""
    advice = (
        "Use one of the tools that are available, or finish with what you have."
        if finding.kind == "unknown_tool"
        else "The call was not made. Try a different approach, change the arguments, or finish with what you have."
    )
    return f"{HINT_MARKER} {_fact(finding)}\n{advice}"


def denied_text(tool: str) -> str:
    """The answer to a demand for a tool that the policy does not allow."""
    return f'{DENIED_MARKER} Tool "{tool}" is not allowed here. Use another one, or finish with what you have.'


def finding_trip(finding: Finding, run_id: str) -> Trip:
    """The trip of a run that is aborted for a loop."""
    return Trip(finding.stop_reason, f"{_fact(finding)} The run was stopped.", finding=finding, run_id=run_id)


def breach_trip(breach: Breach, run_id: str) -> Trip:
    """The trip of a run that is aborted for a budget."""
    used = round(breach.used, 3) if isinstance(breach.used, float) else breach.used
    return Trip(
        breach.stop_reason,
        f"Budget {breach.budget!r} is used up: {used} of {breach.limit}. The run was stopped.",
        breach=breach,
        run_id=run_id,
    )
