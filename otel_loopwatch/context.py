"""Which run is current: in a ContextVar of our own, and in the OpenTelemetry context as a fallback.

Both are needed. ``attach(extract(headers))`` begins from an empty OpenTelemetry context and would lose the run;
``ThreadingInstrumentor`` carries the OpenTelemetry context into a thread, and nothing else. Plain threads lose both:
that is what :func:`bind` is for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from opentelemetry import context as otel_context

from otel_loopwatch.errors import warn_once

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from otel_loopwatch.run import Run

__all__ = ["Attached", "attach", "bind", "current_run", "detach"]

P = ParamSpec("P")
T = TypeVar("T")

# A NamedTuple's own constructor is a Python function around this one and takes twice the time.
_new = tuple.__new__

_RUN_KEY = otel_context.create_key("loopwatch-run")
_current: ContextVar[Run | None] = ContextVar("loopwatch_run", default=None)

pid = os.getpid()
"""This process. Runs of another process (the parent, before a fork) are detached here."""


def _after_fork() -> None:
    global pid  # noqa: PLW0603 - the one thing that a fork changes
    pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class Attached(NamedTuple):
    """What :func:`detach` needs."""

    ours: Token[Run | None] | None
    otel: Token[Context]


def current_run() -> Run | None:
    """The run of this context, or ``None`` outside any run."""
    run = _current.get()
    if run is None:
        found = otel_context.get_value(_RUN_KEY)
        if found is None:
            return None
        run = found  # type: ignore[assignment]  # only attach() stores under this key
    if run is not None and run.pid != pid:
        warn_once(
            "fork",
            "a run that was opened before a fork is not counted in the child; open watch_run in the child instead",
        )
        return None
    return run


def attach(run: Run | None, context: Context) -> Attached:
    """Make *run* current, in *context* (with its span set, if it has one); without a run, only the context."""
    ours = None
    if run is not None:
        if _current.get() is not run:
            ours = _current.set(run)
        if context.get(_RUN_KEY) is not run:
            context = otel_context.set_value(_RUN_KEY, run, context)
    return _new(Attached, (ours, otel_context.attach(context)))


def detach(attached: Attached) -> None:
    """Undo :func:`attach`. In another context than the one that attached (another task's) this does nothing."""
    try:
        if attached.ours is not None:
            _current.reset(attached.ours)
        # The SDK's own detach() logs an error where the token is another context's; such a token is dropped here.
        attached.otel.var.reset(attached.otel)
    except (ValueError, RuntimeError, LookupError):
        return


def bind(fn: Callable[P, T]) -> Callable[P, T]:
    """Carry the current run into another thread: ``pool.submit(lw.bind(fn), ...)``.

    The result may be called from many threads at once (a copied ``contextvars.Context`` may not). The OpenTelemetry
    context of the place where ``bind`` was called comes along, so spans have the right parent.

    Args:
        fn: Any function; a coroutine function is not one that runs in a thread.
    """
    run = current_run()
    context = otel_context.get_current()
    if run is None and not context:
        return fn

    @functools.wraps(fn)
    def bound(*args: P.args, **kwargs: P.kwargs) -> T:
        attached = attach(run, context)
        try:
            return fn(*args, **kwargs)
        finally:
            detach(attached)

    return bound
