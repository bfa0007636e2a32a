"""What other libraries' spans cost the processor, and that its memory is bounded.

    python benchmarks/foreign.py [--quick] [--profile KIND]

``on_start`` and ``on_end`` of one span, in microseconds of thread CPU time and against the yardstick (a span made by
hand and exported by a BatchSpanProcessor); then the memory after many traces whose spans never end.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
import tracemalloc
from collections.abc import Callable

from harness import dropping_provider
from opentelemetry import trace
from opentelemetry.sdk.trace import Span, TracerProvider

from otel_loopwatch.processor import LoopwatchSpanProcessor

PER_TRACE = 10
KINDS: dict[str, Callable[[int], dict[str, object]]] = {
    "nothing of an agent": lambda _: {
        "http.request.method": "GET",
        "url.full": "http://h/p",
        "server.address": "h",
        "server.port": 80,
        "http.response.status_code": 200,
    },
    "model call": lambda _: {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
    },
    "tool call, shown": lambda number: {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": f"call_{number}",
        "gen_ai.tool.call.arguments": json.dumps({"query": f"refunds {number}", "limit": 10}),
        "gen_ai.tool.call.result": f"{number} pages found",
    },
    "tool call, not shown": lambda _: {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
}
Trace = tuple[Span, list[Span]]


def traces(kind: str, spans: int) -> list[Trace]:
    """Runs of ten spans of *kind* below an agent's, made outside the clock."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("framework")
    made = []
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"}
    for _ in range(spans // PER_TRACE):
        root = tracer.start_span("invoke_agent a", attributes=agent)
        above = trace.set_span_in_context(root)
        made.append((root, [tracer.start_span(kind, above, attributes=KINDS[kind](n)) for n in range(PER_TRACE)]))
    return made


def walk(processor: LoopwatchSpanProcessor, runs: list[Trace], *, end_roots: bool = True) -> None:
    for root, below in runs:
        processor.on_start(root)
        for span in below:
            processor.on_start(span)
            processor.on_end(span)
        if end_roots:
            processor.on_end(root)


def yardstick_us(rounds: int) -> float:
    tracer = dropping_provider().get_tracer("yardstick")
    attributes = KINDS["tool call, shown"](1)
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(1000):
            with tracer.start_as_current_span("execute_tool search", attributes=attributes):
                pass
        best = min(best, time.thread_time() - began)
    return best * 1e3


def us_a_span(kind: str, spans: int, rounds: int) -> float:
    best = float("inf")
    processor = LoopwatchSpanProcessor()
    for _ in range(rounds):
        runs = traces(kind, spans)
        gc.collect()
        began = time.thread_time()
        walk(processor, runs)
        best = min(best, time.thread_time() - began)
    processor.shutdown()
    return best / (spans + spans // PER_TRACE) * 1e6


def memory_mb(kind: str, spans: int, looks: int) -> list[float]:
    """MB held after each part of *spans*, in traces whose root never ends."""
    processor = LoopwatchSpanProcessor()
    tracemalloc.start()
    held = []
    for _ in range(looks):
        walk(processor, traces(kind, spans // looks), end_roots=False)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0] / 1e6)
    tracemalloc.stop()
    processor.shutdown()
    return held


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--profile", choices=KINDS)
    asked = options.parse_args()
    spans, rounds = (2_000, 3) if asked.quick else (10_000, 9)
    if asked.profile:
        processor, runs = LoopwatchSpanProcessor(), traces(asked.profile, spans)
        profile = cProfile.Profile()
        profile.runcall(walk, processor, runs)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    yardstick = yardstick_us(rounds)
    print(f"yardstick {yardstick:.1f} us")
    for kind in KINDS:
        us = us_a_span(kind, spans, rounds)
        print(f"{kind:22} {us:6.1f} us  {us / yardstick:5.2f} of the yardstick  {1e6 / us:9,.0f} spans/s of CPU")
    total = 100_000 if asked.quick else 1_000_000
    held = memory_mb("nothing of an agent", total, 10)
    print(f"{total:,} spans of {total // PER_TRACE:,} traces that never end, MB held after each tenth:")
    print("  ".join(f"{mb:.1f}" for mb in held))


if __name__ == "__main__":
    main()
