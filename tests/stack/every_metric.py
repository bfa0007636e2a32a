"""A process that says something of every metric, on its page and by OTLP as the environment says, until stdin ends."""

from __future__ import annotations

import sys
import threading
from decimal import Decimal

from opentelemetry import trace

import otel_loopwatch as lw
from otel_loopwatch import metrics
from otel_loopwatch.calls import Usage

ended = threading.Event()


def go_on(tracer: trace.Tracer) -> None:
    while not ended.wait(0.1):
        with tracer.start_as_current_span("request"), lw.watch_run("support"):
            pass


def main() -> None:
    configured = lw.configure(prometheus_port=0)

    @lw.watch_tool
    def search(query: str) -> str:
        return query

    policy = lw.Policy(budgets=lw.Budgets(max_tool_calls=10))
    tracer = trace.get_tracer("application")
    with tracer.start_as_current_span("request"), lw.watch_run("support", policy=policy):
        search("one")
    metrics.tool_call("support", "search", "ok", repeated=True)
    metrics.loop_detected("support", "search", "repeat", "hint")
    metrics.hint_ignored("support", "search")
    metrics.charged("support", Usage(model="gpt-5", input_tokens=100, output_tokens=5, cost_usd=Decimal("0.25")))
    metrics.usage_missing("gpt-5")
    metrics.usage_unpriced("gpt-5")
    metrics.usage_duplicate("spans")
    metrics.untracked("support")
    metrics.spans_evicted(1)
    metrics.export_error("traces")
    metrics.guard_error("admit")
    for number in range(metrics.semconv.MAX_SERIES + 1):
        metrics.usage_missing(f"model-{number}")
    # Open runs have gauges; this one stays.
    with lw.watch_run("support", policy=policy):
        search("two")
        # An exemplar is in one report only, and a scrape may miss that one.
        threading.Thread(target=go_on, args=(tracer,), daemon=True).start()
        print(configured.prometheus_port, flush=True)  # noqa: T201 - for whoever started it
        sys.stdin.read()
        ended.set()
    lw.shutdown()


if __name__ == "__main__":
    main()
