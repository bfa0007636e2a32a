"""The decorators of OpenInference, around an agent that somebody wrote by hand."""

from __future__ import annotations

import os
from typing import Any

from openinference.instrumentation import OITracer, TraceConfig, get_llm_attributes, using_session
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._usual import BUSY, THREE_TURNS, Turn, record, script, talk, tools, usual

USAGE = {
    "prompt": 100,
    "completion": 20,
    "total": 120,
    "prompt_details": {"cache_read": 40},
    "completion_details": {"reasoning": 5},
}


def instrument(provider: TracerProvider) -> None:
    del provider  # the global one


def used(_: Turn) -> dict[str, Any]:
    return dict(get_llm_attributes(model_name="gpt-4o", provider="openai", token_count=USAGE))


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
    hidden: bool = False,
    outside: bool = False,
) -> None:
    tracer = OITracer(trace.get_tracer("myapp"), config=TraceConfig(hide_inputs=hidden, hide_outputs=hidden))

    @tracer.llm(process_output=used)
    def model(answered: int) -> Turn:
        frame.asked()
        if recorded:
            record()
        return script(turns, answered)

    functions = {name: tracer.tool(tool) for name, tool in tools(frame, watched=watched, check=check).items()}
    if outside:
        functions["search"] = lw.watch_tool(functions["search"])

    @tracer.agent
    def researcher(question: str) -> str:
        del question
        return talk(model, functions)

    with using_session("s1"):
        for number in range(rounds):
            researcher(f"question {number}")


def watched_outside(frame: Frame) -> None:
    frame.guard()
    ask(frame, THREE_TURNS, outside=True)


def hidden_content(frame: Frame) -> None:
    frame.guard(LOOP)
    ask(frame, BUSY, hidden=True)


def cut_short(frame: Frame) -> None:
    # Before "page 1" and "page 2" differ.
    os.environ["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"] = "12"
    frame.guard(LOOP)
    ask(frame, BUSY)


if __name__ == "__main__":
    main(*usual(instrument, ask), watched_outside, hidden_content, cut_short)
