"""A server on this machine that speaks OpenAI's API by a script: chat completions, streaming too, and responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.libraries._frame import Frame

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 40},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
"""What every answer says it used."""

Turn = list[tuple[str, str, dict[str, Any]]]
"""The tool calls of one answer: name, id, arguments. An empty one is an answer in words."""


def serve(frame: Frame, turns: list[Turn], *, model: str = "gpt-4o-2024-08-06") -> str:
    """Serve *turns*: which one is told by the number of answers that a request brings along; then "done".

    Args:
        frame: Counts the requests.
        turns: The script.
        model: The model that answers, whichever was asked for.

    Returns:
        The base URL. The server ends with its process.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
            del format, args

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = frame.asked()
            if self.path.endswith("/responses"):
                turn = turn_of(turns, answered_in(request["input"], turns))
                self.answer("application/json", json.dumps(response(turn) | {"id": f"resp_{number}", "model": model}))
                return
            turn = turn_of(turns, sum(message["role"] == "assistant" for message in request["messages"]))
            whole = {"id": f"chatcmpl-{number}", "created": 1, "model": model}
            if request.get("stream"):
                with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
                lines = [f"data: {json.dumps(whole | chunk)}\n\n" for chunk in chunks(turn, with_usage=with_usage)]
                self.answer("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))
            else:
                self.answer("application/json", json.dumps(whole | completion(turn)))

        def answer(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def turn_of(turns: list[Turn], answered: int) -> Turn:
    return turns[answered] if answered < len(turns) else []


def answered_in(said: str | list[dict[str, Any]], turns: list[Turn]) -> int:
    """How many of *turns* a request of the responses API brings along: it lists calls, not messages that hold them."""
    calls = 0 if isinstance(said, str) else sum(item.get("type") == "function_call" for item in said)
    answered = 0
    while answered < len(turns) and calls >= len(turns[answered]):
        calls -= len(turns[answered])
        answered += 1
    return answered


def response(turn: Turn) -> dict[str, Any]:
    text = {"type": "output_text", "text": "done", "annotations": []}
    output: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc_{ident}",
            "call_id": ident,
            "name": name,
            "arguments": json.dumps(arguments),
        }
        for name, ident, arguments in turn
    ] or [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}]
    used = {
        "input_tokens": USAGE["prompt_tokens"],
        "input_tokens_details": USAGE["prompt_tokens_details"],
        "output_tokens": USAGE["completion_tokens"],
        "output_tokens_details": USAGE["completion_tokens_details"],
        "total_tokens": USAGE["total_tokens"],
    }
    settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"object": "response", "created_at": 1, "status": "completed", "output": output, "usage": used, **settings}


def tool_calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {"id": ident, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, ident, arguments in turn
    ]


def completion(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if turn else "done"}
    if turn:
        message["tool_calls"] = tool_calls(turn)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn else "stop", "logprobs": None}
    return {"object": "chat.completion", "choices": [choice], "usage": USAGE}


def chunks(turn: Turn, *, with_usage: bool) -> Iterator[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if turn else ""}]
    if turn:
        deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(tool_calls(turn))]
    else:
        deltas += [{"content": "do"}, {"content": "ne"}]
    for delta in deltas:
        yield {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if turn else "stop"}
    yield {"object": "chat.completion.chunk", "choices": [last]}
    if with_usage:
        yield {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}
