"""Logfire: pydantic-ai through it, with the tools of an MCP server too, and its own decorator."""

from __future__ import annotations

from typing import Any

import logfire
from logfire.sampling import SamplingOptions
from mcp.server.mcpserver import MCPServer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._usual import BUSY, STUCK, THREE_TURNS, Turn, record, script, talk, tools, usual


def instrument(provider: TracerProvider) -> None:
    # It has a provider of its own, on which the guard is as users put it there.
    guard = provider._active_span_processor
    sampling = SamplingOptions(head=0.0 if provider.sampler is ALWAYS_OFF else 1.0)
    logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[guard], sampling=sampling)
    logfire.instrument_pydantic_ai()


def scripted(frame: Frame, turns: list[Turn], *, recorded: bool) -> FunctionModel:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        frame.asked()
        answered = 0
        for message in messages:
            spoke = isinstance(message, ModelRequest) and isinstance(message.parts[0], UserPromptPart)
            answered = 0 if spoke else answered + isinstance(message, ModelResponse)
        parts = [ToolCallPart(name, arguments) for name, arguments in script(turns, answered)]
        if recorded:
            record()
        usage = RequestUsage(input_tokens=100, output_tokens=20, cache_read_tokens=40)
        return ModelResponse(parts=parts or [TextPart("done")], usage=usage, model_name="gpt-4o")

    return FunctionModel(model, model_name="gpt-4o")


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
    served: bool = False,
) -> None:
    functions = tools(frame, watched=watched, check=check)

    def boom() -> str:
        try:
            return functions["boom"]()
        except ValueError as fault:
            raise ModelRetry("try again") from fault

    toolsets: list[Any] = []
    if served:
        server = MCPServer("tools")
        server.add_tool(functions["search"], name="search")
        server.add_tool(functions["boom"], name="boom")
        toolsets = [MCPToolset(server, max_retries=3)]
    made = Agent(scripted(frame, turns, recorded=recorded), name="researcher", toolsets=toolsets)
    if not served:
        made.tool_plain(functions["search"])
        made.tool_plain(retries=3)(boom)
    history: list[ModelMessage] = []
    for number in range(rounds):
        history = made.run_sync(f"question {number}", message_history=history).all_messages()


def served_tools(frame: Frame) -> None:
    # Framework, client and server show each call, one inside of the other.
    instrument(frame.guard())
    ask(frame, THREE_TURNS, served=True)


def served_watched_tool(frame: Frame) -> None:
    instrument(frame.guard())
    ask(frame, THREE_TURNS, served=True, watched=True)


def served_loop(frame: Frame) -> None:
    instrument(frame.guard(LOOP))
    ask(frame, STUCK, served=True)


def scrubbed(frame: Frame) -> None:
    # What looks like a secret never reaches the guard; and what it then sees is the same for every call.
    instrument(frame.guard(LOOP))
    ask(frame, [[("search", {"q": f"password {number}"})] for number in range(len(BUSY))])


def decorated(frame: Frame) -> None:
    # Its own spans do not say that a function is a tool: only what is decorated by us as well is counted.
    instrument(frame.guard())
    functions = {
        name: logfire.instrument(name)(function) for name, function in tools(frame, watched=True, check=False).items()
    }

    def model(answered: int) -> Turn:
        frame.asked()
        return script(THREE_TURNS, answered)

    with logfire.span("agent run"):
        talk(model, functions)


if __name__ == "__main__":
    main(*usual(instrument, ask), served_tools, served_watched_tool, served_loop, scrubbed, decorated)
