"""Strands, instrumented by itself, alone and with OpenInference's processor."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from openinference.instrumentation.strands_agents import StrandsAgentsToOpenInferenceProcessor
from opentelemetry.sdk.trace import TracerProvider
from strands import Agent, tool
from strands.models import Model

from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._usual import THREE_TURNS, Turn, record, script, tools, usual

USAGE = {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120, "cacheReadInputTokens": 40}


def instrument(provider: TracerProvider) -> None:
    del provider  # the global one


class Scripted(Model):
    """Answers by a script: which turn is told by the number of answers since the user last spoke."""

    def __init__(self, frame: Frame, turns: list[Turn], *, recorded: bool) -> None:
        self._frame = frame
        self._turns = turns
        self._recorded = recorded
        # Where Strands looks for the name of the model.
        self.config = {"model_id": "gpt-4o"}

    def update_config(self, **settings: Any) -> None:
        del settings

    def get_config(self) -> dict[str, str]:
        return self.config

    async def structured_output(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield {}

    async def stream(self, messages: list[Any], *_: Any, **__: Any) -> AsyncIterator[Any]:
        number = self._frame.asked()
        answered = 0
        for message in messages:
            spoke = message["role"] == "user" and any("text" in part for part in message["content"])
            answered = 0 if spoke else answered + (message["role"] == "assistant")
        turn = script(self._turns, answered)
        yield {"messageStart": {"role": "assistant"}}
        for place, (name, arguments) in enumerate(turn):
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"c{number}.{place}", "name": name}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        if not turn:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
        if self._recorded:
            record()
        yield {"messageStop": {"stopReason": "tool_use" if turn else "end_turn"}}
        yield {"metadata": {"usage": USAGE, "metrics": {"latencyMs": 5}}}


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
) -> None:
    made = Agent(
        model=Scripted(frame, turns, recorded=recorded),
        tools=[tool(function) for function in tools(frame, watched=watched, check=check).values()],
        name="researcher",
        callback_handler=None,
        trace_attributes={"session.id": "s1"},
    )
    for number in range(rounds):
        made(f"question {number}")


def sub_agent(frame: Frame) -> None:
    frame.guard(LOOP)

    def research(topic: str) -> str:
        """Research.

        Args:
            topic: Of what.
        """
        ask(frame, THREE_TURNS)
        return f"about {topic}"

    asked: list[Turn] = [[("research", {"topic": "hi"})]]
    model = Scripted(frame, asked, recorded=False)
    Agent(model=model, tools=[tool(research)], name="boss", callback_handler=None)("go")


def with_openinference(frame: Frame) -> None:
    # It rewrites the attributes of the ended span, for the exporters that come after it.
    frame.guard().add_span_processor(StrandsAgentsToOpenInferenceProcessor())
    ask(frame, THREE_TURNS)


if __name__ == "__main__":
    main(*usual(instrument, ask), sub_agent, with_openinference)
