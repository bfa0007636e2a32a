"""``LoopwatchSpanProcessor``: what the spans of other libraries say about a run, and runs without ``watch_run``.

It is a source, not the counter of record: spans that are sampled out never reach a processor, so decorated calls are
counted by the decorator and the spans that this package makes are skipped here. From everybody else's spans come

* model turns and usage (``chat``, ``generate_content``, ``text_completion``): a turn when the span begins, tokens and
  money when it ends. The sums on an ``invoke_agent`` span are not added: they repeat what the model spans below said;
* tool calls that nobody decorated (``execute_tool``), counted and judged when the span ends: they trip the run for the
  next call. A limit on calls may so be passed by those that are under way. The span of a call that a decorator counted
  inside of it is not counted again.

A processor cannot answer a model, so a hint for such a call is one that nobody hears: it only uses up the patience.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode

from otel_loopwatch import ambient, budgets, context, foreign, metrics, semconv, verdict
from otel_loopwatch.calls import StopReason, Used
from otel_loopwatch.errors import LoopwatchError, PolicyError, RunAborted, contain, is_disabled, telemetry_guard
from otel_loopwatch.policy import Policy, Rules, operators_policy, policy_of
from otel_loopwatch.pricing import price
from otel_loopwatch.refusal import error_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span
    from opentelemetry.trace import TracerProvider

    from otel_loopwatch.ambient import OpenSpan
    from otel_loopwatch.run import Run

__all__ = ["LoopwatchSpanProcessor", "attach"]

SOURCE: Final = "spans"
MAX_RULES: Final = 1024


class _Unheard(NamedTuple):
    """The hints that the model of one run was not given.

    Attributes:
        given: How many, per subject of the finding.
        last_step: The model turn of the last one, per subject: the calls of one turn are one demand.
    """

    given: Counter[str]
    last_step: dict[str, int]


class LoopwatchSpanProcessor(SpanProcessor):
    """Guards by spans: ``provider.add_span_processor(LoopwatchSpanProcessor())``.

    While it is alive (it is held weakly here, strongly by its provider, until :meth:`shutdown`) decorated calls outside
    ``watch_run`` count for the run of their local root span, or of the outermost ``invoke_agent`` span, at any sampling
    rate. Of several processors in a process, the first says which policy holds for those runs. A span that two of them
    see is counted once.

    Nothing is raised out of a callback, unless *raise_on_start* asks for it.

    Args:
        policy: The policy of runs without ``watch_run``, or the path of its file; ``LOOPWATCH_POLICY`` wins over it.
        raise_on_start: True raises out of ``on_start`` where another library begins a tool or model span in a run that
            is aborted, or whose budget allows no further call. Only for libraries that let an exception through there:
            several swallow it and go on. A loop of undecorated calls is known at the end of a call, so it is refused at
            the next.
        idle_limit_s: Seconds after which a run without ``watch_run`` ends if nothing has counted for it.

    Raises:
        PolicyError: For limits out of range, and for a ``LOOPWATCH_POLICY`` that cannot be used.
    """

    def __init__(
        self,
        *,
        policy: Policy | str | os.PathLike[str] | None = None,
        raise_on_start: bool = False,
        idle_limit_s: float = 900.0,
    ) -> None:
        if not 0 < idle_limit_s < float("inf"):
            raise PolicyError(f"must be a finite number of seconds above 0, not {idle_limit_s!r}", key="idle_limit_s")
        self.policy = operators_policy() or policy_of(policy) or Policy()
        self._raise_on_start = raise_on_start
        self._active = not is_disabled()
        self._rules: dict[tuple[int, str], tuple[Policy, Rules]] = {}
        self._unheard: weakref.WeakKeyDictionary[Run, _Unheard] = weakref.WeakKeyDictionary()
        if self._active:
            ambient.register(self, self.policy, idle_limit_s)
            if ambient.default_policy() is self.policy:
                metrics.set_mode(self.policy.mode)
            metrics.instrument()

    @property
    def is_active(self) -> bool:
        """True until :meth:`shutdown`; never, where ``LOOPWATCH_DISABLED`` was set when it was made."""
        return self._active

    # --- what the SDK calls ---------------------------------------------------------------------------------------

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span has begun.

        Raises:
            RunAborted: With ``raise_on_start`` only.
        """
        del parent_context  # the run is in the current context, for every library that was tried
        if not self._active:
            return
        try:
            refusal = self._started(span)
        except Exception as fault:  # noqa: BLE001 - see telemetry_guard, which costs 1 us more a span
            contain("processor", fault)
            return
        if refusal is not None:
            raise refusal

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended."""
        if self._active:
            try:
                self._ended(span)
            except Exception as fault:  # noqa: BLE001 - as above
                contain("processor", fault)

    def shutdown(self) -> None:
        """Guard no longer. With the last processor of the process, runs without ``watch_run`` end."""
        self._active = False
        with telemetry_guard("processor"):
            ambient.unregister(self)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is buffered here.

        Returns:
            True.
        """
        del timeout_millis
        return True

    # --- a span begins --------------------------------------------------------------------------------------------

    def _started(self, span: Span) -> BaseException | None:
        attributes = span.attributes or {}
        ours = foreign.is_ours(span)
        kind = foreign.kind(attributes, ours=ours)
        # Of most spans nothing more is asked: they are some other library's.
        agent = str(attributes.get(semconv.GEN_AI_AGENT_NAME) or "") if kind == "agent" else ""
        tool = str(attributes.get(semconv.GEN_AI_TOOL_NAME) or "") if kind == "tool" else ""
        opened = ambient.open_span(span.get_span_context(), span.parent, kind, ours=ours, agent=agent, tool=tool)
        if opened is None:
            return None
        if ours:
            if kind == "tool":
                _claim(opened, tool, attributes.get(semconv.RUN_ID))
            return None
        opened.bound = context.current_run()
        if kind not in ("tool", "model"):
            return None
        run = opened.run()
        if run is None:
            return None
        refusal = self._refusal(run, tool) if self._raise_on_start else None
        if refusal is not None:
            # The SDK never ends a span whose on_start raised.
            ambient.close_span(span.get_span_context())
            return refusal
        if kind == "model" and not any(outer.kind in ("tool", "model") for outer in ambient.above(opened)):
            run.derived_step()
        opened.step = run.current_step
        return None

    def _refusal(self, run: Run, tool: str) -> RunAborted | None:
        """The error to raise for a tool call (or, without a *tool*, a model call) of an aborted run."""
        trip = run.tripped
        if trip is None:
            more = 1 if tool else 0
            lineage: list[Used] = []
            owner: Run | None = run
            while owner is not None:
                used = owner.used()
                lineage.append(used._replace(tool_calls=used.tool_calls + more))
                owner = owner.parent
            trip = run.limits.breach(tuple(lineage), budgets.call_breach)
            if trip is None:
                return None
            trip = run.limits.trip(trip)
        if tool:
            metrics.known_tool(run.agent, tool, "observe")
            metrics.tool_call(run.agent, tool, "refused", repeated=False)
        error = run.refusal(trip)
        # The firm signal is for code of the application; what a library makes of a BaseException, nobody knows.
        return error if isinstance(error, RunAborted) else error_for(trip, run.outcome)

    # --- a span ends ----------------------------------------------------------------------------------------------

    def _ended(self, span: ReadableSpan) -> None:
        span_context = span.get_span_context()
        if span_context is None:
            return
        opened = ambient.close_span(span_context)
        if opened is None:
            ambient.end_unseen(span_context, span.parent, _stop_reason(span))
            return
        try:
            if not opened.ours:
                self._count(opened, span)
        finally:
            if opened.is_root:
                ambient.end_run(opened, _stop_reason(span))

    def _count(self, opened: OpenSpan, span: ReadableSpan) -> None:
        attributes = span.attributes or {}
        # Some libraries say only at the end what a span is.
        kind = foreign.kind(attributes)
        if kind not in ("tool", "model") or opened.claimed or semconv.TOOL_CALL_ARGUMENTS_HASH in attributes:
            return
        run = opened.run()
        if run is None:
            return
        failed = _failed(span)
        if kind == "model":
            _charge(opened, attributes, run, failed=failed)
            return
        tool = str(attributes.get(semconv.GEN_AI_TOOL_NAME) or opened.tool or "unknown")
        for outer in ambient.above(opened):
            if outer.kind in ("agent", "model"):
                break
            if outer.kind == "tool" and outer.tool == tool:
                outer.claimed = True  # two libraries show one call, one around the other
        self._judge(opened, tool, attributes, run, failed=failed)

    def _judge(self, opened: OpenSpan, tool: str, attributes: Mapping[str, Any], run: Run, *, failed: bool) -> None:
        rules = self._rules_for(run.policy, tool)
        permitted = run.policy.permits(tool)
        call = foreign.tool_call(
            opened.key[1], tool, attributes, rules, at=run.clock(), step=opened.step, permitted=permitted
        )
        # Whatever the rules say, this call has run: it is counted, and what was found is acted on below.
        judged = run.admit(call, rules._replace(action="observe"))
        if judged.action != "abort":
            run.settle(call, foreign.settled(attributes, at=run.clock(), failed=failed))
        metrics.known_tool(run.agent, tool, "observe")
        metrics.tool_call(run.agent, tool, "error" if failed else "ok", repeated=judged.repeats > 1)
        if judged.finding is not None and run.tripped is None:
            unheard = self._unheard.setdefault(run, _Unheard(Counter(), {}))
            subject = judged.finding.subject
            same_turn = bool(opened.step) and unheard.last_step.get(subject) == opened.step
            action = verdict.decide(judged.finding, rules, unheard.given, hinted_this_step=same_turn)
            if action == "abort":
                run.limits.trip(verdict.finding_trip(judged.finding, run.run_id))
            elif action == "hint" and not same_turn:
                unheard.given[subject] += 1
                unheard.last_step[subject] = opened.step

    def _rules_for(self, policy: Policy, tool: str) -> Rules:
        kept = self._rules.get((id(policy), tool))
        if kept is not None:
            return kept[1]
        rules = policy.rules_for(tool)
        if len(self._rules) >= MAX_RULES:
            self._rules.clear()
        # With the policy itself, so that its id stays its own.
        self._rules[id(policy), tool] = (policy, rules)
        return rules


