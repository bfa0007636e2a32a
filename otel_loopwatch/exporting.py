"""Providers of our own, for a process that has none: resource, exporters as ``OTEL_*`` says, and a bounded end.

What the SDK reads by itself (sampler, limits, endpoints, headers, intervals) it reads here as well. Read here are only
the variables that its own set-up code reads: ``OTEL_TRACES_EXPORTER``, ``OTEL_METRICS_EXPORTER`` and the OTLP protocol.
Where no exporter is named and no OTLP endpoint is set, nothing is exported.

The SDK shuts its providers down when the process ends, and waits for a dead endpoint as long as its exporter retries:
over a minute in some releases. Here a thread that stands by does it, and is waited for no longer than was said.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.util.types import AttributeValue

from otel_loopwatch import metrics
from otel_loopwatch.errors import LoopwatchError, telemetry_guard

__all__ = ["Ending", "ProcessResource", "meter_provider", "tracer_provider"]

SERVICE_NAME: Final = "service.name"
INSTANCE_ID: Final = "service.instance.id"

_TRACES, _METRICS = "traces", "metrics"
_PROTOCOLS: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def _set(variable: str) -> str:
    """An environment variable; empty is not set, as OpenTelemetry says."""
    return os.environ.get(variable, "").strip()


class ProcessResource(Resource):
    """A resource with a ``service.instance.id`` of each process, a new one after a fork.

    Two processes that share one would share every series, and each would seem to reset the other's. An id that the
    user sets (``OTEL_RESOURCE_ATTRIBUTES``) stays.

    Args:
        service_name: ``None`` leaves it to ``OTEL_SERVICE_NAME``.
    """

    def __init__(self, service_name: str | None) -> None:
        said = Resource.create({} if service_name is None else {SERVICE_NAME: service_name})
        super().__init__(said.attributes, said.schema_url)
        self._is_users = f"{INSTANCE_ID}=" in _set("OTEL_RESOURCE_ATTRIBUTES")
        self.begin()
        _resources.add(self)

    # A WeakSet asks for it; the SDK's own changes with the attributes.
    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def begin(self) -> None:
        """Take a new id: a process begins."""
        if not self._is_users:
            self._change({INSTANCE_ID: str(uuid.uuid4())})

    def rename(self, service_name: str) -> None:
        """Have another ``service.name`` from now on."""
        self._change({SERVICE_NAME: service_name})

    def _change(self, changes: Mapping[str, AttributeValue]) -> None:
        self._attributes = Resource({**self.attributes, **changes})._attributes  # noqa: SLF001 - its own class


_resources: weakref.WeakSet[ProcessResource] = weakref.WeakSet()


def tracer_provider(resource: Resource) -> TracerProvider:
    """A tracer provider that exports as the environment says.

    Raises:
        LoopwatchError: Where the environment names an exporter that is not installed.
    """
    exporters = list(_exporters(_TRACES))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        counted = _CountedSpans(exporter)
        # What is printed for a developer is of use at once.
        simple = isinstance(exporter, ConsoleSpanExporter)
        provider.add_span_processor(SimpleSpanProcessor(counted) if simple else BatchSpanProcessor(counted))
    return provider


def meter_provider(resource: Resource) -> MeterProvider | None:
    """A meter provider that exports as the environment says; ``None`` where it says that nothing is exported.

    Raises:
        LoopwatchError: Where the environment names an exporter that is not installed.
    """
    readers = [
        made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(_CountedMetrics(made))
        for made in _exporters(_METRICS)
    ]
    return MeterProvider(readers, resource=resource, shutdown_on_exit=False) if readers else None


def _exporters(signal: str) -> Iterator[Any]:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    said = [name.strip() for name in _set(variable).split(",") if name.strip()]
    has_endpoint = _set("OTEL_EXPORTER_OTLP_ENDPOINT") or _set(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    if not said and has_endpoint:
        said = ["otlp"]
    for name in dict.fromkeys(said):
        if name == "none":
            continue
        entry = _protocol(signal) if name == "otlp" else name
        group = f"opentelemetry_{signal}_exporter"
        found = next(iter(entry_points(group=group, name=entry)), None)
        if found is None:
            there = ", ".join(sorted({each.name for each in entry_points(group=group)}))
            raise LoopwatchError(
                f"{variable}={name}: there is no such exporter. Install the package that brings it, or use none, otlp "
                f"or one of {there}"
            )
        yield found.load()()


def _protocol(signal: str) -> str:
    own, shared = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    variable = own if _set(own) else shared
    # The SDK's own default.
    protocol = _set(variable) or "grpc"
    if protocol not in _PROTOCOLS:
        raise LoopwatchError(f"{variable}={protocol}: must be {' or '.join(_PROTOCOLS)}")
    return _PROTOCOLS[protocol]


class _CountedSpans(SpanExporter):
    """Counts what the exporter inside of it loses. The SDK says in its log why."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                metrics.export_error(_TRACES)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _CountedMetrics(MetricExporter):
    """The same for metrics."""

    def __init__(self, inner: MetricExporter) -> None:
        super().__init__(inner._preferred_temporality, inner._preferred_aggregation)  # noqa: SLF001 - the SDK's readers read them
        self._inner = inner

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        result = MetricExportResult.FAILURE
        try:
            result = self._inner.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
        finally:
            if result is not MetricExportResult.SUCCESS:
                metrics.export_error(_METRICS)
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class Ending:
    """Shuts a provider down in a thread that stands by, so that a network cannot hold up whoever asks.

    The thread is there from the beginning: from Python 3.12 on, none can be started when the process ends.

    Args:
        shutdown: Sends what is left and ends the exporters.
    """

    def __init__(self, shutdown: Callable[[], object]) -> None:
        self._shutdown = shutdown
        self.stand_by()
        _endings.add(self)

    def stand_by(self) -> None:
        """Start the thread, at the beginning and in the child of a fork, where it is not."""
        self._asked = threading.Event()
        self._done = threading.Event()
        threading.Thread(target=self._wait, name="loopwatch-ending", daemon=True).start()

    def _wait(self) -> None:
        self._asked.wait()
        try:
            with telemetry_guard("flush"):
                self._shutdown()
        finally:
            self._done.set()

    def begin(self) -> None:
        """Ask for it, without waiting."""
        _endings.discard(self)
        self._asked.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until it is done, at most *timeout_s* seconds; False where it is not."""
        return self._done.wait(max(0.0, timeout_s))


_endings: weakref.WeakSet[Ending] = weakref.WeakSet()


def _after_fork() -> None:
    for resource in list(_resources):
        resource.begin()
    for ending in list(_endings):
        ending.stand_by()


os.register_at_fork(after_in_child=_after_fork)
