"""The OpenAI Agents SDK with a scripted model: an agent, and the cases that both of its instrumentations share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    Usage,
    function_tool,
)
from agents.items import TResponseInputItem
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from tests.libraries._fake_openai import Turn, serve
from tests.libraries._frame import DEMANDS, LOOP, Case, Frame, enforcement

Instrument = Callable[[TracerProvider], object]
AGENTS = 8
"""How many run at once, where several do."""

THREE_TURNS: list[Turn] = [[("search", "c1", {"q": "hi"}), ("search", "c2", {"q": "ho"})], [("boom", "c3", {})]]
STUCK: list[Turn] = [[("search", f"c{number}", {"q": "same"})] for number in range(DEMANDS)]
BUSY: list[Turn] = [[("search", f"c{number}", {"q": f"page {number}"})] for number in range(DEMANDS)]
AT_ONCE: list[Turn] = [[("search", f"c{number}", {"q": "same"}) for number in range(5)]]


def _output(turn: Turn) -> list[ResponseOutputItem]:
    if not turn:
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]
    return [
        ResponseFunctionToolCall(type="function_call", call_id=ident, name=name, arguments=json.dumps(arguments))
        for name, ident, arguments in turn
    ]


class Scripted(Model):
    """Answers by a script: which turn is told by the number of calls since the user last spoke."""

    def __init__(self, frame: Frame, turns: list[Turn], *, record: bool) -> None:
        self.asked: Callable[[], int] = frame.asked
        self.record = record
        self.turns = turns
        self.model = "gpt-4o"

    def _next(self, said: str | list[TResponseInputItem]) -> tuple[int, Turn]:
        number = self.asked()
        run = lw.current_run()
        if self.record and run is not None:
            run.record_usage(model="gpt-4o", input_tokens=100, output_tokens=20, cached_input_tokens=40)
        answered = seen = 0
        for item in said if isinstance(said, list) else ():
            if item.get("role") == "user":
                answered = seen = 0
            elif item.get("type") == "function_call":
                seen += 1
                if seen == len(self.turns[answered]):
                    answered, seen = answered + 1, 0
        turn = self.turns[answered] if answered < len(self.turns) else []
        # A conversation does not take the same id twice.
        return number, [(name, f"{ident}.{number}", arguments) for name, ident, arguments in turn]

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002
        number, turn = self._next(input)
        used = Usage(
            requests=1,
            input_tokens=100,
            output_tokens=20,
            total_tokens=120,
            input_tokens_details=InputTokensDetails(cached_tokens=40, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=5),
        )
        return ModelResponse(output=_output(turn), usage=used, response_id=f"resp_{number}")

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002 - the name is that of the base class
        *_: Any,
        **__: Any,
    ) -> AsyncIterator[Any]:
        number, turn = self._next(input)
        used = ResponseUsage(
            input_tokens=100,
            output_tokens=20,
            total_tokens=120,
            input_tokens_details=InputTokensDetails(cached_tokens=40, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=5),
        )
        response = Response(
            id=f"resp_{number}",
            created_at=1,
            model=self.model,
            object="response",
            output=_output(turn),
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
            usage=used,
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=1)


def chat_model(frame: Frame) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("gpt-4o", AsyncOpenAI(base_url=serve(frame, THREE_TURNS), api_key="none"))


def responses_model(frame: Frame) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-4o", AsyncOpenAI(base_url=serve(frame, THREE_TURNS), api_key="none"))


def agent(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    record: bool = False,
    model: Model | None = None,
) -> Agent[Any]:
    """An agent with the tools search and boom.

    Args:
        frame: Counts what runs.
        turns: The model's script.
        watched: True decorates search.
        check: True calls ``run.check()`` in search.
        record: True calls ``run.record_usage()`` in the model.
        model: Another model than the scripted one.
    """

    def search(q: str, k: int = 1) -> str:
        """Search."""
        if check:
            lw.current_run().check()
        frame.body("search")
        return f"result {q} {k}"

    def boom() -> str:
        """Fail."""
        frame.body("boom")
        raise ValueError("boom")

    return Agent(
        name="researcher",
        model=model or Scripted(frame, turns, record=record),
        tools=[function_tool(lw.watch_tool(search) if watched else search), function_tool(boom)],
    )


def ask(asked: Agent[Any], said: Any = "go") -> Any:
    return Runner.run_sync(asked, said, max_turns=DEMANDS + 2)


def stuck(frame: Frame, *, watched: bool = False, check: bool = False) -> None:
    ask(agent(frame, STUCK, watched=watched, check=check))


async def streamed(asked: Agent[Any]) -> None:
    running = Runner.run_streamed(asked, "go")
    async for _ in running.stream_events():
        pass


def shared(instrument: Instrument) -> list[Case]:
    """The cases of one instrumentation, or of several.

    Args:
        instrument: Sets them up on a provider.
    """

    def standard(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, THREE_TURNS))

    def chat(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, THREE_TURNS, model=chat_model(frame)))

    def responses(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, THREE_TURNS, model=responses_model(frame)))

    def responses_with_openai(frame: Frame) -> None:
        provider = frame.guard()
        instrument(provider)
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        ask(agent(frame, THREE_TURNS, model=responses_model(frame)))

    def loop(frame: Frame) -> None:
        instrument(frame.guard())
        stuck(frame)

    def busy(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        ask(agent(frame, BUSY))

    def two_turns(frame: Frame) -> None:
        instrument(frame.guard())
        asked = agent(frame, THREE_TURNS)
        first = ask(asked)
        ask(asked, [*first.to_input_list(), {"role": "user", "content": "more"}])

    def watched_tool(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, THREE_TURNS, watched=True))

    def usage_recorded(frame: Frame) -> None:
        instrument(frame.guard())
        with lw.watch_run("mine"):
            ask(agent(frame, THREE_TURNS, record=True))

    def in_watch_run(frame: Frame) -> None:
        instrument(frame.guard())
        with lw.watch_run("mine"):
            ask(agent(frame, THREE_TURNS, watched=True))

    def streaming(frame: Frame) -> None:
        instrument(frame.guard())
        asyncio.run(streamed(agent(frame, THREE_TURNS)))

    def streaming_chat(frame: Frame) -> None:
        instrument(frame.guard())
        asyncio.run(streamed(agent(frame, THREE_TURNS, model=chat_model(frame))))

    def sub_agent(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        research = agent(frame, THREE_TURNS).as_tool("research", "Have it researched.")
        turns: list[Turn] = [[("research", "o1", {"input": "hi"})]]
        ask(Agent(name="boss", model=Scripted(frame, turns, record=False), tools=[research]))

    def hand_off(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        turns: list[Turn] = [[("transfer_to_researcher", "o1", {})]]
        ask(Agent(name="boss", model=Scripted(frame, turns, record=False), handoffs=[agent(frame, THREE_TURNS)]))

    def parallel(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        ask(agent(frame, AT_ONCE))

    def unsampled(frame: Frame) -> None:
        instrument(frame.guard(LOOP, sampled=False))
        with frame.caller():
            stuck(frame, watched=True)

    def in_tasks(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        asked = agent(frame, THREE_TURNS)

        async def all_of_them() -> None:
            await asyncio.gather(*(Runner.run(asked, "go") for _ in range(AGENTS)))

        asyncio.run(all_of_them())

    def with_openai(frame: Frame) -> None:
        provider = frame.guard()
        instrument(provider)
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        ask(agent(frame, THREE_TURNS, model=chat_model(frame)))

    def openai_first(frame: Frame) -> None:
        provider = frame.guard()
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        instrument(provider)
        ask(agent(frame, THREE_TURNS, model=chat_model(frame)))

    return [
        standard,
        chat,
        responses,
        responses_with_openai,
        loop,
        busy,
        two_turns,
        watched_tool,
        usage_recorded,
        in_watch_run,
        streaming,
        streaming_chat,
        sub_agent,
        hand_off,
        parallel,
        unsampled,
        in_tasks,
        with_openai,
        openai_first,
        *enforcement(instrument, stuck),
    ]
