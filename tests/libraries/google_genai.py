"""The client of Google's models under its official instrumentation, calling functions by itself."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google import genai
from google.genai import types
from opentelemetry.instrumentation.google_genai import GoogleGenAiSdkInstrumentor
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from tests.libraries._frame import Frame, main
from tests.libraries._usual import THREE_TURNS, Turn, record, script, tools, usual

USAGE = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 15,
    "totalTokenCount": 120,
    "cachedContentTokenCount": 40,
    "thoughtsTokenCount": 5,
}


def instrument(provider: TracerProvider) -> None:
    GoogleGenAiSdkInstrumentor().instrument(tracer_provider=provider)


def serve(frame: Frame, turns: list[Turn]) -> str:
    """A server that answers by the script: which turn is told by the number of answers since the user last spoke."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
            del format, args

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = frame.asked()
            answered = 0
            for said in request["contents"]:
                spoke = any("text" in part for part in said["parts"]) and said["role"] == "user"
                answered = 0 if spoke else answered + (said["role"] == "model")
            calls = [{"functionCall": {"name": name, "args": args}} for name, args in script(turns, answered)]
            content = {"role": "model", "parts": calls or [{"text": "done"}]}
            answer = {
                "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
                "usageMetadata": USAGE,
                "modelVersion": "gemini-2.5-flash",
                "responseId": f"r{number}",
            }
            stream = "streamGenerateContent" in self.path
            text = f"data: {json.dumps(answer)}\n\n" if stream else json.dumps(answer)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
    stream: bool = False,
) -> None:
    functions = tools(frame, watched=watched, check=check)
    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=serve(frame, turns)))
    config = types.GenerateContentConfig(tools=list(functions.values()))
    for number in range(rounds):
        if stream:
            for _ in client.models.generate_content_stream(
                model="gemini-2.5-flash", contents=f"question {number}", config=config
            ):
                pass
        else:
            client.models.generate_content(model="gemini-2.5-flash", contents=f"question {number}", config=config)
        if recorded:
            for _ in range(frame.models):
                record("gemini-2.5-flash")


def by_hand(frame: Frame) -> None:
    # Each request is a span of its own where the client does not call the functions.
    instrument(frame.guard())
    functions = tools(frame, watched=True, check=False)
    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=serve(frame, THREE_TURNS)))
    config = types.GenerateContentConfig(
        tools=list(functions.values()), automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    said: list[Any] = [types.Content(role="user", parts=[types.Part(text="go")])]
    with lw.watch_run("mine"):
        while True:
            answer = client.models.generate_content(model="gemini-2.5-flash", contents=said, config=config)
            if not answer.function_calls:
                return
            results = []
            for call in answer.function_calls:
                try:
                    response = {"result": functions[call.name](**call.args)}
                except ValueError as fault:
                    response = {"error": str(fault)}
                results.append(types.Part.from_function_response(name=call.name, response=response))
            said += [answer.candidates[0].content, types.Content(role="user", parts=results)]


def streaming(frame: Frame) -> None:
    instrument(frame.guard())
    ask(frame, THREE_TURNS, stream=True)


if __name__ == "__main__":
    main(*usual(instrument, ask), streaming, by_hand)
