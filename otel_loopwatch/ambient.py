"""Runs without ``watch_run``: which spans are open in this process, and which run each belongs to.

While a :class:`~otel_loopwatch.processor.LoopwatchSpanProcessor` is alive, a decorated call outside any ``watch_run``
counts for the run of its current span: the outermost open ``invoke_agent`` or ``invoke_workflow`` span of this process,
else the local root span. A span that is not recorded (sampled out, or begun before the processor was there) is known by
its context alone; it counts for the latest run of its trace, which is made where there is none. So the verdict is the
same at any sampling rate, with one exception: spans that are not recorded show no ``invoke_agent``, so several agents
below one root span are then one run.

A run ends with its span; one whose span is not seen to end, after an idle limit. Everything here is bounded: of more
than 10,000 open spans or runs the least recently used one is forgotten, and a forgotten run ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry import trace

from otel_loopwatch import foreign, metrics, semconv, telemetry
from otel_loopwatch.calls import StopReason
from otel_loopwatch.open_spans import OpenSpans
from otel_loopwatch.run import Run, open_runs
from otel_loopwatch.spans import Key, Kind, OpenSpan, Root, now
from otel_loopwatch.twins import Twins

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span
    from opentelemetry.trace import SpanContext

    from otel_loopwatch.policy import Policy

__all__ = [
    "abandon_span",
    "above",
    "ambient_run",
    "claim_one",
    "close_span",
    "counted_by_twin",
    "current_turn",
    "default_policy",
    "end_run",
    "end_unseen",
    "find_span",
    "is_claimed",
    "is_in_model_call",
    "note",
    "open_span",
    "register",
    "reset",
    "run_of",
    "set_default_policy",
    "sweep",
    "turn_begun_by_twin",
    "twin_under_way",
    "unregister",
]


class _Guard(NamedTuple):
    """A live processor, and what it says about ambient runs."""

    owner: weakref.ref[object]
    policy: Policy
    idle_limit_s: float


_table = OpenSpans()
_latest_root: ContextVar[Key] = ContextVar("loopwatch_latest_root", default=(0, 0))
"""The local root span that began last in this context: frameworks begin the spans of two instrumentations side by side,
and neither is current when the other begins."""
_making = threading.RLock()
"""Held while a run is made, which may make instruments: the table's lock is not, for a collection takes that one."""
_guards: list[_Guard] = []
_configured: Policy | None = None


def _after_fork() -> None:
    # What is open here is open in the parent. The processors are alive in the child as well.
    global _table, _making  # noqa: PLW0603 - the locks may be held by a thread that is not in the child
    _table = OpenSpans()
    _making = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def register(owner: object, policy: Policy, idle_limit_s: float) -> None:
    """Let *owner*, held weakly, stand for ambient runs; the first that is alive says what holds for them.

    Args:
        owner: A span processor.
        policy: The policy of ambient runs.
        idle_limit_s: Seconds after which one ends that nothing has counted for.
    """
    _guards.append(_Guard(weakref.ref(owner), policy, idle_limit_s))


def unregister(owner: object) -> None:
    """The opposite of :func:`register`. With the last one, every ambient run ends."""
    _guards[:] = [guard for guard in _guards if guard.owner() not in (owner, None)]
    if not _guards:
        _close(_clear(), StopReason.CANCELLED)


def set_default_policy(policy: Policy | None) -> None:
    """Let *policy*, that of ``configure()``, come before those of processors; ``None`` takes it back."""
    global _configured  # noqa: PLW0603 - one a process
    _configured = policy


def default_policy() -> Policy | None:
    """The policy of ``configure()``, else that of the first live processor, if there is one."""
    if _configured is not None:
        return _configured
    guard = _guard()
    return None if guard is None else guard.policy


def _guard() -> _Guard | None:
    for guard in _guards:
        if guard.owner() is not None:
            return guard
    return None


