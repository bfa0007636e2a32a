"""LangGraph with a scripted model: an agent, and the cases that both of its instrumentations share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry import trace
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider

import otel_loopwatch as lw
from tests.libraries._fake_openai import serve
from tests.libraries._frame import DEMANDS, LOOP, Case, Frame, enforcement

Turn = list[dict[str, Any]]
USAGE = {
    "input_tokens": 100,
    "output_tokens": 20,
    "total_tokens": 120,
    "input_token_details": {"cache_read": 40},
    "output_token_details": {"reasoning": 5},
}


def call(name: str, ident: str, **arguments: object) -> dict[str, Any]:
    return {"name": name, "args": arguments, "id": ident, "type": "tool_call"}


Instrument = Callable[[TracerProvider], object]
AGENTS = 8
"""How many run at once, where several do."""

THREE_TURNS: list[Turn] = [[call("search", "c1", q="hi"), call("search", "c2", q="ho")], [call("boom", "c3")]]
STUCK: list[Turn] = [[call("search", f"c{number}", q="same")] for number in range(DEMANDS)]
BUSY: list[Turn] = [[call("search", f"c{number}", q=f"page {number}")] for number in range(DEMANDS)]
AT_ONCE: list[Turn] = [[call("search", f"c{number}", q="same") for number in range(5)]]
SOFT: list[Turn] = [[call("soft", "c1")]]


class Scripted(BaseChatModel):
    """Answers by a script: which turn is told by the number of answers since the user last spoke."""

    asked: Callable[[], int]
    turns: list[Turn]
    record: bool = False
    model_name: str = "gpt-4o"
    provider: str = "openai"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

    def _get_ls_params(self, stop: list[str] | None = None, **settings: Any) -> Any:
        # Else the provider would be the name of this class.
        return {**super()._get_ls_params(stop, **settings), "ls_provider": self.provider}

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        del tools, settings
        return self

    def _next(self, messages: list[BaseMessage]) -> dict[str, Any]:
        number = self.asked()
        run = lw.current_run()
        if self.record and run is not None:
            run.record_usage(model="gpt-4o", input_tokens=100, output_tokens=20, cached_input_tokens=40)
        answered = 0
        for message in messages:
            answered = 0 if message.type == "human" else answered + (message.type == "ai")
        turn = self.turns[answered] if answered < len(self.turns) else []
        # Real ids are unique.
        turn = [{**made, "id": f"{made['id']}.{number}"} for made in turn]
        return {
            "content": "" if turn else "done",
            "tool_calls": turn,
            "usage_metadata": USAGE,
            "response_metadata": {"model_name": self.model_name},
            "id": f"r{number}",
        }

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        message = AIMessage(**self._next(messages))
        return ChatResult(generations=[ChatGeneration(message=message)], llm_output={"model_name": self.model_name})

    def _stream(self, messages: list[BaseMessage], *_: Any, run_manager: Any = None, **__: Any) -> Iterator[Any]:
        said = self._next(messages)
        yield ChatGenerationChunk(message=AIMessageChunk(content="", id=said["id"]))
        chunk = ChatGenerationChunk(message=AIMessageChunk(**said))
        if run_manager:
            run_manager.on_llm_new_token(str(chunk.text), chunk=chunk)
        yield chunk


class AnswerFailures(AgentMiddleware):
    """Tells the model of a tool that failed; by itself, LangGraph ends the run. An abort is none of its business."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except ValueError as fault:
            return self._answer(request, fault)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except ValueError as fault:
            return self._answer(request, fault)

    def _answer(self, request: Any, fault: ValueError) -> ToolMessage:
        return ToolMessage(str(fault), tool_call_id=request.tool_call["id"], status="error")


