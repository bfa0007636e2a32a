"""LangGraph under the official instrumentation of langchain."""

from __future__ import annotations

from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import LOOP, Frame, main, record_content
from tests.libraries._langgraph import shared, stuck


def instrument(provider: TracerProvider) -> None:
    record_content()
    LangChainInstrumentor().instrument(tracer_provider=provider)


def loop_unseen(frame: Frame) -> None:
    LangChainInstrumentor().instrument(tracer_provider=frame.guard(LOOP))
    stuck(frame)


if __name__ == "__main__":
    main(loop_unseen, *shared(instrument))
