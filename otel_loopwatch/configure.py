"""``configure()``: one call for a process that guards, exports and shows its numbers; ``shutdown()`` undoes it.

Whatever OpenTelemetry providers there are stay: the guard goes along with them. Where there is none,
:mod:`otel_loopwatch.exporting` makes one.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_internal

from otel_loopwatch import ambient, metrics, processor
from otel_loopwatch.errors import LoopwatchError, is_disabled, telemetry_guard
from otel_loopwatch.policy import Policy, operators_policy, policy_of
from otel_loopwatch.processor import LoopwatchSpanProcessor

if TYPE_CHECKING:
    from otel_loopwatch.exporting import Ending, ProcessResource
    from otel_loopwatch.exposition import Page

__all__ = ["Configured", "configure", "shutdown"]

logger = logging.getLogger("otel_loopwatch")

EXIT_S: Final = 5.0
"""Seconds that telemetry may take to leave when the process ends: half of what Docker waits before it kills."""


class Configured(NamedTuple):
    """What ``configure()`` has set up.

    Attributes:
        prometheus_port: The port of ``/metrics``, the real one where 0 was asked for; ``None`` where there is no page.
    """

    prometheus_port: int | None


class _State:
    """What is to be undone."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.active = False
        self.processor: LoopwatchSpanProcessor | None = None
        self.resource: ProcessResource | None = None
        self.endings: list[Ending] = []
        self.page: Page | None = None


# A reload of this module runs it again over its own names: what is set up must not be set up twice.
_state: _State = globals().get("_state") or _State()


def configure(
    service_name: str | None = None,
    *,
    policy: Policy | str | os.PathLike[str] | None = None,
    prometheus_port: int | None = None,
    prometheus_host: str = "127.0.0.1",
) -> Configured:
    """Put the guard into this process: its policy, the spans of other libraries, exporters and a page of metrics.

    It attaches to the tracer and meter providers that are set; set yours first. Where none is set it makes them, with
    exporters as ``OTEL_*`` says; with no exporter and no OTLP endpoint there, nothing is exported. At the end of the
    process what is left is sent, within 5 seconds. ``LOOPWATCH_DISABLED=1`` makes it do nothing.

    Called again it changes what it is told and leaves the rest, so twice is once: another policy holds for runs that
    begin from then on, another service name for what is exported from then on, a page is opened where there is none.

    Args:
        service_name: ``service.name``, of providers made here; those of others keep theirs. It wins over
            ``OTEL_SERVICE_NAME``.
        policy: The policy of runs that have none, or the path of its file; ``LOOPWATCH_POLICY`` wins over it.
        prometheus_port: TCP port of ``/metrics``; 0 takes a free one; ``None`` serves no page.
        prometheus_host: Address to serve it on. Anybody who can reach it can read it.

    Returns:
        What is set up: the port of the page.

    Raises:
        PolicyError: For a policy that cannot be used.
        LoopwatchError: Where the port cannot be had, there is a page on another one, or ``OTEL_*`` names an exporter
            that is not installed. Nothing has changed then.

    Emits:
        ``loopwatch.export.errors`` by the exporters made here.
    """
    if is_disabled():
        return Configured(None)
    # What may be refused comes first.
    chosen = policy_of(policy)
    operators = operators_policy()
    with _state.lock:
        opened = _open_page(prometheus_host, prometheus_port)
        try:
            _attach(service_name)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        if opened is not None:
            _state.page = opened
        if operators or chosen:
            ambient.set_default_policy(operators or chosen)
        in_force = ambient.default_policy()
        if in_force is not None:
            metrics.set_mode(in_force.mode)
        _state.active = True
        page = _state.page
        return Configured(None if page is None else page.port)


def _open_page(host: str, port: int | None) -> Page | None:
    """A new page, if one is asked for and there is none."""
    if port is None:
        return None
    page = _state.page
    if page is None:
        from otel_loopwatch.exposition import Page  # noqa: PLC0415 - only where a page is served

        return Page(host, port)
    if port not in (0, page.port) or host != page.host:
        raise LoopwatchError(
            f"/metrics is on {page.host}:{page.port} already, and does not move to {host}:{port}: call shutdown() first"
        )
    return None


def _attach(service_name: str | None) -> None:
    """Make the providers that are missing, and put the guard on them."""
    if _state.active:
        if service_name is not None and _state.resource is not None:
            _state.resource.rename(service_name)
    else:
        _make_providers(service_name)
    provider = trace.get_tracer_provider()
    if _state.processor is not None and _state.processor.is_active:
        return
    if processor.attached_to(provider) is not None:
        # Somebody else has put it there, and takes it away.
        return
    try:
        _state.processor = processor.attach(provider)
    except LoopwatchError:
        logger.warning(
            "otel-loopwatch: the tracer provider is a %s and takes no span processors, so the spans of other libraries "
            "are not seen; decorated tools are guarded all the same",
            type(provider).__name__,
        )
        _state.processor = LoopwatchSpanProcessor()
    metrics.instrument()


def _make_providers(service_name: str | None) -> None:
    needs_tracer = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    needs_meter = isinstance(metrics_api.get_meter_provider(), metrics_internal._ProxyMeterProvider)  # noqa: SLF001 - no other way to ask
    if not (needs_tracer or needs_meter):
        return
    # The SDK's exporters cost more to import than this package, and most who import it set up their own.
    from otel_loopwatch.exporting import Ending, ProcessResource, meter_provider, tracer_provider  # noqa: PLC0415

    resource = ProcessResource(service_name)
    # Both first, then set: an exporter that is not installed must not leave half of them behind.
    made: list[Any] = [
        tracer_provider(resource) if needs_tracer else None,
        meter_provider(resource) if needs_meter else None,
    ]
    tracers, meters = made
    if tracers is not None:
        trace.set_tracer_provider(tracers)
    if meters is not None:
        metrics_api.set_meter_provider(meters)
    _state.resource = resource
    _state.endings = [Ending(provider.shutdown) for provider in made if provider is not None]


def shutdown(timeout_s: float = 5.0) -> bool:
    """Undo :func:`configure`: the guard on spans, the default policy, the page, and the providers that it made.

    A global provider of OpenTelemetry cannot be replaced. One that was made here and is shut down stays and exports no
    more; a later ``configure()`` puts the guard on it again.

    Args:
        timeout_s: Seconds that everything together may take. What is not sent by then is lost.

    Returns:
        True where all of it was done in that time.
    """
    deadline = time.monotonic() + timeout_s
    with _state.lock:
        guard, _state.processor = _state.processor, None
        page, _state.page = _state.page, None
        endings, _state.endings = _state.endings, []
        if _state.active:
            ambient.set_default_policy(None)
        _state.active = False
        _state.resource = None
    # Runs without watch_run end here, and their numbers go along.
    if guard is not None:
        guard.shutdown()
    for ending in endings:
        ending.begin()
    if page is not None:
        with telemetry_guard("metrics"):
            page.close()
    return all(ending.join(deadline - time.monotonic()) for ending in endings)


def _at_exit() -> None:
    shutdown(EXIT_S)


# Of what a reload or a second import leaves there is only one that has anything to undo.
atexit.register(_at_exit)


def _after_fork() -> None:
    # The page stayed with the parent; the providers are alive in the child as well, with threads of its own.
    _state.lock = threading.RLock()
    page, _state.page = _state.page, None
    if page is not None:
        page.let_go()


os.register_at_fork(after_in_child=_after_fork)