def _failed(span: ReadableSpan) -> bool:
    return span.status.status_code is StatusCode.ERROR or semconv.ERROR_TYPE in (span.attributes or ())


def _stop_reason(span: ReadableSpan) -> StopReason:
    return StopReason.ERROR if _failed(span) else StopReason.COMPLETED


def _claim(opened: OpenSpan, tool: str, run_id: object) -> None:
    """Mark the span of another library that shows the very call for which this package has just begun a span.

    That is the nearest tool span above it; or, where a library loses the context on its way to the tool, an open span
    of the same tool in the same run.
    """
    for outer in ambient.above(opened):
        if outer.kind in ("agent", "model"):
            break
        if outer.kind == "tool":
            outer.claimed = True
            return
    for other in ambient.open_tools(tool):
        run = other.bound or other.root.run
        if run is not None and run.run_id == run_id and not other.claimed:
            other.claimed = True
            return


def _charge(opened: OpenSpan, attributes: Mapping[str, Any], run: Run, *, failed: bool) -> None:
    """Charge what one model call used, once, however many libraries show it one around the other."""
    outer = [span for span in ambient.above(opened) if span.kind == "model"]
    usage = foreign.usage(attributes)
    if usage is not None:
        for span in outer:
            span.claimed = True
        run.charge(usage._replace(cost_usd=price(usage)), SOURCE)
    elif not failed and not outer:
        # A call that failed used nothing that anybody could know of; one inside another leaves it to the other.
        run.usage_missing(foreign.model(attributes))


