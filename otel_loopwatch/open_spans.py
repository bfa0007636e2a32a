"""The spans of this process that are open, and those that stand for a run: one table under one lock, bounded."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from otel_loopwatch import metrics
from otel_loopwatch.clock import get_clock
from otel_loopwatch.dialects import BY_CALLBACK
from otel_loopwatch.spans import Key, OpenSpan, Root

if TYPE_CHECKING:
    from otel_loopwatch.run import Run
    from otel_loopwatch.twins import Twins

__all__ = ["OpenSpans"]

MAX_OPEN: Final = 10_000
FRESH: Final = 16
"""Local roots among which the twin of one that begins is looked for."""
IDLE_LOOKS: Final = 256
"""Of so many spans or calls, one looks for idle runs; so does every collection of metrics."""


def _tool_of(span: OpenSpan) -> str:
    """The tool that an open span of another library shows, as far as one can tell."""
    return span.tool or (span.name if span.scope in BY_CALLBACK else "")


class OpenSpans:
    """What is open. One lock; runs are closed outside of it, for closing tells metrics."""

    def __init__(self) -> None:
        # Re-entrant: a finaliser may end a span while this thread is inside.
        self.lock = threading.RLock()
        self.spans: OrderedDict[Key, OpenSpan] = OrderedDict()
        self.roots: OrderedDict[Key, Root] = OrderedDict()
        self.of_trace: dict[int, list[Root]] = {}
        self.tools: dict[str, list[OpenSpan]] = {}
        self.twins: weakref.WeakKeyDictionary[Run, Twins] = weakref.WeakKeyDictionary()
        self.fresh: deque[OpenSpan] = deque(maxlen=FRESH)
        self.by_callback: dict[Key, OpenSpan] = {}
        self.model_spans = 0
        self.looks = 0

    def add(self, span: OpenSpan) -> None:
        """A span has begun."""
        self.spans[span.key] = span
        if not span.ours and (name := _tool_of(span)):
            self.tools.setdefault(name, []).append(span)
        self.model_spans += span.kind == "model"
        if span.parent is None and span.scope in BY_CALLBACK:
            self.by_callback[span.key] = span

    def drop(self, span: OpenSpan) -> None:
        """A span has ended, or is one too many."""
        if self.spans.pop(span.key, None) is not None:
            self.model_spans -= span.kind == "model"
        self.by_callback.pop(span.key, None)
        name = _tool_of(span)
        alike = self.tools.get(name)
        if alike is not None and span in alike:
            alike.remove(span)
            if not alike:
                del self.tools[name]

    def beside(self, opened: OpenSpan, latest: OpenSpan | None) -> OpenSpan | None:
        """The local root that another library has just begun for the agent of *opened*, if it is clear which.

        Asynchronous callbacks run in copies of the context, each in its own. What is left to go by is that the other
        root is open, and that nothing has happened below it.

        Args:
            opened: A local root that begins.
            latest: The one that began last in this context, if it is open.
        """
        if latest is not None and latest.shows_the_agent_of(opened):
            return latest
        alike = [other for other in self.fresh if other.ended is None and other.subject == opened.subject]
        self.fresh.append(opened)
        # With a second run of the agent under way, it would be a guess; and any other library makes its span current.
        if len(alike) != 1 or alike[0].latest is not None or BY_CALLBACK.isdisjoint((opened.scope, alike[0].scope)):
            return None
        return alike[0]

    def host(self, opened: OpenSpan, latest: OpenSpan | None) -> OpenSpan | None:
        """The root of a library whose spans are never current, inside of which *opened* begins a trace of its own.

        Args:
            opened: A local root that begins.
            latest: The one that began last in this context, if it is open.
        """
        if opened.scope in BY_CALLBACK or latest is None:
            return None
        return latest if latest.key in self.by_callback else None

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

    def surplus(self, idle_limit_s: float, *, idle: bool = False) -> list[Run]:
        """Forget what is over the bound (and count it); returns the runs to close.

        Args:
            idle_limit_s: Seconds after which a run ends for which nothing has counted.
            idle: Look for such runs now. They are looked for now and then, not for every span.
        """
        self.looks += 1
        evicted = 0
        while len(self.spans) > MAX_OPEN:
            self.drop(next(iter(self.spans.values())))
            evicted += 1
        ended = []
        if idle or not self.looks % IDLE_LOOKS or len(self.roots) > MAX_OPEN:
            idle_since = get_clock()() - idle_limit_s
            while self.roots:
                oldest = next(iter(self.roots.values()))
                if oldest.used_at > idle_since:
                    if len(self.roots) <= MAX_OPEN:
                        break
                    evicted += 1
                run = self.forget(oldest)
                if run is not None:
                    ended.append(run)
        if evicted:
            metrics.spans_evicted(evicted)
        return ended
