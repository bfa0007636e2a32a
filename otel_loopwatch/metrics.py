"""Our metrics: plain numbers in cells of this process, read by OpenTelemetry and by Prometheus alike.

``counter.add`` of the OpenTelemetry SDK costs about a quarter of a span, so nothing of it is on the way of a tool call.
A call adds to an integer; observable instruments (:func:`instrument`) and a ``prometheus_client`` collector
(:func:`prometheus_collector`) read the same cells when somebody collects. Histograms are recorded once, at the end of a
run, into cells of our own and into a real OpenTelemetry histogram. Expose one of the two, not both on one page.

The table of instruments is :data:`otel_loopwatch.semconv.METRICS`. After a fork the child begins at zero; only an
OpenTelemetry histogram that had recorded something before the fork keeps it, so let workers fork before the first run
ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics as otel
from opentelemetry import trace

from otel_loopwatch import semconv
from otel_loopwatch.calls import RunOutcome, Usage
from otel_loopwatch.cells import Distribution, Exemplar, OpenRun, Registry, Table, Value
from otel_loopwatch.errors import on_fault, telemetry_guard
from otel_loopwatch.semconv import METRICS, Metric
from otel_loopwatch.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
    from opentelemetry.trace import Span
    from prometheus_client import core
    from prometheus_client.registry import Collector

__all__ = [
    "before_collection",
    "charged",
    "export_error",
    "guard_error",
    "hint_ignored",
    "instrument",
    "known_tool",
    "loop_detected",
    "prometheus_collector",
    "reset",
    "run_closed",
    "run_opened",
    "samples",
    "set_mode",
    "spans_evicted",
    "tool_call",
    "tool_registered",
    "untracked",
    "usage_duplicate",
    "usage_missing",
    "usage_unpriced",
]

SCOPE: Final = "otel_loopwatch"
UNKNOWN_MODEL: Final = "unknown"
TOOL_PRICED: Final = ""
"""Value of ``model`` for money that a tool cost, not a model."""

_registry = Registry()
_Histograms = dict[str, "Histogram"]
_instrumented: weakref.WeakKeyDictionary[MeterProvider, _Histograms] = weakref.WeakKeyDictionary()
_instrument_lock = threading.RLock()
_global_done = False


def _after_fork() -> None:
    global _instrument_lock  # noqa: PLW0603 - it may be held by a thread that is not in the child
    _instrument_lock = threading.RLock()
    _registry.after_fork()


os.register_at_fork(after_in_child=_after_fork)

# --- writing ---------------------------------------------------------------------------------------------------------

tool_call = _registry.tool_call
"""``tool_call(agent, tool, outcome, *, repeated)``: count one call. *outcome* is one of :data:`semconv.OUTCOMES`."""

known_tool = _registry.know
"""``known_tool(agent, tool, action)``: every series of the pair is there from now on, loops with *action*."""


def loop_detected(agent: str, tool: str, kind: str, action: str) -> None:
    """Count a finding, the first time that its run reports it."""
    _registry.add(semconv.LOOPS_DETECTED, agent, tool, kind, action)


def hint_ignored(agent: str, tool: str) -> None:
    """Count a hint after which the model did the same again."""
    _registry.add(semconv.HINTS_IGNORED, agent, tool)


def charged(agent: str, usage: Usage) -> None:
    """Count tokens and money. An unknown price adds nothing; money of a tool has the model ``""``.

    Tokens have the types ``input``, ``output`` and ``cached_input``, of which the last is a part of the first.
    """
    cost = usage.cost_usd if usage.cost_usd is not None and usage.cost_usd.is_finite() else Decimal(0)
    if usage.tool is not None:
        _registry.add(semconv.SPEND_USD, agent, TOOL_PRICED, amount=cost)
        return
    model = usage.model or UNKNOWN_MODEL
    _registry.add(semconv.SPEND_USD, agent, model, amount=cost)
    _registry.add(semconv.TOKENS, agent, model, "input", amount=usage.input_tokens)
    _registry.add(semconv.TOKENS, agent, model, "output", amount=usage.output_tokens)
    _registry.add(semconv.TOKENS, agent, model, "cached_input", amount=usage.cached_input_tokens)


def usage_missing(model: str | None) -> None:
    """Count a model call that reported no usage."""
    _registry.add(semconv.USAGE_MISSING, model or UNKNOWN_MODEL)


def usage_unpriced(model: str | None) -> None:
    """Count a model call whose price is unknown."""
    _registry.add(semconv.USAGE_UNPRICED, model or UNKNOWN_MODEL)


def usage_duplicate(source: str) -> None:
    """Count a report of usage that was left out, because another source is the one of record."""
    _registry.add(semconv.USAGE_DUPLICATE, source)


def untracked(agent: str) -> None:
    """Count a decorated call outside any run."""
    _registry.add(semconv.UNTRACKED_TOOL_CALLS, agent)


def spans_evicted(count: int) -> None:
    """Count open spans and runs that were forgotten because too many were open."""
    _registry.add(semconv.SPANS_EVICTED, amount=count)


def export_error(signal: str) -> None:
    """Count a batch that an exporter of ``configure()`` lost. *signal* is one of :data:`semconv.SIGNALS`."""
    _registry.add(semconv.EXPORT_ERRORS, signal)


def guard_error(stage: str) -> None:
    """Count a fault of ours. Every reported fault comes here by way of :func:`otel_loopwatch.errors.on_fault`."""
    _registry.add(semconv.GUARD_ERRORS, stage)


on_fault(guard_error)


def tool_registered() -> None:
    """Count a decorated tool."""
    with _registry.lock:
        _registry.tools += 1
    _instrument_global()


def before_collection(callback: Callable[[], None]) -> None:
    """Have *callback* called before each look at the cells, without a lock held."""
    _registry.before_reading.append(callback)


def set_mode(mode: str) -> None:
    """Say in which mode the guard is, ``enforce`` or ``observe``: a label of ``loopwatch.build.info``."""
    _registry.mode = mode


def run_opened(run: OpenRun) -> None:
    """Show *run* in the gauges over open runs, while it is referenced elsewhere and not closed."""
    _registry.open_run(run)
    _instrument_global()


def run_closed(run: OpenRun, outcome: RunOutcome) -> None:
    """Take *run* out of the gauges and record how it ended.

    The exemplars name the run's span, or the one that stands for it, else the current one; none where the sampler
    dropped the trace, for nobody could look it up.
    """
    _registry.close_run(run)
    _registry.add(semconv.RUNS, outcome.agent, outcome.stop_reason.value)
    span: Span = getattr(run, "span", None) or getattr(run, "host_span", None) or trace.get_current_span()
    shown = span.get_span_context()
    ids: tuple[str, str] | None = None
    if shown.is_valid and shown.trace_flags.sampled:
        ids = (trace.format_trace_id(shown.trace_id), trace.format_span_id(shown.span_id))
    # From it the SDK takes the exemplars of its own histograms.
    context = trace.set_span_in_context(span)
    with _instrument_lock:
        instruments = list(_instrumented.values())
    for metric, value in (
        (semconv.RUN_TOOL_CALLS, float(outcome.tool_calls)),
        (semconv.RUN_SPEND_USD, float(outcome.spend_usd)),
        (semconv.RUN_TOKENS, float(outcome.input_tokens + outcome.output_tokens)),
        (semconv.RUN_DURATION, outcome.duration_s),
    ):
        (agent,) = _registry.observe(metric, outcome.agent, value, ids)
        for histograms in instruments:
            histograms[metric.name].record(value, {"agent": agent}, context)


def reset() -> None:
    """Forget everything that was counted. For tests; instruments that exist go on reading."""
    _registry.clear()


# --- reading ---------------------------------------------------------------------------------------------------------


def samples() -> Iterator[tuple[Metric, dict[str, str], Value]]:
    """Every series as (metric, labels, value), in the order of the table; a histogram's value is a ``Distribution``."""
    table = _registry.read()
    for metric in METRICS:
        for labels, value in table.get(metric.name, {}).items():
            yield metric, dict(zip(metric.labels, labels, strict=True)), value


