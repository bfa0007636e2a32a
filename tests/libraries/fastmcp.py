"""FastMCP, which shows a call of a tool on the side of the client and on that of the server."""

from __future__ import annotations

import asyncio
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import Frame, main
from tests.libraries._usual import THREE_TURNS, Turn, record, script, tools, usual


def instrument(provider: TracerProvider) -> None:
    del provider  # the global one


def server(frame: Frame, *, watched: bool = False, check: bool = False) -> FastMCP:
    made: FastMCP = FastMCP("tools")
    for name, function in tools(frame, watched=watched, check=check).items():
        made.tool(function, name=name)
    return made


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
) -> None:
    served = server(frame, watched=watched, check=check)
    asyncio.run(session(frame, served, turns, recorded=recorded, rounds=rounds))


async def session(frame: Frame, served: Any, turns: list[Turn], *, recorded: bool = False, rounds: int = 1) -> None:
    async with Client(served) as client:
        for _ in range(rounds):
            with trace.get_tracer("app").start_as_current_span("agent run"):
                await talk(frame, client, turns, recorded=recorded)


async def talk(frame: Frame, client: Client, turns: list[Turn], *, recorded: bool) -> None:
    answered = 0
    while True:
        frame.asked()
        if recorded:
            record()
        turn = script(turns, answered)
        if not turn:
            return
        answered += 1
        for name, arguments in turn:
            try:
                await client.call_tool(name, arguments)
            except ToolError:
                frame.said["errors"] = frame.said.get("errors", 0) + 1


def mounted(frame: Frame) -> None:
    # A server in a server: more spans of the same call.
    frame.guard()
    outer: FastMCP = FastMCP("outer")
    outer.mount(server(frame))
    asyncio.run(session(frame, outer, THREE_TURNS))


def mounted_namespace(frame: Frame) -> None:
    frame.guard()
    outer: FastMCP = FastMCP("outer")
    outer.mount(server(frame), namespace="kb")
    asyncio.run(session(frame, outer, [[("kb_search", {"q": "hi"}), ("kb_search", {"q": "ho"})], [("kb_boom", {})]]))


if __name__ == "__main__":
    main(*usual(instrument, ask), mounted, mounted_namespace)
