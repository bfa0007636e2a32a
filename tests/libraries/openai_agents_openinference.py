"""The OpenAI Agents SDK under OpenInference."""

from __future__ import annotations

from openinference.instrumentation import TraceConfig
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._openai_agents import shared, stuck


def instrument(provider: TracerProvider) -> None:
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)


def loop_unseen(frame: Frame) -> None:
    hidden = TraceConfig(hide_inputs=True, hide_outputs=True)
    OpenAIAgentsInstrumentor().instrument(tracer_provider=frame.guard(LOOP), config=hidden)
    stuck(frame)


if __name__ == "__main__":
    main(loop_unseen, *shared(instrument))
