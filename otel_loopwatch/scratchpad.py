"""What a run remembers for its own agent: what was tried, and whether the last turns brought anything new.

Process memory only, bounded, and never a source of telemetry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ESCALATED_TEMPERATURE", "OK", "Scratchpad"]

OK = "ok"
"""The outcome of a call that raised nothing."""

ESCALATED_TEMPERATURE = 0.6
"""For one turn (second seed: somewhere in 0.5 to 0.7)."""
STUCK_STEPS = 2
"""Turns without progress before the temperature rises (second seed)."""
MAX_ATTEMPTS = 20
MAX_TEXT = 200
MAX_OUTCOMES = 3
MAX_SEEN = 1024
MAX_INT = 2**63
WENT_WELL = (OK,)


class Scratchpad:
    """Attempts and progress of one run. Not locked: its run is."""

    __slots__ = ("_attempts", "_calls", "_outcomes", "_progressed", "_sampled", "_seen", "_stuck")

    def __init__(self) -> None:
        # hash of the fingerprint -> text, oldest first
        self._attempts: dict[int, str] = {}
        # The same key -> outcomes, where they are not simply "ok": most attempts are then a text and nothing else.
        self._outcomes: dict[int, tuple[str, ...]] = {}
        # Hashes: the strings would be most of the memory of a long run. A dict is a third of a set's size while small.
        self._seen: dict[int, None] = {}
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
                self._seen[outcome] = None

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
        if key not in self._attempts:
            self._remember(key, f"{tool}({_short(arguments)})", WENT_WELL if outcome == OK else (outcome,))
            return
        outcomes = self._outcomes.get(key, WENT_WELL)
        if outcome not in outcomes and len(outcomes) < MAX_OUTCOMES:
            self._outcomes[key] = (*outcomes, outcome)

    def _remember(self, key: int, text: str, outcomes: tuple[str, ...]) -> None:
        attempts = self._attempts
        if len(attempts) >= MAX_ATTEMPTS:
            oldest = next(iter(attempts))
            del attempts[oldest]
            self._outcomes.pop(oldest, None)
        attempts[key] = text
        if outcomes is not WENT_WELL:
            self._outcomes[key] = outcomes

    def text(self) -> str:
        """What was tried, for the prompt; empty where nothing was."""
        if not self._attempts:
            return ""
        lines = ["Already tried in this run:"]
        for key, text in self._attempts.items():
            outcomes = self._outcomes.get(key, WENT_WELL)
            lines.append(f"- {text} -> {', '.join(outcomes)}" if outcomes else f"- {text}")
        return "\n".join(lines)


_SHOWN = frozenset({bool, float, type(None)})


def _short(arguments: Mapping[str, Any]) -> str:
    """At most 200 characters of the arguments.

    A value that is no text or number is named by its type: its repr could run the user's code, or take its time. So
    could isinstance(), which asks the value for its class.
    """
    parts: list[str] = []
    room = MAX_TEXT
    for name, value in arguments.items():
        kind = type(value)
        if kind is str:
            shown = repr(value[:room])
        elif kind in _SHOWN or (kind is int and -MAX_INT < value < MAX_INT):
            shown = repr(value)
        elif issubclass(kind, str):
            shown = repr(str.__getitem__(value, slice(room)))
        else:
            shown = f"<{kind.__name__}>"
        part = f"{name}={shown}"
        parts.append(part)
        room -= len(part) + 2
        if room <= 0:
            break
    return ", ".join(parts)[:MAX_TEXT]
