"""LangGraph under OpenLLMetry's instrumentation of langchain."""

from __future__ import annotations

import os

from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import LOOP, Frame, main
from tests.libraries._langgraph import THREE_TURNS, agent, ask, openai_model, shared, stuck


def instrument(provider: TracerProvider) -> None:
    LangchainInstrumentor().instrument(tracer_provider=provider)


def loop_unseen(frame: Frame) -> None:
    os.environ["TRACELOOP_TRACE_CONTENT"] = "false"
    instrument(frame.guard(LOOP))
    stuck(frame)


def with_its_openai(frame: Frame) -> None:
    # As Traceloop.init() does where both are installed.
    provider = frame.guard()
    instrument(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    ask(agent(frame, THREE_TURNS, model=openai_model(frame)))


if __name__ == "__main__":
    main(loop_unseen, with_its_openai, *shared(instrument))
