"""The OpenAI Agents SDK under its official instrumentation, which shows neither arguments nor model calls."""

from __future__ import annotations

import agents
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import main, record_content
from tests.libraries._openai_agents import shared


def instrument(provider: TracerProvider) -> None:
    record_content()
    # Without the SDK's own processor, which sends to OpenAI.
    agents.set_trace_processors([])
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)


if __name__ == "__main__":
    main(*shared(instrument))
