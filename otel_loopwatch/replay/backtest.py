"""One recorded run after another, through a :class:`~otel_loopwatch.run.Run` of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from otel_loopwatch.calls import Settled, ToolCall, Usage, Verdict
from otel_loopwatch.fingerprint import error_kind, error_text_digest, fingerprint, looks_like_write, result_digest
from otel_loopwatch.policy import Policy, Rules
from otel_loopwatch.replay.readers import RecordedCall, RecordedRun, Skipped, read_labels, read_runs
from otel_loopwatch.replay.report import Acted, Played, Report
from otel_loopwatch.run import Run

__all__ = ["Acted", "Played", "play", "replay"]

STEP_S = 1.0
"""Seconds that a call takes where no times were recorded."""


class _Clock:
    """The time of the recording: what it says, else one second a call. Begins at 0 and never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self._zero: float | None = None
        self._moved = False

    def __call__(self) -> float:
        return self.now

    def move_to(self, ts: float | None) -> None:
        if ts is None:
            self.now += STEP_S if self._moved else 0.0
        else:
            if self._zero is None:
                self._zero = ts - self.now
            self.now = max(self.now, ts - self._zero)
        self._moved = True


class _Judged(NamedTuple):
    call: ToolCall
    verdict: Verdict


def replay(
    files: Iterable[str | Path],
    policy: Policy | None = None,
    *,
    labels: str | Path | None = None,
    on_run: Callable[[Played], object] | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> Report:
    """Play every run in *files*, and say what the guard would have done.

    Args:
        files: JSON lines, compressed or not; ``-`` is the standard input.
        policy: The policy to try; the default one otherwise.
        labels: A file of labels, to score the guard against.
        on_run: Told of every run when it has been played.
        on_bytes: Told how many bytes of a file have been read since it was last told, for a progress bar.

    Returns:
        The report. What could not be read is in ``report.skipped``; everything else has been scored.
    """
    policy = policy or Policy()
    skipped: list[Skipped] = []
    report = Report({} if labels is None else read_labels(labels, on_skip=skipped.append), skipped)
    for recorded in read_runs(files, on_skip=skipped.append, on_bytes=on_bytes):
        played = play(recorded, policy)
        report.add(played)
        if on_run is not None:
            on_run(played)
    return report


def play(recorded: RecordedRun, policy: Policy) -> Played:
    """Play one run up to the call at which it would have been aborted.

    A call that is answered with a hint is not made, as in a live run: its recorded result is left out.
    """
    clock = _Clock()
    # A recording names no model: of an estimate nothing could be learnt, and "stop" would end every run.
    policy = replace(policy, budgets=replace(policy.budgets, on_unpriced="warn"))
    run = Run(recorded.source, policy=policy, run_id=recorded.run_id, clock=clock, silent=True)
    rules: dict[str, Rules] = {}
    first: Acted | None = None
    abort: Acted | None = None
    last_step: int | None = None
    for index, one in enumerate(recorded.calls):
        clock.move_to(one.ts)
        if one.step is not None and one.step != last_step:
            last_step = one.step
            run.derived_step()
        rule = rules.get(one.tool) or rules.setdefault(one.tool, policy.rules_for(one.tool))
        call, verdict = _admit(run, one, rule, has_step=one.step is not None)
        if verdict.action != "allow":
            acted = _acted(index, verdict)
            first = first or acted
            if verdict.action == "abort":
                abort = acted
                break
        if verdict.action != "hint":
            _settle(run, call, one)
    run.close()
    return Played(recorded.run_id, recorded.source, recorded.outcome, len(recorded.calls), first, abort)


def _admit(run: Run, one: RecordedCall, rules: Rules, *, has_step: bool) -> _Judged:
    said = rules.tool
    call = ToolCall(
        run.next_call_id(),
        one.tool,
        fingerprint(one.tool, one.args, ignore_args=said.ignore_args or (), loop_key=said.loop_key),
        run.clock(),
        run.current_step if has_step else 0,
        said.kind,
        said.kind == "write" or (said.kind is None and looks_like_write(one.tool, one.args)),
        run.policy.permits(one.tool),
        said.cost_usd,
        rules.exempt,
    )
    return _Judged(call, run.admit(call, rules))


def _settle(run: Run, call: ToolCall, one: RecordedCall) -> None:
    if one.error:
        text = one.result if isinstance(one.result, str) else str(one.result)
        failed = error_text_digest(text)
        settled = Settled(failed.signature, error_kind(text), failed.error_class, failed.infra, at=run.clock())
    else:
        digest = result_digest(one.result)
        settled = Settled(digest.digest, trivial=digest.trivial, at=run.clock())
    run.settle(call, settled)
    if one.tokens:
        run.charge(Usage(None, input_tokens=one.tokens), "replay")


def _acted(index: int, verdict: Verdict) -> Acted:
    finding = verdict.finding
    if finding is not None:
        return Acted(index, verdict.action, finding.kind, str(finding.stop_reason), finding.repeats)
    trip = verdict.trip
    if trip is None:  # pragma: no cover - a verdict that acts has a finding or a trip; this tells mypy
        raise AssertionError
    budget = "" if trip.breach is None else trip.breach.budget
    return Acted(index, verdict.action, budget, str(trip.stop_reason), verdict.repeats)
