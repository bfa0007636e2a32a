"""The OpenAI Agents SDK under OpenInference and its official instrumentation at once."""

from __future__ import annotations

import agents
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor as OpenInference
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor as Official
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import Frame, main, record_content
from tests.libraries._openai_agents import THREE_TURNS, agent, ask, chat_model, shared


def instrument(provider: TracerProvider) -> None:
    record_content()
    OpenInference().instrument(tracer_provider=provider)
    Official().instrument(tracer_provider=provider)


def official_first(frame: Frame) -> None:
    record_content()
    agents.set_trace_processors([])
    provider = frame.guard()
    Official().instrument(tracer_provider=provider)
    # By default it would take the place of all others.
    OpenInference().instrument(tracer_provider=provider, exclusive_processor=False)
    ask(agent(frame, THREE_TURNS, model=chat_model(frame)))


if __name__ == "__main__":
    main(official_first, *shared(instrument))
