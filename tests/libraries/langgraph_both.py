"""LangGraph under OpenInference and the official instrumentation at once, which make two traces of one run."""

from __future__ import annotations

from openinference.instrumentation.langchain import LangChainInstrumentor as OpenInference
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor as Official
from opentelemetry.sdk.trace import TracerProvider

from tests.libraries._frame import Frame, main, record_content
from tests.libraries._langgraph import THREE_TURNS, agent, ask, shared


def instrument(provider: TracerProvider) -> None:
    record_content()
    OpenInference().instrument(tracer_provider=provider)
    Official().instrument(tracer_provider=provider)


def official_first(frame: Frame) -> None:
    provider = frame.guard()
    record_content()
    Official().instrument(tracer_provider=provider)
    OpenInference().instrument(tracer_provider=provider)
    ask(agent(frame, THREE_TURNS))


# Of several agents at once, asynchronous and with nothing around them, nothing says which two traces are one run: the
# callbacks run in threads of a pool. A span of the server around each (in_requests), or watch_run, says it.
CASES = [case for case in shared(instrument) if case.__name__ != "in_tasks"]

if __name__ == "__main__":
    main(official_first, *CASES)
