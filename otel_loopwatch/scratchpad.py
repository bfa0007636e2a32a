"""What a run remembers for its own agent: what was tried, and whether the last turns brought anything new.

Process memory only, bounded, and never a source of telemetry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["ESCALATED_TEMPERATURE", "Scratchpad"]

ESCALATED_TEMPERATURE = 0.6
"""For one turn (second seed: somewhere in 0.5 to 0.7)."""
STUCK_STEPS = 2
"""Turns without progress before the temperature rises (second seed)."""
MAX_ATTEMPTS = 20
MAX_TEXT = 200
MAX_OUTCOMES = 3
MAX_SEEN = 1024
MAX_INT = 2**63


class Scratchpad:
    """Attempts and progress of one run. Not locked: its run is."""

    __slots__ = ("_attempts", "_calls", "_progressed", "_sampled", "_seen", "_stuck")

    def __init__(self) -> None:
        # fingerprint -> (tool, arguments, outcomes); the values of the arguments are cut when they come in
        self._attempts: deque[tuple[str, str, list[str]]] = deque(maxlen=MAX_ATTEMPTS)
        self._seen: set[tuple[str, str | None]] = set()
        self._calls = 0
        self._progressed = False
        self._stuck = 0
        self._sampled: tuple[int, bool] | None = None

    def settled(self, fingerprint: str, digest: str | None, error: str | None) -> None:
        """A call ended. Progress is a result that this call had not had yet, or an error of a new kind."""
        self._calls += 1
        outcome = (fingerprint, digest) if error is None else ("", error)
        if outcome not in self._seen:
            self._progressed = True
            if len(self._seen) < MAX_SEEN:
                self._seen.add(outcome)

    def hinted(self) -> None:
        """A call was answered with a hint: no progress."""
        self._calls += 1

    def step_began(self) -> None:
        """A new turn: judge the one before. A turn without calls says nothing."""
        if self._calls:
            self._stuck = 0 if self._progressed else self._stuck + 1
        self._calls = 0
        self._progressed = False

    def progress(self, note: str) -> None:
        """The agent says that something new happened."""
        self._stuck = 0
        self._progressed = True
        if note:
            self._attempts.append(("", f"progress: {note[:MAX_TEXT]}", []))

    def temperature(self, usual: float, step: int) -> float:
        """*usual*, or the escalated one for the one turn *step*; the same answer all through a turn."""
        if self._sampled is None or self._sampled[0] != step:
            self._sampled = (step, self._stuck >= STUCK_STEPS)
            if self._sampled[1]:
                self._stuck = 0
        return max(usual, ESCALATED_TEMPERATURE) if self._sampled[1] else usual

    def attempted(self, fingerprint: str, tool: str, arguments: Mapping[str, Any], outcome: str) -> None:
        """Remember one call and how it ended."""
        attempts = self._attempts
        for known, _, outcomes in attempts:
            if known == fingerprint:
                if outcome not in outcomes and len(outcomes) < MAX_OUTCOMES:
                    outcomes.append(outcome)
                return
        attempts.append((fingerprint, f"{tool}({_short(arguments)})", [outcome]))

    def text(self) -> str:
        """What was tried, for the prompt; empty where nothing was."""
        if not self._attempts:
            return ""
        lines = [
            f"- {text} -> {', '.join(outcomes)}" if outcomes else f"- {text}" for _, text, outcomes in self._attempts
        ]
        return "\n".join(["Already tried in this run:", *lines])


def _short(arguments: Mapping[str, Any]) -> str:
    """At most 200 characters of the arguments.

    A value that is no text or number is named by its type: its repr could run the user's code, or take its time.
    """
    parts: list[str] = []
    room = MAX_TEXT
    for name, value in arguments.items():
        if isinstance(value, str):
            shown = repr(str.__getitem__(value, slice(room)))
        elif value is None or isinstance(value, bool | int | float):
            shown = repr(value) if not isinstance(value, int) or abs(value) < MAX_INT else "<int>"
        else:
            shown = f"<{type(value).__name__}>"
        parts.append(f"{name}={shown}")
        room -= len(parts[-1]) + 2
        if room <= 0:
            break
    return ", ".join(parts)[:MAX_TEXT]
