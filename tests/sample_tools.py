"""Decorated tools of a module, for tests that pickle them or run them in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import otel_loopwatch as lw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nowhere import OnlyForCheckers


@lw.watch_tool
def bare(x: int) -> int:
    """Double it."""
    return 2 * x


@lw.watch_tool(name="kb.read", kind="read", max_repeats=2)
def called(x: int, *, y: int = 1) -> int:
    """Add them."""
    return x + y


@lw.watch_tool
async def coroutine(x: int) -> int:
    return x


@lw.watch_tool
def lines(x: int) -> Iterator[str]:
    yield from map(str, range(x))


@lw.watch_tool
def postponed(x: OnlyForCheckers, y: int = 2) -> str:
    return f"{x} {y}"


def twice_in_a_run(x: int) -> tuple[int, int]:
    with lw.watch_run("child") as run:
        return bare(x), run.outcome.tool_calls
