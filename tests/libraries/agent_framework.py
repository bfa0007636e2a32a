"""Microsoft's agent framework, instrumented by itself, alone and with the instrumentation of the OpenAI client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool
from agent_framework.observability import ChatTelemetryLayer, enable_instrumentation
from agent_framework.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._fake_openai import serve
from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._usual import STUCK, THREE_TURNS, Turn, record, script, tools, usual

USAGE = {
    "input_token_count": 100,
    "output_token_count": 20,
    "total_token_count": 120,
    "cache_read_input_token_count": 40,
    "reasoning_output_token_count": 5,
}


def instrument(provider: TracerProvider, *, content: bool = True) -> None:
    del provider  # the global one
    enable_instrumentation(enable_sensitive_data=content)


class Scripted(FunctionInvocationLayer, ChatTelemetryLayer, BaseChatClient):
    """Answers by a script: which turn is told by the number of answers since the user last spoke."""

    OTEL_PROVIDER_NAME = "openai"

    def __init__(self, frame: Frame, turns: list[Turn], *, recorded: bool) -> None:
        super().__init__()
        self._frame = frame
        self._turns = turns
        self._recorded = recorded

    def _inner_get_response(self, *, messages: list[Message], stream: bool = False, **_: Any) -> Any:
        del stream

        async def answer() -> ChatResponse:
            number = self._frame.asked()
            answered = 0
            for message in messages:
                answered = 0 if message.role == "user" else answered + (message.role == "assistant")
            parts = [
                Content.from_function_call(call_id=f"c{number}.{place}", name=name, arguments=json.dumps(arguments))
                for place, (name, arguments) in enumerate(script(self._turns, answered))
            ]
            if self._recorded:
                record()
            message = Message(role="assistant", contents=parts or ["done"])
            return ChatResponse(messages=[message], usage_details=USAGE, model="gpt-4o", response_id=f"r{number}")

        return answer()


def agent(frame: Frame, client: Any, *, watched: bool = False, check: bool = False) -> Agent:
    functions = tools(frame, watched=watched, check=check).values()
    made = [tool(approval_mode="never_require")(function) for function in functions]
    return Agent(client=client, name="researcher", tools=made)


def talk(made: Agent, *, rounds: int = 1, stream: bool = False) -> None:
    async def session() -> None:
        kept = made.create_session()
        for number in range(rounds):
            if stream:
                async for _ in made.run(f"question {number}", session=kept, stream=True):
                    pass
            else:
                await made.run(f"question {number}", session=kept)

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
    client = Scripted(frame, turns, recorded=recorded)
    talk(agent(frame, client, watched=watched, check=check), rounds=rounds)


def loop_unseen(frame: Frame) -> None:
    instrument(frame.guard(LOOP), content=False)
    ask(frame, STUCK)


def openai_client(frame: Frame, *, ids: str = "c{number}.{place}") -> OpenAIChatCompletionClient:
    turns = [
        [(name, ids.format(number=number, place=place), arguments) for place, (name, arguments) in enumerate(turn)]
        for number, turn in enumerate(THREE_TURNS)
    ]
    client = AsyncOpenAI(base_url=serve(frame, turns), api_key="none", max_retries=0)
    return OpenAIChatCompletionClient(model="gpt-4o", async_client=client)


def with_openai(frame: Frame) -> None:
    provider = frame.guard()
    instrument(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    talk(agent(frame, openai_client(frame)))


def its_openai_client(frame: Frame) -> None:
    instrument(frame.guard())
    talk(agent(frame, openai_client(frame)))


def openai_first(frame: Frame) -> None:
    provider = frame.guard()
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    instrument(provider)
    talk(agent(frame, openai_client(frame)))


def streaming(frame: Frame) -> None:
    provider = frame.guard()
    instrument(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    talk(agent(frame, openai_client(frame)), stream=True)


def reused_ids(frame: Frame) -> None:
    # Servers that number the calls of each answer from 0 are common.
    instrument(frame.guard())
    talk(agent(frame, openai_client(frame, ids="call_{place}")))


def sub_agent(frame: Frame) -> None:
    instrument(frame.guard(LOOP))
    # A tool that is an agent streams its answers.
    inner = agent(frame, openai_client(frame))
    asked: list[Turn] = [[("research", {"task": "hi"})]]
    boss = Scripted(frame, asked, recorded=False)
    talk(Agent(client=boss, name="boss", tools=[inner.as_tool(name="research")]))


if __name__ == "__main__":
    main(
        *usual(instrument, ask),
        loop_unseen,
        its_openai_client,
        with_openai,
        openai_first,
        streaming,
        reused_ids,
        sub_agent,
    )
