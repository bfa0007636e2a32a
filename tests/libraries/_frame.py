"""What every scenario shares: a provider with the guard on it, counts of what really ran, and the facts as JSON.

A scenario imports its library once and gives its cases to :func:`main`. Each case runs in a fork of its own, so that no
instrumentation, provider or run of one is seen by another, and no import is paid twice. Only the standard library,
OpenTelemetry and this project are imported here. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import otel_loopwatch as lw
from otel_loopwatch import metrics
from otel_loopwatch.cells import Distribution
from otel_loopwatch.pricing import price

SHOWN = 160
"""Characters of an attribute that ``--dump`` shows."""

DEMANDS = 8
"""How often the scripted model of a loop demands the same call before it gives up."""

LOOP = lw.Policy(loops=lw.LoopRules(max_repeats=3, action="abort"))
"""The policy of every loop and enforcement case: three identical calls run, the fourth is acted on by an abort."""


class _Watcher(SpanProcessor):
    """Remembers every run that was open at the beginning or end of a span, and shows the spans where that is wanted."""

    def __init__(self, frame: Frame, *, dump: bool) -> None:
        self._frame = frame
        self._dump = dump
        self._begun: dict[int, tuple[str, dict[str, Any]]] = {}

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self._frame.look()
        if self._dump:
            self._begun[span.context.span_id] = (span.name, dict(span.attributes or {}))
            sys.stderr.write(f"> {_title(span)}\n")
            for name, value in sorted((span.attributes or {}).items()):
                sys.stderr.write(f"    {name} = {str(value)[:SHOWN]!r}\n")

    def on_end(self, span: ReadableSpan) -> None:
        self._frame.look()
        if self._dump:
            name, before = self._begun.pop(span.context.span_id, ("?", {}))
            renamed = "" if name == span.name else f" (was {name!r})"
            status = span.status
            sys.stderr.write(f"< {_title(span)}{renamed} {status.status_code.name} {status.description or ''}\n")
            for key, value in sorted((span.attributes or {}).items()):
                if key not in before or before[key] != value:
                    sys.stderr.write(f"    {key} = {str(value)[:SHOWN]!r}\n")
            for event in span.events:
                sys.stderr.write(f"    event {event.name} {str(dict(event.attributes or {}))[:SHOWN]}\n")


def _title(span: ReadableSpan) -> str:
    scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
    above = "root" if span.parent is None else f"{'remote ' if span.parent.is_remote else ''}{span.parent.span_id:04x}"
    return f"{span.context.span_id:016x} below {above} {span.name!r} {span.kind.name} [{scope}]"


class Frame:
    """One case.

    Attributes:
        bodies: Bodies of tools that ran, by tool.
        models: Requests that the scripted model answered.
        caught: Class of the exception that reached :meth:`caller`.
        said: Whatever else a case wants to show.
    """

    def __init__(self, case: str, *, dump: bool = False) -> None:
        self.case = case
        self.bodies: Counter[str] = Counter()
        self.models = 0
        self.caught: str | None = None
        self.said: dict[str, Any] = {}
        self._runs: dict[int, lw.Run] = {}
        self._dump = dump
        self._lock = threading.Lock()

    def guard(
        self, policy: lw.Policy | None = None, *, raise_on_start: bool = False, sampled: bool = True
    ) -> TracerProvider:
        """Set up OpenTelemetry with the guard on it, and make it the global provider.

        Args:
            policy: Of the processor.
            raise_on_start: Of the processor.
            sampled: False drops every span.

        Returns:
            The provider, for a library's ``instrument(tracer_provider=...)``.
        """
        provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
        provider.add_span_processor(lw.LoopwatchSpanProcessor(policy=policy, raise_on_start=raise_on_start))
        provider.add_span_processor(_Watcher(self, dump=self._dump))
        trace.set_tracer_provider(provider)
        return provider

    def body(self, tool: str) -> None:
        """The body of *tool* has begun."""
        with self._lock:
            self.bodies[tool] += 1
        self.look()

    def asked(self) -> int:
        """The scripted model is asked; returns how often that makes, from 1."""
        with self._lock:
            self.models += 1
            number = self.models
        self.look()
        return number

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Around the call of the library: notes what its caller would have to catch."""
        try:
            yield
        except Exception as fault:  # noqa: BLE001 - that is the question
            self.caught = type(fault).__name__
            if self._dump:
                traceback.print_exc()

    def look(self) -> None:
        """Remember the runs that are open now: one that ended is no longer in ``lw.runs()``."""
        for run in lw.runs():
            self._runs.setdefault(id(run), run)

    def facts(self) -> dict[str, Any]:
        """What happened, as JSON types."""
        return {
            "case": self.case,
            "runs": [_outcome(run) for run in self._runs.values()],
            "bodies": dict(self.bodies),
            "models": self.models,
            "caught": self.caught,
            "said": self.said,
            "metrics": _numbers(),
        }


