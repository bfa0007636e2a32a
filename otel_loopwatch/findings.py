"""What has been found in one run, and said to the model about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from otel_loopwatch import verdict
from otel_loopwatch.calls import Action, Finding, ToolCall, Verdict
from otel_loopwatch.policy import Rules

__all__ = ["Findings"]

MAX_FINDINGS = 100


class Findings:
    """The findings of one run, one per (kind, subject), at most 100. Not locked: its run is."""

    __slots__ = ("_found", "_hinted_at_step", "_unheard")

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}
        self._hinted_at_step: dict[str, int] = {}
        self._unheard: dict[str, int] = {}

    def all(self) -> tuple[Finding, ...]:
        """Every finding, oldest first, with its latest count."""
        return tuple(self._found.values())

    def judge(
        self,
        finding: Finding,
        call: ToolCall,
        rules: Rules,
        hints: Mapping[str, int],
        run_id: str,
        *,
        calls: int,
        heard: bool = True,
    ) -> Verdict:
        """Decide what is done about *finding*, and remember it.

        Args:
            finding: What the detector saw.
            call: The call that was judged.
            rules: The tool's rules.
            hints: Hints given in this run so far, per subject.
            run_id: The run, for the trip of an abort.
            calls: How often the run has made this call, this one included.
            heard: False for a call that has run already. Nobody hears a hint then: it uses up the patience, and what is
                reported is ``observe``.
        """
        subject = finding.subject
        if self._unheard:
            hints = {**hints, **{unheard: hints.get(unheard, 0) + given for unheard, given in self._unheard.items()}}
        same_turn = bool(call.step) and self._hinted_at_step.get(subject) == call.step
        action = verdict.decide(finding, rules, hints, hinted_this_step=same_turn)
        ignored = 0 if same_turn or not heard else hints.get(subject, 0)
        said: Action = "observe" if action == "hint" and not heard else action
        # A negative number tells turns apart that nobody has counted.
        finding = replace(finding, action=said, step=max(call.step, 0), ignored_hints=ignored)
        key = (finding.kind, subject)
        # Beyond the bound it is acted on, and not reported: nobody could know any more that it had been.
        new = key not in self._found and len(self._found) < MAX_FINDINGS
        if new or key in self._found:
            self._found[key] = finding
        if action == "hint":
            if len(self._hinted_at_step) >= MAX_FINDINGS:
                self._hinted_at_step.clear()
            self._hinted_at_step[subject] = call.step
            if not heard and not same_turn and (subject in self._unheard or len(self._unheard) < MAX_FINDINGS):
                self._unheard[subject] = self._unheard.get(subject, 0) + 1
        return Verdict(
            said,
            repeats=calls,
            finding=finding,
            trip=verdict.finding_trip(finding, run_id) if action == "abort" else None,
            text=verdict.hint_text(finding) if said == "hint" else None,
            new=new,
        )
