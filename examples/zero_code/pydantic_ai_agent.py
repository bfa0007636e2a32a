# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim"]
# ///
"""A support agent that asks the same of its one tool until its model gives up. Offline: the model is a script."""

from pydantic_ai import Agent, ModelMessage, ModelResponse, RequestUsage, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

PATIENCE = 7


def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """What a real model would answer: the customer is not found, so it looks again, and again."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    usage = RequestUsage(input_tokens=900 + 60 * turn, output_tokens=25)
    if turn < PATIENCE:
        again = ToolCallPart("find_customer", {"name": "A. Nonym"}, tool_call_id=f"call_{turn}")
        return ModelResponse(parts=[again], usage=usage)
    return ModelResponse(parts=[TextPart("I cannot find this customer.")], usage=usage)


agent = Agent(FunctionModel(think, model_name="gpt-4o"), name="support")


@agent.tool_plain
def find_customer(name: str) -> str:
    """Look a customer up by name."""
    return f"No customer is called {name}."


if __name__ == "__main__":
    print(agent.run_sync("Refund the last order of A. Nonym.").output)
