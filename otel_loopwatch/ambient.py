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
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from opentelemetry import trace

from otel_loopwatch import metrics
from otel_loopwatch.calls import StopReason
from otel_loopwatch.clock import get_clock
from otel_loopwatch.run import Run, open_runs

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from otel_loopwatch.policy import Policy

__all__ = [
    "Kind",
    "OpenSpan",
    "above",
    "ambient_run",
    "close_span",
    "default_policy",
    "end_run",
    "end_unseen",
    "open_span",
    "open_tools",
    "register",
    "reset",
    "sweep",
    "unregister",
]

MAX_OPEN: Final = 10_000
IDLE_LOOKS: Final = 256
"""Of so many spans or calls, one looks for idle runs; so does every collection of metrics."""
DEFAULT_AGENT: Final = "agent"

Kind = Literal["agent", "run", "tool", "model", "other"]
Key = tuple[int, int]
"""Trace id and span id."""


class Root:
    """A span that stands for a run, which is made when something counts for it.

    Attributes:
        key: The span.
        agent: The agent's name, where the span says it.
        is_agent: True for an ``invoke_agent`` or ``invoke_workflow`` span: those inside of it belong to its run.
        run: The run, once there is one.
        used_at: When it was last asked for, by the process's clock.
    """

    __slots__ = ("agent", "is_agent", "key", "run", "used_at")

    def __init__(self, key: Key, agent: str, *, is_agent: bool) -> None:
        self.key = key
        self.agent = agent
        self.is_agent = is_agent
        self.run: Run | None = None
        self.used_at = 0.0


class OpenSpan:
    """A recorded span of this process that has not ended.

    Attributes:
        key: The span.
        parent: The span above it, where that is one of this process.
        kind: ``run`` and ``tool`` may be ours; ``agent``, ``model`` and ``other`` are somebody else's.
        ours: True for a span that this package made.
        root: The span that stands for its run.
        bound: The run that was current when it began; wins over ``root``.
        tool: Name of the tool, for a tool span.
        step: The model turn of the run when it began.
        claimed: True where what it shows has been counted already, by something inside of it.
    """

    __slots__ = ("bound", "claimed", "key", "kind", "ours", "parent", "root", "step", "tool")

    def __init__(self, key: Key, parent: Key | None, kind: Kind, root: Root, tool: str, *, ours: bool) -> None:
        self.key = key
        self.parent = parent
        self.kind = kind
        self.ours = ours
        self.root = root
        self.bound: Run | None = None
        self.tool = tool
        self.step = 0
        self.claimed = False

    @property
    def is_root(self) -> bool:
        """True where the span stands for a run."""
        return self.root.key == self.key

    def run(self) -> Run | None:
        """The run it belongs to, made now if need be; ``None`` where no processor is alive any more."""
        return self.bound or _run_of(self.root)


class _Guard(NamedTuple):
    """A live processor, and what it says about ambient runs."""

    owner: weakref.ref[object]
    policy: Policy
    idle_limit_s: float


class _Table:
    """What is open. One lock; runs are closed outside of it, for closing tells metrics."""

    def __init__(self) -> None:
        # Re-entrant: a finaliser may end a span while this thread is inside.
        self.lock = threading.RLock()
        self.spans: OrderedDict[Key, OpenSpan] = OrderedDict()
        self.roots: OrderedDict[Key, Root] = OrderedDict()
        self.of_trace: dict[int, list[Root]] = {}
        self.tools: dict[str, list[OpenSpan]] = {}
        self.looks = 0

    def add(self, span: OpenSpan) -> None:
        """A span has begun."""
        self.spans[span.key] = span
        if span.tool and not span.ours:
            self.tools.setdefault(span.tool, []).append(span)

    def drop(self, span: OpenSpan) -> None:
        """A span has ended, or is one too many."""
        self.spans.pop(span.key, None)
        alike = self.tools.get(span.tool)
        if alike is not None and span in alike:
            alike.remove(span)
            if not alike:
                del self.tools[span.tool]

    def touch(self, root: Root) -> None:
        """Note that *root* is in use, and put it (back) where it is found."""
        if root.key not in self.roots:
            self.of_trace.setdefault(root.key[0], []).append(root)
            self.roots[root.key] = root
        self.roots.move_to_end(root.key)
        root.used_at = get_clock()()
        if root.key in self.spans:
            # Or a long run would be forgotten for the short spans below it.
            self.spans.move_to_end(root.key)

    def forget(self, root: Root) -> Run | None:
        """Take *root* out; returns the run to close."""
        if self.roots.pop(root.key, None) is not None:
            siblings = self.of_trace[root.key[0]]
            siblings.remove(root)
            if not siblings:
                del self.of_trace[root.key[0]]
        run, root.run = root.run, None
        return run

    def surplus(self, *, idle: bool = False) -> list[Run]:
        """Forget what is over the bound; returns the runs to close.

        Args:
            idle: Forget as well what nothing has counted for in a long time. Done now and then, not for every span.
        """
        self.looks += 1
        while len(self.spans) > MAX_OPEN:
            self.drop(next(iter(self.spans.values())))
        if not idle and self.looks % IDLE_LOOKS and len(self.roots) <= MAX_OPEN:
            return []
        guard = _guard()
        idle_since = get_clock()() - (0 if guard is None else guard.idle_limit_s)
        ended = []
        while self.roots:
            oldest = next(iter(self.roots.values()))
            if len(self.roots) <= MAX_OPEN and oldest.used_at > idle_since:
                break
            run = self.forget(oldest)
            if run is not None:
                ended.append(run)
        return ended


