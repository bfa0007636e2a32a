"""pydantic-ai, instrumented by itself, and its OpenAI model under the official instrumentation of openai as well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

import otel_loopwatch as lw
from tests.libraries._fake_openai import Turn, serve
from tests.libraries._frame import DEMANDS, LOOP, Frame, enforcement, main

THREE_TURNS: list[Turn] = [[("search", "c1", {"q": "hi"}), ("search", "c2", {"q": "ho"})], [("boom", "c3", {})]]
STUCK: list[Turn] = [[("search", f"c{number}", {"q": "same"})] for number in range(DEMANDS)]
BUSY: list[Turn] = [[("search", f"c{number}", {"q": f"page {number}"})] for number in range(DEMANDS)]
AT_ONCE: list[Turn] = [[("search", f"c{number}", {"q": "same"}) for number in range(5)]]


def scripted(frame: Frame, turns: list[Turn], *, record: bool) -> FunctionModel:
    def turn_of(messages: list[ModelMessage]) -> Turn:
        # A prompt of the user begins the script anew.
        answered = 0
        for message in messages:
            prompted = any(part.part_kind == "user-prompt" for part in message.parts)
            answered = 0 if prompted else answered + (message.kind == "response")
        return turns[answered] if answered < len(turns) else []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = frame.asked()
        turn = turn_of(messages)
        run = lw.current_run()
        if record and run is not None:
            run.record_usage(model="gpt-4o", input_tokens=100, output_tokens=20, cached_input_tokens=40)
        return ModelResponse(
            parts=[ToolCallPart(name, said, tool_call_id=ident) for name, ident, said in turn] or [TextPart("done")],
            usage=RequestUsage(
                input_tokens=100, output_tokens=20, cache_read_tokens=40, details={"reasoning_tokens": 5}
            ),
            provider_response_id=f"r{number}",
        )

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        frame.asked()
        for index, (name, ident, said) in enumerate(turn := turn_of(messages)):
            yield {index: DeltaToolCall(name=name, json_args=json.dumps(said), tool_call_id=ident)}
        if not turn:
            yield "do"
            yield "ne"

    return FunctionModel(model, stream_function=stream, model_name="gpt-4o")


def openai_model(frame: Frame, turns: list[Turn]) -> OpenAIChatModel:
    client = AsyncOpenAI(base_url=serve(frame, turns), api_key="none")
    return OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))


def agent(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    record: bool = False,
    model: Any = None,
) -> Agent:
    def search(q: str, k: int = 1) -> str:
        if check:
            lw.current_run().check()
        frame.body("search")
        return f"result {q} {k}"

    def boom() -> str:
        frame.body("boom")
        raise ModelRetry("try again")

    made = Agent(model or scripted(frame, turns, record=record), name="researcher")
    made.tool_plain(lw.watch_tool(search) if watched else search)
    made.tool_plain(retries=3)(boom)
    return made


def instrument(provider: TracerProvider, *, content: bool = True) -> None:
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider, include_content=content))


def stuck(frame: Frame, *, watched: bool = False, check: bool = False) -> None:
    agent(frame, STUCK, watched=watched, check=check).run_sync("go")


def standard(frame: Frame) -> None:
    instrument(frame.guard())
    agent(frame, THREE_TURNS).run_sync("go")


def loop(frame: Frame) -> None:
    instrument(frame.guard())
    stuck(frame)


def busy(frame: Frame) -> None:
    instrument(frame.guard(LOOP))
    agent(frame, BUSY).run_sync("go")


def loop_unseen(frame: Frame) -> None:
    instrument(frame.guard(LOOP), content=False)
    stuck(frame)


def two_turns(frame: Frame) -> None:
    instrument(frame.guard())
    asked = agent(frame, THREE_TURNS)
    first = asked.run_sync("go")
    asked.run_sync("more", message_history=first.all_messages())


def watched_tool(frame: Frame) -> None:
    instrument(frame.guard())
    agent(frame, THREE_TURNS, watched=True).run_sync("go")


def usage_recorded(frame: Frame) -> None:
    instrument(frame.guard())
    with lw.watch_run("mine"):
        agent(frame, THREE_TURNS, record=True).run_sync("go")


def in_watch_run(frame: Frame) -> None:
    instrument(frame.guard())
    with lw.watch_run("mine"):
        agent(frame, THREE_TURNS, watched=True).run_sync("go")


def streaming(frame: Frame) -> None:
    instrument(frame.guard())

    async def ask() -> None:
        async with agent(frame, THREE_TURNS).run_stream("go") as answer:
            frame.said["answer"] = await answer.get_output()

    asyncio.run(ask())


def parallel(frame: Frame) -> None:
    instrument(frame.guard(LOOP))
    agent(frame, AT_ONCE).run_sync("go")


def unsampled(frame: Frame) -> None:
    instrument(frame.guard(LOOP, sampled=False))
    with frame.caller():
        stuck(frame, watched=True)


def with_openai(frame: Frame) -> None:
    provider = frame.guard()
    instrument(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    agent(frame, THREE_TURNS, model=openai_model(frame, THREE_TURNS)).run_sync("go")


def openai_first(frame: Frame) -> None:
    provider = frame.guard()
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    instrument(provider)
    agent(frame, THREE_TURNS, model=openai_model(frame, THREE_TURNS)).run_sync("go")


def with_openai_streaming(frame: Frame) -> None:
    provider = frame.guard()
    instrument(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)

    async def ask() -> None:
        async with agent(frame, THREE_TURNS, model=openai_model(frame, THREE_TURNS)).run_stream("go") as answer:
            frame.said["answer"] = await answer.get_output()

    asyncio.run(ask())


def sub_agent(frame: Frame) -> None:
    instrument(frame.guard(LOOP))
    inner = agent(frame, THREE_TURNS)
    outer = Agent(scripted(frame, [[("research", "o1", {"topic": "hi"})]], record=False), name="boss")

    @outer.tool_plain
    async def research(topic: str) -> str:
        frame.body("research")
        return (await inner.run(topic)).output

    outer.run_sync("go")


def fifty_agents_at_once(frame: Frame) -> None:
    instrument(frame.guard(LOOP))

    async def ask() -> None:
        asked = agent(frame, THREE_TURNS)
        await asyncio.gather(*(asked.run("go") for _ in range(50)))

    asyncio.run(ask())


if __name__ == "__main__":
    main(
        standard,
        loop,
        busy,
        loop_unseen,
        two_turns,
        watched_tool,
        usage_recorded,
        in_watch_run,
        streaming,
        parallel,
        unsampled,
        with_openai,
        openai_first,
        with_openai_streaming,
        sub_agent,
        fifty_agents_at_once,
        *enforcement(instrument, stuck),
    )