def _idle_limit_s() -> float:
    guard = _guard()
    return 0.0 if guard is None else guard.idle_limit_s


def ambient_run(tool: str) -> Run | None:
    """The run of the current span, for a decorated call outside any ``watch_run``.

    Args:
        tool: Name of the decorated tool.

    Returns:
        ``None`` where no processor is alive, or where there is no valid span context. Then the call belongs to the run
        of the open span of another library that shows it, if it is clear which.
    """
    if not _guards or _guard() is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        span = _shown_elsewhere(tool)
        return None if span is None else run_of(span)
    key = _key(context)
    with _table.lock:
        span = _table.spans.get(key)
        root = _root_of_trace(key) if span is None else span.root
        run = root.run
        if run is not None and (span is None or (span.bound is None and span.kind != "run")):
            _table.touch(root)
            return run
    return _run_of(root) if span is None else span.bound or _own_run(span) or _run_of(root)


def _shown_elsewhere(tool: str) -> OpenSpan | None:
    """The open span that shows a call of *tool*, though it is not current: of this thread, or else of one run."""
    with _table.lock:
        shown = [span for span in _table.tools.get(tool, ()) if not span.claimed]
        here = threading.get_ident()
        shown = [span for span in shown if span.thread == here] or shown
        return shown[-1] if len({(span.root.key, id(span.bound)) for span in shown}) == 1 else None


def _root_of_trace(key: Key) -> Root:
    """The root for a span that was not seen to begin: the latest of its trace, or the span itself."""
    known = _table.of_trace.get(key[0])
    if known:
        return known[-1]
    root = Root(key, foreign.DEFAULT_AGENT, is_agent=False)
    # At once: the next thread of this trace must find it.
    _table.touch(root)
    return root


def _own_run(span: OpenSpan) -> Run | None:
    """The run whose own span *span* is: somebody made its span current, and not the run."""
    if span.kind != "run":
        return None
    for run in open_runs():
        if run.span is not None and _key(run.span.get_span_context()) == span.key:
            return run
    return None


def run_of(span: OpenSpan) -> Run | None:
    """The run that *span* belongs to, made now if need be; ``None`` where no processor is alive any more."""
    return span.bound or _run_of(span.root)


def _run_of(root: Root) -> Run | None:
    run = root.run
    if run is not None or root.ended:
        if not root.ended:
            with _table.lock:
                _table.touch(root)
        return run
    guard = _guard()
    if root.run is None and guard is not None:
        with _making:
            if root.run is None:
                root.run = _made_for(root, default_policy() or guard.policy)
    with _table.lock:
        run = root.run
        _table.touch(root)
        ended = _table.surplus(_idle_limit_s())
    _close(ended)
    return run


def _made_for(root: Root, policy: Policy) -> Run:
    span = None if root.span is None else root.span()
    talk = None if span is None else foreign.conversation(span.attributes or {})
    run = Run(root.agent, policy=policy, attributes=None if talk is None else {semconv.GEN_AI_CONVERSATION_ID: talk})
    if span is not None:
        telemetry.host_run(span, run)
    return run


def open_span(
    span: Span,
    parent: SpanContext | None,
    kind: Kind,
    *,
    scope: str = "",
    agent: str = "",
    tool: str = "",
) -> OpenSpan | None:
    """A span has begun.

    Args:
        span: The span. What is found in the run that it may stand for is noted there.
        parent: Of the span above it, which may be one of another process.
        kind: What it shows.
        scope: The instrumentation scope that made it.
        agent: The agent's name, for an agent span.
        tool: The tool's name, for a tool span.

    Returns:
        ``None`` where it is known already: another processor has seen it.
    """
    key = _key(span.get_span_context())
    outer_key = None if parent is None else _key(parent)
    with _table.lock:
        if key in _table.spans:
            return None
        outer = None if outer_key is None else _table.spans.get(outer_key)
        if outer is None and parent is not None and parent.is_remote:
            # The caller is in another process. (An in-memory transport calls remote what is open right here.)
            outer_key = None
        opened = OpenSpan(key, outer_key, kind, name=span.name, tool=tool, scope=scope, ours=scope == telemetry.SCOPE)
        _find_root(opened, outer, agent)
        if opened.is_root:
            opened.root.span = weakref.ref(span)
        _table.add(opened)
        _table.touch(opened.root)
        ended = _table.surplus(_idle_limit_s())
    if ended:
        _close(ended)
    return opened


