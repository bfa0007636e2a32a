# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain", "langgraph", "opentelemetry-instrumentation-genai-langchain"]
# ///
"""A travel agent that asks two tools once each and answers. Offline: the model is a script."""

from langchain.agents import create_agent
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

CALLS = [("weather", {"city": "Lisbon"}), ("trains", {"start": "Porto", "end": "Lisbon"})]


class ScriptedModel(BaseChatModel):
    """What a real model would answer, one tool after the other."""

    model_name: str = "gpt-4o-mini"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, stop: list[str] | None = None, **settings: object) -> LangSmithParams:
        return {**super()._get_ls_params(stop, **settings), "ls_provider": "openai"}

    def bind_tools(self, *_: object, **__: object) -> "ScriptedModel":
        return self

    def _generate(self, messages: list[BaseMessage], *_: object, **__: object) -> ChatResult:
        turn = sum(message.type == "tool" for message in messages)
        calls = [{"name": name, "args": args, "id": f"call_{turn}"} for name, args in CALLS[turn : turn + 1]]
        usage = {"input_tokens": 400 + 80 * turn, "output_tokens": 30, "total_tokens": 430 + 80 * turn}
        answer = AIMessage(
            "" if calls else "Sun all day; the next train leaves at 9:12.",
            tool_calls=calls,
            usage_metadata=usage,
            response_metadata={"model_name": self.model_name},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: sun, 24 degrees"


@tool
def trains(start: str, end: str) -> str:
    """Tell the next train."""
    return f"{start} to {end}: 9:12"


if __name__ == "__main__":
    agent = create_agent(ScriptedModel(), tools=[weather, trains], name="traveller")
    said = agent.invoke({"messages": [("user", "How do I get to Lisbon, and will it rain?")]})
    print(said["messages"][-1].content)
