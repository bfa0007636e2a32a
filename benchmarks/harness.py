"""What the benchmarks share: cases that take turns, the yardstick that they are compared with, the table."""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import logging
import platform
import pstats
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

Timed = Callable[[], object]
Prepare = Callable[[int], AbstractContextManager[Timed]]

WARM_UP = 2
ROUNDS = 30
QUICK_ROUNDS = 5
PROFILE_ROUNDS = 20
PROFILE_LINES = 30


@dataclass(frozen=True)
class Case:
    """One thing to time.

    ``prepare(n)`` makes everything that *n* operations need, outside the clock, and yields what does them.
    """

    key: str
    what: str
    prepare: Prepare
    ceiling: float | None = None
    aim: float | None = None
    operations: int = 400
    against: str = "yardstick"


@dataclass(frozen=True)
class Row:
    """One line of the table; ``unit`` is empty for a ratio."""

    key: str
    what: str
    value: float
    ceiling: float | None = None
    aim: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.ceiling is None:
            return ""
        if self.value > self.ceiling:
            return "NO"
        return "yes" if self.aim is None or self.value > self.aim else "aim"


class Drop(SpanExporter):
    """An exporter that costs nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


def dropping_provider() -> TracerProvider:
    """A provider as applications have it, but for the network."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Drop()))
    return provider


def arguments(n: int, start: int = 0) -> list[dict[str, object]]:
    """*n* sets of arguments of 200 bytes (as JSON), each of them different."""
    text = "how does the retention policy treat attachments that were uploaded before the last big migration"
    return [
        {
            "query": f"{number:08d} {text}",
            "limit": 10,
            "filters": {"lang": "en", "tags": ["billing", "storage"], "since": 2021},
        }
        for number in range(start, start + n)
    ]


def search(query: str, limit: int = 10, filters: dict[str, object] | None = None) -> str:  # noqa: ARG001
    """A tool that does nothing; its result is 200 characters, as different as its arguments."""
    return f"{query}: the attachments keep the retention of their folder; see page {limit} of the handbook, 'moving'."


@contextmanager
def yardstick(n: int) -> Iterator[Timed]:
    """A span written by hand, with the 8 attributes that a watched call has: 1.0 in every table."""
    calls = arguments(n)
    tracer = PROVIDER.get_tracer("benchmark")

    def by_hand() -> None:
        for kwargs in calls:
            with tracer.start_as_current_span(
                "execute_tool search",
                attributes={
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "search",
                    "gen_ai.tool.type": "function",
                    "gen_ai.agent.name": "benchmark",
                    "loopwatch.run.id": "0123456789abcdef0123456789abcdef",
                    "loopwatch.tool.call.arguments.hash": "0123456789abcdef0123456789abcdef",
                    "loopwatch.tool.call.repeat.count": 1,
                    "loopwatch.verdict.action": "allow",
                },
            ):
                search(**kwargs)

    with tracer.start_as_current_span("invoke_agent benchmark"):
        yield by_hand


PROVIDER = dropping_provider()
YARDSTICK = Case("yardstick", "a span by hand: 8 attributes, BatchSpanProcessor", yardstick)


def cpu_seconds(timed: Timed) -> float:
    """CPU seconds of this thread; the collector runs before and not meanwhile, so that no case pays for another."""
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        timed()
        return time.thread_time() - began
    finally:
        gc.enable()


def measure(cases: Sequence[Case], rounds: int) -> dict[str, float]:
    """Best CPU seconds an operation, of *rounds* rounds in which the cases take turns: load slows all alike."""
    best = {case.key: float("inf") for case in cases}
    for number in range(WARM_UP + rounds):
        for case in cases:
            with case.prepare(case.operations) as timed:
                spent = cpu_seconds(timed) / case.operations
            PROVIDER.force_flush()
            if number >= WARM_UP:
                best[case.key] = min(best[case.key], spent)
    return best


def compare(cases: Sequence[Case], rounds: int) -> list[Row]:
    """A row for each of *cases*: its cost as a multiple of the case that it is compared with."""
    best = measure([YARDSTICK, *cases], rounds)
    compared = {case.against for case in cases} - {YARDSTICK.key}
    return [Row(YARDSTICK.key, YARDSTICK.what, 1.0, note=_microseconds(best[YARDSTICK.key]))] + [
        Row(
            case.key,
            case.what,
            best[case.key] / best[case.against],
            case.ceiling,
            case.aim,
            note=_microseconds(best[case.key]),
        )
        for case in cases
        if case.key not in compared
    ]


def profile(case: Case) -> None:
    """Print where the time of *case* goes, by the functions' own time."""
    profiler = cProfile.Profile()
    for _ in range(PROFILE_ROUNDS):
        with case.prepare(case.operations) as timed:
            profiler.runcall(timed)
        PROVIDER.force_flush()
    print(f"{case.key}: {case.what}; {PROFILE_ROUNDS * case.operations} operations")
    pstats.Stats(profiler, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(PROFILE_LINES)


def show(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the rows as a table, or as JSON."""
    machine = {
        "python": platform.python_version(),
        "opentelemetry-sdk": version("opentelemetry-sdk"),
        "machine": platform.machine(),
    }
    if as_json:
        print(json.dumps({**machine, "rows": [{**asdict(row), "ok": row.verdict} for row in rows]}, indent=2))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print("| what | ratio | ceiling | aim | ok | |\n|---|---|---|---|---|---|")
    for row in rows:
        ceiling, aim = ("" if limit is None else _figure(limit, row.unit) for limit in (row.ceiling, row.aim))
        print(f"| {row.what} | {_figure(row.value, row.unit)} | {ceiling} | {aim} | {row.verdict} | {row.note} |")


def main(description: str | None, cases: Sequence[Case]) -> None:
    """Read the command line, and do what it says with *cases*."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--profile", choices=[case.key for case in cases], metavar="ROW", help="profile one row: %(choices)s"
    )
    options = parser.parse_args()
    logging.getLogger("otel_loopwatch").setLevel(logging.ERROR)
    if options.profile:
        profile(next(case for case in cases if case.key == options.profile))
        return
    show(compare(cases, QUICK_ROUNDS if options.quick else ROUNDS), as_json=options.json)


def _figure(value: float, unit: str) -> str:
    return f"{value:.2f}" if not unit else f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