def _find_root(opened: OpenSpan, outer: OpenSpan | None, agent: str) -> None:
    """Say which span stands for the run of *opened*, itself or one that began before it.

    Args:
        opened: The span that begins.
        outer: The open span above it, where that is one of this process.
        agent: The agent that it shows, if it shows one.
    """
    opened.subject = agent or opened.name
    beside = host = None
    if outer is not None:
        beside, outer.latest = outer.latest, opened
        root = outer.root
    elif opened.parent is not None:
        root = _root_of_trace(opened.parent)
    else:
        latest = _table.spans.get(_latest_root.get())
        beside = _table.beside(opened, latest)
        host = None if beside is not None else _table.host(opened, latest)
        root = Root(opened.key, agent or foreign.root_agent(opened.scope, opened.name), is_agent=False)
        if host is None:
            _latest_root.set(opened.key)
    if beside is not None and beside.shows_the_agent_of(opened):
        beside.twin, opened.twin = opened, beside
        root = _shared_root(beside, agent)
    elif host is not None:
        root = host.root
    elif agent and not root.is_agent:
        root = Root(opened.key, agent, is_agent=True)
    opened.root = root


def _shared_root(first: OpenSpan, agent: str) -> Root:
    """The root of two spans that show one agent: *first* stands for its run, and *agent* is what the second says."""
    if agent and not first.root.is_agent:
        if first.root.key != first.key:
            first.root = Root(first.key, agent, is_agent=True)
        elif first.root.run is None:
            first.root.agent = agent
        first.root.is_agent = True
    return first.root


def close_span(context: SpanContext) -> OpenSpan | None:
    """A span has ended. The run that it may stand for goes on until :func:`end_run`.

    Returns:
        ``None`` where it is not known (any more): another processor has seen its end.
    """
    with _table.lock:
        span = _table.spans.get(_key(context))
        if span is not None:
            _table.drop(span)
            span.ended = now()
    return span


def abandon_span(span: OpenSpan) -> None:
    """Forget a span that the SDK never ends: its beginning was refused."""
    with _table.lock:
        _table.drop(span)


def find_span(context: SpanContext) -> OpenSpan | None:
    """The open span of *context*, if it is known."""
    with _table.lock:
        return _table.spans.get(_key(context))


def end_run(span: OpenSpan, stop_reason: StopReason) -> None:
    """End the run that *span* stands for, if it does and there is one."""
    if span.is_root:
        with _table.lock:
            run = _table.forget(span.root)
            span.root.span = None
            span.root.run, span.root.ended = run, True
        if run is not None:
            run.close(stop_reason)


def end_unseen(context: SpanContext, parent: SpanContext | None, stop_reason: StopReason) -> None:
    """End the runs that were made for a span whose beginning was not seen; with a whole trace, all that it has here."""
    with _table.lock:
        roots = _table.of_trace.get(context.trace_id, ())
        ended = [
            root for root in roots if root.key not in _table.spans and (parent is None or root.key == _key(context))
        ]
        runs = [run for root in ended if (run := _table.forget(root)) is not None]
    _close(runs, stop_reason)


def above(span: OpenSpan) -> list[OpenSpan]:
    """The open spans of its run above *span*, nearest first; a run's own span ends the list and is not in it."""
    found: list[OpenSpan] = []
    with _table.lock:
        below: OpenSpan | None = span
        while below is not None and below.parent is not None and below.key != span.root.key:
            below = _table.spans.get(below.parent)
            if below is None or below.kind == "run":
                break
            found.append(below)
    return found


