"""The entry point by which ``opentelemetry-instrument`` and a declarative configuration file put the guard in.

``opentelemetry-instrumentation`` is imported here and in ``launch``, and is no dependency of this package: what looks
for the entry point brings it along.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_loopwatch import processor
from otel_loopwatch.errors import LoopwatchError, PolicyError
from otel_loopwatch.policy import PRESETS, Policy

__all__ = ["LoopwatchInstrumentor"]

logger = logging.getLogger("otel_loopwatch")

_OPTIONS = frozenset({"policy", "raise_on_start", "idle_limit_s"})
_OF_THE_LOADER = frozenset({"tracer_provider", "meter_provider", "logger_provider"})


class LoopwatchInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Puts a :class:`~otel_loopwatch.LoopwatchSpanProcessor` on the tracer provider that has been set up.

    ``instrument()`` takes that class's options: ``policy`` (a file or a preset's name), ``raise_on_start``,
    ``idle_limit_s``, and ``tracer_provider`` for another than the global one. In a declarative configuration file they
    stand under ``instrumentation/development: python: loopwatch:``. Whoever loads entry points goes on to the next one
    or gives up when one raises, so wrong options are an error in the log, and the application runs unguarded.
    """

    _processor: processor.LoopwatchSpanProcessor | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing needs to be installed besides."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        options = {name: value for name, value in kwargs.items() if name not in _OF_THE_LOADER}
        try:
            unknown = sorted(options.keys() - _OPTIONS)
            if unknown:
                raise PolicyError(f"no option of loopwatch; it has {', '.join(sorted(_OPTIONS))}", key=unknown[0])
            if options.get("policy") in PRESETS:
                options["policy"] = Policy.preset(options["policy"])
            provider = kwargs.get("tracer_provider") or trace.get_tracer_provider()
            self._processor = processor.attach(provider, **options)
        except (LoopwatchError, TypeError) as error:
            logger.error("otel-loopwatch: not guarding: %s", error)  # noqa: TRY400 - it is the user's, not ours

    def _uninstrument(self, **kwargs: Any) -> None:
        del kwargs
        attached, self._processor = self._processor, None
        if attached is not None:
            attached.shutdown()
