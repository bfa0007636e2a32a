"""The MCP SDK, instrumented by itself: its server in this process and in another one."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import Frame, main
from tests.libraries._usual import THREE_TURNS, Turn, record, script, tools, usual

ROOT = Path(__file__).parent.parent.parent


def instrument(provider: TracerProvider) -> None:
    del provider  # the global one


def server(frame: Frame, *, watched: bool = False, check: bool = False) -> MCPServer:
    made = MCPServer("tools")
    for name, function in tools(frame, watched=watched, check=check).items():
        made.add_tool(function, name=name)
    return made


async def talk(frame: Frame, client: Client, turns: list[Turn], *, recorded: bool = False) -> None:
    """An agent that somebody wrote by hand. It has no spans of its own but one."""
    with trace.get_tracer("app").start_as_current_span("agent run"):
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
                # An error of a tool is a result.
                await client.call_tool(name, arguments)


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
) -> None:
    async def session() -> None:
        async with Client(server(frame, watched=watched, check=check)) as client:
            for _ in range(rounds):
                await talk(frame, client, turns, recorded=recorded)

    asyncio.run(session())


def over_http(frame: Frame) -> None:
    frame.guard()
    served = uvicorn.Server(uvicorn.Config(server(frame).streamable_http_app(), log_level="error"))
    # It listens already: who connects before the server has started waits.
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=served.run, kwargs={"sockets": [listening]}, daemon=True).start()

    async def session() -> None:
        async with Client(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp") as client:
            await talk(frame, client, THREE_TURNS)

    asyncio.run(session())


def over_stdio(frame: Frame) -> None:
    frame.guard()

    async def session() -> None:
        here = StdioServerParameters(
            command=sys.executable, args=["-m", "tests.libraries.mcp_sdk", "--serve"], cwd=ROOT
        )
        async with Client(stdio_client(here)) as client:
            await talk(frame, client, THREE_TURNS)

    asyncio.run(session())


def server_only(frame: Frame) -> None:
    # The client is in another process, and its trace goes on here: each request is a run of its own.
    frame.guard()
    meta: Any = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}

    async def session() -> None:
        async with Client(server(frame)) as client:
            await client.call_tool("search", {"q": "hi"}, meta=meta)
            await client.call_tool("search", {"q": "hi"}, meta=meta)

    asyncio.run(session())


if __name__ == "__main__":
    if "--serve" in sys.argv:
        server(Frame("server")).run("stdio")
    else:
        main(*usual(instrument, ask), over_http, over_stdio, server_only)
