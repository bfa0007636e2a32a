"""Two libraries that show one and the same call of a run, each by a span of its own.

Where one span is inside of the other, the tree of spans says so (:func:`otel_loopwatch.ambient.above`). Callbacks of a
framework, however, begin the spans of two instrumentations side by side. Those are recognised by what no second call
would share: they overlap in time, come from different scopes (or carry one response id), and nothing that both of them
show differs. The first to end is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_loopwatch.spans import OpenSpan

__all__ = ["Twins"]

MAX_SPANS: Final = 64
"""Tool and model spans of a run that are remembered: more than overlap with one of them in any run that was seen."""


class Twins:
    """The tool and model spans of one run that began lately. Not locked: the table of open spans is."""

    __slots__ = ("_batch", "_claims", "_mixed", "_scope", "_spans")

    def __init__(self) -> None:
        self._spans: deque[OpenSpan] = deque(maxlen=MAX_SPANS)
        self._scope: str | None = None
        self._mixed = False
        self._batch = 0
        self._claims: Counter[tuple[str, str]] = Counter()

    def note(self, span: OpenSpan) -> None:
        """Remember a tool or model span."""
        if self._scope is None:
            self._scope = span.scope
        elif self._scope != span.scope:
            self._mixed = True
        if span.kind == "tool" and span.ended is None:
            if not any(other.kind == "tool" and other.ended is None for other in self._spans):
                self._batch += 1
            span.batch = self._batch
        self._spans.append(span)

    def claim(self, scope: str, tool: str, of: int) -> None:
        """Let one more of the *of* open spans of *tool* that *scope* has made not be counted at its end."""
        if self._claims[scope, tool] < of:
            self._claims[scope, tool] += 1

    def take_claim(self, scope: str, tool: str) -> bool:
        """True where there is such a claim; there is one less then."""
        if not self._claims[scope, tool]:
            return False
        self._claims[scope, tool] -= 1
        return True

    def counted(self, span: OpenSpan) -> OpenSpan | None:
        """The span of another library that has shown, and counted, the very call that *span* shows; each is taken once.

        Args:
            span: A tool or model span that has ended.
        """
        for other in self._alike(span):
            if other.counted and other.twin is None and _agree(span, other):
                other.twin, span.twin = span, other
                return other
        return None

    def under_way(self, span: OpenSpan) -> bool:
        """True where an open span of another library may show the very call that *span* shows."""
        return any(other.ended is None and other.twin is None for other in self._alike(span))

    def stepped(self, span: OpenSpan) -> bool:
        """True where a span of another library that overlaps with *span* has begun a model turn already."""
        return any(other.stepped for other in self._alike(span))

    def _alike(self, span: OpenSpan) -> Iterator[OpenSpan]:
        if not self._mixed and span.response_id is None:
            return
        for other in reversed(self._spans):
            if (
                other is not span
                and other.kind == span.kind
                and other.tool == span.tool
                and (other.ended is None or other.ended > span.began)
                and (other.scope != span.scope or (span.response_id and other.response_id == span.response_id))
            ):
                yield other


def _agree(one: OpenSpan, other: OpenSpan) -> bool:
    """True where nothing that both show differs."""
    if any(one.says[name] != other.says[name] for name in one.says.keys() & other.says.keys()):
        return False
    return all(
        mine is None or theirs is None or mine == theirs
        for mine, theirs in (
            (one.call_id, other.call_id),
            (one.response_id, other.response_id),
            (one.tokens, other.tokens),
        )
    )
