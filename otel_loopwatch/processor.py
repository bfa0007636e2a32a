"""``LoopwatchSpanProcessor``: what the spans of other libraries say about a run, and runs without ``watch_run``.

It is a source, not the counter of record: spans that are sampled out never reach a processor, so decorated calls are
counted by the decorator and the spans that this package makes are skipped here. From everybody else's spans
(:mod:`otel_loopwatch.dialects` has whose) come

* model turns and usage: a turn when the span begins, tokens and money when it ends. Sums on the span of an agent are
  not added: they repeat what the model spans below said;
* tool calls that nobody decorated, counted and judged when the span ends: they trip the run for the next call. A limit
  on calls may so be passed by those that are under way.

One fact is counted once, however many spans show it: of two model spans one inside of the other the inner one, which is
nearer to the source, of two tool spans the outer one, which shows what the model asked for, of two side by side
(:mod:`otel_loopwatch.twins`) the first to end, and of a call that is decorated the decorator's.

A processor cannot answer a model, so a hint for such a call is one that nobody hears: it only uses up the patience.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

from otel_loopwatch import ambient, budgets, claims, context, foreign, metrics, semconv, telemetry
from otel_loopwatch.calls import StopReason, Used
from otel_loopwatch.errors import LoopwatchError, PolicyError, RunAborted, contain, is_disabled, telemetry_guard
from otel_loopwatch.model_names import bare
from otel_loopwatch.policy import Policy, Rules, operators_policy, policy_of
from otel_loopwatch.pricing import load_prices
from otel_loopwatch.refusal import error_for
from otel_loopwatch.shown_calls import ShownCall, settled, shown_call, tool_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span
    from opentelemetry.trace import TracerProvider

    from otel_loopwatch.run import Run
    from otel_loopwatch.spans import Kind, OpenSpan

__all__ = ["LoopwatchSpanProcessor", "attach", "attached_to"]

SOURCE: Final = "spans"
MAX_RULES: Final = 1024


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
        if self._active:
            ambient.register(self, self.policy, idle_limit_s)
            if ambient.default_policy() is self.policy:
                metrics.set_mode(self.policy.mode)
            metrics.instrument()
            with telemetry_guard("price"):
                load_prices()

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
        attributes = foreign.attributes_of(span)
        scope = foreign.scope(span)
        ours = scope == telemetry.SCOPE
        kind = foreign.kind(attributes, scope, span.name) or "other"
        # Of most spans nothing more is asked: they are some other library's.
        agent = foreign.agent_name(attributes, scope, span.name) if kind == "agent" else ""
        tool = foreign.tool_name(attributes, scope, span.name) if kind == "tool" else ""
        opened = ambient.open_span(span, span.parent, kind, scope=scope, agent=agent, tool=tool)
        if opened is None:
            return None
        if ours:
            if kind == "tool":
                claims.claim(opened, tool, attributes.get(semconv.RUN_ID))
            return None
        opened.bound = context.current_run()
        if kind not in ("tool", "model"):
            return None
        run = ambient.run_of(opened)
        if run is None:
            return None
        ambient.note(opened, run)
        refusal = self._refusal(opened, run) if self._raise_on_start else None
        if refusal is not None:
            # The SDK never ends a span whose on_start raised.
            ambient.abandon_span(opened)
            return refusal
        if kind == "model":
            _begin_turn(opened, run)
        opened.step = run.current_step
        return None

    def _refusal(self, opened: OpenSpan, run: Run) -> RunAborted | None:
        """The error to raise for a tool or model call of an aborted run."""
        trip = run.tripped
        if trip is None:
            more = 1 if opened.kind == "tool" else 0
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
        opened.counted = True
        if opened.kind == "tool" and not ambient.counted_by_twin(opened, run):
            metrics.known_tool(run.agent, opened.tool, "observe")
            metrics.tool_call(run.agent, opened.tool, "refused", repeated=False)
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
            # The span is remembered for its twin; the arguments and results that it was shown are not.
            opened.inner = None
            if opened.is_root:
                ambient.end_run(opened, _stop_reason(span))

    def _count(self, opened: OpenSpan, span: ReadableSpan) -> None:
        attributes = foreign.attributes_of(span)
        inner, blind = opened.inner, opened.blind
        if (
            opened.kind == "other"
            and inner is None
            and not blind
            and foreign.is_silent(attributes, opened.scope, span.name)
        ):
            return
        # Some libraries say only at the end what a span is; and of one with too many attributes, the first are lost.
        kind = foreign.kind(attributes, opened.scope, span.name) or opened.kind
        if kind == "tool":
            if opened.claimed or semconv.TOOL_CALL_ARGUMENTS_HASH in attributes:
                return
            call = shown_call(span, attributes, opened.scope)
            if call is not None:
                self._count_call(opened, call.around(inner))
        else:
            if inner is not None:
                # It has the name of the tool that was called inside of it, and is none itself.
                self._judge(opened, inner, ambient.run_of(opened))
            if kind == "model" or (kind == "other" and foreign.shows_usage(attributes)):
                _count_usage(opened, kind, span, attributes)
            elif blind and (run := ambient.run_of(opened)) is not None:
                for model in blind:
                    run.usage_missing(model)

    def _count_call(self, opened: OpenSpan, call: ShownCall) -> None:
        run = ambient.run_of(opened)
        if run is None:
            return
        if opened.kind != "tool":
            opened.kind, opened.tool = "tool", call.tool
            ambient.note(opened, run)
        if ambient.is_claimed(opened, run):
            return
        for outer in ambient.above(opened):
            if outer.kind in ("agent", "model"):
                break
            if claims.is_one_call(outer, opened, call.tool):
                # The outer one is counted, at its end, unless it is ours and has been.
                outer.inner = call.after(outer.inner)
                return
        opened.call_id = call.call_id
        opened.says = call.argument_hashes()
        if not ambient.counted_by_twin(opened, run):
            opened.counted = True
            self._judge(opened, call, run)

    def _judge(self, opened: OpenSpan, shown: ShownCall, run: Run | None) -> None:
        """Count a call, and act on what it shows."""
        if run is None:
            return
        tool = shown.tool
        rules = self._rules_for(run.policy, tool)
        call = tool_call(
            opened.key[1],
            shown,
            rules,
            at=run.clock(),
            step=_turn(opened, run),
            permitted=run.policy.permits(tool),
        )
        calls = run.observe(call, settled(shown, at=run.clock()), rules)
        if calls is not None:
            metrics.known_tool(run.agent, tool, "observe")
            metrics.tool_call(run.agent, tool, "ok" if shown.failure is None else "error", repeated=calls > 1)

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


def _stop_reason(span: ReadableSpan) -> StopReason:
    return StopReason.ERROR if foreign.failed(span, span.attributes or {}) else StopReason.COMPLETED


def _turn(opened: OpenSpan, run: Run) -> int:
    """The model turn that asked for the call of a tool span. Where turns are unknown, calls that overlap are of one.

    Such a one has a negative number: it is told apart from the others, and no turn that anybody has counted.
    """
    if not ambient.is_in_model_call(opened, run) and (step := opened.step or run.current_step):
        return step
    return -opened.batch


def _begin_turn(opened: OpenSpan, run: Run) -> None:
    """Begin a model turn with a model span, unless a tool makes the call or another library has shown it."""
    if opened.stepped or ambient.turn_begun_by_twin(opened, run):
        return
    # Decided, also where it begins none: its twin may not know yet that a tool is above it.
    opened.stepped = True
    if not any(outer.kind in ("tool", "model") for outer in ambient.above(opened)):
        run.derived_step()


def _count_usage(opened: OpenSpan, kind: Kind, span: ReadableSpan, attributes: Mapping[str, Any]) -> None:
    """Charge what one model call used, once, however many libraries show it.

    A span that is not known to be one of a model, and yet says what was used, is charged like one and begins no turn.
    Spans inside of it that have said so come first: what it says itself is then their sum, or the same again.
    """
    run = ambient.run_of(opened)
    if run is None or opened.charged_below:
        return
    usage = foreign.usage(attributes)
    opened.response_id = foreign.response_id(attributes)
    model = foreign.model(attributes)
    if model is not None:
        opened.says = {"model": hash(bare(model))}
    if usage is not None:
        opened.tokens = (usage.input_tokens, usage.output_tokens)
    if kind == "model":
        if opened.kind != "model":
            opened.kind = "model"
            ambient.note(opened, run)
        if ambient.counted_by_twin(opened, run):
            return
        _begin_turn(opened, run)
    if usage is None:
        _miss_usage(opened, run, foreign.model(attributes), failed=foreign.failed(span, attributes))
        return
    for outer in ambient.above(opened):
        outer.charged_below = True
    opened.counted = True
    run.charge(usage, SOURCE, provider=foreign.provider(attributes))


def _miss_usage(opened: OpenSpan, run: Run, model: str | None, *, failed: bool) -> None:
    """Count a model call that has not said what it used, unless another span of the same call may yet say it."""
    above = ambient.above(opened)
    if failed or any(outer.kind == "model" for outer in above):
        # A call that failed used nothing that anybody could know of.
        return
    if above and above[0].kind == "other":
        # Another library may have begun it, and be about to say at its end both that it is a model call and its usage.
        above[0].blind += (model,)
    elif not ambient.twin_under_way(opened, run):
        opened.counted = True
        run.usage_missing(model)


class _Place(SpanProcessor):
    """The place of a processor on a provider, which gives none back: once it is shut down, the next one takes it."""

    def __init__(self) -> None:
        self.taken_by: LoopwatchSpanProcessor | None = None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if self.taken_by is not None:
            self.taken_by.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        if self.taken_by is not None:
            self.taken_by.on_end(span)

    def shutdown(self) -> None:
        if self.taken_by is not None:
            self.taken_by.shutdown()


_places: weakref.WeakKeyDictionary[TracerProvider, _Place] = weakref.WeakKeyDictionary()
_attaching = threading.Lock()


def attached_to(provider: object) -> LoopwatchSpanProcessor | None:
    """The live processor that :func:`attach` has added to *provider*, if there is one."""
    place = _places.get(provider) if hasattr(provider, "add_span_processor") else None  # type: ignore[call-overload]
    processor = None if place is None else place.taken_by
    return processor if processor is not None and processor.is_active else None


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
        known = attached_to(provider)
        if known is not None:
            return known
        processor = LoopwatchSpanProcessor(policy=policy, raise_on_start=raise_on_start, idle_limit_s=idle_limit_s)
        place = _places.get(provider)
        if place is None:
            place = _places[provider] = _Place()
            add(place)
        place.taken_by = processor
    return processor
