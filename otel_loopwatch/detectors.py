"""What counts as a loop: pure functions of a :class:`~otel_loopwatch.history.History`, one a kind.

The rules were chosen on recorded agent runs: ``docs/defaults.md`` has the figures behind each. They are tried in this
order, and the first that finds something is the answer:

1. ``unknown_tool``: the demand itself is at fault, whatever its arguments.
2. ``poll_stalled``: the only rule for a declared poll, apart from errors of the infrastructure.
3. ``cycle``: before ``repeat``, because it names every tool that takes part.
4. ``repeat``: the same call, the same outcome, and no effective write since.
5. ``no_progress`` of one call: the same outcome in spite of the writes in between.
6. ``repeat_changing``: the same call in a row, whatever came of it.
7. ``error_streak``, or ``no_progress`` where it is one tool with one error: failing whatever the arguments.
8. ``no_progress`` of one tool: other arguments, the same answer.
9. Errors of the infrastructure, reported as ``error_streak``: they are no repeats and have a limit of their own.

A limit N lets N calls run; the call that is acted on is number N + 1, which is what ``Finding.repeats`` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any

from otel_loopwatch.calls import Finding, LoopKind, ToolCall
from otel_loopwatch.history import QUIET, Entry, History, Item, Streak
from otel_loopwatch.policy import Rules

__all__ = ["inspect"]

_Detector = Callable[[History, ToolCall, Rules], Finding | None]


def inspect(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """The loop that *call* would go on with, if any.

    Args:
        history: What the run had seen before the call.
        call: The call that is about to be made.
        rules: The rules of its tool.

    Returns:
        The finding, its ``action`` left at ``observe``: what is done about it is the verdict's.
    """
    if rules.exempt:
        return None
    for detector in _detectors(history, call, rules):
        finding = detector(history, call, rules)
        if finding is not None:
            return finding
    return None


def _detectors(history: History, call: ToolCall, rules: Rules) -> tuple[_Detector, ...]:
    """The detectors that can find something here, in their order."""
    if not call.known:
        return _OF_UNKNOWN_TOOLS
    if call.kind == "poll":
        return _OF_POLLS
    if not rules.loops.compare_results:
        return _WITHOUT_RESULTS
    if history.entry.calls:
        return _OF_REPEATED_CALLS
    # Nearly every call of a healthy run ends here.
    return () if history.streaks is QUIET else _OF_NEW_CALLS


# --- one call ---------------------------------------------------------------------------------------------------------


def _unknown_tool(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """A tool that does not exist, asked for again: with whatever arguments, for they cannot matter."""
    if history.tool_calls <= rules.max_repeats:
        return None
    return _finding("unknown_tool", call, _subject("unknown", call.tool), history.tool_calls, args_equal=False)


def _poll_stalled(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """A poll whose answer has not changed. Writes in between do not count: it waits for something else."""
    unchanged = history.entry.kept
    if unchanged < rules.max_poll_repeats:
        return None
    return _finding("poll_stalled", call, call.fingerprint, unchanged + 1, error_class=history.entry.error_class)


def _repeat(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """The same call with the same outcome since the last effective write, whatever came in between."""
    entry = history.entry
    limit = rules.max_repeats
    if entry.same < limit:
        return None
    reread = entry.row < limit and not entry.failed and not call.writes
    if reread and rules.tool.max_repeats is None and entry.same < rules.loops.max_rereads:
        return None
    return _finding("repeat", call, call.fingerprint, entry.same + 1, error_class=entry.error_class)


def _unchanged(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """The same call with the same outcome in spite of effective writes in between.

    A write that succeeds is left out (saving, staging and cleaning up are repeated all the time), and after a hint the
    next effective write earns the call one more try.
    """
    entry = history.entry
    if entry.kept < rules.loops.max_no_progress or entry.reopened or (call.writes and not entry.failed):
        return None
    if _is_plain(entry, entry.kept):
        return None
    return _finding("no_progress", call, call.fingerprint, entry.kept + 1, error_class=entry.error_class)


def _is_plain(entry: Entry, length: int) -> bool:
    """True where *length* calls in a row are this one with one outcome and no write between: ``repeat``'s matter.

    Its limit may be set higher than the others, and whoever does so means it.
    """
    return entry.same >= length


def _repeat_changing(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """The same call in a row with another outcome each time, or with outcomes that cannot be compared."""
    row = history.entry.row
    if row < rules.loops.max_repeats_changing or _is_plain(history.entry, row):
        return None
    return _finding("repeat_changing", call, call.fingerprint, row + 1, error_class=history.entry.error_class)


def _plain_repeat(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """The seeds' rule: the same tool and arguments, whatever came of it."""
    if history.entry.counted < rules.max_repeats:
        return None
    repeats = history.entry.counted + 1
    return _finding("repeat", call, call.fingerprint, repeats, error_class=history.entry.error_class)


# --- several calls ----------------------------------------------------------------------------------------------------


