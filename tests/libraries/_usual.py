"""The cases that nearly every library has: an agent with the tools ``search`` and ``boom``, a model with a script."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from tests.libraries._frame import DEMANDS, LOOP, Case, Frame, enforcement

Turn = list[tuple[str, dict[str, Any]]]
"""The tool calls of one answer: name and arguments. An empty one is an answer in words."""

THREE_TURNS: list[Turn] = [[("search", {"q": "hi"}), ("search", {"q": "ho"})], [("boom", {})]]
STUCK: list[Turn] = [[("search", {"q": "same"})]] * DEMANDS
BUSY: list[Turn] = [[("search", {"q": f"page {number}"})] for number in range(DEMANDS)]
"""As many calls as STUCK, and no loop: whoever sees one there compares what a library does not show."""


AT_ONCE = 4
"""So many agents run at the same time, each in a thread of its own."""


def script(turns: list[Turn], answered: int) -> Turn:
    """The answer to a request that brings *answered* ones along."""
    return turns[answered] if answered < len(turns) else []


class Ask(Protocol):
    """Runs the library's agent, named researcher."""

    def __call__(
        self,
        frame: Frame,
        turns: list[Turn],
        *,
        watched: bool = False,
        check: bool = False,
        recorded: bool = False,
        rounds: int = 1,
    ) -> object:
        """Run it.

        Args:
            frame: Counts what runs.
            turns: The model's script.
            watched: True decorates ``search``.
            check: True calls ``run.check()`` at the beginning of ``search``.
            recorded: True has every answer of the model told by ``run.record_usage``.
            rounds: So often the user speaks in one conversation; each time the script begins anew.
        """


def usual(instrument: Callable[[TracerProvider], object], ask: Ask) -> list[Case]:
    """The cases.

    Args:
        instrument: Sets the library's instrumentation up on a provider.
        ask: Runs the agent.
    """

    def standard(frame: Frame) -> None:
        instrument(frame.guard())
        with frame.caller():
            ask(frame, THREE_TURNS)

    def loop(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with frame.caller():
            ask(frame, STUCK)

    def no_loop(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with frame.caller():
            ask(frame, BUSY)

    def two_turns(frame: Frame) -> None:
        instrument(frame.guard())
        with frame.caller():
            ask(frame, THREE_TURNS, rounds=2)

    def at_once(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for asked in [pool.submit(ask, frame, THREE_TURNS) for _ in range(AT_ONCE)]:
                asked.result()

    def watched_tool(frame: Frame) -> None:
        instrument(frame.guard())
        with frame.caller():
            ask(frame, THREE_TURNS, watched=True)

    def usage_recorded(frame: Frame) -> None:
        instrument(frame.guard())
        with frame.caller(), lw.watch_run("mine"):
            ask(frame, THREE_TURNS, recorded=True)

    def in_watch_run(frame: Frame) -> None:
        instrument(frame.guard())
        with frame.caller(), lw.watch_run("mine"):
            ask(frame, THREE_TURNS)

    def unsampled(frame: Frame) -> None:
        instrument(frame.guard(LOOP, sampled=False))
        with frame.caller():
            ask(frame, STUCK, watched=True)

    def stuck(frame: Frame, *, watched: bool, check: bool) -> None:
        ask(frame, STUCK, watched=watched, check=check)

    cases = [standard, loop, no_loop, two_turns, at_once, watched_tool, usage_recorded, in_watch_run, unsampled]
    return [*cases, *enforcement(instrument, stuck)]


def tools(frame: Frame, *, watched: bool, check: bool) -> dict[str, Callable[..., Any]]:
    """``search`` and ``boom``, as plain functions."""

    def search(q: str, k: int = 1) -> str:
        """Search.

        Args:
            q: What for.
            k: How many.
        """
        if check:
            lw.current_run().check()
        frame.body("search")
        return f"result {q} {k}"

    def boom() -> str:
        """Fail."""
        frame.body("boom")
        raise ValueError("boom")

    return {"search": lw.watch_tool(search) if watched else search, "boom": boom}


def record(model: str = "gpt-4o") -> None:
    """Tell the run of this context what the scripted model used, as an application may."""
    lw.current_run().record_usage(model, input_tokens=100, output_tokens=20, cached_input_tokens=40)


def talk(model: Callable[[int], Turn], functions: dict[str, Callable[..., Any]]) -> str:
    """An agent loop that somebody wrote by hand, for the libraries that only decorate functions.

    Args:
        model: A request to the model: the number of answers that it brings along -> the next one.
        functions: The tools, decorated. A ``ValueError`` of one is its answer.
    """
    answered = 0
    while turn := model(answered):
        answered += 1
        for name, arguments in turn:
            with suppress(ValueError):
                functions[name](**arguments)
    return "done"
