"""Monotonic time, injectable. Nothing in this package reads ``time`` directly, so that no test has to sleep."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "get_clock", "set_clock"]

Clock = Callable[[], float]
"""Returns monotonic seconds."""

_clock: Clock = time.monotonic


def get_clock() -> Clock:
    """The clock that a new run takes."""
    return _clock


def set_clock(clock: Clock | None) -> None:
    """Let runs that begin from now on take *clock*; ``None`` restores ``time.monotonic``."""
    global _clock  # noqa: PLW0603 - one process-wide seam, used by otel_loopwatch.testing
    _clock = time.monotonic if clock is None else clock
