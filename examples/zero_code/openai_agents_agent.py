# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents", "openinference-instrumentation-openai-agents"]
# ///
"""A research agent that reads page after page, at a price. Offline: an OpenAI API of this process answers by script."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI

PAGES = 6


class ScriptedApi(BaseHTTPRequestHandler):
    """The one endpoint that the agent calls. Every page that was read is sent along again, and paid for again."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        read = sum(message["role"] == "tool" for message in request["messages"])
        message: dict = {"role": "assistant", "content": "Everything that they say."}
        if read < PAGES:
            function = {"name": "read_page", "arguments": json.dumps({"number": read + 1})}
            message = {
                "role": "assistant",
                "tool_calls": [{"id": f"call_{read}", "type": "function", "function": function}],
            }
        answer = {
            "id": f"chatcmpl-{read}",
            "object": "chat.completion",
            "created": 0,
            "model": "gpt-4o",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 2_000 + 9_000 * read,
                "completion_tokens": 150,
                "total_tokens": 2_150 + 9_000 * read,
            },
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        """Say nothing."""


@function_tool
def read_page(number: int) -> str:
    """Read a page of the report."""
    return f"Page {number}: " + "words and figures. " * 20


if __name__ == "__main__":
    api = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedApi)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{api.server_port}/v1", api_key="none")
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
    agent = Agent(name="researcher", instructions="Read the whole report.", model=model, tools=[read_page])
    print(Runner.run_sync(agent, "What does the report say?").final_output)
    api.shutdown()
