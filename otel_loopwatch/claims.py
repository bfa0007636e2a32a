"""Which spans of other libraries show the very call that a decorator counts, so that they are not counted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_loopwatch import ambient
from otel_loopwatch.dialects import TRANSPORTS

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_loopwatch.spans import OpenSpan

__all__ = ["claim", "claim_annotated", "is_one_call"]


def claim_annotated(span: Span, tool: str, run_id: str) -> None:
    """As :func:`claim`, for a call without a span of its own: *span*, another library's, is annotated instead."""
    opened = ambient.find_span(span.get_span_context())
    if opened is not None:
        claim(opened, tool, run_id)


def claim(opened: OpenSpan, tool: str, run_id: object) -> None:
    """Mark the span of another library that shows the very call for which this package has just begun a span.

    That is the nearest tool span above it, and those above that one which show the same; and, of each library that
    loses the context on its way to the tool, one of the open spans of this tool in this run, whichever ends first.
    """
    nearest = None
    above = ambient.above(opened)
    for outer in above:
        if outer.kind in ("agent", "model"):
            break
        if (nearest is None and outer.kind == "tool") or is_one_call(outer, nearest or opened, tool):
            outer.claimed = True
            nearest = nearest or outer
    if nearest is None and above and above[0].kind == "other":
        # It may turn out to be one: a decorator may have given the tool another name than the library.
        above[0].claimed = True
    claimed = {opened.scope} if nearest is None else {opened.scope, nearest.scope}
    for scope, run, spans in ambient.shown_apart(tool, run_id):
        if scope not in claimed:
            ambient.claim_one(run, scope, tool, of=spans)


def is_one_call(outer: OpenSpan, inner: OpenSpan, tool: str) -> bool:
    """True where *outer*, open above *inner*, shows the very call of *tool* that *inner* shows."""
    if outer.kind == "tool":
        return outer.tool == tool or (outer.scope in TRANSPORTS and inner.scope in TRANSPORTS)
    # It may be that of a library that says at its end what it is.
    return outer.kind == "other" and outer.name == tool