def _outcome(run: lw.Run) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "agent": outcome.agent,
        "closed": run.is_closed,
        "stop_reason": str(outcome.stop_reason),
        "tool_calls": outcome.tool_calls,
        "steps": outcome.steps,
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_input_tokens": outcome.cached_input_tokens,
        # Without the zeros that a sum of decimals may end with.
        "spend_usd": f"{outcome.spend_usd.normalize():f}",
        "spend_complete": outcome.spend_complete,
        "findings": [f"{found.kind} {found.tool} {found.repeats} {found.action}" for found in outcome.findings],
    }


def _numbers() -> dict[str, dict[str, float]]:
    """Metric -> label values joined by a space -> value; of a histogram the sum. Series at 0 are left out."""
    numbers: dict[str, dict[str, float]] = {}
    for metric, labels, value in metrics.samples():
        number = value.total if isinstance(value, Distribution) else value
        if number:
            numbers.setdefault(metric.name, {})[" ".join(labels.values())] = float(number)
    return numbers


def record_content() -> None:
    """Let the official instrumentations put arguments and results on their spans, which they do not by default."""
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"


Case = Callable[[Frame], None]


class Stuck(Protocol):
    """Runs an agent whose model demands ``search`` with the same arguments :data:`DEMANDS` times."""

    def __call__(self, frame: Frame, *, watched: bool, check: bool) -> object:
        """Run it.

        Args:
            frame: Counts what runs.
            watched: True decorates the tool.
            check: True calls ``run.check()`` at the beginning of the tool.
        """


def enforcement(instrument: Callable[[TracerProvider], object], stuck: Stuck) -> list[Case]:
    """The cases of the columns of enforcement.toml.

    Args:
        instrument: Sets the library's instrumentation up on a provider.
        stuck: Runs the agent.
    """

    def enforce_spans(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with frame.caller():
            stuck(frame, watched=False, check=False)

    def enforce_raise_on_start(frame: Frame) -> None:
        instrument(frame.guard(LOOP, raise_on_start=True))
        with frame.caller():
            stuck(frame, watched=False, check=False)

    def enforce_watch_tool(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with frame.caller():
            stuck(frame, watched=True, check=False)

    def enforce_watch_run(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with frame.caller(), lw.watch_run("mine", policy=LOOP):
            stuck(frame, watched=True, check=False)

    def enforce_check(frame: Frame) -> None:
        instrument(frame.guard(LOOP))
        with frame.caller(), lw.watch_run("mine", policy=LOOP):
            stuck(frame, watched=False, check=True)

    return [enforce_spans, enforce_raise_on_start, enforce_watch_tool, enforce_watch_run, enforce_check]


def main(*cases: Case) -> None:
    """Run the *cases*: all, or those that the command line names; one JSON line each on standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump", action="store_true", help="show every span at its start (>) and end (<), on stderr")
    parser.add_argument("case", nargs="*", choices=[[], *(case.__name__ for case in cases)])
    chosen = parser.parse_args()
    # Half a second, once and not in every fork.
    price(lw.Usage("gpt-4o", 1, 1))
    for case in cases:
        if not chosen.case or case.__name__ in chosen.case:
            _in_a_fork(case, dump=chosen.dump)


def _in_a_fork(case: Case, *, dump: bool) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    frame = Frame(case.__name__, dump=dump)
    line: dict[str, Any]
    try:
        case(frame)
        line = frame.facts()
    except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
        line = {"case": case.__name__, "fault": traceback.format_exc()}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    # No atexit: the exporters and threads of libraries are of no interest any more.
    os._exit(0)
