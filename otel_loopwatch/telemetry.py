"""Our spans, span events and log records. Nothing here decides, or carries an argument, a result or an error's text.

Spans: ``invoke_agent {agent}`` for a run and ``execute_tool {tool}`` for a call, both INTERNAL, with the attributes of
:mod:`otel_loopwatch.semconv`. Where the current span already is a framework's ``execute_tool`` span for the same tool,
that span is annotated and no second one is opened.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from otel_loopwatch import semconv
from otel_loopwatch.calls import StopReason
from otel_loopwatch.errors import contain
from otel_loopwatch.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from otel_loopwatch.calls import Breach, Finding, RunOutcome, ToolCall, Trip, Verdict
    from otel_loopwatch.run import Run

__all__ = [
    "end_run_span",
    "end_tool_span",
    "flush",
    "host_run",
    "report_blind_spend",
    "report_finding",
    "report_trip",
    "report_warning",
    "start_run_span",
    "start_tool_span",
    "use_tracer_provider",
]

SCOPE = "otel_loopwatch"
MAX_INT = 2**63
logger = logging.getLogger(SCOPE)

_tracer = trace.get_tracer(SCOPE, __version__)
_ERROR = Status(StatusCode.ERROR)
_QUIET_REASONS = frozenset({StopReason.COMPLETED, StopReason.PAUSED, StopReason.CANCELLED})


def use_tracer_provider(provider: TracerProvider | None) -> None:
    """Take spans from *provider*; ``None`` goes back to the global one."""
    global _tracer  # noqa: PLW0603 - the one tracer of the process
    _tracer = trace.get_tracer(SCOPE, __version__, provider)


def flush(timeout_s: float = 5.0) -> bool:
    """Send what the global tracer and meter providers still hold: for worker hooks and short jobs, before ``os._exit``.

    Args:
        timeout_s: Seconds that it may take. The SDK does not keep to them, so it is waited for in threads of ours.

    Returns:
        True where both said in time that all was sent (a provider that cannot flush has nothing to send).
    """
    deadline = time.monotonic() + timeout_s
    flushes = [
        _Flush(force_flush, timeout_s)
        for provider in (trace.get_tracer_provider(), metrics_api.get_meter_provider())
        if (force_flush := getattr(provider, "force_flush", None)) is not None
    ]
    done = True
    for flush_ in flushes:
        done = flush_.wait(deadline - time.monotonic()) and done
    return done


class _Flush:
    """One provider's ``force_flush``, under way."""

    def __init__(self, force_flush: Callable[[int], object], timeout_s: float) -> None:
        self._force_flush = force_flush
        self._timeout_ms = int(timeout_s * 1000)
        self._done = False
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="loopwatch-flush", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # The process is ending, and from Python 3.12 on no thread begins then.
            self._run()

    def _run(self) -> None:
        try:
            self._done = self._force_flush(self._timeout_ms) is not False
        except Exception as fault:  # noqa: BLE001 - said where it is waited for
            self._fault = fault

    def wait(self, timeout_s: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        if self._fault is not None:
            contain("flush", self._fault)
        return self._done


def host_run(span: Span, run: Run) -> None:
    """Let the span of another library stand for *run*: it gets its id, and what happens to it is noted there."""
    run.host_span = span
    # On the span of a tool the id says that we have annotated it.
    if span.is_recording() and not _is_a_tool(_said_by(span)):
        span.set_attribute(semconv.RUN_ID, run.run_id)


def _said_by(span: Span) -> Mapping[str, Any]:
    """The attributes of *span*; one that is not recorded has none."""
    return getattr(span, "attributes", None) or {}


def _is_a_tool(attributes: Mapping[str, Any]) -> bool:
    return attributes.get(semconv.GEN_AI_OPERATION_NAME) == semconv.OPERATION_EXECUTE_TOOL


def start_run_span(run: Run, context: Context | None = None) -> Span:
    """Begin the span of a run. It is not made current here."""
    attributes: dict[str, Any] = {
        **_clean(run.attributes),
        semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
        semconv.GEN_AI_AGENT_NAME: run.agent,
        semconv.RUN_ID: run.run_id,
    }
    if run.parent is not None:
        attributes[semconv.RUN_PARENT_ID] = run.parent.run_id
    return _tracer.start_span(f"{semconv.OPERATION_INVOKE_AGENT} {run.agent}", context=context, attributes=attributes)


def end_run_span(span: Span, run: Run, outcome: RunOutcome) -> None:
    """Say how the run ended, and end its span."""
    if span.is_recording():
        span.set_attribute(semconv.STOP_REASON, outcome.stop_reason.value)
        for breach, _ in run.budget_shares():
            span.set_attribute(semconv.BUDGET_LIMIT_KEY.format(name=breach.budget), _number(breach.limit))
            span.set_attribute(semconv.BUDGET_USED_KEY.format(name=breach.budget), _number(breach.used))
        if outcome.stop_reason not in _QUIET_REASONS:
            span.set_status(_ERROR)
            cause = outcome.cause
            span.set_attribute(
                semconv.ERROR_TYPE,
                type(cause).__qualname__
                if outcome.stop_reason is StopReason.ERROR and cause
                else outcome.stop_reason.value,
            )
    span.end()


def start_tool_span(run: Run | None, agent: str, call: ToolCall, verdict: Verdict, action: str) -> tuple[Span, bool]:
    """Begin the span of a call, or annotate the framework's own.

    Args:
        run: The run, if there is one.
        agent: The agent's name, ``unknown`` outside any run.
        call: The call.
        verdict: What was judged.
        action: What is done, where that differs from the verdict's action (a tool that is not allowed).

    Returns:
        The span, and whether it is ours to end.
    """
    attributes: dict[str, Any] = {
        semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
        semconv.GEN_AI_TOOL_NAME: call.tool,
        semconv.GEN_AI_TOOL_TYPE: "function",
        semconv.GEN_AI_AGENT_NAME: agent,
        semconv.TOOL_CALL_ARGUMENTS_HASH: call.fingerprint,
        semconv.TOOL_CALL_REPEAT_COUNT: verdict.repeats,
        semconv.VERDICT_ACTION: action,
    }
    if run is not None:
        attributes[semconv.RUN_ID] = run.run_id
        if run.parent is not None:
            attributes[semconv.RUN_PARENT_ID] = run.parent.run_id
    if not call.id.startswith("#"):
        attributes[semconv.GEN_AI_TOOL_CALL_ID] = call.id
    if verdict.finding is not None:
        attributes[semconv.LOOP_KIND] = verdict.finding.kind
    context = otel_context.get_current()
    current = trace.get_current_span(context)
    if (run is None or current is not run.span) and _is_execute_tool(current, call.tool):
        # What the framework says of itself stays as it says it.
        said = getattr(current, "attributes", None) or {}
        current.set_attributes({key: value for key, value in attributes.items() if key not in said})
        span, ours = current, False
    else:
        span = _tracer.start_span(f"execute_tool {call.tool}", context, SpanKind.INTERNAL, attributes)
        ours = True
    if verdict.new and verdict.finding is not None:
        span.add_event(semconv.EVENT_LOOP_DETECTED, _finding_attributes(verdict.finding))
    return span, ours


def _is_execute_tool(span: Span, tool: str) -> bool:
    """True where *span* is another library's span for this very call."""
    attributes = _said_by(span)
    return (
        _is_a_tool(attributes)
        and attributes.get(semconv.GEN_AI_TOOL_NAME) == tool
        and semconv.RUN_ID not in attributes
        and span.is_recording()
    )


def end_tool_span(span: Span, *, ours: bool, error_type: str | None = None, abandoned: bool = False) -> None:
    """Say how the call ended, and end its span where it is ours."""
    if (error_type is not None or abandoned) and span.is_recording():
        if error_type is not None:
            span.set_attribute(semconv.ERROR_TYPE, error_type)
            span.set_status(_ERROR)
        if abandoned:
            span.set_attribute(semconv.TOOL_CALL_ABANDONED, True)  # noqa: FBT003 - the API's own order
    if ours:
        span.end()


def report_finding(run: Run, finding: Finding) -> None:
    """Say a new finding on the run's span and in the log."""
    attributes = _finding_attributes(finding)
    _event(run, semconv.EVENT_LOOP_DETECTED, attributes)
    _log(
        run,
        f"loop detected ({finding.kind}): tool {finding.tool!r}, call {finding.repeats}, {finding.action}",
        attributes,
    )


def report_trip(run: Run, trip: Trip) -> None:
    """Say that a run is aborted, on its span and in the log."""
    attributes: dict[str, Any] = {semconv.STOP_REASON: trip.stop_reason.value}
    if trip.breach is not None:
        attributes |= _breach_attributes(trip.breach)
    if trip.finding is not None:
        attributes |= _finding_attributes(trip.finding)
    _event(run, semconv.EVENT_RUN_ABORTED, attributes)
    if run.host_span is not None and run.host_span.is_recording():
        # A span of our own gets it at its end; the end of this one is too late.
        run.host_span.set_attribute(semconv.STOP_REASON, trip.stop_reason.value)
    _log(run, f"run aborted: {trip.stop_reason.value}", attributes)


def report_warning(run: Run, breach: Breach, share: float) -> None:
    """Say that a budget is nearly (or, in observe mode, quite) used up."""
    attributes = _breach_attributes(breach)
    _event(run, semconv.EVENT_BUDGET_WARNING, attributes)
    _log(run, f"budget {breach.budget!r}: {share:.0%} used", attributes)


def report_blind_spend(run: Run, message: str, model: str | None) -> None:
    """Say in the log that a limit of *run* cannot see what a model call used or cost.

    Args:
        run: The run that owns the limit.
        message: What happened, and what is done about it.
        model: Name of the model, where it is known.
    """
    _log(run, message, {} if model is None else {semconv.GEN_AI_REQUEST_MODEL: model})


def _event(run: Run, name: str, attributes: dict[str, Any]) -> None:
    span = run.span or run.host_span
    if span is not None and span.is_recording():
        span.add_event(name, attributes)


def _log(run: Run, message: str, attributes: dict[str, Any]) -> None:
    # One structured field, so that no name can collide with those of logging.LogRecord.
    fields = {semconv.RUN_ID: run.run_id, semconv.GEN_AI_AGENT_NAME: run.agent, **attributes}
    logger.warning("otel-loopwatch: agent %r: %s", run.agent, message, extra={"loopwatch": fields})


def _finding_attributes(finding: Finding) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        semconv.GEN_AI_TOOL_NAME: finding.tool,
        semconv.LOOP_KIND: finding.kind,
        semconv.LOOP_REPEATS: finding.repeats,
        semconv.VERDICT_ACTION: finding.action,
        semconv.TOOL_CALL_ARGUMENTS_HASH: finding.args_hash,
    }
    if finding.members:
        attributes[semconv.LOOP_MEMBERS] = list(finding.members)
    return attributes


def _breach_attributes(breach: Breach) -> dict[str, Any]:
    return {
        semconv.BUDGET_NAME: breach.budget,
        semconv.BUDGET_LIMIT_KEY.format(name=breach.budget): _number(breach.limit),
        semconv.BUDGET_USED_KEY.format(name=breach.budget): _number(breach.used),
    }


def _clean(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What can be an attribute: text, truth values and numbers. By anything else an exporter may lose whole batches."""
    cleaned: dict[str, Any] = {}
    for key, value in attributes.items():
        if isinstance(value, str):
            cleaned[key] = value.encode(errors="replace").decode()
        elif isinstance(value, bool | float) or (isinstance(value, int) and -MAX_INT <= value < MAX_INT):
            cleaned[key] = value
    return cleaned


def _number(value: Any) -> int | float:
    """A span attribute has no Decimal."""
    return value if isinstance(value, int | float) else float(value)
