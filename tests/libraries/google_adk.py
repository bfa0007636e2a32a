"""Google's ADK, instrumented by itself, alone and with OpenInference."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from openinference.instrumentation.google_adk import GoogleADKInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._usual import BUSY, STUCK, THREE_TURNS, Turn, record, script, tools, usual

USAGE = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=100,
    candidates_token_count=15,
    total_token_count=120,
    cached_content_token_count=40,
    thoughts_token_count=5,
)


def instrument(provider: TracerProvider) -> None:
    del provider  # the global one


class Scripted(BaseLlm):
    """Answers by a script: which turn is told by the number of answers since the user last spoke."""

    frame: Any
    turns: list[Turn]
    recorded: bool

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        self.frame.asked()
        answered = 0
        for said in llm_request.contents:
            spoke = said.role == "user" and any(part.text for part in said.parts)
            answered = 0 if spoke else answered + (said.role == "model")
        calls = [types.FunctionCall(name=name, args=arguments) for name, arguments in script(self.turns, answered)]
        parts = [types.Part(function_call=call) for call in calls] or [types.Part(text="done")]
        if self.recorded:
            record("gemini-2.5-flash")
        if stream:
            # What was used is said with each part, as a sum so far.
            yield LlmResponse(content=types.Content(role="model", parts=parts), partial=True, usage_metadata=USAGE)
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=USAGE)


def agent(
    frame: Frame, turns: list[Turn], *, watched: bool = False, check: bool = False, recorded: bool = False
) -> LlmAgent:
    functions = tools(frame, watched=watched, check=check)
    boom = functions["boom"]

    def forgiving() -> dict[str, str]:
        """A tool that raises ends the run of ADK, so this one says how it failed."""
        try:
            return boom()
        except ValueError as fault:
            return {"error": str(fault)}

    forgiving.__name__ = "boom"
    model = Scripted(model="gemini-2.5-flash", frame=frame, turns=turns, recorded=recorded)
    return LlmAgent(name="researcher", model=model, tools=[functions["search"], forgiving])


def talk(made: LlmAgent, *, rounds: int = 1, stream: bool = False) -> None:
    async def session() -> None:
        runner = InMemoryRunner(agent=made, app_name="app")
        kept = await runner.session_service.create_session(app_name="app", user_id="u")
        config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
        for number in range(rounds):
            said = types.Content(role="user", parts=[types.Part(text=f"question {number}")])
            async for _ in runner.run_async(user_id="u", session_id=kept.id, new_message=said, run_config=config):
                pass

    asyncio.run(session())


def ask(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    recorded: bool = False,
    rounds: int = 1,
) -> None:
    talk(agent(frame, turns, watched=watched, check=check, recorded=recorded), rounds=rounds)


def loop_unseen(frame: Frame) -> None:
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "NO_CONTENT"
    frame.guard(LOOP)
    ask(frame, STUCK)


def streaming(frame: Frame) -> None:
    frame.guard()
    talk(agent(frame, THREE_TURNS), stream=True)


def legacy_schema(frame: Frame) -> None:
    # As its versions 1 did: arguments and results are recorded by default, under names of its own.
    del os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"]
    del os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"]
    os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = "1"
    frame.guard(LOOP)
    ask(frame, STUCK)


def legacy_schema_unseen(frame: Frame) -> None:
    os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = "1"
    os.environ["ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"] = "false"
    frame.guard(LOOP)
    ask(frame, BUSY)


def sub_agent(frame: Frame) -> None:
    frame.guard(LOOP)
    asked: list[Turn] = [[("researcher", {"request": "hi"})]]
    model = Scripted(model="gemini-2.5-flash", frame=frame, turns=asked, recorded=False)
    talk(LlmAgent(name="boss", model=model, tools=[AgentTool(agent(frame, THREE_TURNS))]))


def with_openinference(frame: Frame) -> None:
    GoogleADKInstrumentor().instrument(tracer_provider=frame.guard())
    ask(frame, THREE_TURNS)


if __name__ == "__main__":
    main(
        *usual(instrument, ask),
        loop_unseen,
        streaming,
        legacy_schema,
        legacy_schema_unseen,
        sub_agent,
        with_openinference,
    )