def agent(
    frame: Frame,
    turns: list[Turn],
    *,
    watched: bool = False,
    check: bool = False,
    record: bool = False,
    model: Any = None,
    **settings: Any,
) -> Any:
    """A ``create_agent`` graph with the tools search, boom (raises) and soft (fails, and says so to the model).

    Args:
        frame: Counts what runs.
        turns: The model's script.
        watched: True decorates search.
        check: True calls ``run.check()`` in search.
        record: True calls ``run.record_usage()`` in the model.
        model: Another model than the scripted one.
        settings: Others of ``create_agent``.
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

    def soft() -> str:
        """Fail."""
        frame.body("soft")
        raise ToolException("soft")

    soft_tool = tool(soft)
    soft_tool.handle_tool_error = True
    return create_agent(
        model or Scripted(asked=frame.asked, turns=turns, record=record),
        tools=[tool(lw.watch_tool(search) if watched else search), tool(boom), soft_tool],
        name="researcher",
        middleware=[AnswerFailures()],
        **settings,
    )


GO = {"messages": [("user", "go")]}


def config(thread: str = "t1") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def ask(graph: Any, thread: str = "t1") -> Any:
    return graph.invoke(GO, config=config(thread))


def openai_model(frame: Frame) -> ChatOpenAI:
    turns = [[(made["name"], made["id"], made["args"]) for made in turn] for turn in THREE_TURNS]
    return ChatOpenAI(model="gpt-4o", base_url=serve(frame, turns), api_key="none", stream_usage=True)


def stuck(frame: Frame, *, watched: bool = False, check: bool = False) -> None:
    ask(agent(frame, STUCK, watched=watched, check=check))


def shared(instrument: Instrument) -> list[Case]:
    """The cases of one instrumentation, or of several.

    Args:
        instrument: Sets them up on a provider.
    """

    def standard(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, THREE_TURNS))

    def strange_provider(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, [], model=Scripted(asked=frame.asked, turns=[], provider="a proxy of ours")))

    def soft_error(frame: Frame) -> None:
        instrument(frame.guard())
        ask(agent(frame, SOFT))

    def loop(frame: Frame) -> None:
        instrument(frame.guard())
        stuck(frame)

    def busy(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        ask(agent(frame, BUSY))

    def two_turns(frame: Frame) -> None:
        instrument(frame.guard())
        graph = agent(frame, THREE_TURNS, checkpointer=InMemorySaver())
        ask(graph)
        ask(graph)

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
        for _ in agent(frame, THREE_TURNS).stream(GO, config=config(), stream_mode="messages"):
            pass

    def asynchronous(frame: Frame) -> None:
        instrument(frame.guard())
        asyncio.run(agent(frame, THREE_TURNS).ainvoke(GO, config=config()))

    def sub_agent(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        inner = agent(frame, THREE_TURNS)

        def research(topic: str) -> str:
            """Have it researched."""
            frame.body("research")
            return str(inner.invoke({"messages": [("user", topic)]})["messages"][-1].content)

        turns = [[call("research", "o1", topic="hi")]]
        ask(create_agent(Scripted(asked=frame.asked, turns=turns), tools=[tool(research)], name="boss"))

    def parallel(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        ask(agent(frame, AT_ONCE))

    def unsampled(frame: Frame) -> None:
        instrument(frame.guard(LOOP, sampled=False))
        with frame.caller():
            stuck(frame, watched=True)

    def in_threads(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        graph = agent(frame, THREE_TURNS)
        with ThreadPoolExecutor(AGENTS) as pool:
            list(pool.map(lambda number: ask(graph, f"t{number}"), range(AGENTS)))

    def in_tasks(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        graph = agent(frame, THREE_TURNS)

        async def all_of_them() -> None:
            await asyncio.gather(*(graph.ainvoke(GO, config=config(f"t{number}")) for number in range(AGENTS)))

        asyncio.run(all_of_them())

    def in_requests(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        graph = agent(frame, THREE_TURNS)

        async def request(number: int) -> None:
            with trace.get_tracer("server").start_as_current_span("POST /ask"):
                await graph.ainvoke(GO, config=config(f"t{number}"))

        async def all_of_them() -> None:
            await asyncio.gather(*(request(number) for number in range(AGENTS)))

        asyncio.run(all_of_them())

    def with_openai(frame: Frame) -> None:
        provider = frame.guard()
        instrument(provider)
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        ask(agent(frame, THREE_TURNS, model=openai_model(frame)))

    def openai_first(frame: Frame) -> None:
        provider = frame.guard()
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        instrument(provider)
        ask(agent(frame, THREE_TURNS, model=openai_model(frame)))

    return [
        standard,
        strange_provider,
        soft_error,
        loop,
        busy,
        two_turns,
        watched_tool,
        usage_recorded,
        in_watch_run,
        streaming,
        asynchronous,
        sub_agent,
        parallel,
        unsampled,
        in_threads,
        in_tasks,
        in_requests,
        with_openai,
        openai_first,
        *enforcement(instrument, stuck),
    ]
