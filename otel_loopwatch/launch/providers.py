"""A program may set OpenTelemetry providers of its own: then those are the ones that count, and the guard goes along.

OpenTelemetry lets a global provider be set once, and ``loopwatch run`` has been there first. A program's own would be
turned away with a warning and its exporters would get nothing, so the providers that were set up here give way to it:
it becomes the global one, the guard is put on it, and tracers that libraries were given before hand their spans to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_internal

from otel_loopwatch import metrics
from otel_loopwatch.errors import LoopwatchError, telemetry_guard

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["let_the_programs_own_win"]

logger = logging.getLogger("otel_loopwatch")


class _Giving(trace.Tracer):
    """A tracer of ours that hands its spans to the program's provider, once there is one."""

    def __init__(self, tracer: Tracer, successor: Callable[[], Tracer | None]) -> None:
        self._tracer = tracer
        self._successor = successor

    def start_span(self, *args: Any, **kwargs: Any) -> Span:
        return (self._successor() or self._tracer).start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return (self._successor() or self._tracer).start_as_current_span(*args, **kwargs)


def let_the_programs_own_win(attach: Callable[[TracerProvider], object]) -> None:
    """From now on a global provider that the program sets takes the place of the one that is set.

    The first does; the second one is turned away, as it always is.

    Args:
        attach: Puts the guard on a tracer provider.
    """
    with telemetry_guard("launch"):
        _give_way_to_tracer_provider(trace.get_tracer_provider(), attach)
        _give_way_to_meter_provider(metrics_api.get_meter_provider())


def _give_way_to_tracer_provider(ours: TracerProvider, attach: Callable[[TracerProvider], object]) -> None:
    original_set = trace._set_tracer_provider  # noqa: SLF001 - what every way to set one comes to
    original_get = ours.get_tracer
    successors: list[TracerProvider] = []

    def get_tracer(*args: Any, **kwargs: Any) -> Tracer:
        theirs: list[Tracer] = []

        def successor() -> Tracer | None:
            if successors and not theirs:
                theirs.append(successors[0].get_tracer(*args, **kwargs))
            return theirs[0] if theirs else None

        return _Giving(original_get(*args, **kwargs), successor)

    def set_tracer_provider(provider: TracerProvider, log: bool) -> None:  # noqa: FBT001 - as the one it replaces
        if successors or provider is ours or trace.get_tracer_provider() is not ours:
            original_set(provider, log)
            return
        with telemetry_guard("launch"):
            try:
                attach(provider)
            except LoopwatchError as error:
                logger.warning("otel-loopwatch: the program's own tracer provider is not watched: %s", error)
        trace._TRACER_PROVIDER = provider  # noqa: SLF001 - a global provider can be set only once
        successors.append(provider)

    ours.get_tracer = get_tracer  # type: ignore[method-assign]
    trace._set_tracer_provider = set_tracer_provider  # type: ignore[assignment] # noqa: SLF001


def _give_way_to_meter_provider(ours: Any) -> None:
    original_set = metrics_internal._set_meter_provider  # noqa: SLF001 - as above
    successors: list[Any] = []

    def set_meter_provider(provider: Any, log: bool) -> None:  # noqa: FBT001 - as the one it replaces
        if successors or provider is ours or metrics_api.get_meter_provider() is not ours:
            original_set(provider, log)
            return
        successors.append(provider)
        with telemetry_guard("launch"):
            # While it is not the global one yet: of that, our instruments are known to be there already.
            metrics.instrument(provider)
        metrics_internal._METER_PROVIDER = provider  # noqa: SLF001 - as above
        with telemetry_guard("launch"):
            _retire(ours)

    metrics_internal._set_meter_provider = set_meter_provider  # type: ignore[assignment] # noqa: SLF001


def _retire(provider: Any) -> None:
    """Shut *provider* down, or two would export the same numbers. Not here: it may have to wait for a network."""
    shutdown = getattr(provider, "shutdown", None)
    if shutdown is not None:
        threading.Thread(target=shutdown, name="loopwatch-retire", daemon=True).start()