_attached: weakref.WeakKeyDictionary[TracerProvider, LoopwatchSpanProcessor] = weakref.WeakKeyDictionary()
_attaching = threading.Lock()


def attach(
    provider: TracerProvider | None = None,
    *,
    policy: Policy | str | os.PathLike[str] | None = None,
    raise_on_start: bool = False,
    idle_limit_s: float = 900.0,
) -> LoopwatchSpanProcessor:
    """Add a processor to a tracer provider that is there already; a second time returns the first one.

    Args:
        provider: ``None`` is the global one.
        policy: As for :class:`LoopwatchSpanProcessor`, like the rest.
        raise_on_start: As there.
        idle_limit_s: As there.

    Raises:
        LoopwatchError: Where the provider takes no processors: no SDK has been set up yet, or it is switched off.
    """
    if provider is None:
        provider = trace.get_tracer_provider()
    add = getattr(provider, "add_span_processor", None)
    if add is None:
        raise LoopwatchError(
            f"cannot attach to a {type(provider).__name__}: it takes no span processors. Set up a tracer provider "
            "first (opentelemetry.trace.set_tracer_provider), or pass the one you use."
        )
    with _attaching:
        known = _attached.get(provider)
        if known is not None and known.is_active:
            return known
        processor = LoopwatchSpanProcessor(policy=policy, raise_on_start=raise_on_start, idle_limit_s=idle_limit_s)
        add(processor)
        _attached[provider] = processor
    return processor
