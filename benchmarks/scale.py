"""What many runs and long runs cost: rows of DESIGN 7, from one run.

python benchmarks/scale.py [--quick] [--json] [--profile ROW]
"""

from __future__ import annotations

import argparse
import contextvars
import gc
import logging
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness import YARDSTICK, Case, Row, Timed, arguments, cpu_seconds, measure, profile, search, show
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import otel_loopwatch as lw
from otel_loopwatch import metrics

SHORT_RUN = 20
OPEN_RUNS = 10_000
LONG_RUN = 1_000_000
QUICK_LONG_RUN = 50_000
WINDOW = 500
"""Calls timed at once along a long run: half of the fingerprints that it keeps, so the first two fit."""
WINDOWS = 8
COLLECTIONS = 10
IMPORTS = 10
REFERENCE_SPAN_S = 38e-6
"""The yardstick on the machine for which DESIGN 7 gives the milliseconds of a collection."""

SDK = "import opentelemetry.sdk.trace.export, opentelemetry.sdk.metrics.export"
OURS = f"{SDK}, otel_loopwatch"

watched = lw.watch_tool(search)


def open_run(calls: int) -> lw.Run:
    """A run of *calls* different calls that stays open. Without an SDK: a span's memory is the SDK's."""

    def begin() -> lw.Run:
        run = lw.watch_run("benchmark").__enter__()
        for start in range(0, calls, WINDOW):
            for kwargs in arguments(min(WINDOW, calls - start), start):
                watched(**kwargs)
        return run

    # In a context of its own: it would be the parent of the next one else.
    return contextvars.copy_context().run(begin)


