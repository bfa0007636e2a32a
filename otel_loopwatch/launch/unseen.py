"""Which tools' spans show no arguments: a loop of such calls cannot be told from progress, and somebody must say so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import SpanProcessor

from otel_loopwatch import foreign, telemetry
from otel_loopwatch.errors import telemetry_guard
from otel_loopwatch.shown_calls import shown_call

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["ArgumentWatch"]

MAX_TOOLS = 1000
"""Names of tools that are remembered: a model may make names up."""


class ArgumentWatch(SpanProcessor):
    """Notes for every tool whether any span of a call of it has shown arguments."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shown: dict[str, bool] = {}

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended."""
        with telemetry_guard("launch"):
            attributes = span.attributes or {}
            scope = foreign.scope(span)
            if foreign.kind(attributes, scope, span.name) != "tool":
                return
            if scope == telemetry.SCOPE:
                # A decorated tool: its arguments were seen by the decorator.
                self._note(foreign.tool_name(attributes, scope, span.name), shown=True)
                return
            call = shown_call(span, attributes, scope)
            if call is not None:
                self._note(call.tool, shown=call.arguments is not None)

    def _note(self, tool: str, *, shown: bool) -> None:
        with self._lock:
            if tool in self._shown or len(self._shown) < MAX_TOOLS:
                self._shown[tool] = shown or self._shown.get(tool, False)

    def unseen(self) -> list[str]:
        """The tools of whose calls no span has shown arguments, sorted."""
        with self._lock:
            return sorted(tool for tool, shown in self._shown.items() if not shown)