_table = _Table()
_making = threading.RLock()
"""Held while a run is made, which may make instruments: the table's lock is not, for a collection takes that one."""
_guards: list[_Guard] = []


def _after_fork() -> None:
    # What is open here is open in the parent. The processors are alive in the child as well.
    global _table, _making  # noqa: PLW0603 - the locks may be held by a thread that is not in the child
    _table = _Table()
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


def default_policy() -> Policy | None:
    """The policy of the first live processor, if there is one."""
    guard = _guard()
    return None if guard is None else guard.policy


def _guard() -> _Guard | None:
    for guard in _guards:
        if guard.owner() is not None:
            return guard
    return None


def ambient_run() -> Run | None:
    """The run of the current span, for a decorated call outside any ``watch_run``.

    Returns:
        ``None`` where no processor is alive, or where there is no valid span context.
    """
    if not _guards or _guard() is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    key = _key(context)
    with _table.lock:
        span = _table.spans.get(key)
        root = _root_of_trace(key) if span is None else span.root
        run = root.run
        if run is not None and (span is None or (span.bound is None and span.kind != "run")):
            _table.touch(root)
            return run
    return _run_of(root) if span is None else span.bound or _own_run(span) or _run_of(root)


def _root_of_trace(key: Key) -> Root:
    """The root for a span that was not seen to begin: the latest of its trace, or the span itself."""
    known = _table.of_trace.get(key[0])
    if known:
        return known[-1]
    root = Root(key, DEFAULT_AGENT, is_agent=False)
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


def _run_of(root: Root) -> Run | None:
    guard = _guard()
    if root.run is None and guard is not None:
        with _making:
            if root.run is None:
                root.run = Run(root.agent, policy=guard.policy)
    with _table.lock:
        run = root.run
        _table.touch(root)
        ended = _table.surplus()
    _close(ended)
    return run


def open_span(
    context: SpanContext,
    parent: SpanContext | None,
    kind: Kind,
    *,
    ours: bool = False,
    agent: str = "",
    tool: str = "",
) -> OpenSpan | None:
    """A span has begun.

    Args:
        context: Of the span.
        parent: Of the span above it, which may be one of another process.
        kind: What it shows.
        ours: True where this package made it.
        agent: The agent's name, for an agent span.
        tool: The tool's name, for a tool span.

    Returns:
        ``None`` where it is known already: another processor has seen it.
    """
    key = _key(context)
    outer_key = None if parent is None or parent.is_remote else _key(parent)
    with _table.lock:
        if key in _table.spans:
            return None
        outer = None if outer_key is None else _table.spans.get(outer_key)
        if outer is not None:
            root = outer.root
        elif outer_key is not None:
            root = _root_of_trace(outer_key)
        else:
            root = Root(key, agent or DEFAULT_AGENT, is_agent=False)
        if kind == "agent" and not root.is_agent:
            root = Root(key, agent or DEFAULT_AGENT, is_agent=True)
        span = OpenSpan(key, outer_key, kind, root, tool, ours=ours)
        _table.add(span)
        _table.touch(root)
        ended = _table.surplus()
    if ended:
        _close(ended)
    return span


def close_span(context: SpanContext) -> OpenSpan | None:
    """A span has ended. The run that it may stand for goes on until :func:`end_run`.

    Returns:
        ``None`` where it is not known (any more): another processor has seen its end.
    """
    with _table.lock:
        span = _table.spans.get(_key(context))
        if span is not None:
            _table.drop(span)
    return span


def end_run(span: OpenSpan, stop_reason: StopReason) -> None:
    """End the run that *span* stands for, if it does and there is one."""
    if span.is_root:
        with _table.lock:
            run = _table.forget(span.root)
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


def open_tools(tool: str) -> list[OpenSpan]:
    """The open spans of others that show a call of *tool*, oldest first."""
    with _table.lock:
        return list(_table.tools.get(tool, ()))


def sweep() -> None:
    """End the runs that have been idle for too long."""
    with _table.lock:
        ended = _table.surplus(idle=True)
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
        return [run for root in list(_table.roots.values()) if (run := _table.forget(root)) is not None]


def _close(runs: list[Run], stop_reason: StopReason = StopReason.COMPLETED) -> None:
    for run in runs:
        run.close(stop_reason)


def _key(context: SpanContext) -> Key:
    return context.trace_id, context.span_id
