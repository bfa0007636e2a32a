"""OpenLLMetry: the decorators of traceloop-sdk and its instrumentation of the OpenAI client."""

from __future__ import annotations

from typing import Any

from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent, task, tool, workflow
from traceloop.sdk.instruments import Instruments

import otel_loopwatch as lw
from tests.libraries._fake_openai import serve
from tests.libraries._frame import Frame, main
from tests.libraries._usual import THREE_TURNS, Turn, record, script, talk, tools, usual


def instrument(provider: TracerProvider) -> None:
    del provider  # it takes the global one
    exporter = InMemorySpanExporter()
    Traceloop.init(app_name="app", exporter=exporter, telemetry_enabled=False, instruments={Instruments.OPENAI})


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
    stream: bool = False,
    outside: bool = False,
) -> None:
    script_of_server = [[(name, "c", arguments) for name, arguments in turn] for turn in turns]
    client = OpenAI(base_url=serve(frame, script_of_server), api_key="none", max_retries=0)

    @task(name="think")
    def model(answered: int) -> Turn:
        said: list[Any] = [{"role": "user", "content": "go"}]
        said += [{"role": "assistant", "content": "..."}] * answered
        if stream:
            # Read to its end: only then the span ends.
            options = {"include_usage": True}
            list(client.chat.completions.create(model="gpt-4o", messages=said, stream=True, stream_options=options))
        else:
            client.chat.completions.create(model="gpt-4o", messages=said)
        if recorded:
            record()
        return script(turns, answered)

    functions = {
        name: tool(name=name)(function) for name, function in tools(frame, watched=watched, check=check).items()
    }
    if outside:
        functions["search"] = lw.watch_tool(functions["search"])

    @agent(name="researcher")
    def researcher() -> str:
        return talk(model, functions)

    @workflow(name="support")
    def support(session: str) -> str:
        Traceloop.set_association_properties({"session_id": session})
        return researcher()

    for _ in range(rounds):
        support("s1")


def streaming(frame: Frame) -> None:
    instrument(frame.guard())
    ask(frame, THREE_TURNS, stream=True)


def watched_outside(frame: Frame) -> None:
    instrument(frame.guard())
    ask(frame, THREE_TURNS, outside=True)


def around_pydantic_ai(frame: Frame) -> None:
    provider = frame.guard()
    instrument(provider)
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        frame.asked()
        turn = script(THREE_TURNS[:1], sum(message.kind == "response" for message in messages))
        parts = [ToolCallPart(name, arguments) for name, arguments in turn] or [TextPart("done")]
        usage = RequestUsage(input_tokens=100, output_tokens=20, cache_read_tokens=40)
        return ModelResponse(parts=parts, usage=usage, model_name="gpt-4o")

    made = Agent(FunctionModel(model, model_name="gpt-4o"), name="inner")
    # The same tool is decorated by one library and shown by the other.
    made.tool_plain(tool(name="search")(tools(frame, watched=False, check=False)["search"]))

    @workflow(name="support")
    def support() -> None:
        made.run_sync("go")

    support()


if __name__ == "__main__":
    main(*usual(instrument, ask), streaming, watched_outside, around_pydantic_ai)