def _cycle(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """A sequence of two or more calls that came round ``cycle_laps`` times with the same outcomes, and begins again.

    Calls of one turn are compared as a set. With ``compare_results=False`` the outcomes are left out.
    """
    window = history.window
    laps = rules.loops.cycle_laps
    size = len(window)
    if call.step:
        # What this turn has done so far is part of the lap that is judged.
        while size and window[size - 1].step == call.step:
            size -= 1
        window = window[:size]
    parts = 2 if rules.loops.compare_results else 1
    keys: list[tuple[Any, ...]] = []
    # Laps within the row of one and the same call are no cycle: that is a repeat.
    for period in range(max(2, history.entry.row), min(rules.loops.cycle_period, size // laps) + 1):
        # The last call against the one a lap before it rules nearly every period out.
        if window[-1][:parts] != window[-1 - period][:parts]:
            continue
        if not keys:
            keys = [item[:parts] for item in window]
        block = keys[size - period :]
        found = 1
        for start in range(size - 2 * period, -1, -period):
            if keys[start : start + period] != block:
                break
            found += 1
        lap = window[size - period :]
        tools = {item.call: item.tool for item in lap}
        if found >= laps and _begins(lap, history.key):
            subject = _subject("cycle", *sorted(map(str, tools)))
            return _finding("cycle", call, subject, found + 1, members=tuple(sorted(set(tools.values()))))
    return None


def _begins(lap: tuple[Item, ...], key: Hashable) -> bool:
    """True where the call *key* begins the lap again: as its first call, or as any of the turn that begins it."""
    first = lap[0]
    if first.call == key:
        return True
    return first.step != 0 and any(item.call == key for item in lap if item.step == first.step)


def _errors(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """Errors in a row whatever the arguments, of one tool or of two that take turns, with at most two messages.

    Messages that differ only in what they quote of the arguments make a streak too, under the higher limit of
    ``max_no_progress``: each of a few wrong guesses at a name is a new attempt.
    Where one tool fails with one signature, the arguments evidently do not matter: that is ``no_progress``. A tool that
    took no part in the streak is let through: turning to it is the change that was asked for.
    """
    loops = rules.loops
    streaks = history.streaks
    for streak, limit in ((streaks.errors, loops.max_error_streak), (streaks.error_kinds, loops.max_no_progress)):
        if streak.length >= limit and _goes_on(streak, history):
            kind: LoopKind = "no_progress" if len(streak.signatures) == 1 else "error_streak"
            return _streak_finding(kind, call, _subject("errors", call.tool, *_sorted(streak)), streak)
    streak = streaks.run_errors
    takes_part = any(tool == call.tool for tool, _ in streak.signatures)
    if takes_part and streak.length >= loops.max_error_streak and _goes_on(streak, history):
        return _streak_finding("error_streak", call, _subject("errors", *_sorted(streak)), streak)
    return None


def _goes_on(streak: Streak, history: History) -> bool:
    """True where there is more to say than at the last hint: another error since, or a call that is known to fail."""
    if _is_plain(history.entry, streak.length + streak.refused):
        return False
    return streak.length > streak.hinted_at or history.entry.failed


def _same_answers(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """One tool, other arguments, the same answer. Writes are left out: "saved" five times is what they are to say.

    The weakest evidence of all, for a check of many things that are all in order looks the same. So after a hint the
    streak has to double before there is another.
    """
    streak = history.streaks.answers
    if call.writes or streak.length < max(rules.loops.max_no_progress, 2 * streak.hinted_at):
        return None
    if _is_plain(history.entry, streak.length + streak.refused):
        return None
    return _streak_finding("no_progress", call, _subject("answers", call.tool, *_sorted(streak)), streak)


def _infra(history: History, call: ToolCall, rules: Rules) -> Finding | None:
    """Errors of the infrastructure in a row, of this call or of its tool."""
    limit = rules.loops.max_infra_errors
    entry, streak = history.entry, history.streaks.infra
    if entry.infra >= limit:
        return _finding("error_streak", call, call.fingerprint, entry.infra + 1, error_class=streak.error_class)
    if streak.length >= limit and streak.length > streak.hinted_at:
        return _streak_finding("error_streak", call, _subject("infra", call.tool), streak)
    return None


# --- what is said -----------------------------------------------------------------------------------------------------


def _finding(
    kind: LoopKind,
    call: ToolCall,
    subject: str,
    repeats: int,
    *,
    args_equal: bool = True,
    members: tuple[str, ...] = (),
    error_class: str | None = None,
) -> Finding:
    return Finding(
        kind=kind,
        tool=call.tool,
        subject=subject,
        repeats=repeats,
        args_hash=call.fingerprint,
        args_equal=args_equal,
        members=members or (call.tool,),
        error_class=error_class,
        step=call.step,
    )


def _streak_finding(kind: LoopKind, call: ToolCall, subject: str, streak: Streak) -> Finding:
    repeats = streak.length + streak.refused + 1
    return _finding(kind, call, subject, repeats, args_equal=False, error_class=streak.error_class)


def _sorted(streak: Streak) -> list[str]:
    return sorted(map(repr, streak.signatures))


def _subject(*parts: str) -> str:
    """A name for what repeats. Hashed, since signatures hold masked text of errors."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_OF_UNKNOWN_TOOLS: tuple[_Detector, ...] = (_unknown_tool,)
_OF_POLLS: tuple[_Detector, ...] = (_poll_stalled, _infra)
_WITHOUT_RESULTS: tuple[_Detector, ...] = (_cycle, _plain_repeat, _infra)
_OF_NEW_CALLS: tuple[_Detector, ...] = (_errors, _same_answers, _infra)
_OF_REPEATED_CALLS: tuple[_Detector, ...] = (_cycle, _repeat, _unchanged, _repeat_changing, *_OF_NEW_CALLS)
