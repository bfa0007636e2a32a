"""What a run remembers for its own agent: what was tried, and whether the last turns brought anything new.

Process memory only, bounded, and never a source of telemetry.
"""

from __future__ import annotations

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
        # hash of the fingerprint -> (text, outcomes), oldest first
        self._attempts: dict[int, tuple[str, tuple[str, ...]]] = {}
        # Hashes: the strings would be most of the memory of a long run.
        self._seen: set[int] = set()
        self._calls = 0
        self._progressed = False
        self._stuck = 0
        self._sampled: tuple[int, bool] | None = None

    def settled(self, fingerprint: str, digest: str | None, error: str | None) -> None:
        """A call ended. Progress is a result that this call had not had yet, or an error of a new kind."""
        self._calls += 1
        outcome = hash((fingerprint, digest) if error is None else error)
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
            self._remember(hash(note), f"progress: {note[:MAX_TEXT]}", ())

    def temperature(self, usual: float, step: int) -> float:
        """*usual*, or the escalated one for the one turn *step*; the same answer all through a turn."""
        if self._sampled is None or self._sampled[0] != step:
            self._sampled = (step, self._stuck >= STUCK_STEPS)
            if self._sampled[1]:
                self._stuck = 0
        return max(usual, ESCALATED_TEMPERATURE) if self._sampled[1] else usual

    def attempted(self, fingerprint: str, tool: str, arguments: Mapping[str, Any], outcome: str) -> None:
        """Remember one call and how it ended."""
        key = hash(fingerprint)
        known = self._attempts.get(key)
        if known is None:
            self._remember(key, f"{tool}({_short(arguments)})", (outcome,))
            return
        text, outcomes = known
        if outcome not in outcomes and len(outcomes) < MAX_OUTCOMES:
            self._attempts[key] = (text, (*outcomes, outcome))

    def _remember(self, key: int, text: str, outcomes: tuple[str, ...]) -> None:
        attempts = self._attempts
        if len(attempts) >= MAX_ATTEMPTS:
            del attempts[next(iter(attempts))]
        attempts[key] = (text, outcomes)

    def text(self) -> str:
        """What was tried, for the prompt; empty where nothing was."""
        if not self._attempts:
            return ""
        lines = [
            f"- {text} -> {', '.join(outcomes)}" if outcomes else f"- {text}"
            for text, outcomes in self._attempts.values()
        ]
        return "\n".join(["Already tried in this run:", *lines])


def _short(arguments: Mapping[str, Any]) -> str:
    """At most 200 characters of the arguments.

    A value that is no text or number is named by its type: its repr could run the user's code, or take its time.
    """
    parts: list[str] = []
    room = MAX_TEXT
    for name, value in arguments.items():
        kind = type(value)
        if kind is str:
            shown = repr(value[:room])
        elif isinstance(value, str):
            shown = repr(str.__getitem__(value, slice(room)))
        elif value is None or isinstance(value, bool | int | float):
            shown = repr(value) if not isinstance(value, int) or abs(value) < MAX_INT else "<int>"
        else:
            shown = f"<{kind.__name__}>"
        part = f"{name}={shown}"
        parts.append(part)
        room -= len(part) + 2
        if room <= 0:
            break
    return ", ".join(parts)[:MAX_TEXT]