class _Snapshot:
    """Lets the callbacks of one collection share one look at the cells.

    The SDK calls the callbacks of a reader one after the other and does not say when it begins. The first to find its
    metric taken already is the first of a new collection, and looks again.
    """

    def __init__(self) -> None:
        self._table: Table = {}

    def take(self, metric: Metric) -> list[Observation]:
        if metric.name not in self._table:
            self._table = _registry.read()
        series = self._table.pop(metric.name, {})
        return [
            otel.Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for labels, value in series.items()
            if not isinstance(value, Distribution)
        ]


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Create our instruments on *meter_provider*; a second time changes nothing. Never raises.

    Called without an argument when the first tool is decorated or the first run begins, so an application that sets a
    global meter provider, before or after, needs no call.

    Args:
        meter_provider: ``None`` is the global one, whichever that is or becomes. Set a provider as the global one
            *before* handing it over here: until then nobody can know that they are the same.
    """
    with telemetry_guard("metrics.instrument"), _instrument_lock:
        if meter_provider is None:
            _instrument_global()
        elif meter_provider not in _instrumented and not (_global_done and meter_provider is otel.get_meter_provider()):
            _instrumented[meter_provider] = _create(meter_provider)


def _instrument_global() -> None:
    global _global_done  # noqa: PLW0603 - the global provider may be a proxy now and another object later
    if _global_done:
        return
    with telemetry_guard("metrics.instrument"), _instrument_lock:
        if not _global_done:
            _global_done = True
            provider = otel.get_meter_provider()
            if provider not in _instrumented:
                _instrumented[provider] = _create(provider)


def _create(provider: MeterProvider) -> _Histograms:
    meter = provider.get_meter(SCOPE, __version__)
    snapshot = _Snapshot()
    histograms: _Histograms = {}
    for metric in METRICS:
        name, unit, description = metric.name, metric.unit, metric.description
        if metric.kind == "histogram":
            histograms[name] = meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=metric.buckets
            )
        elif metric.kind == "counter":
            meter.create_observable_counter(name, [_callback(snapshot, metric)], unit, description)
        else:
            meter.create_observable_gauge(name, [_callback(snapshot, metric)], unit, description)
    return histograms


def _callback(snapshot: _Snapshot, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        observations: list[Observation] = []
        with telemetry_guard("metrics.collect"):
            observations = snapshot.take(metric)
        return observations  # noqa: RET504 - the guard may have stopped what is above

    return observe


def prometheus_collector() -> Collector:
    """A collector for a ``prometheus_client`` registry: ``REGISTRY.register(prometheus_collector())``.

    It shows the names, labels and values that ``opentelemetry-exporter-prometheus`` would (without its scope labels),
    and on the buckets of ``loopwatch.run.*`` the trace of the last run that fell into each: a scraper that asks for
    OpenMetrics gets these exemplars.
    """
    from prometheus_client import core  # noqa: PLC0415 - only where a page is served
    from prometheus_client.registry import Collector  # noqa: PLC0415

    class LoopwatchCollector(Collector):
        def collect(self) -> Iterable[core.Metric]:
            families: dict[str, core.Metric] = {}
            with telemetry_guard("metrics.collect"):
                self._fill(families)
            return families.values()

        def _fill(self, families: dict[str, core.Metric]) -> None:
            for metric, labels, value in samples():
                name = metric.prometheus
                family = families.get(name)
                if family is None:
                    family = families[name] = core.Metric(name.removesuffix("_total"), metric.description, metric.kind)
                if isinstance(value, Distribution):
                    below = 0
                    exemplars = _registry.exemplars_of(metric, tuple(labels.values()))
                    bounds = (*map(str, metric.buckets), "+Inf")
                    for bound, count, exemplar in zip(bounds, value.counts, exemplars, strict=True):
                        below += count
                        family.add_sample(
                            f"{name}_bucket", {**labels, "le": bound}, below, exemplar=_shown_exemplar(exemplar)
                        )
                    family.add_sample(f"{name}_count", labels, below)
                    family.add_sample(f"{name}_sum", labels, value.total)
                else:
                    family.add_sample(name, labels, value)

    return LoopwatchCollector()


def _shown_exemplar(exemplar: Exemplar | None) -> core.Exemplar | None:
    if exemplar is None:
        return None
    from prometheus_client import core  # noqa: PLC0415 - only where a page is served

    ids = {"trace_id": exemplar.trace_id, "span_id": exemplar.span_id}
    return core.Exemplar(ids, exemplar.value, exemplar.at)
