"""For tests of guarded agents, yours and ours: a clock that stands still, and all that the guard says, in memory.

::

    from otel_loopwatch.testing import FakeClock, capture


    def test_my_agent_stops():
        with FakeClock() as clock, capture() as seen:
            with lw.watch_run("agent", on_abort="return", on_verdict=seen.verdicts.append) as run:
                my_agent(sleep=clock.advance)
        assert run.outcome.stop_reason == "time_budget"
        assert seen.value("loopwatch.tool.calls", tool="search", outcome="refused") == 1
        assert seen.named("invoke_agent agent").attributes["loopwatch.stop.reason"] == "time_budget"

Global providers are left alone: our spans go to a provider of the capture, our numbers are read where they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_loopwatch import ambient, clock, errors, metrics, telemetry
from otel_loopwatch.calls import Verdict
from otel_loopwatch.cells import Distribution

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["Captured", "FakeClock", "capture", "reset"]


class FakeClock:
    """A monotonic clock that only moves when told to. As a context manager, the clock of every run begun inside.

    Args:
        start: Its first reading, in seconds.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self._before: list[clock.Clock] = []

    def __call__(self) -> float:
        """Seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass.

        Raises:
            ValueError: For a negative number: the clock is monotonic.
        """
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back: {seconds!r}")
        self.now += seconds

    def __enter__(self) -> Self:
        self._before.append(clock.get_clock())
        clock.set_clock(self)
        return self

    def __exit__(self, *_: object) -> None:
        clock.set_clock(self._before.pop())


class Captured:
    """What the guard said inside of :func:`capture`.

    Attributes:
        tracer_provider: Where our spans go. Add a span processor, or take a tracer for spans of your own.
        verdicts: Yours to fill: ``watch_run(..., on_verdict=seen.verdicts.append)``.
    """

    def __init__(self) -> None:
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.verdicts: list[Verdict] = []
        self._exporter = InMemorySpanExporter()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        """The only ended span of that name.

        Raises:
            LookupError: Where there is none, or more than one.
        """
        found = [span for span in self.spans if span.name == name]
        if len(found) != 1:
            raise LookupError(f"{len(found)} spans are named {name!r}; there are {[span.name for span in self.spans]}")
        return found[0]

    def value(self, metric: str, **labels: str) -> float:
        """The sum of the series of *metric* that have these labels; of a histogram, the number of its observations.

        Args:
            metric: Its OpenTelemetry name.
            labels: Any of its labels.

        Raises:
            LookupError: Where there is no such series. A series that is there and has counted nothing is 0.
        """
        found = [
            sum(value.counts) if isinstance(value, Distribution) else value
            for sampled, has, value in metrics.samples()
            if sampled.name == metric and labels.items() <= has.items()
        ]
        if not found:
            raise LookupError(f"no series of {metric!r} has the labels {labels!r}")
        return sum(found)


@contextmanager
def capture() -> Iterator[Captured]:
    """Collect spans, verdicts and numbers of the guard. Begins with :func:`reset`; one at a time."""
    reset()
    seen = Captured()
    telemetry.use_tracer_provider(seen.tracer_provider)
    try:
        yield seen
    finally:
        telemetry.use_tracer_provider(None)
        seen.tracer_provider.shutdown()


def reset() -> None:
    """Forget what the process remembers between runs: counted numbers, ambient runs, warnings given once."""
    metrics.reset()
    ambient.reset()
    errors._warned.clear()  # noqa: SLF001 - a seam for this alone would be one more name there
    errors._disabled = None  # noqa: SLF001
