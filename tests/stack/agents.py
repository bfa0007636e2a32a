"""A process with agents in it, as a user's would be: decorated tools, OTLP as the environment says. Stdin is obeyed.

Each line is a JSON object, and is answered by one:

* ``{"do": "steady", "agent": "a", "calls": 3}``: from now on run after run of so many calls, ten a second; 0 ends it.
* ``{"do": "run", "agent": "a", "calls": 3, "same": true}``: one run; its stop reason, calls and seconds come back. With
  ``same`` it makes the same call each time.
* ``{"do": "begin", "agent": "a", "calls": 3}``: the same, and the run stays open. The next order, ``finish``, goes on
  with it and ends it.
* ``{"do": "counts"}``: runs and tool calls so far, by agent.

At the end of stdin it ends as a program does, and its telemetry with it.
"""

# ruff: noqa: T201 - stdout is the answer

from __future__ import annotations

import itertools
import json
import string
import sys
import threading
import time
from collections import Counter

from opentelemetry import trace

import otel_loopwatch as lw
from otel_loopwatch import semconv

PACE_S = 0.1

runs: Counter[str] = Counter()
calls: Counter[str] = Counter()
steady: dict[str, int] = {}
ended = threading.Event()
answers = itertools.count(1)


@lw.watch_tool
def search(query: str) -> str:
    """Say something new each time, and nothing that is masked as an id or a number."""
    letters, left, text = string.ascii_letters[6:26], next(answers), ""
    while left:
        left, digit = divmod(left, len(letters))
        text += letters[digit]
    # What other instrumentations do, and what the collector must not let through.
    trace.get_current_span().set_attribute(semconv.GEN_AI_TOOL_CALL_ARGUMENTS, f'{{"query": "{query}"}}')
    return f"about {text}"


@lw.watch_tool(kind="read")
def read(path: str) -> str:
    """Say the same each time."""
    return f"the text of {path} is what it was"


def make_calls(agent: str, count: int, *, same: bool = False) -> None:
    for number in range(count):
        read("notes") if same else search(f"{agent} {number}")


def one_run(agent: str, count: int, *, same: bool = False, stays_open: bool = False) -> dict:
    began = time.monotonic()
    with lw.watch_run(agent, on_abort="return") as run:
        make_calls(agent, count, same=same)
        if stays_open:
            print(json.dumps({}), flush=True)
            order = json.loads(sys.stdin.readline())
            began = time.monotonic()
            make_calls(agent, order["calls"], same=order.get("same", False))
    runs[agent] += 1
    calls[agent] += run.outcome.tool_calls
    return {
        "stop_reason": run.outcome.stop_reason,
        "tool_calls": run.outcome.tool_calls,
        "took_s": time.monotonic() - began,
    }


def go_on() -> None:
    while not ended.wait(PACE_S):
        for agent, count in list(steady.items()):
            one_run(agent, count)


def obey(order: dict) -> dict:
    if order["do"] == "steady":
        steady[order["agent"]] = order["calls"]
        if not order["calls"]:
            del steady[order["agent"]]
            # What was under way is counted.
            time.sleep(2 * PACE_S)
        return {}
    if order["do"] == "counts":
        return {"runs": runs, "calls": calls}
    return one_run(order["agent"], order["calls"], same=order.get("same", False), stays_open=order["do"] == "begin")


def main() -> None:
    configured = lw.configure(prometheus_port=0)
    print(json.dumps({"port": configured.prometheus_port}), flush=True)
    worker = threading.Thread(target=go_on)
    worker.start()
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)
    ended.set()
    worker.join()
    lw.shutdown()


if __name__ == "__main__":
    main()
