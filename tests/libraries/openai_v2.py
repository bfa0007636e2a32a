"""The official instrumentation of openai, and OpenInference's, under an agent loop of one's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI, OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor as OpenInference
from opentelemetry import trace
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor as Official
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from tests.libraries._fake_openai import Turn, serve
from tests.libraries._frame import DEMANDS, LOOP, Frame, enforcement, main, record_content

THREE_TURNS: list[Turn] = [[("search", "c1", {"q": "hi"}), ("search", "c2", {"q": "ho"})], [("boom", "c3", {})]]
STUCK: list[Turn] = [[("search", f"c{number}", {"q": "same"})] for number in range(DEMANDS)]
MODEL = "gpt-4o"
TURNS = 12


def tools(frame: Frame, *, watched: bool, check: bool = False) -> dict[str, Callable[..., str]]:
    def search(q: str, k: int = 1) -> str:
        if check:
            lw.current_run().check()
        frame.body("search")
        return f"result {q} {k}"

    def boom() -> str:
        frame.body("boom")
        raise ValueError("boom")

    return (
        {"search": lw.watch_tool(search), "boom": lw.watch_tool(boom)} if watched else {"search": search, "boom": boom}
    )


def answer(message: dict[str, Any], known: dict[str, Callable[..., str]]) -> list[dict[str, Any]]:
    """What the tools say to one message of the model."""
    said = []
    for call in message.get("tool_calls") or ():
        try:
            result = known[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
        except ValueError as fault:
            result = f"failed: {fault}"
        said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return said


def loop_of(client: OpenAI, known: dict[str, Callable[..., str]]) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(TURNS):
        message = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.model_dump()
        said = answer(message, known)
        if not said:
            return
        messages += [message, *said]


def run_agent(frame: Frame, turns: list[Turn], *, watched: bool = True, check: bool = False, root: bool = True) -> None:
    client = OpenAI(base_url=serve(frame, turns), api_key="none")
    known = tools(frame, watched=watched, check=check)
    if root:
        # What a web framework would do.
        with trace.get_tracer("app").start_as_current_span("POST /ask"):
            loop_of(client, known)
    else:
        loop_of(client, known)


def instrument(provider: TracerProvider) -> None:
    record_content()
    Official().instrument(tracer_provider=provider)


def stuck(frame: Frame, *, watched: bool, check: bool) -> None:
    run_agent(frame, STUCK, watched=watched, check=check)


def standard(frame: Frame) -> None:
    instrument(frame.guard())
    run_agent(frame, THREE_TURNS)


def openinference(frame: Frame) -> None:
    OpenInference().instrument(tracer_provider=frame.guard())
    run_agent(frame, THREE_TURNS)


def with_openinference(frame: Frame) -> None:
    provider = frame.guard()
    instrument(provider)
    OpenInference().instrument(tracer_provider=provider)
    run_agent(frame, THREE_TURNS)


def openinference_first(frame: Frame) -> None:
    provider = frame.guard()
    OpenInference().instrument(tracer_provider=provider)
    instrument(provider)
    run_agent(frame, THREE_TURNS)


def no_root(frame: Frame) -> None:
    instrument(frame.guard())
    run_agent(frame, THREE_TURNS, root=False)


def in_watch_run(frame: Frame) -> None:
    instrument(frame.guard())
    with lw.watch_run("mine"):
        run_agent(frame, THREE_TURNS, root=False)


def usage_recorded(frame: Frame) -> None:
    instrument(frame.guard())
    with lw.watch_run("mine") as run:
        run_agent(frame, THREE_TURNS)
        run.record_usage(model="gpt-4o-2024-08-06", input_tokens=300, output_tokens=60, cached_input_tokens=120)


def unsampled(frame: Frame) -> None:
    instrument(frame.guard(LOOP, sampled=False))
    with frame.caller():
        run_agent(frame, STUCK)


async def streamed(frame: Frame, *, usage: bool) -> None:
    """The agent loop again, asynchronous and streaming; with usage in the last chunk, or without."""
    client = AsyncOpenAI(base_url=serve(frame, THREE_TURNS), api_key="none")
    known = tools(frame, watched=True)
    messages: list[Any] = [{"role": "user", "content": "go"}]
    options = {"stream_options": {"include_usage": True}} if usage else {}
    with trace.get_tracer("app").start_as_current_span("POST /ask"):
        for _ in range(TURNS):
            calls: list[dict[str, Any]] = []
            stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True, **options)
            async for chunk in stream:
                for choice in chunk.choices:
                    calls += [made.model_dump() for made in choice.delta.tool_calls or ()]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            said = answer(message, known)
            if not said:
                return
            messages += [message, *said]


def streaming(frame: Frame) -> None:
    instrument(frame.guard())
    asyncio.run(streamed(frame, usage=True))


def streaming_without_usage(frame: Frame) -> None:
    instrument(frame.guard())
    asyncio.run(streamed(frame, usage=False))


if __name__ == "__main__":
    main(
        standard,
        openinference,
        with_openinference,
        openinference_first,
        no_root,
        in_watch_run,
        usage_recorded,
        unsampled,
        streaming,
        streaming_without_usage,
        *enforcement(instrument, stuck),
    )