def bytes_of(runs: int, calls: int) -> tuple[float, list[lw.Run]]:
    """Bytes that one of *runs* open runs holds, and the runs."""
    open_run(calls).close()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        opened = [open_run(calls) for _ in range(runs)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / runs, opened


def memory() -> Iterator[Row]:
    """Long open runs."""
    for calls in (1_000, 10_000):
        size, opened = bytes_of(3, calls)
        for run in opened:
            run.close()
        yield Row("memory", f"open run of {calls:,} calls", size / 1e3, 300, unit="kB")


def many(count: int, span_s: float) -> Iterator[Row]:
    """Many short open runs: their memory, and a collection over them."""
    size, opened = bytes_of(count, SHORT_RUN)
    yield Row("memory", f"open run of {SHORT_RUN} calls", size / 1e3, 10, unit="kB")
    yield Row(
        "memory", f"{count:,} open runs of {SHORT_RUN} calls", size * count / 1e6, 100 * count / OPEN_RUNS, unit="MB"
    )
    for way, timed in collections():
        best = min(cpu_seconds(timed) for _ in range(COLLECTIONS))
        # The ceiling is in spans: a slower machine is slower in both.
        ceiling = 20e-3 / REFERENCE_SPAN_S * count / OPEN_RUNS
        yield Row(
            "collection",
            f"a collection over {count:,} open runs, {way}",
            best / span_s,
            ceiling,
            ceiling / 2,
            unit="spans",
            note=f"{best * 1e3:.1f} ms",
        )
    for run in opened:
        run.close()


def collections() -> Iterator[tuple[str, Timed]]:
    """The two ways in which our metrics are collected."""
    registry = CollectorRegistry()
    registry.register(metrics.prometheus_collector())
    yield "prometheus_client", lambda: generate_latest(registry)
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    metrics.instrument(provider)
    yield "OpenTelemetry", reader.get_metrics_data


def long_run(calls: int) -> Iterator[Row]:
    """One run of very many calls: is the last one as cheap as the first?"""
    step = max(calls // 100, WINDOW)

    def window(start: int) -> float:
        batch = arguments(WINDOW, start)

        def call_all() -> None:
            for kwargs in batch:
                watched(**kwargs)

        return cpu_seconds(call_all) / WINDOW

    with lw.watch_run("benchmark") as run:
        early = min(window(start * WINDOW) for start in range(WINDOWS))
        made = WINDOWS * WINDOW
        while made < calls - WINDOWS * WINDOW:
            batch = min(step, calls - WINDOWS * WINDOW - made)
            for kwargs in arguments(batch, made):
                watched(**kwargs)
            made += batch
        late = min(window(made + start * WINDOW) for start in range(WINDOWS))
        assert run.outcome.tool_calls == made + WINDOWS * WINDOW
    yield Row(
        "long_run",
        f"a call at {calls:,.0e} calls against one at {WINDOWS * WINDOW:,}".replace("e+0", "e"),
        late / early,
        1.1,
        note=f"{late * 1e6:.1f} us, tracing off",
    )


def imports() -> Iterator[Row]:
    """CPU time of the import, the interpreter's start left out."""
    code = "import time; began = time.process_time(); {}; print(time.process_time() - began)"

    def spent(statement: str) -> float:
        command = [sys.executable, "-P", "-c", code.format(statement)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    best = {SDK: float("inf"), OURS: float("inf")}
    for _ in range(IMPORTS):
        best = {statement: min(seconds, spent(statement)) for statement, seconds in best.items()}
    yield Row(
        "import",
        "import with the SDK, against the SDK alone",
        best[OURS] / best[SDK],
        1.3,
        1.15,
        note=f"{best[OURS] * 1e3:.0f} ms",
    )


@contextmanager
def profiled_calls(n: int) -> Iterator[Timed]:
    batch = arguments(n)
    with lw.watch_run("benchmark"):
        yield lambda: [watched(**kwargs) for kwargs in batch]


@contextmanager
def profiled_collection(n: int) -> Iterator[Timed]:
    opened = [open_run(1) for _ in range(n)]
    (_, prometheus), *_ = collections()
    yield prometheus
    for run in opened:
        run.close()


def profile_memory() -> None:
    """Print which lines hold the memory of open runs."""
    for calls, runs in ((SHORT_RUN, 200), (1_000, 3)):
        open_run(calls).close()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        opened = [open_run(calls) for _ in range(runs)]
        gc.collect()
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
        print(f"memory: open run of {calls:,} calls")
        for held in after.compare_to(before, "lineno")[:15]:
            print(f"{held.size_diff / runs / 1e3:8.2f} kB in {held.count_diff / runs:8.1f} objects  {held.traceback}")
        for run in opened:
            run.close()


def profile_import() -> None:
    """Print which modules the import takes its time for, ours included."""
    command = [sys.executable, "-P", "-X", "importtime", "-c", f"{SDK}\nimport otel_loopwatch"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()
    after_sdk = lines[
        max(number for number, line in enumerate(lines) if line.endswith("opentelemetry.sdk.metrics.export")) + 1 :
    ]
    print("own us | with what it imports, us | module")
    print("\n".join(sorted(after_sdk, key=lambda line: -int(line.split(":")[1].split("|")[0]))[:25]))


PROFILES: dict[str, Callable[[], None]] = {
    "long_run": lambda: profile(Case("long_run", "calls, tracing off", profiled_calls)),
    "collection": lambda: profile(
        Case("collection", "a collection over 2,000 open runs", profiled_collection, operations=2_000)
    ),
    "memory": profile_memory,
    "import": profile_import,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"a long run of {QUICK_LONG_RUN:,} calls, 1,000 open runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--profile", choices=PROFILES, metavar="ROW", help="profile one row: %(choices)s")
    options = parser.parse_args()
    logging.getLogger("otel_loopwatch").setLevel(logging.ERROR)
    if options.profile:
        PROFILES[options.profile]()
        return
    span_s = measure([YARDSTICK], 10)[YARDSTICK.key]
    count = OPEN_RUNS // 10 if options.quick else OPEN_RUNS
    parts: tuple[Callable[[], Iterator[Row]], ...] = (
        memory,
        lambda: many(count, span_s),
        lambda: long_run(QUICK_LONG_RUN if options.quick else LONG_RUN),
        imports,
    )
    rows = [Row(YARDSTICK.key, YARDSTICK.what, 1.0, note=f"{span_s * 1e6:.1f} us")]
    for part in parts:
        rows += part()
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