def note(span: OpenSpan, run: Run) -> None:
    """Remember a tool or model span of *run*, for the span of another library that may show the same call."""
    with _table.lock:
        _twins(run).note(span)


def counted_by_twin(span: OpenSpan, run: Run) -> bool:
    """True where another library's span has shown, and counted, the very call that the ended *span* shows."""
    with _table.lock:
        return _twins(run).counted(span) is not None


def twin_under_way(span: OpenSpan, run: Run) -> bool:
    """True where an open span of another library may show the very call that *span* shows."""
    with _table.lock:
        return _twins(run).under_way(span)


def turn_begun_by_twin(span: OpenSpan, run: Run) -> bool:
    """True where another library's span has begun the model turn that *span* shows."""
    with _table.lock:
        return _twins(run).stepped(span)


def _twins(run: Run) -> Twins:
    twins = _table.twins.get(run)
    if twins is None:
        twins = _table.twins[run] = Twins()
    return twins


def is_in_model_call(span: OpenSpan, run: Run) -> bool:
    """True where a library makes a whole loop of turns inside of one model span, with *span* below it.

    Which of the turns has asked for a call cannot be told then.
    """
    if run.has_explicit_steps:
        return False
    for outer in above(span):
        if outer.kind == "agent":
            return False
        if outer.kind == "model":
            return True
    return False


def current_turn(run: Run) -> int:
    """The model turn that asks for the call that is about to be made; 0 where that cannot be told."""
    if _table.model_spans and run.current_step:
        context = trace.get_current_span().get_span_context()
        with _table.lock:
            span = _table.spans.get(_key(context))
        if span is not None and (span.kind == "model" or is_in_model_call(span, run)) and not run.has_explicit_steps:
            return 0
    return run.current_step


def shown_apart(tool: str, run_id: object) -> list[tuple[str, Run, int]]:
    """Which libraries have spans of *tool* open in the run: scope, run and how many spans, without those claimed."""
    found: dict[str, tuple[Run, int]] = {}
    with _table.lock:
        for span in _table.tools.get(tool, ()):
            run = span.bound or span.root.run
            if run is not None and run.run_id == run_id and not span.claimed:
                found[span.scope] = (run, found.get(span.scope, (run, 0))[1] + 1)
    return [(scope, run, spans) for scope, (run, spans) in found.items()]


def claim_one(run: Run, scope: str, tool: str, *, of: int) -> None:
    """Let one more of the *of* open spans of *tool* that *scope* has made in *run* not be counted at its end."""
    with _table.lock:
        _twins(run).claim(scope, tool, of)


def is_claimed(span: OpenSpan, run: Run) -> bool:
    """True where the ended tool span *span* takes one of the claims of :func:`claim_one`."""
    with _table.lock:
        return _twins(run).take_claim(span.scope, span.tool)


def sweep() -> None:
    """End the runs that have been idle for too long."""
    with _table.lock:
        ended = _table.surplus(_idle_limit_s(), idle=True)
    _close(ended)


metrics.before_collection(sweep)


def reset() -> None:
    """Forget every open span, run and processor. For tests."""
    _guards.clear()
    _close(_clear(), StopReason.CANCELLED)


def _clear() -> list[Run]:
    with _table.lock:
        _table.spans.clear()
        _table.tools.clear()
        _table.fresh.clear()
        _table.by_callback.clear()
        _table.model_spans = 0
        return [run for root in list(_table.roots.values()) if (run := _table.forget(root)) is not None]


def _close(runs: list[Run], stop_reason: StopReason = StopReason.COMPLETED) -> None:
    for run in runs:
        run.close(stop_reason)


def _key(context: SpanContext) -> Key:
    return context.trace_id, context.span_id
