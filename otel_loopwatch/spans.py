"""What is kept of a span while it is open, and of one that stands for a run."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span

    from otel_loopwatch.run import Run
    from otel_loopwatch.shown_calls import ShownCall

__all__ = ["Key", "Kind", "OpenSpan", "Root", "now"]

Kind = Literal["agent", "run", "tool", "model", "other"]
Key = tuple[int, int]
"""Trace id and span id."""


class Root:
    """A span that stands for a run, which is made when something counts for it.

    Attributes:
        key: The span.
        agent: The agent's name, where the span says it.
        is_agent: True for an ``invoke_agent`` or ``invoke_workflow`` span: those inside of it belong to its run.
        span: The span itself, while it is open, recorded and held elsewhere: what is found is noted there.
        run: The run, once there is one; it stays when the span has ended.
        ended: True once the span has ended: what comes late is of that run, and begins no other.
        used_at: When it was last asked for, by the process's clock.
    """

    __slots__ = ("agent", "ended", "is_agent", "key", "run", "span", "used_at")

    def __init__(self, key: Key, agent: str, *, is_agent: bool) -> None:
        self.key = key
        self.agent = agent
        self.is_agent = is_agent
        self.span: weakref.ref[Span] | None = None
        self.ended = False
        self.run: Run | None = None
        self.used_at = 0.0


class OpenSpan:
    """A recorded span of this process that has not ended.

    Attributes:
        key: The span.
        parent: The span above it, where that is one of this process.
        kind: ``run`` and ``tool`` may be ours; ``agent``, ``model`` and ``other`` are somebody else's.
        ours: True for a span that this package made.
        scope: The instrumentation scope that made it.
        subject: What it is about, by its name: the agent, for an agent span.
        root: The span that stands for its run.
        latest: The span right below it that began last.
        bound: The run that was current when it began; wins over ``root``.
        name: Its name when it began.
        tool: Name of the tool, for a tool span.
        step: The model turn of the run when it began.
        stepped: True for a model span that began a turn.
        claimed: True where the call that it shows (should it be one of a tool) was counted by a decorator inside of it.
        counted: True where it has been counted itself.
        charged_below: True where a span inside of it has said what was used.
        inner: What a span inside of it has shown of the very call that it shows.
        blind: Models of the calls right below it that have not said what was used: it may be about to say it.
        batch: Number of the tool spans of the run that were open together with it, counted as one; 0 where unknown.
        began: Its place in the order of beginnings and ends (:func:`now`).
        ended: The same of its end.
        thread: The thread in which it began.
        twin: The span of another library that shows the same call, or the same agent.
        call_id: The model's id of the call, for a tool span, where it is shown.
        response_id: The provider's id of the answer, for a model span, where it is shown.
        says: What else it shows, as hashes: the values of a tool's arguments, by name; or the name of a model.
        tokens: Input and output tokens, for a model span, where they are shown.
    """

    __slots__ = (
        "batch",
        "began",
        "blind",
        "bound",
        "call_id",
        "charged_below",
        "claimed",
        "counted",
        "ended",
        "inner",
        "key",
        "kind",
        "latest",
        "name",
        "ours",
        "parent",
        "response_id",
        "root",
        "says",
        "scope",
        "step",
        "stepped",
        "subject",
        "thread",
        "tokens",
        "tool",
        "twin",
    )

    root: Root

    def __init__(
        self, key: Key, parent: Key | None, kind: Kind, *, name: str, tool: str, scope: str, ours: bool
    ) -> None:
        self.key = key
        self.parent = parent
        self.kind = kind
        self.ours = ours
        self.scope = scope
        self.subject = ""
        self.latest: OpenSpan | None = None
        self.bound: Run | None = None
        self.name = name
        self.tool = tool
        self.step = 0
        self.stepped = self.claimed = self.counted = self.charged_below = False
        self.inner: ShownCall | None = None
        self.blind: tuple[str | None, ...] = ()
        self.batch = 0
        self.began = now()
        self.thread = threading.get_ident()
        self.ended: int | None = None
        self.twin: OpenSpan | None = None
        self.call_id: str | None = None
        self.response_id: str | None = None
        self.says: dict[str, int] = {}
        self.tokens: tuple[int, int] | None = None

    @property
    def is_root(self) -> bool:
        """True where the span stands for a run."""
        return self.root.key == self.key

    def shows_the_agent_of(self, other: OpenSpan) -> bool:
        """True where this, still open, and *other*, which begins beside it, are one agent as two libraries show it."""
        return (
            self.ended is None
            and self.twin is None
            and self.scope != other.scope
            and self.subject == other.subject
            and "agent" in (self.kind, other.kind)
            and not (self.ours or other.ours)
        )


_order = itertools.count(1)


def now() -> int:
    """The place of this moment in the order of all beginnings and ends of spans. No clock: one may be set back."""
    return next(_order)
